"""Recipes on a pretrained encoder: its weights are taken whole, and values that are not its own are refused at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_encoder
from hictl_helpers import framed_tokenizer
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig

sys.path.append(str(Path(__file__).resolve().parents[1] / "encoders"))
from given_encoders import build, vectors  # noqa: E402

from hf_xlsr.cli import main
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError

RECIPE = """
method: {method}
languages: [en, fr]
data: {{train: {{path: {train}}}, max_length: 32, cleaning: [normalize]}}
model: {{encoder: {{path: {encoder}, {beside}}}{more}}}
training: {{max_steps: 1, per_device_train_batch_size: 16, learning_rate: 0.0, save_strategy: "no", precision: float32}}
"""
METHODS = {"lightweight": "", "hictl": ", negative_words: 8", "cmlm": ""}


@pytest.fixture
def encoder_folder(tmp_path: Path) -> str:
    """A pretrained encoder and its tokenizer, as folders of the Hub hold them."""
    torch.manual_seed(0)
    tokenizer, folder = framed_tokenizer(), tmp_path / "encoder"
    encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer)))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def recipe_of(encoder_folder: str, write_pairs: Any, tmp_path: Path) -> Any:
    """A resolved recipe with values beside the path of its encoder."""

    def resolved(method: str, beside: str = "") -> Method:
        path = tmp_path / "toy.yaml"
        values = {"method": method, "train": write_pairs(), "encoder": encoder_folder, "more": METHODS[method]}
        path.write_text(RECIPE.format(**values, beside=beside), "utf-8")
        (recipe,) = load_runs(str(path), ["--output_dir", str(tmp_path / "run")])
        return recipe

    return resolved


@pytest.mark.sample(1)
@pytest.mark.parametrize("method", METHODS)
def test_same_values_are_accepted(method: str, encoder_folder: str, recipe_of: Any, tmp_path: Path) -> None:
    train_recipe(recipe_of(method, "model_type: bert, hidden_size: 16, num_hidden_layers: 2"))
    state = load_file(tmp_path / "run" / "training" / "final" / "model.safetensors")
    trained = {name.removeprefix("encoder."): state[name] for name in state if name.startswith("encoder.")}
    given = load_file(Path(encoder_folder) / "model.safetensors")
    assert trained.keys() == given.keys()
    assert all(torch.equal(value, given[name]) for name, value in trained.items())


@pytest.mark.parametrize(
    ("method", "beside", "key"),
    [
        ("lightweight", "num_hidden_layers: 4", "num_hidden_layers"),
        ("cmlm", "hidden_act: relu", "hidden_act"),
        ("hictl", "model_type: distilbert, dim: 16", "model_type"),
        ("cmlm", "hidden_dropout_prob: 0.3", "dropout"),
    ],
)
def test_other_values_are_refused(method: str, beside: str, key: str, recipe_of: Any, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=key):
        train_recipe(recipe_of(method, beside))
    assert not (tmp_path / "run").exists()  # the corrected recipe may have the folder


@pytest.mark.parametrize("recipe", ["finetune", pytest.param("start_distillation", marks=pytest.mark.slow)])
def test_a_static_embedding_is_trained_and_exported(recipe: str, write_pairs: Any, tmp_path: Path) -> None:
    given = build("static", tmp_path / "raw")
    given.save(str(tmp_path / "given"))
    words = ["--train", write_pairs(), "--dev", "null", "--languages", "en,fr", "--encoder", tmp_path / "given"]
    if recipe == "start_distillation":
        build("bert_mean", tmp_path / "raw").save(str(tmp_path / "teacher"))
        words += ["--teacher.path", tmp_path / "teacher"]
    words += ["--output_dir", tmp_path / "run", "--max_steps", "1", "--learning_rate", "0"]

    assert main(["train", recipe, *map(str, words)]) == 0

    exported = SentenceTransformer(str(tmp_path / "run" / "model"), device="cpu")
    assert torch.equal(vectors(exported), vectors(given))
