"""Every trainer on data and models as users have them: plain datasets, streams, encoders by folder or object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seven_trainers
import torch
from conftest import make_pairs, tiny_encoder
from datasets import Dataset
from hictl_helpers import framed_tokenizer
from huggingface_hub import constants
from peft import LoraConfig
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
    TranslationEvaluator,
)
from sklearn.metrics import accuracy_score
from test_fine_tune import make_model
from test_fine_tune import tokenizer as labelled_tokenizer
from transformers import AutoConfig

from hf_xlsr import trainers
from hf_xlsr.data.raw_rows import pair_languages
from hf_xlsr.encoders.heads import pooling_name
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.export import save_export, to_sentence_transformer
from hf_xlsr.utils.errors import XlsrError

PRETRAINING = ["Lightweight", "DualMomentum", "Hictl", "Cmlm"]
ROWS = make_pairs(96, seed=4)
PAIRS = Dataset.from_list([{"en": row["source"], "fr": row["target"]} for row in ROWS])
TEXT = Dataset.from_list([{"text": ". ".join(row["source"] for row in ROWS[i : i + 4])} for i in range(0, 96, 4)])
SOURCES, TARGETS = PAIRS["en"][:12], PAIRS["fr"][:12]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of an encoder whose tokenizer frames sentences."""
    torch.manual_seed(0)
    folder, tokenizer = tmp_path_factory.mktemp("encoder"), framed_tokenizer()
    made = encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer))))
    save_export(to_sentence_transformer(made, tokenizer, max_length=32), folder / "st")
    for part in (made, tokenizer):
        part.save_pretrained(str(folder / "plain"))
    return str(folder)


def arguments(kind: str, folder: Path, **options: Any) -> Any:
    values = {"precision": "float32", "use_cpu": True, "max_steps": 2, "per_device_train_batch_size": 8}
    values |= {"max_length": 24, "report_to": "none", "disable_tqdm": True, "save_strategy": "no", **options}
    return getattr(trainers, f"{kind}TrainingArguments")(output_dir=str(folder), **values)


def trainer_of(kind: str, model: Any, folder: Path, streamed: bool = False, **options: Any) -> Any:
    pairs, text = (data.to_iterable_dataset() if streamed else data for data in (PAIRS, TEXT))
    data: dict[str, Any] = {"train_dataset": pairs}
    if kind == "Cmlm":
        data = {"train_dataset": text, "retrieval_dataset": pairs}
    fields = {name: options.pop(name) for name in list(options) if name not in ("evaluator", "eval_dataset")}
    args = arguments(kind, folder, **fields)
    trainer = getattr(trainers, f"{kind}Trainer")(model=model, args=args, **data, **options)
    if kind == "Hictl":
        trainer.model.config.negative_words = 16  # the vocabulary is tiny
    return trainer


def evaluators() -> list[Any]:
    numbers = [str(number) for number in range(12)]
    queries, corpus = dict(zip(numbers, SOURCES, strict=True)), dict(zip(numbers, TARGETS, strict=True))
    return [
        TranslationEvaluator(SOURCES, TARGETS, name="en-fr"),
        EmbeddingSimilarityEvaluator(SOURCES, TARGETS, np.linspace(0, 1, 12).tolist()),
        InformationRetrievalEvaluator(queries, corpus, {number: {number} for number in numbers}),
    ]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", PRETRAINING)
def test_folder_pairs_and_export(kind: str, encoder: str, tmp_path: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 1, "evaluator": evaluators()}
    trainer = trainer_of(kind, f"{encoder}/plain", tmp_path, eval_dataset=PAIRS.select(range(12)), **options)
    trainer.train()
    measured = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(measured) == 2 and np.isfinite([entry["eval_loss"] for entry in measured]).all()
    last = measured[-1]
    assert last["eval_accuracy"] == pytest.approx(last["eval_en-fr_mean_accuracy"])  # our count and the evaluator's
    assert {"eval_spearman_cosine", "eval_cosine_ndcg@10"} <= last.keys()
    trainer.save_sentence_transformer(tmp_path / "st")
    loaded = SentenceTransformer(str(tmp_path / "st"), device="cpu")
    live = trainer.live_encoder().encode(SOURCES, normalize_embeddings=True, convert_to_tensor=True)
    torch.testing.assert_close(loaded.encode(SOURCES, convert_to_tensor=True), live, rtol=0, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", PRETRAINING)
def test_sentence_transformer_and_streams(kind: str, encoder: str, tmp_path: Path) -> None:
    model = SentenceTransformer(f"{encoder}/st", device="cpu")
    model.max_seq_length = 24
    before = model.encode(SOURCES, normalize_embeddings=True)
    trainer = trainer_of(kind, model, tmp_path, streamed=True, eval_dataset={"dev": PAIRS.to_iterable_dataset()})
    if kind != "Hictl":  # its vectors are projected
        assert np.allclose(trainer.live_encoder().encode(SOURCES, normalize_embeddings=True), before, atol=1e-5)
    trainer.train()
    assert trainer.state.global_step == 2 and trainer.evaluate()["eval_dev_accuracy"] > 0


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", PRETRAINING)
def test_encoder_stored_in_half_precision_trains_in_float32(kind: str, encoder: str, tmp_path: Path) -> None:
    SentenceTransformer(f"{encoder}/st", device="cpu").to(torch.bfloat16).save(str(tmp_path / "half"))
    trainer = trainer_of(kind, tmp_path / "half", tmp_path, max_steps=1)
    trainer.train()
    trainer.save_model(str(tmp_path / "trained"))
    for model in (trainer.model, type(trainer.model).from_pretrained(tmp_path / "trained")):
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_pooling_of_an_encoder_on_the_hub(encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = SentenceTransformer(f"{encoder}/st", device="cpu")
    model[1].pooling_mode = "cls"
    (tmp_path / "models--own--cls/refs").mkdir(parents=True)
    (tmp_path / "models--own--cls/refs/main").write_text("0" * 40)
    model.save(str(tmp_path / "models--own--cls/snapshots" / ("0" * 40)))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert pooling_name(trainer_of("Cmlm", "own/cls", tmp_path).model.config.head) == "cls"


def test_adapters_inside_an_encoder_are_refused(encoder: str, tmp_path: Path) -> None:  # saving would lose weights
    model = SentenceTransformer(f"{encoder}/st", device="cpu")
    model.add_adapter(LoraConfig(r=2, target_modules=["query", "value"]))
    with pytest.raises(XlsrError, match="add_adapters"):
        trainer_of("Hictl", model, tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", PRETRAINING)
def test_hard_negatives_and_matryoshka_change_the_loss(kind: str, encoder: str, tmp_path: Path) -> None:
    negatives = PAIRS.add_column("negative", PAIRS["fr"][::-1]).add_column(
        "negative_1", PAIRS["fr"][1:] + PAIRS["fr"][:1]
    )
    losses = []
    for data, dims in ((PAIRS, None), (negatives, None), (PAIRS, [4, 16])):
        trainer = trainer_of(kind, f"{encoder}/plain", tmp_path, eval_dataset=data, matryoshka_dims=dims)
        if kind == "DualMomentum":
            trainer.model.config.in_batch_negatives = True  # the queues are empty
        losses.append(trainer.evaluate()["eval_loss"])
    assert losses[1] > losses[0] != losses[2]


@pytest.mark.slow
def test_evaluation_draws_nothing_from_training(encoder: str, tmp_path: Path) -> None:
    kinds = []
    for options in ({}, {"eval_strategy": "steps", "eval_steps": 1, "eval_dataset": PAIRS}):
        trainer = trainer_of("Hictl", f"{encoder}/plain", tmp_path, seed=3, **options)
        trainer.train()
        kinds.append(trainer.live_encoder().encode(SOURCES))
    assert np.array_equal(*kinds)


def test_fine_tuning_of_plain_rows_with_compute_metrics(tmp_path: Path) -> None:
    rows = [{"text": row["source"], "label": int("one" in row["source"])} for row in ROWS]
    trainer = trainers.FineTuneTrainer(
        model=make_model(num_labels=2),
        args=arguments("FineTune", tmp_path, eval_strategy="steps", eval_steps=1),
        train_dataset=rows,
        eval_dataset={"dev": Dataset.from_list(rows[:30])},
        compute_metrics=lambda outputs: {"accuracy": accuracy_score(outputs.label_ids, outputs.predictions.argmax(1))},
        processing_class=labelled_tokenizer(),
    )
    trainer.train()
    metrics = trainer.evaluate()
    assert 0 <= metrics["eval_dev_accuracy"] <= 1 and np.isfinite(metrics["eval_dev_loss"])
    # A test set whose labels are hidden, as on the Hub, or absent: an output for every row, in order.
    outputs = trainer.predict(Dataset.from_list(rows[:30])).predictions
    hidden = [{**row, "label": -1 if number % 2 else row["label"]} for number, row in enumerate(rows[:30])]
    for unlabelled in (hidden, [{"text": row["text"]} for row in rows[:30]]):
        np.testing.assert_allclose(trainer.predict(unlabelled).predictions, outputs, atol=1e-5)


@pytest.mark.parametrize("kind", ["Lightweight", "Distillation", "DualMomentum", "Hictl", "Cmlm"])
def test_tokenizer_of_the_object_that_the_model_was_made_from(kind: str, tmp_path: Path) -> None:
    name = "tokenizers" if kind == "DualMomentum" else "processing_class"
    trainer = seven_trainers.trainer_of(kind, tmp_path, **{name: None})

    tokenizer = trainer.tokenizers["fr"] if kind == "DualMomentum" else trainer.tokenizers
    assert tokenizer.get_vocab() == framed_tokenizer().get_vocab()


@pytest.mark.parametrize("kind", ["DualMomentum", "Cmlm"])
def test_inference_rows_bring_a_classifier_to_an_encoder(kind: str, tmp_path: Path) -> None:
    inference = [
        {"premise": row["source"], "hypothesis": row["source"][:9], "label": number % 3, "lang": "en"}
        for number, row in enumerate(ROWS)
    ]
    trainer = seven_trainers.trainer_of(
        kind,
        tmp_path,
        model=seven_trainers.encoder(),
        nli_dataset=inference,
        settings={"nli_batch_size": 8, "max_steps": 2},
    )
    trainer.train()
    losses = [entry["loss/nli"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 2


def test_languages_keep_the_order_of_the_data() -> None:
    assert pair_languages(PAIRS.select_columns(["fr", "en"])) == ["fr", "en"]
