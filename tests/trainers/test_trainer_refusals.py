"""Invalid arguments, models, tokenizers and data of trainers: each error names the key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cmlm_helpers import tiny_cmlm
from conftest import make_pairs, tiny_encoder
from datasets import Dataset, IterableDataset
from dual_momentum_runs import pairs_data, tiny_dual, tokenizers_of
from dual_momentum_runs import trainer_of as dual_trainer
from hictl_helpers import framed_tokenizer, tiny_hictl
from lightweight_trainers import arguments, model_of, trainer_of
from transformers import AutoConfig, AutoModel
from translation_helpers import small_model, translation_tokenizer, words_model

from hf_xlsr import HictlConfig, HictlForSequenceClassification, trainers
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.encoders.stock import check_token_ids, vocab_size_of
from hf_xlsr.trainers import add_adapters
from hf_xlsr.utils.errors import XlsrError

LONG = SimpleNamespace(lengths=[60] * 8, groups=[0] * 8, language_pairs=None)
TEXT = SimpleNamespace(lengths=[5] * 8, groups=[0] * 8)

BEST: dict[str, Any] = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"}
WITHOUT_EFFECT: list[dict[str, Any]] = [
    {"save_only_model": True},
    {"ignore_data_skip": True},
    {"dataloader_in_order": False},
    {"dataloader_drop_last": True},
    {"remove_unused_columns": True},
    {"train_sampling_strategy": "sequential"},
]


def stream() -> IterableDataset:
    return Dataset.from_list(make_pairs(20)).to_iterable_dataset()


def made(kind: str, folder: Path, **options: Any) -> Any:
    """A trainer of a method on its own tiny model; options of the arguments' class go there."""
    tokenizer = framed_tokenizer()
    arguments_class: Any = getattr(trainers, f"{kind}TrainingArguments")
    known = {field.name for field in dataclasses.fields(arguments_class)}
    chosen = {name: options.pop(name) for name in list(options) if name in known}
    args = arguments_class(
        output_dir=str(folder), report_to="none", **{"precision": "float32", "max_length": 32, **chosen}
    )
    given: dict[str, Any] = {"processing_class": tokenizer, **options}
    models: dict[str, Callable[[], Any]] = {
        "Lightweight": lambda: model_of(tokenizer),
        "Hictl": lambda: tiny_hictl(len(tokenizer)),
        "Cmlm": lambda: tiny_cmlm(len(tokenizer)),
        "FineTune": lambda: HictlForSequenceClassification(HictlConfig(text_config=tiny_encoder(len(tokenizer)))),
        "Translation": words_model,
        "DualMomentum": tiny_dual,
    }
    if kind == "DualMomentum":
        del given["processing_class"]
        given = {"tokenizers": tokenizers_of(("en", "fr")), **given}
    elif kind == "Translation":
        given = {**given, "processing_class": options.get("processing_class", translation_tokenizer())}
    elif kind == "Cmlm":
        given = {"train_dataset": TEXT, **given}
    return getattr(trainers, f"{kind}Trainer")(given.pop("model", None) or models[kind](), args, **given)


def larger(tokenizer: Any) -> Any:
    tokenizer = deepcopy(tokenizer)
    tokenizer.add_tokens([f"<{number}>" for number in range(99)])
    return tokenizer


def larger_of_english() -> dict[str, Any]:
    tokenizers = tokenizers_of(("en", "fr"))
    return {**tokenizers, "en": larger(tokenizers["en"])}


def maskless() -> Any:
    tokenizer = framed_tokenizer()
    tokenizer.mask_token = None
    return tokenizer


CASES: list[tuple[str, Callable[[], dict[str, Any]], str]] = [
    *(
        (kind, lambda: {"processing_class": larger(framed_tokenizer())}, "tokenizer")
        for kind in ("Lightweight", "Hictl", "Cmlm", "FineTune")
    ),
    ("DualMomentum", lambda: {"tokenizers": larger_of_english()}, "'en'"),
    ("Translation", lambda: {"model": small_model()}, "tokenizer"),
    *((kind, lambda: {"label_smoothing_factor": 0.1}, "label_smoothing_factor") for kind in ("Hictl", "FineTune")),
    ("Lightweight", lambda: {"optimization": "lion"}, "optimization"),
    ("Lightweight", lambda: {"mixing": "magic"}, "mixing"),
    ("Lightweight", lambda: {"precision": "float16", "use_cpu": True}, "float16"),
    ("Lightweight", lambda: {"early_stopping_patience": 2}, "metric_for_best_model"),
    *(("Lightweight", lambda option=option: {**option}, next(iter(option))) for option in WITHOUT_EFFECT),
    ("Lightweight", lambda: {"accelerator_config": {"split_batches": True}}, "split_batches"),
    ("Lightweight", lambda: {"compute_metrics": lambda *_: {}}, "compute_metrics"),
    ("Lightweight", lambda: {**BEST, "evaluations": [lambda encoder: {}]}, "metric_for_best_model"),
    ("Lightweight", lambda: {"optimization": "released", "train_dataset": stream(), "max_steps": 1}, "optimization"),
    ("Translation", lambda: {"matryoshka_dims": [8]}, "matryoshka_dims"),
    ("Lightweight", lambda: {"model": {"en": "encoder", "fr": "encoder"}}, "model"),
    ("DualMomentum", lambda: {"queue_prefill": True, "train_dataset": stream(), "max_steps": 1}, "queue_prefill"),
    ("DualMomentum", lambda: {"evaluator": lambda encoder: {}}, "evaluator"),
    *((kind, lambda: {"evaluator": lambda encoder: {}}, "evaluator") for kind in ("FineTune", "Translation")),
    ("Lightweight", lambda: {"compute_loss_func": lambda *_: 0}, "compute_loss_func"),
    ("Lightweight", lambda: {"train_dataset": LONG, "max_length": 200}, "max_length"),
    ("Hictl", lambda: {"train_dataset": LONG, "max_length": 200}, "max_length"),
    ("Hictl", lambda: {"processing_class": maskless()}, "mask"),
    ("Cmlm", lambda: {"optimizer": "lam"}, "optimizer"),
    ("Cmlm", lambda: {"train_dataset": None}, "weight"),
    ("Cmlm", lambda: {"model": tiny_cmlm(len(framed_tokenizer()), cmlm_weight=0.0)}, "cmlm_weight"),
    ("Cmlm", lambda: {"nli_dataset": TEXT}, "nli_labels"),
    ("Cmlm", lambda: {"max_length": 38}, "max_length"),
    ("DualMomentum", lambda: {"momentum_schedule": "cosin"}, "momentum_schedule"),
    ("DualMomentum", lambda: {"per_device_train_batch_size": 128}, "queue_size"),
    ("DualMomentum", lambda: {"gradient_accumulation_steps": 9}, "queue_size"),
    ("DualMomentum", lambda: {"nli_dataset": TEXT}, "nli_labels"),
    ("DualMomentum", lambda: {"model": tiny_dual(nli_labels=3)}, "nli_dataset"),
    (
        "DualMomentum",
        lambda: {"model": tiny_dual(nli_labels=3), "nli_dataset": TEXT, "nli_batch_size": 1},
        "nli_batch_size",
    ),
    ("FineTune", lambda: {"train_dataset": LONG, "max_length": 64}, "max_length"),
    ("FineTune", lambda: {"train_dataset": SimpleNamespace(lengths=[5], report={})}, "num_labels"),
    ("Translation", lambda: {"model": small_model(vocab_size=140)}, "tokenizer"),
    ("Translation", lambda: {"model": add_adapters(words_model(), rank=2), "freeze_encoder": True}, "freeze_encoder"),
]


@pytest.mark.parametrize(("kind", "options", "key"), CASES)
def test_invalid_trainer(kind: str, options: Callable[[], dict[str, Any]], key: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=key):
        made(kind, tmp_path, **options())


@pytest.mark.parametrize("kind", ["Hictl", "DualMomentum", "FineTune", "Translation"])
def test_max_length_is_at_most_the_positions(kind: str, tmp_path: Path) -> None:
    assert made(kind, tmp_path, max_length=200).data_collator.max_length == 40


def test_vocabulary_of_adapters() -> None:
    peft = pytest.importorskip("peft")
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    encoder = AutoModel.from_config(AutoConfig.for_model("bert", vocab_size=30, **config))
    adapted = peft.get_peft_model(encoder, peft.LoraConfig(target_modules=["word_embeddings"], r=2))
    with pytest.raises(XlsrError, match="tokenizer"):
        check_token_ids(range(31), vocab_size_of(adapted))
    check_token_ids(range(31), vocab_size_of(AutoModel.from_config(AutoConfig.for_model("canine", **config))))


def test_calls_of_a_trainer(tokenizer: Any, prepared: PreparedPairs, tmp_path: Path) -> None:
    trainer = trainer_of(tokenizer, prepared, tmp_path, evaluations=[lambda encoder: {"toy/accuracy": 0.5}])
    assert trainer.evaluate()["eval_toy/accuracy"] == 0.5
    assert 0 < trainer.evaluate(prepared)["eval_accuracy"] < 1
    with pytest.raises(XlsrError, match="eval_dataset"):
        trainer_of(tokenizer, prepared, tmp_path).evaluate()
    for data in (prepared, []):
        with pytest.raises(XlsrError, match="test_dataset"):
            trainer.predict(data)
    with pytest.raises(XlsrError, match="one pair"):
        trainer_of(tokenizer, prepared, tmp_path, per_device_train_batch_size=1).train()


def test_zero_3_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: Any) -> None:
    trainer = trainer_of(tokenizer, pairs_data(), tmp_path)
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    with pytest.raises(XlsrError, match="stage 2"):
        type(trainer)(trainer.model, trainer.args, processing_class=tokenizer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_momentum_encoders_of_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    for options, more in (({}, {}), ({"momentum": 0.5}, {"momentum_schedule": "linear"})):
        with pytest.raises(XlsrError, match=str(dtype)):
            dual_trainer(tmp_path, model=tiny_dual(**options).to(dtype), **more).train()


def test_flags_hold_with_automatic_precision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_xlsr.utils.devices.cpu_has_fast_bfloat16", lambda: False)
    automatic = arguments(tmp_path, use_cpu=True, precision="auto")
    assert not automatic.bf16
    flagged = arguments(tmp_path, use_cpu=True, precision="auto", bf16=True)
    assert flagged.bf16 and dataclasses.replace(flagged).bf16
    assert not dataclasses.replace(flagged, precision="float32").bf16
    with pytest.raises(ValueError, match="fp16"):
        arguments(tmp_path, use_cpu=True, precision="auto", bf16=True, fp16=True)
