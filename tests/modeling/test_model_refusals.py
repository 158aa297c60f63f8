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
    LightweightConfig,
    XlsrError,
)
from hf_xlsr.modeling.memory_queue import MemoryQueue


@pytest.mark.parametrize(
    ("config_class", "values", "key"),
    [
        (CmlmConfig, {"conditioning": "inputs"}, "conditioning"),
        (DualMomentumConfig, {"languages": ["en"]}, "languages"),
        (
            DualMomentumConfig,
            {"encoder_configs": {"en": PLAIN, "zh": {**PLAIN, "hidden_size": 8}}},
            "projection_dim",
        ),
        (DualMomentumConfig, {"pooling": "men"}, "pooling"),
        (DualMomentumConfig, {"queue_size": 0, "in_batch_negatives": False}, "queue_size"),
        (HictlConfig, {"word_query": "both"}, "word_query"),
        (LightweightConfig, {"generative_task": "ugtt"}, "generative_task"),
        (LightweightConfig, {"similarity_weight": -0.1}, "similarity_weight"),
    ],
)
def test_invalid_configuration(config_class: Any, values: dict[str, Any], key: str) -> None:
    with pytest.raises(StrictDataclassError, match=key):
        config_class(**values)


def without(batch: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in batch.items() if name not in names}


def dual_of_two_sizes() -> Any:
    model = dual()
    model.resize_token_embeddings(44, language="en")
    return model


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "no weight": (
        lambda: lightweight(generative_weight=0, alignment_weight=0, similarity_weight=0)(**lightweight_batch()),
        "weight",
    ),
    "ugt without labels": (
        lambda: lightweight(generative_task="ugt")(**without(lightweight_batch(task="ugt"), "masked_ids")),
        "masked_ids",
    ),
    "mlm without labels": (
        lambda: lightweight(generative_task="mlm")(**without(lightweight_batch(task="mlm"), "mlm_labels")),
        "mlm_labels",
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
    "which vocabulary": (lambda: dual_of_two_sizes().resize_token_embeddings(50), "en, fr"),
    "too many negatives": (
        lambda: tiny_hictl(len(framed_tokenizer()), negative_words=500)(**tiny_batch(framed_tokenizer())),
        "500",
    ),
    "no task": (lambda: tiny_cmlm(30)(), "weight"),
}


@pytest.mark.parametrize("name", CALLS)
def test_invalid_call(name: str) -> None:
    call, key = CALLS[name]
    with pytest.raises(XlsrError, match=key):
        call()
