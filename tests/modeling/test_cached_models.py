"""Sentences in chunks, with and without the gradient cache: the same losses and gradients."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from model_cases import CASES, VOCABULARY, Case, build, gradients_of, lightweight_batch

from hf_xlsr.modeling import encoding

CACHED = {name: CASES[name] for name in ("dual_momentum", "dual_momentum_shared", "hictl", "cmlm", "lightweight")}
for task in ("mlm", "xtr", "mlm+xtr"):
    CACHED[f"lightweight-{task}"] = replace(
        CASES["lightweight"],
        options={**CASES["lightweight"].options, "generative_task": task},
        batch=partial(lightweight_batch, task=task),
    )


def step(case: Case, *, dtype: torch.dtype = torch.float32, **options: Any) -> dict[str, torch.Tensor]:
    """Loss, its parts and the gradient of each parameter."""
    model = build(case)
    torch.manual_seed(1)  # draws the negative words of HICTL
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        outputs = model(**case.batch(VOCABULARY), **options)
    outputs.loss.backward()

    return {"loss": outputs.loss, **outputs.losses, **gradients_of(model)}


@pytest.mark.parametrize("name", CACHED)
@pytest.mark.parametrize("size", [1, 3])
def test_same_losses_and_gradients(name: str, size: int) -> None:
    cached = step(CACHED[name], cache_batch_size=size)
    whole = step(CACHED[name])
    torch.testing.assert_close(cached, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"),
    [("hictl", {}), ("cmlm", {}), ("cmlm", {"conditioning": "none"}), ("cmlm", {"conditioning": "next_sentence"})],
)
def test_losses_do_not_depend_on_chunks(name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASES[name], options={**CASES[name].options, **options})
    whole = step(case)
    monkeypatch.setattr(encoding, "MIN_CHUNK_ROWS", 1)
    torch.testing.assert_close(step(case), whole, rtol=1e-5, atol=1e-6)
