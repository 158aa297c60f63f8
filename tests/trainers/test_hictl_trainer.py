"""HICTL through recipes: it learns, resumes exactly, trains alike on two processes, and starts from other weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hictl_helpers import framed_tokenizer, tiny_batch, tiny_hictl
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.losses.word_contrast import draw_negative_words
from hf_xlsr.modeling.hictl import modeling_hictl
from hf_xlsr.runs.methods import get_method
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers import HictlTrainer, HictlTrainingArguments
from hf_xlsr.trainers.base import last_whole_checkpoint
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


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "training" / "final" / "model.safetensors")


def test_a_run_learns_and_leaves_an_encoder(recipe_of: Any, tmp_path: Path) -> None:
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


def test_stopped_and_resumed_is_bit_equal(recipe_of: Any, tmp_path: Path) -> None:
    path = recipe_of()
    for name in ("whole", "stopped"):
        (recipe,) = load_runs(path, ["--output_dir", str(tmp_path / name)])
        train_recipe(recipe)
    training = tmp_path / "stopped" / "training"
    for folder in training.glob("checkpoint-*"):
        if int(folder.name.rsplit("-", 1)[1]) > 12:
            shutil.rmtree(folder)
    shutil.rmtree(training / "final")
    checkpoint = last_whole_checkpoint(training)
    assert checkpoint is not None and checkpoint.name == "checkpoint-12"
    (recipe,) = load_runs(path, ["--output_dir", str(tmp_path / "stopped")])
    train_recipe(recipe)
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "stopped")
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


STAGES = """
stages:
  - {name: first, set: {model: {word_weight: 0.0}, training: {max_steps: 6}}}
  - {name: second, set: {training: {max_steps: 6, learning_rate: 0.0}}}
"""


def test_a_stage_starts_where_the_one_before_ended(
    recipe_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recipe_of(more=STAGES)
    command = ["train", path, "--output_dir", str(tmp_path / "run")]
    assert main(command) == 0
    first, second = weights(tmp_path / "run" / "first"), weights(tmp_path / "run" / "second")
    for name, value in first.items():  # the second learns nothing, at a learning rate of 0
        assert torch.equal(value, second[name]), name
    capsys.readouterr()
    assert main(command) == 0
    assert capsys.readouterr().out.count(" is done: ") == 2


def test_starting_from_a_run_or_a_folder(recipe_of: Any, tmp_path: Path) -> None:
    path = recipe_of()
    (recipe,) = load_runs(path, ["--output_dir", str(tmp_path / "one"), "--max_steps", "2"])
    train_recipe(recipe)
    for start in (tmp_path / "one", tmp_path / "one" / "training" / "final"):
        more = ["--start_from", str(start), "--max_steps", "1", "--learning_rate", "0.0", "--overwrite", "true"]
        (again,) = load_runs(path, ["--output_dir", str(tmp_path / "two"), *more])
        train_recipe(again)
        for name, value in weights(tmp_path / "one").items():
            assert torch.equal(value, weights(tmp_path / "two")[name]), name


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--start_from", "{folder}/nowhere"], "start_from '.*nowhere' holds no trained weights"),
        (["--start_from", "{folder}/one", "--hidden_size", "8"], "use the same encoder and vocabulary in both"),
    ],
)
def test_starting_mistakes(more: list[str], message: str, recipe_of: Any, tmp_path: Path) -> None:
    path = recipe_of()
    (recipe,) = load_runs(path, ["--output_dir", str(tmp_path / "one"), "--max_steps", "1"])
    train_recipe(recipe)
    more = [word.format(folder=tmp_path) for word in more]
    (recipe,) = load_runs(path, ["--output_dir", str(tmp_path / "two"), *more])
    with pytest.raises(XlsrError, match=message):
        train_recipe(recipe)


def test_a_tokenizer_without_frame_is_refused(recipe_of: Any, tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path / "plain")
    (recipe,) = load_runs(recipe_of(tokenizer=tmp_path / "plain"), ["--output_dir", str(tmp_path / "run")])
    with pytest.raises(XlsrError, match="puts special pieces around a sentence"):
        train_recipe(recipe)


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
    with pytest.raises(XlsrError, match="has data.monolingual but no data.train, on which a tokenizer is trained"):
        train_recipe(resolved)


def test_mistakes_of_the_recipe_are_told(recipe_of: Any, tmp_path: Path) -> None:
    (recipe,) = load_runs(recipe_of(), ["--output_dir", str(tmp_path / "a"), "--data.max_length", "64"])
    with pytest.raises(XlsrError, match=r"data.max_length is 64 pieces but the encoder has 40 positions"):
        train_recipe(recipe)
    (recipe,) = load_runs(recipe_of(), ["--output_dir", str(tmp_path / "b"), "--per_device_train_batch_size", "1"])
    with pytest.raises(XlsrError, match="a batch of one pair has no negatives"):
        train_recipe(recipe)
    with pytest.raises(XlsrError, match="word_query is 'both'"):
        load_runs(recipe_of(), ["--word_query", "both"])


def test_rows_of_the_table_without_a_piece_are_no_negative_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_tokenizer_without_mask_is_refused(recipe_of: Any, tmp_path: Path) -> None:
    tokenizer = framed_tokenizer()
    tokenizer.mask_token = None
    tokenizer.save_pretrained(tmp_path / "maskless")
    (recipe,) = load_runs(recipe_of(tokenizer=tmp_path / "maskless"), ["--output_dir", str(tmp_path / "run")])
    with pytest.raises(XlsrError, match="needs a tokenizer with a mask token"):
        train_recipe(recipe)
    assert not (tmp_path / "run" / "training").exists()  # told before data are prepared


def test_a_training_that_its_protocol_ended_early_is_over(recipe_of: Any, tmp_path: Path) -> None:
    path = recipe_of()
    (recipe,) = load_runs(path, ["--output_dir", str(tmp_path / "run"), "--max_steps", "6"])
    train_recipe(recipe)
    before = weights(tmp_path / "run")
    state = tmp_path / "run" / "training" / "checkpoint-6" / "trainer_state.json"
    content = json.loads(state.read_text("utf-8"))
    state.write_text(json.dumps({**content, "max_steps": 12}), "utf-8")  # as early stopping leaves it
    (recipe,) = load_runs(path, ["--output_dir", str(tmp_path / "run"), "--max_steps", "6"])
    train_recipe(recipe)
    for name, value in weights(tmp_path / "run").items():
        assert torch.equal(value, before[name]), name
    assert json.loads((tmp_path / "run" / "results.json").read_text("utf-8"))["settings"]["steps"] == 6
