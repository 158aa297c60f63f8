"""Starting a training from the weights of another one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ENGLISH, FRENCH, tiny_encoder
from safetensors import safe_open
from story_helpers import assert_equal
from torch.nn.functional import normalize
from transformers import AutoTokenizer

from hf_xlsr import DualMomentumConfig, DualMomentumModel
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.encoders.reading import weights_folder
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.methods.base import start_from
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError

LANGUAGES = ("en", "zh")
RECIPE = """
method: {method}
languages: [en, fr]
data: {{train: {{path: {train}}}, max_length: 32, cleaning: [normalize]}}
tokenizer: {{vocab_size: 60, algorithm: bpe, frame: true}}
model:
  encoder: {{model_type: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16,
            max_position_embeddings: 40}}
training: {{max_steps: 2, per_device_train_batch_size: 8, save_strategy: "no", precision: float32}}
"""
# What each method needs on so small a vocabulary; CMLM trains on pairs alone here.
METHODS = {
    "lightweight": [],
    "hictl": ["--negative_words", "8"],
    "cmlm": ["--cmlm_weight", "0.0", "--retrieval_weight", "1.0"],
}


def dual(seed: int, vocab_size: int = 30, **options: Any) -> DualMomentumModel:
    torch.manual_seed(seed)
    configs = {language: tiny_encoder(vocab_size) for language in LANGUAGES}
    config = DualMomentumConfig(languages=list(LANGUAGES), encoder_configs=configs, **{"queue_size": 8, **options})
    return DualMomentumModel(config)


def filled(seed: int, **options: Any) -> DualMomentumModel:
    """One whose queues hold keys, and whose momentum encoders have moved away from the encoders."""
    model = dual(seed, **options)
    with torch.no_grad():
        for parameter in model.encoders.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for language in LANGUAGES:
        model.enqueue(
            language, normalize(torch.randn(8, model.config.hidden_size), dim=1), torch.arange(8), torch.arange(8)
        )
    return model


def gap(model: DualMomentumModel) -> float:
    return max(float((base - average).detach().abs().max()) for base, average in model.momentum_pairs())


@pytest.mark.parametrize(
    ("before", "now"),
    [({"queue_storage": "int8"}, {}), ({}, {"queue_size": 16})],
)
def test_other_queues_begin_empty(before: dict[str, Any], now: dict[str, Any], tmp_path: Path) -> None:
    first, second = filled(1, **before), dual(2, **now)
    first.save_pretrained(tmp_path)
    start_from(second, tmp_path)
    assert_equal(first.encoders.state_dict(), second.encoders.state_dict())
    assert all(queue.count == 0 for queue in second.queues.values())
    assert gap(second) == pytest.approx(gap(first)) and gap(first) > 0


def test_missing_momentum_encoders_are_copies(tmp_path: Path) -> None:
    first = dual(1, queue_size=0, in_batch_negatives=True, use_momentum=False)
    first.save_pretrained(tmp_path / "without")
    second = dual(2)
    start_from(second, tmp_path / "without")
    assert gap(second) == 0
    assert_equal(first.encoders.state_dict(), second.encoders.state_dict())
    assert not any(parameter.requires_grad for parameter in second.momentum_encoders.parameters())


@pytest.fixture
def recipe_of(tmp_path: Path) -> Any:
    """A resolved recipe of a method on a corpus of given words, without the path of a tokenizer."""

    def resolved(name: str, words: list[str], method: str, *more: str) -> Method:
        rng, corpus, path = random.Random(1), tmp_path / f"{name}.tsv", tmp_path / f"{name}.yaml"
        rows = [" ".join(rng.choices(words, k=5)) + "\t" + " ".join(rng.choices(words, k=5)) for _ in range(100)]
        corpus.write_text("\n".join(rows) + "\n", "utf-8")
        path.write_text(RECIPE.format(method=method, train=corpus), "utf-8")
        (run,) = load_runs(str(path), ["--output_dir", str(tmp_path / name), *METHODS[method], *more])
        return run

    return resolved


@pytest.mark.sample(2)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("adapters", ["0", "2"])
def test_tokenizer_follows_the_embeddings(method: str, adapters: str, recipe_of: Any, tmp_path: Path) -> None:
    train_recipe(recipe_of("one", ENGLISH, method, "--adapters.rank", adapters))
    folder = weights_folder(tmp_path / "one")
    assert folder.name == ("merged" if adapters == "2" else "final")
    second = recipe_of("two", FRENCH, method, "--start_from", str(tmp_path / "one"), "--vocab_size", "50")
    data = second.read_data(SeenHashes())
    vocabulary = AutoTokenizer.from_pretrained(str(tmp_path / "one" / "training" / "final")).get_vocab()
    assert len(vocabulary) == 60 and data.tokenizer.get_vocab() == vocabulary
    table = second.build_model(data).get_input_embeddings().weight
    with safe_open(folder / "model.safetensors", "pt") as content:
        assert torch.equal(table, content.get_tensor("encoder.embeddings.word_embeddings.weight"))


def test_weights_without_a_tokenizer(recipe_of: Any, tmp_path: Path) -> None:
    first = recipe_of("one", ENGLISH, "hictl")
    data = first.read_data(SeenHashes())
    first.build_model(data).save_pretrained(tmp_path / "weights")
    more = ["--start_from", str(tmp_path / "weights")]
    with pytest.raises(XlsrError, match="tokenizer.path"):
        train_recipe(recipe_of("two", FRENCH, "hictl", *more))
    data.tokenizer.save_pretrained(tmp_path / "tokenizer")
    named = recipe_of("three", FRENCH, "hictl", *more, "--tokenizer.path", str(tmp_path / "tokenizer"))
    assert named.read_data(SeenHashes()).tokenizer.get_vocab() == (data.tokenizer.get_vocab())
