"""Every verb takes every kind of folder that holds a model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_helpers import failing
from conftest import make_pairs, tiny_encoder
from test_cli import TOY

from hf_xlsr import LightweightConfig, LightweightDualTransformer
from hf_xlsr.cli import main
from hf_xlsr.encoders.loading import find_model, load_encoder
from hf_xlsr.evaluation.rows import both_sides
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError

DATA = ["--data", "pairs.tsv", "--columns", "source=en,target=fr", "--languages", "en,fr"]
VERBS = {
    "evaluate": ["evaluate", "MODEL", "--protocol", "tatoeba", *DATA, "--output", "out"],
    "mine": ["mine", "en.txt", "fr.txt", "--model", "MODEL", "--languages", "en,fr", "--output", "out.tsv"],
    "score": ["score", *DATA[1:], "--model", "MODEL", "--output", "out.tsv"],
    "negatives": ["negatives", *DATA[1:], "--model", "MODEL", "--per-pair", "1", "--output", "out.parquet"],
    "debias": ["debias", "fit", "MODEL", "--texts", "en=en.txt", "fr=fr.txt", "--output", "out"],
    "plot": ["plot", "tsne", "MODEL", *DATA, "--output", "out.png"],
    "export": ["export", "MODEL", "--output", "out"],
    "push": ["push", "MODEL", "--repo", "me/model", "--yes"],
    "card": ["card", "MODEL", "--license", "mit"],
}
KINDS = ("run", "checkpoint", "saved", "export", "stock")


def table_lines(pairs: list[dict[str, str]]) -> list[str]:
    return [f"{pair['source']}\t{pair['target']}" for pair in pairs]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Path:
    """A run, a checkpoint, models of every kind, and files with texts."""
    home = tmp_path_factory.mktemp("named")
    pairs = make_pairs(40)
    english, french = both_sides(pairs)
    write_tsv(home / "train.tsv", table_lines(make_pairs(200)))
    write_tsv(home / "test.tsv", table_lines(make_pairs(12, 9)))
    write_tsv(home / "pairs.tsv", ["en\tfr", *table_lines(pairs)])
    write_tsv(home / "en.txt", english)
    write_tsv(home / "fr.txt", french)

    recipe = home / "one.yaml"
    recipe.write_text(TOY.format(train=home / "train.tsv", test=home / "test.tsv"), "utf-8")
    words = ["--data.prompt", "one: ", "--save_strategy", "steps", "--output_dir", str(home / "run")]
    (run,) = load_runs(str(recipe), words)
    train_recipe(run)
    checkpoint = home / "run" / "training" / "kept"
    shutil.move(home / "run" / "training" / "checkpoint-4", checkpoint)
    (home / "checkpoint").symlink_to(checkpoint)
    shutil.copytree(home / "run" / "model", home / "export")
    (home / "export" / "README.md").unlink()

    torch.manual_seed(0)
    model = LightweightDualTransformer(LightweightConfig(text_config=tiny_encoder(len(tokenizer))))
    model.save_pretrained(home / "saved")
    model.encoder.save_pretrained(home / "stock")
    tokenizer.save_pretrained(home / "saved")
    tokenizer.save_pretrained(home / "stock")
    return home


def write_tsv(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines) + "\n", "utf-8")


@pytest.mark.sample(20)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", list(VERBS))
def test_verb_takes_folder(
    verb: str, kind: str, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in folders.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    shutil.copytree(folders / "run", tmp_path / "run")
    if kind != "run":
        shutil.copytree(folders / kind, tmp_path / kind)
    name = "run/training/kept" if kind == "checkpoint" else kind
    monkeypatch.chdir(tmp_path)
    uploads: list[Any] = []
    monkeypatch.setattr("hf_xlsr.export.hub.push_uploads", lambda made, **_: uploads.extend(made) or [])

    assert main([name if word == "MODEL" else word for word in VERBS[verb]]) == 0

    if verb == "push":
        assert "modules.json" in uploads[0].files
        assert 'SentenceTransformer("me/model")' in uploads[0].card
    if verb == "card":
        card = (Path(find_model(name).path) / "README.md").read_text("utf-8")
        assert "license: mit" in card
        assert "SentenceTransformer(" in card
    if verb == "export":
        before = load_encoder(name, "cpu").encode(["one two"])
        exported = load_encoder("out", "cpu").encode(["one two"])
        np.testing.assert_allclose(exported, before, atol=1e-6)


def test_card_of_a_hub_model_needs_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)  # a folder me/model would hide the model
    assert "--output" in failing(capsys, "card", "me/model", "--license", "mit")
    assert not list(tmp_path.iterdir())


def test_model_of_a_run(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_XLSR_HOMES", str(folders))
    assert find_model("$HF_XLSR_HOMES/run").path == str(folders / "run" / "model")

    weights = find_model("$HF_XLSR_HOMES/run", trained=True)
    assert weights.model_type == "lightweight_dual_transformer"
    assert load_encoder(weights.path).default_prompt_name == "default"

    monkeypatch.delenv("HF_XLSR_HOMES")
    with pytest.raises(XlsrError, match="HF_XLSR_HOMES"):
        find_model("$HF_XLSR_HOMES/run")
