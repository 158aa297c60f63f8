"""Invalid arguments, models, tokenizers and data of trainers: each error names the key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cmlm_helpers import tiny_cmlm
from conftest import make_pairs, tiny_encoder
from datasets import Dataset, IterableDataset
from dual_momentum_runs import tiny_dual, tokenizers_of
from hictl_helpers import framed_tokenizer, tiny_hictl
from lightweight_trainers import arguments, model_of, trainer_of
from translation_helpers import small_model, translation_tokenizer, words_model

from hf_xlsr import HictlConfig, HictlForSequenceClassification, trainers
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.trainers.sharding import check_sharding
from hf_xlsr.utils.errors import XlsrError

TEXT = SimpleNamespace(lengths=[5] * 8, groups=[0] * 8)


def stream() -> IterableDataset:
    return Dataset.from_list(make_pairs(20)).to_iterable_dataset()


def made(kind: str, folder: Path, **options: Any) -> Any:
    """A trainer of a method on its own tiny model; options of the arguments' class go there."""
    tokenizer = framed_tokenizer()
    arguments_class: Any = getattr(trainers, f"{kind}TrainingArguments")
    values = {"output_dir": str(folder), "report_to": "none", "precision": "float32", "max_length": 32}
    for field in dataclasses.fields(arguments_class):
        if field.name in options:
            values[field.name] = options.pop(field.name)

    models: dict[str, Callable[[], Any]] = {
        "Lightweight": lambda: model_of(tokenizer),
        "Hictl": lambda: tiny_hictl(len(tokenizer)),
        "Cmlm": lambda: tiny_cmlm(len(tokenizer)),
        "FineTune": lambda: HictlForSequenceClassification(HictlConfig(text_config=tiny_encoder(len(tokenizer)))),
        "Translation": words_model,
        "DualMomentum": tiny_dual,
    }
    defaults: dict[str, Any] = {"processing_class": tokenizer}
    if kind == "DualMomentum":
        defaults = {"tokenizers": tokenizers_of(("en", "fr"))}
    elif kind == "Translation":
        defaults = {"processing_class": translation_tokenizer()}
    elif kind == "Cmlm":
        defaults["train_dataset"] = TEXT
    model = options.pop("model", None) or models[kind]()
    return getattr(trainers, f"{kind}Trainer")(model, arguments_class(**values), **{**defaults, **options})


def several_classes() -> HictlForSequenceClassification:
    """A classifier of rows with several classes each."""
    encoder = tiny_encoder(len(framed_tokenizer()))
    config = HictlConfig(text_config=encoder, num_labels=3, problem_type="multi_label_classification")
    return HictlForSequenceClassification(config)


def larger(tokenizer: Any) -> Any:
    tokenizer = deepcopy(tokenizer)
    tokenizer.add_tokens([f"<{number}>" for number in range(99)])
    return tokenizer


CASES: list[tuple[str, Callable[[], dict[str, Any]], str]] = [
    ("Lightweight", lambda: {"processing_class": larger(framed_tokenizer())}, "tokenizer"),
    ("Hictl", lambda: {"processing_class": larger(framed_tokenizer())}, "tokenizer"),
    ("Cmlm", lambda: {"processing_class": larger(framed_tokenizer())}, "tokenizer"),
    ("FineTune", lambda: {"processing_class": larger(framed_tokenizer())}, "tokenizer"),
    ("Translation", lambda: {"model": small_model()}, "tokenizer"),
    ("Hictl", lambda: {"label_smoothing_factor": 0.1}, "label_smoothing_factor"),
    ("Lightweight", lambda: {"mixing": "magic"}, "mixing"),
    ("Lightweight", lambda: {"precision": "float16", "use_cpu": True}, "float16"),
    ("Lightweight", lambda: {"dataloader_drop_last": True}, "dataloader_drop_last"),
    ("Lightweight", lambda: {"compute_metrics": lambda *_: {}}, "compute_metrics"),
    ("Translation", lambda: {"matryoshka_dims": [8]}, "matryoshka_dims"),
    ("FineTune", lambda: {"prompts": "query: "}, "prompts"),
    ("Lightweight", lambda: {"prompts": {"english": "query: "}}, "english"),
    ("Lightweight", lambda: {"model": {"en": "encoder", "fr": "encoder"}}, "model"),
    ("DualMomentum", lambda: {"queue_prefill": True, "train_dataset": stream(), "max_steps": 1}, "queue_prefill"),
    ("FineTune", lambda: {"evaluator": lambda encoder: {}}, "evaluator"),
    ("Cmlm", lambda: {"train_dataset": None}, "weight"),
    ("Cmlm", lambda: {"nli_dataset": TEXT}, "nli_labels"),
    ("DualMomentum", lambda: {"nli_dataset": TEXT}, "nli_labels"),
    ("FineTune", lambda: {"train_dataset": SimpleNamespace(lengths=[5], report={})}, "num_labels"),
    ("FineTune", lambda: {"model": several_classes()}, "problem_type.*multi_label"),
]


@pytest.mark.parametrize(("kind", "options", "key"), CASES)
def test_invalid_trainer(kind: str, options: Callable[[], dict[str, Any]], key: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=key):
        made(kind, tmp_path, **options())


@pytest.mark.parametrize("name", ["source", "target", "query", "document", "default", "en", "pt-BR"])
def test_names_of_prompts(name: str, tmp_path: Path) -> None:
    assert arguments(tmp_path, prompts={name: "one: "}).prompts == {name: "one: "}


@pytest.mark.parametrize(("deepspeed", "stage", "supported"), [("1", "2", True), ("0", "3", True), ("1", "3", False)])
def test_stage_of_deepspeed(
    deepspeed: str, stage: str, supported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = arguments(tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", deepspeed)
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", stage)
    with nullcontext() if supported else pytest.raises(XlsrError, match="stage 2"):
        check_sharding(args)


@pytest.mark.parametrize("kind", ["Hictl", "DualMomentum", "FineTune", "Translation"])
def test_max_length_is_at_most_the_positions(kind: str, tmp_path: Path) -> None:
    assert made(kind, tmp_path, max_length=200).data_collator.max_length == 40


def test_calls_of_a_trainer(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    trainer = trainer_of(tokenizer, prepared, tmp_path, evaluations=[lambda encoder: {"toy/accuracy": 0.5}])
    assert trainer.evaluate()["eval_toy/accuracy"] == 0.5
    assert 0 < trainer.evaluate(prepared)["eval_accuracy"] < 1
    with pytest.raises(XlsrError, match="one pair"):
        trainer_of(tokenizer, prepared, tmp_path, per_device_train_batch_size=1).train()
