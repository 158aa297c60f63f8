from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from model_cases import CASES
from test_cached_models import step

from hf_xlsr.modeling import encoding as chunking
from hf_xlsr.modeling.encoding import in_order, length_chunks


@given(st.lists(st.integers(1, 30), min_size=1, max_size=300))
def test_chunks_hold_every_row_and_token(lengths: list[int]) -> None:
    mask = (torch.arange(30) < torch.tensor(lengths)[:, None]).long()
    chunks = length_chunks(mask)
    assert torch.equal(in_order([mask[chunk.rows] for chunk in chunks], chunks), mask)
    assert all(chunk(mask)[0].sum() == mask[chunk.rows].sum() for chunk in chunks)
    assert len(chunks) <= 4 and (len(chunks) == 1 or min(len(chunk.rows) for chunk in chunks[:-1]) >= 32)
    assert length_chunks(mask.flip(1))[-1].length == 30  # padding on the left stays


@pytest.mark.parametrize(
    ("name", "options"),
    [("hictl", {}), ("cmlm", {}), ("cmlm", {"conditioning": "none"}), ("cmlm", {"conditioning": "next_sentence"})],
)
def test_losses_do_not_depend_on_chunks(name: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(CASES[name], options={**CASES[name].options, **options})
    whole = step(case)
    monkeypatch.setattr(chunking, "LEAST_ROWS", 1)
    torch.testing.assert_close(step(case), whole, rtol=1e-5, atol=1e-6)
