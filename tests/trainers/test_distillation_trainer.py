"""A student learns the teacher's embedding of each source, from stored and streamed pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_pairs, tiny_encoder
from datasets import Dataset
from lightweight_trainers import arguments

from hf_xlsr import DistillationConfig, DistillationModel, DistillationTrainer
from hf_xlsr.encoders.teacher import Teacher

ROWS = make_pairs(64, seed=5)
PAIRS = Dataset.from_list([{"en": row["source"], "fr": row["target"]} for row in ROWS])


class Words:
    """A teacher: the share of each English word in a text."""

    words = sorted({word for row in ROWS for word in row["source"].split()})

    def encode(self, texts: list[str], **_: object) -> np.ndarray:
        counts = [[text.split().count(word) for word in self.words] for text in texts]
        return np.array(counts, dtype=np.float32)


def student(vocabulary: int, **options: Any) -> DistillationModel:
    torch.manual_seed(0)
    encoder = {**tiny_encoder(vocabulary), "num_hidden_layers": 1, "hidden_dropout_prob": 0.0}
    return DistillationModel(DistillationConfig(text_config=encoder, teacher_dim=len(Words.words), **options))


def trained(folder: Path, tokenizer: Any, data: Any, steps: int, **options: Any) -> DistillationTrainer:
    trainer = DistillationTrainer(
        student(len(tokenizer), **options),
        arguments(folder / "out", max_steps=steps, logging_steps=1),
        teacher=Teacher(Words(), vectors=folder / "vectors"),
        train_dataset=data,
        processing_class=tokenizer,
    )
    trainer.train()
    return trainer


@pytest.mark.parametrize("streamed", [False, True])
def test_loss_is_that_of_the_teachers_vectors(streamed: bool, tmp_path: Path, tokenizer: Any) -> None:
    data = PAIRS.to_iterable_dataset() if streamed else PAIRS
    trainer = trained(tmp_path, tokenizer, data, steps=1, alignment_weight=0.0)
    batch = next(iter(trainer.get_train_dataloader()))
    sources = batch["source_texts"]
    model = trainer.model.eval()
    with torch.no_grad():
        found = trainer.compute_loss(model, batch)
        unit = torch.from_numpy(Words().encode(PAIRS["en"][:]))
        unit = torch.nn.functional.normalize(unit, dim=-1)
        own = torch.from_numpy(Words().encode(sources))
        rows = torch.nn.functional.normalize(own, dim=-1)
        expected = rows - unit.mean(0)
        both = model.teacher_projection(model.encode_sentences(batch["input_ids"], batch["attention_mask"]))
        cosine = torch.nn.functional.cosine_similarity(both, expected.repeat(2, 1), dim=-1)
    torch.testing.assert_close(found, 1 - cosine.mean(), rtol=1e-4, atol=1e-5)


def test_queue_holds_the_teachers_embeddings_of_earlier_sources(tmp_path: Path, tokenizer: Any) -> None:
    trainer = trained(tmp_path, tokenizer, PAIRS, steps=3, queue_size=40, alignment_weight=0.0, teacher_weight=0.0)
    model, batch = trainer.model.double().eval(), next(iter(trainer.get_train_dataloader()))
    queue = model.queue
    assert queue.count == min(40, 3 * len(batch["source_texts"]))
    own = torch.nn.functional.normalize(trainer.teacher(batch["source_texts"]), dim=-1).double()
    keys = torch.cat([queue.values[: queue.count], own])
    texts = torch.cat([queue.texts[: queue.count], batch["identities"][0]])
    with torch.no_grad():
        found = trainer.compute_loss(model, batch)
        both = model.teacher_projection(model.encode_sentences(batch["input_ids"], batch["attention_mask"]))
    losses = []
    for row, student_row in enumerate(torch.nn.functional.normalize(both, dim=-1)):
        pair = row % len(own)
        negatives = keys[texts != batch["identities"][0, pair]]
        logits = torch.cat([own[pair : pair + 1], negatives]) @ student_row / 0.05
        losses.append(torch.logsumexp(logits, 0) - logits[0])
    torch.testing.assert_close(found, torch.stack(losses).mean(), rtol=1e-6, atol=1e-6, check_dtype=False)
