"""Invalid configurations and calls: each error names the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cmlm_helpers import tiny_cmlm
from hictl_helpers import framed_tokenizer, tiny_batch, tiny_hictl
from huggingface_hub.errors import StrictDataclassError
from model_cases import PLAIN, dual, dual_batch, lightweight, lightweight_batch

from hf_xlsr import (
    CmlmConfig,
    DualMomentumConfig,
    HictlConfig,
    HictlForSequenceClassification,
    LightweightConfig,
    XlsrError,
)
from hf_xlsr.modeling.dual_momentum import MemoryQueue
from hf_xlsr.modeling.hictl.modeling_generation import check_vocabulary, sentence_ends


@pytest.mark.parametrize(
    ("config_class", "values", "key"),
    [
        (CmlmConfig, {"projections": 0}, "projections"),
        (CmlmConfig, {"prefix_length": 2, "projections": 3}, "prefix_length"),
        (CmlmConfig, {"prefix_token_type": 5}, "prefix_token_type"),
        (CmlmConfig, {"conditioning": "inputs"}, "conditioning"),
        (CmlmConfig, {"mlm_probability": 1.0}, "mlm_probability"),
        (CmlmConfig, {"retrieval_margin": -1.0}, "retrieval_margin"),
        (CmlmConfig, {"retrieval_scale": 0.0}, "retrieval_scale"),
        (CmlmConfig, {"logits_chunk_size": 0}, "logits_chunk_size"),
        (DualMomentumConfig, {"languages": ["en"]}, "languages"),
        (DualMomentumConfig, {"languages": ["en", "en"]}, "languages"),
        (DualMomentumConfig, {"encoder_configs": {"en": PLAIN}}, "encoder_configs"),
        (
            DualMomentumConfig,
            {"encoder_configs": {"en": PLAIN, "zh": {**PLAIN, "hidden_size": 8}}},
            "projection_dim",
        ),
        (DualMomentumConfig, {"pooling": "men"}, "pooling"),
        (DualMomentumConfig, {"temperature": "low"}, "temperature"),
        (DualMomentumConfig, {"temperature": float("nan")}, "temperature"),
        (DualMomentumConfig, {"use_momentum": "no"}, "use_momentum"),
        (DualMomentumConfig, {"queue_storage": "float8"}, "queue_storage"),
        (DualMomentumConfig, {"momentum": 1.5}, "momentum"),
        (DualMomentumConfig, {"queue_size": 0}, "queue_size"),
        (DualMomentumConfig, {"nli_dropout": 1.0}, "nli_dropout"),
        (HictlConfig, {"word_query": "both"}, "word_query"),
        (HictlConfig, {"sentence_temperature": 0.0}, "sentence_temperature"),
        (HictlConfig, {"negative_words": 0}, "negative_words"),
        (LightweightConfig, {"generative_task": "ugtt"}, "generative_task"),
        (LightweightConfig, {"similarity_weight": -0.1}, "similarity_weight"),
        (LightweightConfig, {"similarity_epsilon": 1e-9}, "similarity_epsilon"),
    ],
)
def test_invalid_configuration(config_class: Any, values: dict[str, Any], key: str) -> None:
    with pytest.raises(StrictDataclassError, match=key):
        config_class(**values)


def test_integers_are_valid_weights() -> None:
    assert LightweightConfig(alignment_weight=1, similarity_temperature=2).alignment_weight == 1


def without(batch: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name not in names}


def wordless_batch() -> dict[str, Any]:
    tokenizer = framed_tokenizer()
    batch = tiny_batch(tokenizer)
    return {**batch, "joint_input_ids": torch.full_like(batch["joint_input_ids"], tokenizer.sep_token_id)}


def hictl(**options: Any) -> Any:
    return tiny_hictl(len(framed_tokenizer()), **options)


def hictl_classifier(**options: Any) -> Any:
    return HictlForSequenceClassification(HictlConfig(text_config=PLAIN, **options))


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no weight": (
        lambda: lightweight(generative_weight=0, alignment_weight=0, similarity_weight=0)(**lightweight_batch()),
        "weight",
    ),
    **{
        f"{task} without {label}": (
            lambda task=task, label=label: lightweight(generative_task=task)(
                **without(lightweight_batch(task=task), label)
            ),
            label,
        )
        for task, label in (("ugt", "masked_ids"), ("mlm", "mlm_labels"), ("mlm+xtr", "original_ids"))
    },
    "set without mask id": (
        lambda: lightweight(label_mode="set")(**without(lightweight_batch(), "mask_token_id")),
        "mask_token_id",
    ),
    "unknown language": (lambda: dual()(**dual_batch(languages=("en", "de"))), "de"),
    "masks without texts": (
        lambda: dual(mask_duplicates=True)(**without(dual_batch(), "target_texts")),
        "texts",
    ),
    "more keys than rows": (
        lambda: MemoryQueue(5, 1).enqueue(torch.zeros(6, 1), torch.zeros(6).long(), torch.zeros(6).long()),
        "queue_size",
    ),
    "which vocabulary": (lambda: dual().resize_token_embeddings(44), "en, fr"),
    "no bag of words": (lambda: hictl()(**without(tiny_batch(framed_tokenizer()), "joint_input_ids")), "joint_input"),
    "no word": (lambda: hictl()(**wordless_batch()), "word"),
    "too many negatives": (lambda: hictl(negative_words=500)(**tiny_batch(framed_tokenizer())), "500"),
    "several labels": (lambda: hictl_classifier(num_labels=3, problem_type="regression"), "problem_type"),
    "no task": (lambda: tiny_cmlm(30)(), "weight"),
    "large tokenizer": (lambda: check_vocabulary(framed_tokenizer(), 4), "tokenizer"),
}


@pytest.mark.parametrize("name", CALLS)
def test_invalid_call(name: str) -> None:
    call, key = CALLS[name]
    with pytest.raises(XlsrError, match=key):
        call()


def test_tokenizer_without_special_tokens(tokenizer: Any) -> None:
    tokenizer = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(XlsrError, match="tokenizer"):
        sentence_ends(tokenizer)
