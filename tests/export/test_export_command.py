"""`hf-xlsr export`: from runs and saved models of every class to folders that users load."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
    XlsrError,
)
from hf_xlsr.cli.export import configure_export, export
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe

TEXTS = ["one two three", "maison", "red blue stone river tree house"]


def run_export(*words: Any) -> int:
    parser = argparse.ArgumentParser()
    configure_export(parser)
    return export(parser.parse_args(list(map(str, words))), [])


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
def test_every_saved_model(name: str, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    model = MODELS[name](len(tokenizer)).eval()
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    assert run_export(tmp_path / "saved", "--output", tmp_path / "out") == 0
    loaded = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert loaded.max_seq_length == 32  # of the tokenizer; the encoder has 40 positions
    for language in ("en", "fr") if name in ("dual", "shared") else ("",):
        named = {"language": language} if language else {}
        for text in TEXTS:
            with torch.no_grad():
                vector = model.encode_sentences(tokenizer(text, return_tensors="pt").input_ids, **named)[0]
            expected = (vector / vector.norm()).numpy()
            task = {"task": language} if name == "dual" else {}
            np.testing.assert_allclose(loaded.encode(text, **task), expected, rtol=0, atol=1e-5)


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


def test_a_run_gives_the_folder_that_it_left(runs: Path, tmp_path: Path) -> None:
    assert run_export(runs / "one", "--output", tmp_path / "out") == 0
    ours, its = (SentenceTransformer(str(folder)) for folder in (tmp_path / "out", runs / "one" / "model"))
    np.testing.assert_array_equal(ours.encode(TEXTS), its.encode(TEXTS))
    assert ours.max_seq_length == 24 and len(list(ours.children())) == 2  # the recipe asks for no normalisation
    assert (tmp_path / "out" / "README.md").read_text("utf-8") == (runs / "one" / "model" / "README.md").read_text(
        "utf-8"
    )


def test_a_checkpoint_follows_the_recipe_of_its_run(runs: Path, tmp_path: Path) -> None:
    run_export(runs / "one" / "training" / "checkpoint-1", "--output", tmp_path / "out", "--max-length", 9)
    ours, its = (SentenceTransformer(str(folder)) for folder in (tmp_path / "out", runs / "one" / "model"))
    assert ours.max_seq_length == 9 and len(list(ours.children())) == 2
    assert not np.allclose(ours.encode(TEXTS), its.encode(TEXTS))


def test_the_card_tells_of_this_export(runs: Path, tmp_path: Path) -> None:
    run_export(runs / "one", "--output", tmp_path / "short", "--max-length", 9)
    card = (tmp_path / "short" / "README.md").read_text("utf-8")
    assert "Sentences over 9 pieces" in card and "24 pieces" not in card


def test_an_encoder_of_few_positions_cuts_there(tokenizer: Any) -> None:
    for name in ("lightweight", "dual"):
        model = MODELS[name](len(tokenizer))
        exported = model.to_sentence_transformer({"en": tokenizer, "fr": tokenizer} if name == "dual" else tokenizer)
        assert exported.max_seq_length == 40
        assert exported.encode(["house " * 300], **({"task": "en"} if name == "dual" else {})).shape[0] == 1


def test_a_run_with_adapters_and_an_encoder_for_each_language(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_export(runs / "dual", "--output", tmp_path / "out")
    ours, its = (SentenceTransformer(str(folder)) for folder in (tmp_path / "out", runs / "dual" / "model"))
    for language in ("en", "fr"):
        np.testing.assert_array_equal(ours.encode(TEXTS, task=language), its.encode(TEXTS, task=language))


def says(*words: Any) -> str:
    with pytest.raises(XlsrError) as raised:
        run_export(*words)
    return str(raised.value)


def test_what_is_no_sentence_encoder(tokenizer: Any, runs: Path, tmp_path: Path) -> None:
    output = ("--output", tmp_path / "out")
    HictlForSequenceClassification(HictlConfig(text_config=tiny_encoder(len(tokenizer)))).save_pretrained(
        tmp_path / "classifier"
    )
    said = says(tmp_path / "classifier", *output)
    assert "is a HictlForSequenceClassification, which makes no sentence encoder" in said
    for method in ("classification", "translation"):
        folder = tmp_path / method / "training"
        folder.mkdir(parents=True)
        recipe = {"method": method, "languages": ["en", "fr"], "model": {"start": "x"}, "task": {"labels": ["a", "b"]}}
        recipe |= {} if method == "classification" else {"task": None}
        (folder / "recipe.json").write_text(json.dumps(recipe), "utf-8")
        model = folder / "final"
        model.mkdir()
        (model / "model.safetensors").touch()
        assert f"is a run of {method}, which makes no sentence encoder" in says(tmp_path / method, *output)
    assert not (tmp_path / "out").exists()


def test_torn_models_and_tokenizers_for_languages_that_have_none(tokenizer: Any, tmp_path: Path) -> None:
    output = ("--output", tmp_path / "out")
    saved = tmp_path / "saved"
    MODELS["lightweight"](len(tokenizer)).save_pretrained(saved)
    tokenizer.save_pretrained(saved)
    assert "has one encoder for all languages; give --tokenizer one folder" in says(
        saved, *output, "--tokenizer", f"en={saved}"
    )
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    assert "saved' does not load (" in says(saved, *output)
    (saved / "config.json").write_text('{"architectures": [', "utf-8")
    assert "config.json does not read as JSON (" in says(saved, *output)


def test_error_sentences(tokenizer: Any, tiny_export: str, runs: Path, tmp_path: Path) -> None:
    output = ("--output", tmp_path / "out")
    assert "'nowhere' is no folder; give the output folder of a run" in says("nowhere", *output)
    assert "a folder with files in it; give a new one" in says(tiny_export, "--output", runs)
    assert "--output is '.', the folder where you are; give the name of a new one" in says(
        tiny_export, "--output", "."
    )
    assert "--max-length is for a run or a saved model" in says(tiny_export, *output, "--max-length", 9)
    assert "holds no trained model" in says(runs, *output)
    assert "--max-length is 41; use 2 or more, and no more than the encoder's 40 positions" in says(
        runs / "one", *output, "--max-length", 41
    )
    assert "holds adapters alone" in says(runs / "dual" / "training" / "final", *output)
    model = MODELS["dual"](len(tokenizer))
    model.save_pretrained(tmp_path / "bare")
    said = says(tmp_path / "bare", *output)
    assert "has no tokenizer beside it" in said and "--tokenizer; one for each language: en=FOLDER fr=FOLDER" in said
    assert "--tokenizer has 'fr'; write one folder" in says(tmp_path / "bare", *output, "--tokenizer", "en=a", "fr")
    model.encoders["en"].save_pretrained(tmp_path / "stock")
    assert "of class 'BertModel', which is not exported here" in says(tmp_path / "stock", *output)
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()


def test_tokenizers_by_name_and_a_training_that_goes_on(tokenizer: Any, tmp_path: Path, runs: Path) -> None:
    MODELS["dual"](len(tokenizer)).save_pretrained(tmp_path / "bare")
    tokenizer.save_pretrained(tmp_path / "words")
    named = [f"{language}={tmp_path / 'words'}" for language in ("en", "fr")]
    assert run_export(tmp_path / "bare", "--output", tmp_path / "out", "--tokenizer", *named) == 0
    assert SentenceTransformer(str(tmp_path / "out")).encode(TEXTS, task="fr").shape == (3, 8)
    going_on = tmp_path / "going_on" / "training"
    (going_on / "checkpoint-1").mkdir(parents=True)
    (going_on / "recipe.json").write_text((runs / "one" / "training" / "recipe.json").read_text("utf-8"), "utf-8")
    assert "has no finished training; give its checkpoint" in says(tmp_path / "going_on", "--output", tmp_path / "x")


def test_onnx_without_its_packages(tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    said = says(tiny_export, "--output", tmp_path / "out", "--onnx")
    assert "onnxscript" in said and "hf-xlsr[onnx]" in said
