"""HICTL through recipes: it learns, and draws languages and words as it should."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hictl_helpers import framed_tokenizer, tiny_batch, tiny_hictl
from sentence_transformers import SentenceTransformer

from hf_xlsr.losses.word_contrast import draw_negative_words
from hf_xlsr.modeling.hictl import modeling_hictl
from hf_xlsr.runs.methods import get_method
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers import HictlTrainer, HictlTrainingArguments
from hf_xlsr.utils.errors import XlsrError

RECIPE = """
method: hictl
languages: [en, fr]
data:
  train: {{path: {train}}}
  monolingual: {monolingual}
  dev: {{path: {dev}}}
  test: {{path: {dev}}}
  max_length: 32
  cleaning: [normalize, drop_identical]
tokenizer: {{path: {tokenizer}}}
model:
  encoder:
    model_type: bert
    hidden_size: 16
    num_hidden_layers: 2
    num_attention_heads: 2
    intermediate_size: 32
    hidden_dropout_prob: {dropout}
    attention_probs_dropout_prob: {dropout}
    max_position_embeddings: 40
  sentence_temperature: 0.1
  negative_words: 16
training:
  max_steps: 24
  per_device_train_batch_size: 16
  learning_rate: 3e-3
  logging_steps: 4
  save_steps: 6
  precision: float32
evaluation: {{mined_pairs: 1}}
"""


@pytest.fixture
def recipe_of(write_pairs: Any, tmp_path: Path) -> Any:
    """Writes the recipe and gives its path."""
    framed_tokenizer().save_pretrained(tmp_path / "tokenizer")
    texts = tmp_path / "texts.tsv"
    rows = write_pairs("mono.tsv", 60, seed=7).read_text("utf-8").splitlines()
    texts.write_text("text\tlang\n" + "".join(f"{row.split(chr(9))[1]}\tfr\n" for row in rows), "utf-8")
    values = {
        "train": write_pairs(),
        "dev": write_pairs("dev.tsv", 30, seed=2),
        "tokenizer": tmp_path / "tokenizer",
        "monolingual": f"{{path: {texts}}}",
        "dropout": 0.1,
    }

    def write(name: str = "toy.yaml", more: str = "", **changes: Any) -> str:
        path = tmp_path / name
        path.write_text(RECIPE.format(**{**values, **changes}) + more, "utf-8")
        return str(path)

    return write


def test_run_learns(recipe_of: Any, tmp_path: Path) -> None:
    more = ["--output_dir", str(tmp_path / "run"), "--max_steps", "200", "--save_steps", "200"]
    (recipe,) = load_runs(recipe_of(dropout=0.0), more)
    metrics = train_recipe(recipe).metrics
    assert metrics["dev-tatoeba/en-fr/test/accuracy"] > 0.2  # 1 in 30 by chance
    log = json.loads((tmp_path / "run" / "training" / "log.json").read_text("utf-8"))
    losses = [entry for entry in log if "loss" in entry]
    for part in ("lm", "sentence", "word"):
        assert losses[-1][f"loss/{part}"] < losses[0][f"loss/{part}"], part
    for entry in losses:
        parts = sum(entry[f"loss/{part}"] for part in ("lm", "sentence", "word"))
        assert entry["loss"] == pytest.approx(parts, rel=1e-3)
    data = json.loads((tmp_path / "run" / "results.json").read_text("utf-8"))["settings"]["data"]
    assert data["monolingual"]["texts"] == 60
    encoder = SentenceTransformer(str(tmp_path / "run" / "model"))
    assert encoder.encode(["red house"]).shape == (1, 16)
    card = (tmp_path / "run" / "README.md").read_text("utf-8")
    assert "On Learning Universal Representations" in card and "monolingual sentences" in card


def test_languages_are_drawn_alike(recipe_of: Any, tmp_path: Path) -> None:
    """Of 200 French pairs and few English sentences, half of each epoch is English."""
    english = tmp_path / "english.tsv"
    english.write_text("text\tlang\n" + "red house\ten\n" * 20, "utf-8")
    path = recipe_of(monolingual=f"{{path: {english}}}")
    (recipe,) = load_runs(path, ["--output_dir", str(tmp_path / "run"), "--max_steps", "1"])
    method = get_method("hictl")
    sets = method.evaluation_sets(recipe)
    data = method.prepare(recipe, tmp_path / "data", method.evaluation_texts(recipe, sets))
    trainer = method.build_trainer(recipe, tmp_path / "training", data, [])
    _, sampler = trainer.train_batches()
    drawn = [data.train.groups[index] for batch in sampler for _, index in batch]
    shares = [drawn.count(group) / len(drawn) for group in range(2)]
    assert data.train.languages == ["en", "fr"] and abs(shares[0] - 0.5) < 0.05


def test_sentences_alone_are_enough(recipe_of: Any, tmp_path: Path) -> None:
    path = recipe_of()
    recipe = tmp_path / "alone.yaml"
    recipe.write_text(Path(path).read_text("utf-8").replace("  train: {path", "  held_out: {path"), "utf-8")
    (resolved,) = load_runs(str(recipe), ["--output_dir", str(tmp_path / "run"), "--max_steps", "2"])
    train_recipe(resolved)
    data = json.loads((tmp_path / "run" / "results.json").read_text("utf-8"))["settings"]["data"]
    assert data["pairs"] == 0 and data["monolingual"]["languages"] == ["fr"]
    (resolved,) = load_runs(str(recipe), ["--output_dir", str(tmp_path / "other"), "--tokenizer.path", "null"])
    with pytest.raises(XlsrError, match="data.monolingual"):
        train_recipe(resolved)


def test_unused_rows_are_no_negative_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, drawn = framed_tokenizer(), []
    model = tiny_hictl(len(tokenizer) + 64)
    data = SimpleNamespace(lengths=np.array([5] * 8), groups=np.zeros(8, int))
    arguments = HictlTrainingArguments(output_dir=str(tmp_path), use_cpu=True, precision="float32", max_steps=1)
    trainer = HictlTrainer(model, arguments, train_dataset=data, processing_class=tokenizer, max_length=32)

    def noted(*inputs: Any, **options: Any) -> torch.Tensor:
        drawn.append(draw_negative_words(*inputs, **options))
        return drawn[-1]

    monkeypatch.setattr(modeling_hictl, "draw_negative_words", noted)
    batch = tiny_batch(tokenizer)
    del batch["special_ids"]
    for _ in range(5):
        trainer.compute_loss(model, batch)
    pieces = torch.cat(drawn)
    assert pieces.numel() and int(pieces.max()) < len(tokenizer)
