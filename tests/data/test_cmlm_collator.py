from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cmlm_helpers import tiny_text
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.collators.cmlm import CmlmCollator
from hf_xlsr.data.collators.masking import MaskDrawer
from hf_xlsr.utils.errors import XlsrError


def feature(first: list[int], second: list[int], index: int = 0, epoch: int = 0) -> dict[str, Any]:
    return {"first_ids": first, "second_ids": second, "index": index, "epoch": epoch}


def restored(batch: dict[str, Any], row: int) -> list[int]:
    """The second sentence without its masks."""
    ids, labels = batch["second_input_ids"][row], batch["labels"][row]
    whole = np.where(labels != -100, labels, ids)
    return whole[batch["second_attention_mask"][row].bool().numpy()].tolist()


def test_half_of_the_pairs_are_turned_and_nothing_is_lost(tokenizer: Any) -> None:
    first, second = [5, 6, 7, 8], [9, 10, 11]
    batch = CmlmCollator(tokenizer)([feature(first, second, index) for index in range(2000)])
    turned = 0
    for row in range(2000):
        ahead = batch["first_input_ids"][row][batch["first_attention_mask"][row].bool()].tolist()
        assert sorted([ahead, restored(batch, row)]) == sorted([first, second])
        turned += ahead == second
    assert 900 < turned < 1100


def test_order_and_masks_follow_from_example_and_epoch(tokenizer: Any) -> None:
    collate, rows = CmlmCollator(tokenizer), tiny_text(tokenizer, 8)
    whole, alone = collate(rows), collate(rows[3:4])
    length = int(alone["second_attention_mask"].sum())
    assert whole["second_input_ids"][3, :length].tolist() == alone["second_input_ids"][0, :length].tolist()
    again = collate([{**row, "epoch": 1} for row in rows])
    assert again["labels"].tolist() != whole["labels"].tolist()


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8), share=st.sampled_from([40 / 256, 80 / 256, 0.9]))
def test_just_that_share_of_each_sentence_is_masked(tokenizer: Any, lengths: list[int], share: float) -> None:
    rows = [feature([7] * length, [7] * length, index) for index, length in enumerate(lengths)]
    labels = CmlmCollator(tokenizer, mlm_probability=share)(rows)["labels"]
    assert (labels != -100).sum(1).tolist() == [max(1, round(share * length)) for length in lengths]


def test_four_fifths_become_the_mask_and_a_tenth_stays(tokenizer: Any) -> None:
    rows = [feature([7] * 200, [7] * 200, index) for index in range(200)]
    batch = CmlmCollator(tokenizer)(rows)
    seen = batch["second_input_ids"][batch["labels"] != -100]
    shares = [(seen == piece).double().mean().item() for piece in (tokenizer.mask_token_id, 7)]
    assert shares[0] == pytest.approx(0.8, abs=0.01)
    assert shares[1] == pytest.approx(0.1 + 0.1 / (len(tokenizer) - len(tokenizer.all_special_ids)), abs=0.01)


def test_special_pieces_are_never_masked(tokenizer: Any) -> None:
    special = tokenizer.pad_token_id
    batch = CmlmCollator(tokenizer, mlm_probability=0.9)(
        [feature([special, 7, 8, special], [special, 9, special], index) for index in range(50)]
    )
    assert special not in batch["labels"].unique().tolist()


def test_the_limit_keeps_the_last_piece(tokenizer: Any) -> None:
    batch = CmlmCollator(tokenizer, max_length=3)([feature([5, 6, 7, 8, 9], [5, 6, 7, 8, 9])])
    assert batch["first_input_ids"].tolist() == [[5, 6, 9]] and restored(batch, 0) == [5, 6, 9]


def test_a_batch_without_a_maskable_piece_is_refused(tokenizer: Any) -> None:
    special = tokenizer.pad_token_id
    with pytest.raises(XlsrError, match="can be masked"):
        CmlmCollator(tokenizer)([feature([special], [special])])


def test_exact_masks_choose_among_allowed_places_alone(tokenizer: Any) -> None:
    ids = np.full((3, 10), 7)
    allowed = np.zeros((3, 10), dtype=bool)
    allowed[0, :4], allowed[1, 5] = True, True
    drawer = MaskDrawer(tokenizer, probability=0.5, exact=True)
    _, labels = drawer(ids, allowed, np.zeros(3, int), np.arange(3), np.arange(10)[None])
    assert (labels != -100).sum(1).tolist() == [2, 1, 0]
    assert not (labels != -100)[~allowed].any()
