"""Starting a training from the weights of another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import tiny_encoder
from torch.nn.functional import normalize

from hf_xlsr import DualMomentumConfig, DualMomentumModel
from hf_xlsr.errors import XlsrError
from hf_xlsr.export.hub_trainer import slim
from hf_xlsr.starting import start_from

LANGUAGES = ("en", "zh")


def dual(seed: int, vocab_size: int = 30, **options: Any) -> DualMomentumModel:
    torch.manual_seed(seed)
    configs = {language: tiny_encoder(vocab_size) for language in LANGUAGES}
    config = DualMomentumConfig(languages=list(LANGUAGES), encoder_configs=configs, **{"queue_size": 8, **options})
    return DualMomentumModel(config)


def filled(seed: int, **options: Any) -> DualMomentumModel:
    """One whose queues hold keys, and whose momentum encoders have moved away from the encoders."""
    model = dual(seed, **options)
    with torch.no_grad():
        for parameter in model.encoders.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for language in LANGUAGES:
        model.enqueue(
            language, normalize(torch.randn(8, model.config.hidden_size), dim=1), torch.arange(8), torch.arange(8)
        )
    return model


def gap(model: DualMomentumModel) -> float:
    return max(float((base - average).detach().abs().max()) for base, average in model.momentum_pairs())


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8"])
def test_the_same_model_takes_everything(storage: str, tmp_path: Path) -> None:
    first, second = filled(1, queue_storage=storage), dual(2, queue_storage=storage)
    first.save_pretrained(tmp_path)
    counts = start_from(second, tmp_path)
    state = first.state_dict()
    assert counts == {"loaded": len(state), "kept": 0, "unused": 0}
    assert all(torch.equal(value, state[name]) for name, value in second.state_dict().items())


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ({"queue_storage": "int8"}, {}),
        ({}, {"queue_storage": "int8"}),
        ({}, {"queue_storage": "bfloat16"}),
        ({}, {"queue_size": 16}),
    ],
)
def test_queues_of_another_kind_begin_empty(before: dict[str, Any], now: dict[str, Any], tmp_path: Path) -> None:
    first, second = filled(1, **before), dual(2, **now)
    first.save_pretrained(tmp_path)
    counts = start_from(second, tmp_path)
    assert counts["unused"] == sum(name.startswith("queues.") for name in first.state_dict())
    assert counts["kept"] == sum(name.startswith("queues.") for name in second.state_dict())
    assert all(queue.count == 0 for queue in second.queues.values())
    assert gap(second) == pytest.approx(gap(first)) and gap(first) > 0


def test_momentum_encoders_begin_as_copies_where_there_are_none(tmp_path: Path) -> None:
    first = dual(1, queue_size=0, in_batch_negatives=True, use_momentum=False)
    first.save_pretrained(tmp_path / "without")
    with slim(pushed := filled(1)):
        pushed.save_pretrained(tmp_path / "pushed")
    for folder in ("without", "pushed"):
        second = dual(2)
        start_from(second, tmp_path / folder)
        assert gap(second) == 0
        own, there = second.encoders.state_dict(), (first if folder == "without" else pushed).encoders.state_dict()
        assert all(torch.equal(value, there[name]) for name, value in own.items())
        assert not any(parameter.requires_grad for parameter in second.momentum_encoders.parameters())


def test_a_model_without_momentum_takes_the_encoders_alone(tmp_path: Path) -> None:
    first, second = filled(1), dual(2, queue_size=0, in_batch_negatives=True, use_momentum=False)
    first.save_pretrained(tmp_path)
    counts = start_from(second, tmp_path)
    assert counts["kept"] == 0 and counts["loaded"] == len(second.state_dict())


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    dual(1, vocab_size=40).save_pretrained(tmp_path)
    with pytest.raises(XlsrError, match=r"of shape \(40, .*use the same encoder and vocabulary in both"):
        start_from(dual(2), tmp_path)
