"""Recipes on a pretrained encoder: its weights are taken whole, and values that are not its own are refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_encoder
from hictl_helpers import framed_tokenizer
from safetensors.torch import load_file
from transformers import AutoConfig

from hf_xlsr.cli import main
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.runs.methods import get_method
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
# Of the quickstart recipe, on data and at a length that suit a tiny encoder.
SMALL = {"data.dev": "null", "data.test": "null", "data.max_length": "32", "max_steps": "1", "eval_strategy": '"no"'}


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

    def resolved(method: str, beside: str = "") -> dict[str, Any]:
        path = tmp_path / "toy.yaml"
        values = {"method": method, "train": write_pairs(), "encoder": encoder_folder, "more": METHODS[method]}
        path.write_text(RECIPE.format(**values, beside=beside), "utf-8")
        (recipe,) = load_runs(str(path), ["--output_dir", str(tmp_path / "run")])
        return recipe

    return resolved


def trained_encoder(folder: Path) -> dict[str, torch.Tensor]:
    state = load_file(folder / "training" / "final" / "model.safetensors")
    return {name.removeprefix("encoder."): value for name, value in state.items() if name.startswith("encoder.")}


@pytest.mark.parametrize("method", METHODS)
def test_values_that_repeat_the_encoder_s_go_with_it(
    method: str, encoder_folder: str, recipe_of: Any, tmp_path: Path
) -> None:
    train_recipe(recipe_of(method, "model_type: bert, hidden_size: 16, num_hidden_layers: 2"))
    trained, given = trained_encoder(tmp_path / "run"), load_file(Path(encoder_folder) / "model.safetensors")
    assert trained.keys() == given.keys()
    assert all(torch.equal(value, given[name]) for name, value in trained.items())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("beside", "sentence"),
    [
        ("num_hidden_layers: 4", "has num_hidden_layers 4 beside path .* whose encoder has 2; leave that out"),
        ("num_hidden_layers: 1", "has num_hidden_layers 1 beside path .* whose encoder has 2; leave that out"),
        ("hidden_act: relu", "has hidden_act 'relu' beside path .* whose encoder has 'gelu'; leave that out"),
        ("hidden_size: 32, intermediate_size: 8", "has hidden_size 32, intermediate_size 8 .* encoder has 16, 32;"),
        ("model_type: distilbert, dim: 16", "has model_type 'distilbert', dim 16 .* encoder has 'bert', None;"),
    ],
)
def test_other_values_are_refused_before_data_are_prepared(
    method: str, beside: str, sentence: str, recipe_of: Any, tmp_path: Path
) -> None:
    with pytest.raises(XlsrError, match=sentence):
        train_recipe(recipe_of(method, beside))
    assert not (tmp_path / "run").exists()  # so that the mended recipe may have the folder


@pytest.mark.parametrize("method", METHODS)
def test_a_path_that_holds_no_encoder_is_told_at_once(method: str, recipe_of: Any, tmp_path: Path) -> None:
    recipe = recipe_of(method)
    recipe["model"]["encoder"]["path"] = "nowhere"
    with pytest.raises(XlsrError, match="model.encoder.path 'nowhere'"):
        train_recipe(recipe)
    assert not (tmp_path / "run").exists()


def test_dropout_beside_the_path_is_lightweight_s_own(recipe_of: Any, tmp_path: Path) -> None:
    recipe = recipe_of("lightweight", "hidden_dropout_prob: 0.3, attention_probs_dropout_prob: 0.0")
    method = get_method("lightweight")
    config = method.build_model(recipe, method.prepare(recipe, tmp_path / "data", iter(()))).encoder.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.3, 0.0)
    for other in ("hictl", "cmlm"):
        with pytest.raises(XlsrError, match=r"dropout_prob 0.3 .* leave that out \(dropout is set by model.dropout\)"):
            train_recipe(recipe_of(other, "hidden_dropout_prob: 0.3"))


def test_the_quickstart_on_a_pretrained_encoder(
    encoder_folder: str, write_pairs: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**SMALL, "data.train.path": str(write_pairs()), "output_dir": str(tmp_path / "run")}
    options["model.encoder.path"] = encoder_folder
    command = ["train", "quickstart", *(word for name, value in options.items() for word in (f"--{name}", value))]
    assert main(command) == 1
    written = capsys.readouterr().err
    assert "Traceback" not in written
    assert "model.encoder has hidden_size 256, num_attention_heads 4, intermediate_size 512 beside path" in written
    assert "whose encoder has 16, 2, 32; leave that out, or where a ready recipe brings it, override it" in written
    assert "such as --model.encoder.hidden_size 16." in written
    own = ["--model.encoder.hidden_size", "16", "--num_attention_heads", "2", "--intermediate_size", "32"]
    assert main([*command, *own]) == 0
    trained, given = trained_encoder(tmp_path / "run"), load_file(Path(encoder_folder) / "model.safetensors")
    assert trained.keys() == given.keys()
