"""A student learns the teacher's embedding of each source, from stored and streamed pairs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_pairs, tiny_encoder
from datasets import Dataset
from lightweight_trainers import arguments
from sentence_transformers import SentenceTransformer
from transformers import AutoConfig, AutoModel

sys.path.append(str(Path(__file__).resolve().parents[1] / "encoders"))
from given_encoders import build  # noqa: E402

from hf_xlsr import DistillationConfig, DistillationModel, DistillationTrainer
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.encoders.heads import pooling_name
from hf_xlsr.encoders.teacher import Teacher
from hf_xlsr.export.sentence_transformer import to_sentence_transformer
from hf_xlsr.runs.methods.base import TrainingData
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.trainers import lightweight
from hf_xlsr.utils.errors import XlsrError

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


def trained(
    folder: Path,
    tokenizer: Any,
    data: Any,
    steps: int = 2,
    *,
    training: Any = None,
    checkpoint: Any = None,
    **options: Any,
) -> DistillationTrainer:
    trainer = DistillationTrainer(
        student(len(tokenizer), **options),
        arguments(folder / "out", max_steps=steps, logging_steps=1, **(training or {})),
        teacher=Teacher(Words(), vectors=folder / "vectors"),
        train_dataset=data,
        processing_class=tokenizer,
    )
    trainer.train(resume_from_checkpoint=checkpoint)
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


def test_student_keeps_its_pooling_and_has_no_dropout(tmp_path: Path, tokenizer: Any) -> None:
    sizes = {"dim": 16, "hidden_dim": 32, "n_layers": 1, "n_heads": 2, "vocab_size": len(tokenizer)}
    encoder = AutoModel.from_config(AutoConfig.for_model("distilbert", **sizes))
    to_sentence_transformer(encoder, tokenizer, pooling="cls").save(str(tmp_path / "s"))
    more = {"teacher": Teacher(Words(), vectors=tmp_path / "v"), "train_dataset": PAIRS}
    made = DistillationTrainer(str(tmp_path / "s"), arguments(tmp_path, max_steps=1), **more).model.config
    (run,) = load_runs("start_distillation", ["--model.encoder.path", str(tmp_path / "s"), "--teacher.path", "x"])
    run.teacher = Teacher(Words(), vectors=tmp_path / "v")
    built = run.build_model(TrainingData({}, tokenizer)).config
    for config in (made, built):
        text_config = config.text_config
        assert pooling_name(config.head) == "cls"
        assert (text_config.dropout, text_config.attention_dropout) == (0.0, 0.0)


def test_centre_is_of_all_streams(monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    monkeypatch.setattr(lightweight, "STREAMED_TEXTS", 4)
    streams = {name: PAIRS.select(rows).to_iterable_dataset() for name, rows in (("a", range(9)), ("b", range(9, 18)))}
    sources = lightweight._sources(DataConverter(tokenizer).taught_pairs(streams))
    assert list(sources) == PAIRS["en"][:2] + PAIRS["en"][9:11]


def test_translations_come_near_the_teachers_sources(tmp_path: Path, tokenizer: Any) -> None:
    trainer = trained(tmp_path, tokenizer, PAIRS, steps=80)
    losses = [entry["loss/teacher"] for entry in trainer.state.log_history if "loss/teacher" in entry]
    assert losses[-1] < 0.5 * losses[0]
    trainer.save_sentence_transformer(str(tmp_path / "st"))
    encoder = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    assert encoder.get_embedding_dimension() == 16  # the student's own width, without the layer to the teacher's
    held = make_pairs(20, seed=9)
    english, french = (encoder.encode([row[side] for row in held]) for side in ("source", "target"))
    taught = Words().encode([row["source"] for row in held])
    taught /= np.linalg.norm(taught, axis=1, keepdims=True)
    similar = np.corrcoef((english @ english.T).ravel(), (taught @ taught.T).ravel())[0, 1]
    assert similar > 0.5 and np.mean((english @ french.T).argmax(1) == np.arange(20)) > 0.5


def test_queue_holds_the_teachers_embeddings_of_earlier_sources(tmp_path: Path, tokenizer: Any) -> None:
    trainer = trained(tmp_path, tokenizer, PAIRS, steps=3, queue_size=40, alignment_weight=0.0, teacher_weight=0.0)
    model, batch = trainer.model.double().eval(), next(iter(trainer.get_train_dataloader()))
    model.training = True  # alone, so that nothing is dropped: evaluation has no queue
    queue = model.queue
    assert queue.count == min(40, 3 * len(batch["source_texts"]))
    own = torch.nn.functional.normalize(trainer.prepared_teacher(batch["source_texts"]), dim=-1).double()
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


def test_resumed_training_has_the_queue_of_its_checkpoint(tmp_path: Path, tokenizer: Any) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    whole = trained(tmp_path, tokenizer, PAIRS, steps=4, training=saving, queue_size=40)
    checkpoint = str(tmp_path / "out" / "checkpoint-2")
    resumed = trained(tmp_path, tokenizer, PAIRS, steps=4, training=saving, checkpoint=checkpoint, queue_size=40)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


@pytest.mark.slow
def test_a_language_of_few_pairs_neither_collapses_nor_harms_the_others(tmp_path: Path, tokenizer: Any) -> None:
    few = [{"en": row["en"], "de": row["fr"][::-1].lower()} for row in PAIRS.select(range(12))]
    held = make_pairs(20, seed=9)
    scores: dict[str, dict[str, float]] = {}
    for name, data in {"two": PAIRS, "three": {"en-fr": PAIRS, "en-de": Dataset.from_list(few)}}.items():
        trainer = trained(tmp_path / name, tokenizer, data, steps=80)
        trainer.save_sentence_transformer(str(tmp_path / name / "st"))
        encoder = SentenceTransformer(str(tmp_path / name / "st"), device="cpu")
        texts = {"en": [row["source"] for row in held], "fr": [row["target"] for row in held]}
        texts["de"] = [text[::-1].lower() for text in texts["fr"]]
        vectors = {language: encoder.encode(some, normalize_embeddings=True) for language, some in texts.items()}
        right = (vectors["en"] @ vectors["fr"].T).argmax(1) == np.arange(len(held))
        between = {language: (rows @ rows.T)[~np.eye(len(held), dtype=bool)] for language, rows in vectors.items()}
        scores[name] = {"accuracy": right.mean(), **{language: some.mean() for language, some in between.items()}}
    assert scores["three"]["accuracy"] >= scores["two"]["accuracy"] - 0.1
    assert max(scores["three"][language] for language in ("en", "fr", "de")) < 0.5  # different sentences stay apart


def test_two_trainers_may_share_a_teacher(tmp_path: Path, tokenizer: Any) -> None:
    """The centre of one trainer's texts is not that of another's, and the given teacher has none."""
    teacher = Teacher(Words(), vectors=tmp_path / "v")
    other_pairs = PAIRS.map(lambda row: {"en": f"red {row['en']}"})
    text = ["red king"]

    def trainer_of(data: Any, given: Teacher) -> Any:
        model = DistillationModel(DistillationConfig(text_config=tiny_encoder(len(tokenizer)), teacher_dim=given.dim))
        args = arguments(tmp_path / "out")
        return DistillationTrainer(model, args, teacher=given, train_dataset=data, processing_class=tokenizer)

    first = trainer_of(PAIRS, teacher)
    second = trainer_of(other_pairs, teacher)
    centred = first.prepared_teacher(text)
    assert not torch.equal(second.prepared_teacher(text), centred)
    alone = trainer_of(PAIRS, Teacher(Words(), vectors=tmp_path / "v"))
    assert torch.equal(alone.prepared_teacher(text), centred)
    assert torch.equal(first.prepared_teacher(text), centred)
    assert torch.equal(teacher(text), Teacher(Words(), center=False, vectors=tmp_path / "v")(text))


def test_a_centre_that_nobody_knows_is_refused(tmp_path: Path, tokenizer: Any) -> None:
    """Without training texts; a centre of the user's own texts is taken."""

    def measured(teacher: Teacher) -> float:
        model = DistillationModel(
            DistillationConfig(text_config=tiny_encoder(len(tokenizer)), teacher_dim=teacher.dim)
        )
        args = arguments(tmp_path / "out")
        trainer = DistillationTrainer(
            model, args, teacher=teacher, eval_dataset=PAIRS.select(range(8)), processing_class=tokenizer
        )
        return float(trainer.evaluate()["eval_loss"])

    teacher = Teacher(Words(), vectors=tmp_path / "v")
    with pytest.raises(XlsrError, match="train_dataset"):
        measured(teacher)
    teacher.prepare(PAIRS["en"])
    assert np.isfinite(measured(teacher))
    assert np.isfinite(measured(Teacher(Words(), center=False, vectors=tmp_path / "v")))


def test_a_static_student_learns_from_a_transformer(tmp_path: Path) -> None:
    teacher = build("bert_mean", tmp_path / "teacher")
    teacher.truncate_dim = None
    trainer = DistillationTrainer(
        build("static_words", tmp_path / "student"),
        arguments(tmp_path / "out", max_steps=40, learning_rate=0.05),
        teacher=Teacher(teacher, vectors=tmp_path / "vectors"),
        train_dataset=PAIRS,
        eval_dataset=PAIRS,
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < before["eval_loss"] - 1
    assert after["eval_accuracy"] > before["eval_accuracy"] + 0.5
