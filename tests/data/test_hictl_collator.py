from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import ENGLISH, FRENCH
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.collators.hictl import HictlCollator, join_sides
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.losses.masked_lm import IGNORE


@pytest.fixture(scope="module")
def framed() -> Any:
    words = [" ".join(ENGLISH), " ".join(FRENCH)] * 5
    return train_tokenizer(words, vocab_size=90, algorithm="bpe", frame=True)


def ids_of(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


def pair(tokenizer: Any, index: int = 0, epoch: int = 0) -> dict[str, Any]:
    ids = {"source_ids": ids_of(tokenizer, "red house tree"), "target_ids": ids_of(tokenizer, "maison rouge")}
    return {**ids, "index": index, "epoch": epoch}


def sentence(tokenizer: Any, index: int = 0, epoch: int = 0) -> dict[str, Any]:
    text = "one two three four five six seven eight"
    return {"text_ids": ids_of(tokenizer, text), "index": index, "epoch": epoch}


def real(batch: dict[str, torch.Tensor], name: str, row: int) -> list[int]:
    """A row without its padding."""
    return batch[f"{name}input_ids"][row][batch[f"{name}attention_mask"][row] == 1].tolist()


def test_a_framed_tokenizer_puts_special_pieces_around_sentences(framed: Any) -> None:
    ids = ids_of(framed, "red house")
    assert framed.convert_ids_to_tokens([ids[0], ids[-1]]) == ["<s>", "</s>"]
    both = framed("red", "rouge")["input_ids"]
    assert framed.convert_ids_to_tokens(both).count("</s>") == 2
    assert framed.decode(ids, skip_special_tokens=True).strip() == "red house"


def test_a_pair_gives_both_sentences_and_their_union(framed: Any) -> None:
    feature = pair(framed)
    batch = HictlCollator(framed)([feature, pair(framed, 1)])
    assert batch["input_ids"].shape[0] == 4
    assert real(batch, "", 0) == feature["source_ids"]
    assert real(batch, "", 2) == feature["target_ids"]
    whole = feature["source_ids"] + feature["target_ids"][1:]
    assert real(batch, "joint_", 0) == whole


def test_the_language_model_sees_a_pair_whole_and_a_sentence_alone(framed: Any) -> None:
    two = [pair(framed, 5), sentence(framed, 6)]
    batch = HictlCollator(framed, mlm_probability=0.3)(two)
    restored = torch.where(batch["lm_labels"] == IGNORE, batch["lm_input_ids"], batch["lm_labels"])
    mask = batch["lm_attention_mask"] == 1
    assert restored[0][mask[0]].tolist() == real(batch, "joint_", 0)
    assert restored[1][mask[1]].tolist() == two[1]["text_ids"]
    assert (batch["lm_labels"] != IGNORE).any(1).all()


def test_special_pieces_are_never_masked(framed: Any) -> None:
    features = [pair(framed, index) for index in range(50)]
    batch = HictlCollator(framed, mlm_probability=0.9)(features)
    labels = batch["lm_labels"][batch["lm_labels"] != IGNORE]
    assert not set(labels.tolist()) & set(framed.all_special_ids)


def test_a_single_sentence_is_paired_with_a_reordering_of_itself(framed: Any) -> None:
    features = [sentence(framed, index) for index in range(20)]
    batch = HictlCollator(framed)(features)
    orders = set()
    for row in range(20):
        x, y = real(batch, "", row), real(batch, "", 20 + row)
        assert sorted(x) == sorted(y) and (x[0], x[-1]) == (y[0], y[-1])
        orders.add(tuple(y))
    assert len(orders) == 20


def test_batches_follow_from_example_and_epoch_alone(framed: Any) -> None:
    collator = HictlCollator(framed, seed=3)
    alone = collator([sentence(framed, 7, 2)])
    beside = collator([pair(framed, 1, 2), sentence(framed, 7, 2)])
    length = alone["lm_labels"].shape[1]
    torch.testing.assert_close(alone["lm_labels"][0], beside["lm_labels"][1, :length])
    assert real(alone, "", 1) == real(beside, "", 3)
    other = collator([sentence(framed, 7, 3)])
    assert real(alone, "", 1) != real(other, "", 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(8, 40))
def test_joined_sides_are_short_enough_and_keep_their_frame(first: int, second: int, limit: int) -> None:
    source, target = [0, *range(10, 10 + first), 2], [0, *range(50, 50 + second), 2]
    joined = join_sides(source, target, limit)
    assert len(joined) == min(limit, first + second + 3)
    assert joined[0] == 0 and joined[-1] == 2 and joined.count(2) == 2
    left = [piece for piece in joined if 10 <= piece < 50]
    right = [piece for piece in joined if piece >= 50]
    assert left == source[1 : 1 + len(left)] and right == target[1 : 1 + len(right)]
    # Pieces come off the longer side, one by one; the first side has one special piece more.
    own, other = len(left) + 2, len(right) + 1
    if len(left) < first and len(right) < second:
        assert abs(own - other) <= 1
    elif len(left) < first:
        assert own >= other - 1
    elif len(right) < second:
        assert other >= own


def test_the_share_of_masks_is_that_of_bert(framed: Any) -> None:
    features = [sentence(framed, index) for index in range(2000)]
    batch = HictlCollator(framed, mlm_probability=0.4)(features)
    chosen = batch["lm_labels"] != IGNORE
    inner = batch["lm_attention_mask"].sum().item() - 2 * 2000
    assert abs(chosen.sum().item() / inner - 0.4) < 0.02
    shown, hidden = batch["lm_input_ids"][chosen].numpy(), batch["lm_labels"][chosen].numpy()
    shares = [np.mean(shown == framed.mask_token_id), np.mean(shown == hidden)]
    np.testing.assert_allclose(shares, [0.8, 0.1], atol=0.02)
