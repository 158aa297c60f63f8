"""`hf-xlsr export`: from runs and saved models of every class to folders that users load."""

from __future__ import annotations

import re
import shlex
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


def dual(names: list[str], size: int, **options: Any) -> DualMomentumModel:
    configs = {name: {**tiny_encoder(size), "hidden_size": 16} for name in names}
    values = {"languages": ["en", "fr"], "queue_size": 8, "encoder_configs": configs, **options}
    return DualMomentumModel(DualMomentumConfig(**values))


MODELS: dict[str, Callable[[int], Any]] = {
    "lightweight": lambda size: LightweightDualTransformer(LightweightConfig(text_config=tiny_encoder(size))),
    "hictl": lambda size: HictlForPreTraining(HictlConfig(text_config=tiny_encoder(size))),
    "cmlm": lambda size: CmlmModel(CmlmConfig(text_config=tiny_encoder(size), projections=3, pooling="max")),
    "dual": lambda size: dual(["en", "fr"], size, projection_dim=8),
    "shared": lambda size: dual(["shared"], size),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_every_saved_model(name: str, tokenizer: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = MODELS[name](len(tokenizer)).eval()
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    assert run_export(tmp_path / "saved", "--output", tmp_path / "out") == 0
    loaded = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert loaded.max_seq_length == 32  # of the tokenizer; the encoder has 40 positions
    languages: list[dict[str, str]] = [{}]
    if name in ("dual", "shared"):
        languages = [{"language": "en"}, {"language": "fr"}]
    for language in languages:
        task = language.get("language") if name == "dual" else None
        for text in TEXTS:
            with torch.no_grad():
                vector = model.encode_sentences(tokenizer(text, return_tensors="pt").input_ids, **language)[0]
            expected = (vector / vector.norm()).numpy()
            np.testing.assert_allclose(loaded.encode(text, task=task), expected, rtol=0, atol=1e-5)


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
        (home / f"{name}.yaml").write_text(text.format(train=train, encoder=tiny_encoder_folder), "utf-8")
        train_recipe(load_runs(str(home / f"{name}.yaml"), ["--output_dir", str(home / name)])[0])
    return home


def test_run(runs: Path, tmp_path: Path) -> None:
    for name, tasks in (("one", [None]), ("dual", ["en", "fr"])):
        exported_folder = tmp_path / name
        run_folder = runs / name / "model"
        assert run_export(runs / name, "--output", exported_folder) == 0
        exported = SentenceTransformer(str(exported_folder))
        of_run = SentenceTransformer(str(run_folder))
        for task in tasks:
            np.testing.assert_array_equal(exported.encode(TEXTS, task=task), of_run.encode(TEXTS, task=task))
        assert (exported_folder / "README.md").read_text("utf-8") == (run_folder / "README.md").read_text("utf-8")

    exported = SentenceTransformer(str(tmp_path / "one"))
    assert exported.max_seq_length == 24
    assert len(exported) == 2  # the recipe asks for no normalisation


def test_checkpoint(runs: Path, tmp_path: Path) -> None:
    run_export(runs / "one" / "training" / "checkpoint-1", "--output", tmp_path / "out")
    exported = SentenceTransformer(str(tmp_path / "out"))
    finished = SentenceTransformer(str(runs / "one" / "model"))
    assert exported.max_seq_length == 24
    assert len(exported) == 2
    assert not np.allclose(exported.encode(TEXTS), finished.encode(TEXTS))


def test_tokenizer_for_each_language(tokenizer: Any, tmp_path: Path) -> None:
    MODELS["dual"](len(tokenizer)).save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "words")
    named = [f"{language}={tmp_path / 'words'}" for language in ("en", "fr")]
    assert run_export(tmp_path / "bare", "--output", tmp_path / "out", "--tokenizer", *named) == 0
    assert SentenceTransformer(str(tmp_path / "out")).encode(TEXTS, task="fr").shape == (3, 8)
    assert run_export(tmp_path / "bare", "--output", tmp_path / "fr", "--tokenizer", *named, "--route", "fr") == 0
    assert SentenceTransformer(str(tmp_path / "fr")).encode(TEXTS).shape == (3, 8)
    assert run_export(tmp_path / "bare", "--output", tmp_path / "half", "--tokenizer", named[0]) == 1


def test_checkpoint_with_its_tokenizers(tokenizer: Any, tmp_path: Path) -> None:  # as DualMomentumTrainer saves it
    MODELS["dual"](len(tokenizer)).save_pretrained(tmp_path / "checkpoint-1")
    for name in ("en", "fr"):
        tokenizer.save_pretrained(tmp_path / "checkpoint-1" / "tokenizers" / name)
    assert run_export(tmp_path / "checkpoint-1", "--output", tmp_path / "out") == 0
    assert SentenceTransformer(str(tmp_path / "out")).encode(TEXTS, task="fr").shape == (3, 8)


def test_one_route_of_a_run_has_no_card_of_all(runs: Path, tmp_path: Path) -> None:
    assert run_export(runs / "dual", "--route", "fr", "--output", tmp_path / "fr") == 0
    route = SentenceTransformer(str(tmp_path / "fr"))
    whole = SentenceTransformer(str(runs / "dual" / "model"))
    np.testing.assert_array_equal(route.encode(TEXTS), whole.encode(TEXTS, task="fr"))
    assert not (tmp_path / "fr" / "README.md").exists()


@pytest.fixture(scope="module")
def invalid(runs: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders that do not export, next to the runs."""
    home = tmp_path_factory.mktemp("invalid")
    for name in ("one", "dual"):
        (home / name).symlink_to(runs / name)
    config = HictlConfig(text_config=tiny_encoder(len(tokenizer)))
    HictlForSequenceClassification(config).save_pretrained(home / "classifier")
    going_on = home / "going-on" / "training"
    (going_on / "checkpoint-1").mkdir(parents=True)
    (going_on / "recipe.json").write_bytes((runs / "one" / "training" / "recipe.json").read_bytes())
    MODELS["dual"](len(tokenizer)).save_pretrained(home / "bare")
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
    monkeypatch.chdir(tmp_path)
    tiny_model.save_pretrained("outputs/quickstart")
    tokenizer.save_pretrained("outputs/quickstart")
    text = PAGE.read_text("utf-8")
    (command,) = re.findall(r"^hf-xlsr export (.*)$", text, re.MULTILINE)
    assert run_export(*shlex.split(command)) == 0
    names = [path.relative_to("my-encoder").as_posix() for path in Path("my-encoder").rglob("*")]
    for name in ("onnx/model.onnx", "onnx/model_quantized.onnx", "modules.json"):
        assert name in names
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == 'SentenceTransformer("my-encoder")'
    assert printed[1].startswith("my-encoder/onnx against torch: difference ")
    for measure in ("cosine_int8 (lowest ", "mean ", "texts 24", "languages de, en"):
        assert measure in printed[1]
    namespace: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert len(blocks) == 4 and namespace["cosines"].min() > 0.98
    assert "'tatoeba/en-en/test/accuracy': 1.0" in capsys.readouterr().out


@pytest.mark.slow
def test_openvino_files_alone(tiny_export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for package in ("onnx", "onnxscript", "openvino", "nncf"):
        pytest.importorskip(package)
    output = tmp_path / "encoder"
    assert run_export(tiny_export, "--output", str(output), "--openvino") == 0
    assert (output / "openvino" / "openvino_model.xml").is_file()
    assert not (output / "onnx").exists()
    assert f"{output / 'openvino'} against torch: difference " in capsys.readouterr().out
