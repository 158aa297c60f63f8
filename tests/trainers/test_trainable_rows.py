"""`trainable_rows`: only the token embeddings of the training data are trained."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from seven_trainers import model_of, rows_of, trainer_of
from torch import nn
from transformers import T5Config, T5EncoderModel

from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.trainable_rows import TrainableRows, tables_of, train_rows
from hf_xlsr.trainers.checkpoints import weight_bytes
from hf_xlsr.trainers.row_selection import rows_hint
from hf_xlsr.utils.errors import XlsrError

KINDS = ("DualMomentum", "Distillation", "FineTune")
REFUSING = ("Lightweight", "Hictl", "Cmlm", "Translation")


def few_rows(kind: str) -> list[dict[str, Any]]:
    """Rows that lack many tokens of the vocabulary."""
    return rows_of(kind, 4) * 4


def trained(kind: str, folder: Path, **options: Any) -> Any:
    trainer = trainer_of(kind, folder, rows=few_rows(kind), settings={"weight_decay": 0.0, **options})
    trainer.train()
    return trainer


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_training_equals_that_of_the_whole_table(kind: str, max_grad_norm: float, optim: str, tmp_path: Path) -> None:
    options = {"max_grad_norm": max_grad_norm, "optim": optim}
    whole = trained(kind, tmp_path / "whole", **options).model
    model = trained(kind, tmp_path / "rows", trainable_rows=True, **options).model

    tables = list(tables_of(model))
    assert tables
    for table in tables:
        assert 0 < len(table.ids) < table.num_embeddings
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_decay_leaves_other_rows_alone(kind: str, tmp_path: Path) -> None:
    before = model_of(kind)
    settings = {"weight_decay": 0.1, "trainable_rows": True}
    trainer = trainer_of(kind, tmp_path, model=copy.deepcopy(before), rows=few_rows(kind), settings=settings)
    trainer.train()
    table = next(tables_of(trainer.model))
    frozen = torch.ones(table.num_embeddings, dtype=torch.bool)
    frozen[table.ids] = False

    first = next(iter(before.trained_encoders().values()))[0].get_input_embeddings().weight
    assert torch.equal(table.weight[frozen], first[frozen])
    assert not torch.equal(table.weight[~frozen], first[~frozen])


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimiser_and_the_momentum_copy_hold_trained_rows_alone(kind: str, tmp_path: Path) -> None:
    trainer = trained(kind, tmp_path, trainable_rows=True)
    for table in tables_of(trainer.model):
        assert table.frozen.grad is None
        assert table.frozen not in trainer.optimizer.state
        assert len(table.rows) == len(table.ids)

    for encoders in trainer.model.trained_encoders().values():
        frozen = {next(tables_of(encoder)).frozen.data_ptr() for encoder in encoders}
        assert len(frozen) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_saved_weights_are_those_of_an_untouched_model(kind: str, tmp_path: Path) -> None:
    trainer = trained(kind, tmp_path, trainable_rows=True)
    trainer.save_model(str(tmp_path / "model"))
    loaded = type(trainer.model).from_pretrained(tmp_path / "model")
    assert not list(tables_of(loaded))
    for name, weight in trainer.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_training_equals_a_whole_one(kind: str, tmp_path: Path) -> None:
    options = {"trainable_rows": True, "save_strategy": "steps", "save_steps": 2}
    whole = trained(kind, tmp_path, **options).model
    resumed = trainer_of(kind, tmp_path, rows=few_rows(kind), settings={"weight_decay": 0.0, **options})
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, weight in whole.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], weight), name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["other rows", "all rows"])
def test_a_checkpoint_of_other_rows_is_refused(kind: str, change: str, tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 2}
    trained(kind, tmp_path, trainable_rows=True, **options)
    rows = rows_of(kind, 16, seed=2)
    settings = {"trainable_rows": change == "other rows", **options}
    resumed = trainer_of(kind, tmp_path, rows=rows, settings=settings)
    with pytest.raises(XlsrError, match="trainable_rows"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


@pytest.mark.parametrize("kind", REFUSING)
def test_language_models_are_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="trainable_rows"):
        trainer_of(kind, tmp_path, settings={"trainable_rows": True})


def test_texts_with_other_tokens_are_encoded_after_training(tmp_path: Path) -> None:
    trainer = trained("DualMomentum", tmp_path, trainable_rows=True)
    texts = [row["source"] for row in rows_of("DualMomentum", 20, seed=4)]
    live = trainer.live_encoder().encode(texts)
    exported = trainer.model.to_sentence_transformer(trainer.tokenizers)
    assert not list(tables_of(exported))
    torch.testing.assert_close(torch.from_numpy(live), torch.from_numpy(exported.encode(texts)))


def test_an_unknown_token_in_training_is_an_error() -> None:
    rows = TrainableRows(nn.Embedding(5, 2), torch.tensor([1, 3]))
    with pytest.raises(IndexError):
        rows(torch.tensor([[2]]))


def test_momentum_copies_with_other_frozen_rows_keep_them() -> None:
    (encoders,) = model_of("DualMomentum").trained_encoders().values()
    with torch.no_grad():
        encoders[1].get_input_embeddings().weight.add_(1.0)
    tables = [encoder.get_input_embeddings().weight.detach().clone() for encoder in encoders]

    train_rows(encoders, torch.tensor([1, 3]))
    for encoder, table in zip(encoders, tables, strict=True):
        assert torch.equal(encoder.get_input_embeddings().weight, table)


def test_scaled_tables_are_refused() -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(ids)

    with pytest.raises(XlsrError, match="Scaled"):
        TrainableRows(Scaled(5, 2), torch.tensor([1]))


def test_the_hint_names_what_would_be_saved(tmp_path: Path) -> None:
    trainer = trainer_of("DualMomentum", tmp_path)
    model = trainer.model
    table = sum(own[0].get_input_embeddings().weight.nbytes * len(own) for own in model.trained_encoders().values())
    whole = sum(weight.nbytes for weight in model.parameters())
    assert bool(rows_hint(trainer)) == (table > whole / 4)
    trainer.args.trainable_rows = True
    assert not rows_hint(trainer)


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_on_disk_counts_each_table_once(kind: str, tmp_path: Path) -> None:
    settings = {"trainable_rows": True}
    model = trainer_of(kind, tmp_path, rows=few_rows(kind), settings=settings).model
    assert weight_bytes(model) == weight_bytes(model_of(kind))


def test_momentum_copies_stay_frozen(tmp_path: Path) -> None:
    trainer = trainer_of("DualMomentum", tmp_path, settings={"trainable_rows": True})
    trainable = [name for name, weight in trainer.model.named_parameters() if weight.requires_grad]
    assert trainable
    assert not any(name.startswith("momentum_") for name in trainable)


@pytest.mark.parametrize("trainable_rows", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_second_training_selects_its_own_rows(kind: str, trainable_rows: bool, tmp_path: Path) -> None:
    model = trained(kind, tmp_path / "first", trainable_rows=True).model
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    settings = {"trainable_rows": trainable_rows}
    second = trainer_of(kind, tmp_path / "second", model=model, rows=rows_of(kind, 16, seed=2), settings=settings)

    for name, weight in second.model.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert bool(list(tables_of(second.model))) == trainable_rows
    second.train()


def test_an_encoder_of_an_earlier_training_has_a_plain_table(tmp_path: Path) -> None:
    ((encoder, _),) = trained("DualMomentum", tmp_path, trainable_rows=True).model.trained_encoders().values()
    part = read_encoder(encoder, "encoder").single("encoder")
    assert not list(tables_of(part.encoder))


def test_a_table_with_two_names_is_stored_once(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = T5Config(vocab_size=50, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    encoder = T5EncoderModel(config)
    encoder.save_pretrained(tmp_path / "whole")
    train_rows([encoder], torch.tensor([1, 3]))
    encoder.save_pretrained(tmp_path / "rows")

    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "rows")]
    assert sizes[0] == sizes[1]
    loaded = T5EncoderModel.from_pretrained(tmp_path / "rows")
    assert torch.equal(loaded.get_input_embeddings().weight, encoder.get_input_embeddings().weight)
