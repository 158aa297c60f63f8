from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.collators.dual_momentum import DualCollator, NliCollator
from hf_xlsr.data.collators.padding import truncate_row

PADS = {"en": 0, "zh": 9}


def pair(index: int, source: list[int], target: list[int], **more: Any) -> dict[str, Any]:
    texts = {"source_text": -(2**63) + index, "target_text": 2**63 - 1 - index}
    return {"source_ids": source, "target_ids": target, "index": index, "epoch": 0} | texts | more


def english_chinese(index: int, source: list[int], target: list[int]) -> dict[str, Any]:
    return pair(index, source, target, source_lang="en", target_lang="zh")


def test_sides_have_their_own_padding() -> None:
    batch = DualCollator(PADS)([english_chinese(4, [1, 2, 3], [5]), english_chinese(2, [1], [5, 6])])
    assert batch["source_input_ids"].tolist() == [[1, 2, 3], [1, 0, 0]]
    assert batch["source_attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["target_input_ids"].tolist() == [[5, 9], [5, 6]]
    assert batch["target_attention_mask"].tolist() == [[1, 0], [1, 1]]
    assert batch["examples"].tolist() == [4, 2]
    assert batch["source_texts"].tolist() == [-(2**63) + 4, -(2**63) + 2]
    assert batch["target_texts"].tolist() == [2**63 - 5, 2**63 - 3]
    assert (batch["source_lang"], batch["target_lang"]) == ("en", "zh")
    assert all(value.dtype == torch.int64 for value in batch.values() if isinstance(value, torch.Tensor))
    assert len(batch) == 9


def test_lengths_are_truncated_and_rounded_up() -> None:
    collate = DualCollator(PADS, max_length=5, pad_to_multiple_of=4)
    batch = collate([english_chinese(0, [7, 1, 2, 3, 4, 5, 8], [7, 1, 8])])
    # The last special piece stays; an encoder need not have positions beyond the length that was asked for.
    assert batch["source_input_ids"].tolist() == [[7, 1, 2, 3, 8]]
    assert batch["target_input_ids"].tolist() == [[7, 1, 8, 9]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 14))
def test_truncated_row_keeps_its_last_id(ids: list[int], max_length: int) -> None:
    cut = list(truncate_row(ids, max_length))
    assert len(cut) == min(len(ids), max_length) and cut[-1] == ids[-1] and cut[:-1] == ids[: len(cut) - 1]


def inference(label: int, lang: str = "zh") -> dict[str, Any]:
    return {"premise_ids": [1, 2], "hypothesis_ids": [3, 4, 5][: label + 1], "label": label, "lang": lang}


def test_premises_and_hypotheses() -> None:
    batch = NliCollator(PADS, max_length=2)([inference(2), inference(0)])
    assert batch["premise_input_ids"].tolist() == [[1, 2], [1, 2]]
    assert batch["hypothesis_input_ids"].tolist() == [[3, 5], [3, 9]]
    assert batch["hypothesis_attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert batch["labels"].tolist() == [2, 0] and batch["labels"].dtype == torch.int64
    assert batch["lang"] == "zh" and len(batch) == 6
