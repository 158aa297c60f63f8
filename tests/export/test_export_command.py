"""`hf-xlsr export`: from runs and saved models of every class to folders that users load."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_helpers import failing
from conftest import tiny_encoder
from sentence_transformers import SentenceTransformer

from hf_xlsr import (
    CmlmConfig,
    CmlmModel,
    DualMomentumConfig,
    DualMomentumModel,
    HictlConfig,
    HictlForPreTraining,
    HictlForSequenceClassification,
    LightweightConfig,
    LightweightDualTransformer,
)
from hf_xlsr.cli import main
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe

PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"
TEXTS = ["one two three", "maison", "red blue stone river tree house"]


def run_export(*words: Any) -> int:
    return main(["export", *map(str, words)])


def loaded(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu")


def dual(names: list[str], size: int, **options: Any) -> DualMomentumModel:
    configs = dict.fromkeys(names, tiny_encoder(size))
    config = DualMomentumConfig(languages=["en", "fr"], queue_size=8, encoder_configs=configs, **options)
    return DualMomentumModel(config)


MODELS: dict[str, Callable[[int], Any]] = {
    "lightweight": lambda size: LightweightDualTransformer(LightweightConfig(text_config=tiny_encoder(size))),
    "hictl": lambda size: HictlForPreTraining(HictlConfig(text_config=tiny_encoder(size))),
    "cmlm": lambda size: CmlmModel(CmlmConfig(text_config=tiny_encoder(size), projections=3, pooling="max")),
    "dual": lambda size: dual(["en", "fr"], size, projection_dim=8),
    "shared": lambda size: dual(["shared"], size),
}


@pytest.mark.parametrize(
    ("name", "languages"),
    [("lightweight", [None]), ("hictl", [None]), ("cmlm", [None]), ("dual", ["en", "fr"]), ("shared", ["en", "fr"])],
)
def test_every_saved_model(name: str, languages: list[str | None], tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name](len(tokenizer)).eval()
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")

    assert run_export(tmp_path / "saved", "--output", tmp_path / "out") == 0

    exported = loaded(tmp_path / "out")
    assert exported.max_seq_length == 32  # of the tokenizer; the encoder has 40 positions
    for language in languages:
        task = language if name == "dual" else None
        options = {"language": language} if language else {}
        for text in TEXTS:
            ids = tokenizer(text, return_tensors="pt").input_ids
            with torch.no_grad():
                vector = model.encode_sentences(ids, **options)[0]
            expected = (vector / vector.norm()).numpy()
            np.testing.assert_allclose(exported.encode(text, task=task), expected, rtol=0, atol=1e-5)


RECIPE = """
method: lightweight
languages: [en, fr]
data: {{train: {{path: {train}}}, max_length: 24, cleaning: [normalize]}}
tokenizer: {{vocab_size: 80, algorithm: bpe}}
model:
  encoder: {{hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 32,
            max_position_embeddings: 40}}
training: {{max_steps: 2, per_device_train_batch_size: 16, save_steps: 1, precision: float32}}
export: {{normalize: false}}
"""
DUAL = """
method: dual_momentum
languages: [en, fr]
data: {{train: {{path: {train}}}, max_length: 24, cleaning: [normalize]}}
model: {{queue_size: 32, encoders: {{en: {encoder}, fr: {encoder}}}}}
training: {{max_steps: 2, per_device_train_batch_size: 16, precision: float32}}
adapters: {{rank: 2}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_encoder_folder: str, pairs: Any) -> Path:
    """Two finished runs: `one`, and `dual` with adapters."""
    home = tmp_path_factory.mktemp("runs")
    train = home / "pairs.tsv"
    train.write_text("".join(f"{pair['source']}\t{pair['target']}\n" for pair in pairs), "utf-8")
    for name, text in (("one", RECIPE), ("dual", DUAL)):
        recipe = home / f"{name}.yaml"
        recipe.write_text(text.format(train=train, encoder=tiny_encoder_folder), "utf-8")
        (run,) = load_runs(str(recipe), ["--output_dir", str(home / name)])
        train_recipe(run)
    return home


@pytest.mark.parametrize(("name", "tasks"), [("one", [None]), ("dual", ["en", "fr"])])
def test_run(name: str, tasks: list[str | None], runs: Path, tmp_path: Path) -> None:
    model = runs / name / "model"

    assert run_export(runs / name, "--output", tmp_path / "out") == 0

    exported = loaded(tmp_path / "out")
    of_run = loaded(model)
    for task in tasks:
        np.testing.assert_array_equal(exported.encode(TEXTS, task=task), of_run.encode(TEXTS, task=task))
    assert (tmp_path / "out" / "README.md").read_text("utf-8") == (model / "README.md").read_text("utf-8")


@pytest.mark.parametrize("folder", ["one", "one/training/checkpoint-1"])
def test_settings_of_the_recipe(folder: str, runs: Path, tmp_path: Path) -> None:
    assert run_export(runs / folder, "--output", tmp_path / "out") == 0
    exported = loaded(tmp_path / "out")
    assert exported.max_seq_length == 24
    assert len(exported) == 2  # the recipe asks for no normalisation


def test_link_out_of_an_export(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(runs / "one" / "model", tmp_path / "model")
    (tmp_path / "secret").write_text("private", "utf-8")
    (tmp_path / "model" / "note").symlink_to(tmp_path / "secret")
    assert "link" in failing(capsys, "export", str(tmp_path / "model"), "--output", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_checkpoint(runs: Path, tmp_path: Path) -> None:
    assert run_export(runs / "one" / "training" / "checkpoint-1", "--output", tmp_path / "out") == 0
    finished = loaded(runs / "one" / "model")
    assert not np.allclose(loaded(tmp_path / "out").encode(TEXTS), finished.encode(TEXTS))


@pytest.fixture
def bare(tokenizer: Any, tmp_path: Path) -> Path:
    """A model with an encoder for each language, without tokenizers; `words` has one."""
    MODELS["dual"](len(tokenizer)).save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "words")
    return tmp_path / "bare"


def test_tokenizer_for_each_language(bare: Path, tmp_path: Path) -> None:
    words = tmp_path / "words"
    tokenizers = ["--tokenizer", f"en={words}", f"fr={words}"]
    assert run_export(bare, "--output", tmp_path / "out", *tokenizers) == 0
    assert loaded(tmp_path / "out").encode(TEXTS, task="fr").shape == (3, 8)

    assert run_export(bare, "--output", tmp_path / "fr", "--route", "fr", *tokenizers) == 0
    assert loaded(tmp_path / "fr").encode(TEXTS).shape == (3, 8)


def test_tokenizer_for_one_language_of_two(bare: Path, tmp_path: Path) -> None:
    assert run_export(bare, "--output", tmp_path / "half", "--tokenizer", f"en={tmp_path / 'words'}") == 1


def test_checkpoint_with_its_tokenizers(bare: Path, tokenizer: Any, tmp_path: Path) -> None:
    """As DualMomentumTrainer saves it."""
    for language in ("en", "fr"):
        tokenizer.save_pretrained(bare / "tokenizers" / language)
    assert run_export(bare, "--output", tmp_path / "out") == 0
    assert loaded(tmp_path / "out").encode(TEXTS, task="fr").shape == (3, 8)


def test_one_route_of_a_run_has_no_card_of_all(runs: Path, tmp_path: Path) -> None:
    assert run_export(runs / "dual", "--route", "fr", "--output", tmp_path / "fr") == 0
    expected = loaded(runs / "dual" / "model").encode(TEXTS, task="fr")
    np.testing.assert_array_equal(loaded(tmp_path / "fr").encode(TEXTS), expected)
    assert not (tmp_path / "fr" / "README.md").exists()


@pytest.fixture(scope="module")
def invalid(runs: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that do not export, next to the runs."""
    home = tmp_path_factory.mktemp("invalid")
    for name in ("one", "dual"):
        (home / name).symlink_to(runs / name)

    config = HictlConfig(text_config=tiny_encoder(len(tokenizer)))
    HictlForSequenceClassification(config).save_pretrained(home / "classifier")
    MODELS["dual"](len(tokenizer)).save_pretrained(home / "bare")

    going_on = home / "going-on" / "training"
    (going_on / "checkpoint-1").mkdir(parents=True)
    shutil.copy(runs / "one" / "training" / "recipe.json", going_on)
    return home


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("one --output one", "--output"),
        ("dual/training/final", "adapters"),
        ("classifier", "HictlForSequenceClassification"),
        ("going-on", "checkpoint"),
        ("bare", "--tokenizer"),
    ],
)
def test_invalid_export(
    words: str, key: str, invalid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(invalid)
    output = () if "--output" in words else ("--output", str(tmp_path / "out"))
    assert key in failing(capsys, "export", *words.split(), *output)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_commands_and_code_of_the_page(
    tiny_model: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    text = PAGE.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    tiny_model.save_pretrained("outputs/quickstart")
    tokenizer.save_pretrained("outputs/quickstart")

    (command,) = re.findall(r"^hf-xlsr export (.*)$", text, re.MULTILINE)
    assert run_export(*shlex.split(command)) == 0
    for name in ("onnx/model.onnx", "onnx/model_quantized.onnx", "modules.json"):
        assert Path("my-encoder", name).is_file()

    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == 'SentenceTransformer("my-encoder")'
    assert printed[1].startswith("my-encoder/onnx against torch: difference ")
    assert "cosine_int8" in printed[1]

    namespace: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert len(blocks) == 4
    assert namespace["cosines"].min() > 0.98
    assert "'tatoeba/en-en/test/accuracy': 1.0" in capsys.readouterr().out
