from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.collators.lightweight import PairCollator
from hf_xlsr.data.collators.masking import counter_uniform
from hf_xlsr.data.collators.padding import pad_rows
from hf_xlsr.data.tokenization import train_tokenizer


@pytest.fixture(scope="module")
def punctuated() -> Any:
    return train_tokenizer(
        ["the cat, the dog sees bright rivers.", "le chat , le chien voit une belle maison ."] * 50,
        vocab_size=30,
        algorithm="bpe",
    )


def features(count: int, seed: int = 0, low: int = 3, high: int = 25) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "source_ids": rng.integers(low, high, rng.integers(1, 12)).tolist(),
            "target_ids": rng.integers(low, high, rng.integers(1, 12)).tolist(),
            "index": index,
            "epoch": 0,
        }
        for index in range(count)
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=6), st.integers(1, 8))
def test_padding_keeps_every_row(rows: list[list[int]], multiple: int) -> None:
    ids, mask = pad_rows(rows, 0, multiple)
    assert [row[keep.astype(bool)].tolist() for row, keep in zip(ids, mask, strict=True)] == rows
    assert ids.shape[1] % multiple == 0 and ids.shape[1] < max(map(len, rows)) + multiple
    assert not ids[mask == 0].any()


def test_single_masking_hides_one_piece_on_one_side(punctuated: Any) -> None:
    pairs = features(64)
    batch = PairCollator(punctuated, masking="single")(pairs)
    hidden, changed = batch["masked_ids"], batch["input_ids"] != batch["original_ids"]
    assert changed.sum(1).tolist() == (hidden != -100).long().tolist()
    assert ((hidden[:64] != -100) ^ (hidden[64:] != -100)).all()  # exactly one side of each pair
    rows, columns = changed.nonzero(as_tuple=True)
    assert (batch["input_ids"][rows, columns] == punctuated.mask_token_id).all()
    assert torch.equal(batch["original_ids"][rows, columns], hidden[rows])
    assert 10 < (hidden[:64] != -100).sum() < 54  # both sides get their share


def test_single_masking_avoids_punctuation_unless_there_is_nothing_else(punctuated: Any) -> None:
    comma, word = punctuated.convert_tokens_to_ids(","), punctuated("dog")["input_ids"][-1]
    pairs = [
        {"source_ids": [comma, word, comma], "target_ids": [comma, word, comma], "index": i, "epoch": 0}
        for i in range(40)
    ]
    hidden = PairCollator(punctuated, masking="single")(pairs)["masked_ids"]
    assert set(hidden.tolist()) == {-100, word}
    hidden = PairCollator(punctuated, masking="single", mask_punctuation=True)(pairs)["masked_ids"]
    assert comma in hidden.tolist()
    only = [{"source_ids": [comma], "target_ids": [comma], "index": 0, "epoch": 0}]
    assert comma in PairCollator(punctuated, masking="single")(only)["masked_ids"].tolist()


def test_positions_are_uniform(punctuated: Any) -> None:
    word = punctuated("dog")["input_ids"][-1]
    pairs = [{"source_ids": [word] * 4, "target_ids": [word] * 4, "index": i, "epoch": 0} for i in range(4000)]
    batch = PairCollator(punctuated, masking="single")(pairs)
    columns = (batch["input_ids"] != batch["original_ids"]).nonzero()[:, 1]
    shares = torch.bincount(columns, minlength=4)[:4] / 4000
    assert torch.allclose(shares, torch.full((4,), 0.25), atol=0.03)


def test_masks_belong_to_the_example_not_to_the_batch(punctuated: Any) -> None:
    collate = PairCollator(punctuated, masking="single")
    pairs = features(20)
    together = collate(pairs)["masked_ids"]
    for position in (0, 7, 19):
        alone = collate([pairs[position]])["masked_ids"]
        assert alone.tolist() == together[[position, 20 + position]].tolist()


@pytest.mark.parametrize("masking", ["single", "mlm"])
def test_masks_change_with_epoch_and_seed(punctuated: Any, masking: str) -> None:
    pairs = features(30)
    first = PairCollator(punctuated, masking=masking)(pairs)["input_ids"]
    again = PairCollator(punctuated, masking=masking)(pairs)["input_ids"]
    later = PairCollator(punctuated, masking=masking)([{**pair, "epoch": 1} for pair in pairs])["input_ids"]
    other = PairCollator(punctuated, masking=masking, seed=2)(pairs)["input_ids"]
    assert torch.equal(first, again)
    assert not torch.equal(first, later) and not torch.equal(first, other) and not torch.equal(later, other)


def test_mlm_masks_the_share_it_should(punctuated: Any) -> None:
    rng = np.random.default_rng(0)
    pairs = [
        {"source_ids": rng.integers(3, 25, 40).tolist(), "target_ids": rng.integers(3, 25, 40).tolist()}
        | {"index": index, "epoch": 0}
        for index in range(300)
    ]
    batch = PairCollator(punctuated, masking="mlm")(pairs)
    labels, ids, original = batch["mlm_labels"], batch["input_ids"], batch["original_ids"]
    chosen = labels != -100
    assert abs(chosen.float().mean() - 0.15) < 0.01
    assert torch.equal(labels[chosen], original[chosen]) and torch.equal(ids[~chosen], original[~chosen])
    masked = (ids[chosen] == punctuated.mask_token_id).float().mean()
    kept = (ids[chosen] == original[chosen]).float().mean()
    assert abs(masked - 0.8) < 0.02 and 0.08 < kept < 0.16  # a random piece may be the same one
    assert not set(ids[chosen].tolist()) & {punctuated.pad_token_id, punctuated.unk_token_id}


def test_mlm_masks_at_least_one_piece_of_a_short_sentence(punctuated: Any) -> None:
    pairs = [{"source_ids": [5], "target_ids": [6, 7], "index": i, "epoch": 0} for i in range(50)]
    labels = PairCollator(punctuated, masking="mlm")(pairs)["mlm_labels"]
    assert ((labels != -100).sum(1) >= 1).all()


def test_sentences_are_cut_at_the_limit(punctuated: Any) -> None:
    pair = {"source_ids": list(range(3, 23)), "target_ids": [4], "index": 0, "epoch": 0}
    batch = PairCollator(punctuated, masking="none", max_length=8, pad_to_multiple_of=1)([pair])
    assert batch["input_ids"][0].tolist() == list(range(3, 11))


def test_counter_uniform_is_uniform_and_uncorrelated() -> None:
    grid = counter_uniform(1, np.arange(50)[:, None], np.arange(200)[None, :])
    assert 0 <= grid.min() and grid.max() < 1
    assert np.abs(np.histogram(grid, 10, (0, 1))[0] / grid.size - 0.1).max() < 0.01
    assert abs(np.corrcoef(grid[:, :-1].ravel(), grid[:, 1:].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(grid[:-1].ravel(), grid[1:].ravel())[0, 1]) < 0.03
    assert len(np.unique(grid)) == grid.size


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 8))
def test_rounding_stops_at_the_limit(longest: int, limit: int, multiple: int) -> None:
    width = pad_rows([[1] * longest], 0, multiple, limit)[0].shape[1]
    assert longest <= width <= max(longest, limit) and (width % multiple == 0 or width in (longest, limit))


@pytest.fixture(scope="module")
def framed() -> Any:
    return train_tokenizer(["the cat, the dog", "le chat , le chien"] * 50, vocab_size=30, algorithm="bpe", frame=True)


def framed_features(tokenizer: Any) -> list[dict[str, Any]]:
    texts = [("the dog", "le chien"), ("the cat, the dog", "le chat"), (",", ",")]
    return [
        {
            "source_ids": tokenizer(one)["input_ids"],
            "target_ids": tokenizer(other)["input_ids"],
            "index": i,
            "epoch": 0,
        }
        for i, (one, other) in enumerate(texts * 40)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"masking": "mlm", "mlm_probability": 0.5},
        {"masking": "single"},
        {"masking": "single", "mask_punctuation": True},
    ],
)
def test_pieces_around_a_sentence_are_never_hidden(framed: Any, options: dict[str, Any]) -> None:
    batch = PairCollator(framed, **options)(framed_features(framed))
    hidden = batch["mlm_labels" if options["masking"] == "mlm" else "masked_ids"]
    hidden = hidden[hidden != -100]
    around = torch.tensor(sorted({*framed.all_special_ids} - {framed.unk_token_id}))
    assert len(hidden) >= 120 and not torch.isin(hidden, around).any()


def test_a_cut_sentence_keeps_its_end(framed: Any) -> None:
    batch = PairCollator(framed, masking="none", max_length=4)(framed_features(framed))
    rows, lengths = batch["input_ids"], batch["attention_mask"].sum(1)
    assert rows.shape[1] == 4 and (rows[torch.arange(len(rows)), lengths - 1] == rows[0, lengths[0] - 1]).all()
    assert int(rows[0, lengths[0] - 1]) in framed.all_special_ids
