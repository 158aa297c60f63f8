"""Batches of every method: padding, truncation, and masks that follow from example and epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.collators import (
    CmlmCollator,
    DualCollator,
    HictlCollator,
    LabelledCollator,
    PairCollator,
    TranslationCollator,
    join_sides,
    pad_rows,
    truncate_row,
)
from hf_xlsr.data.masking import counter_uniform
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.losses.cross_entropy import IGNORE

TEXTS = ["the cat, the dog sees bright rivers.", "le chat , le chien voit une belle maison ."] * 50
PADS = {"en": 0, "zh": 9}


@pytest.fixture(scope="module")
def plain() -> Any:
    return train_tokenizer(TEXTS, vocab_size=30, algorithm="bpe")


@pytest.fixture(scope="module")
def framed() -> Any:
    return train_tokenizer(TEXTS, vocab_size=60, algorithm="bpe", frame=True)


def pair(tokenizer: Any, index: int, source: str = "the dog", target: str = "le chien", epoch: int = 0) -> Any:
    return {
        "source_ids": tokenizer(source)["input_ids"],
        "target_ids": tokenizer(target)["input_ids"],
        "index": index,
        "epoch": epoch,
    }


def sentence(tokenizer: Any, index: int, epoch: int = 0) -> dict[str, Any]:
    text = "the cat sees the bright rivers, the dog sees"
    return {"text_ids": tokenizer(text)["input_ids"], "index": index, "epoch": epoch}


def consecutive(first: list[int], second: list[int], index: int = 0, epoch: int = 0) -> dict[str, Any]:
    return {"first_ids": first, "second_ids": second, "index": index, "epoch": epoch}


def random_pairs(count: int, longest: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    rows = []
    for index in range(count):
        source = rng.integers(3, 25, rng.integers(1, longest)).tolist()
        target = rng.integers(3, 25, rng.integers(1, longest)).tolist()
        rows.append({"source_ids": source, "target_ids": target, "index": index, "epoch": 0})
    return rows


def values(batch: dict[str, Any]) -> dict[str, Any]:
    """A batch with lists for tensors."""
    return {name: value.tolist() if torch.is_tensor(value) else value for name, value in batch.items()}


def unpadded(batch: dict[str, torch.Tensor], name: str, row: int) -> list[int]:
    is_token = batch[f"{name}attention_mask"][row] == 1
    return batch[f"{name}input_ids"][row][is_token].tolist()


def restored(ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.where(labels == IGNORE, ids, labels)


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), min_size=1, max_size=6), st.integers(1, 8))
def test_padding_keeps_every_row(rows: list[list[int]], multiple: int) -> None:
    ids, mask = pad_rows(rows, 0, multiple)
    for row, padded, is_token in zip(rows, ids, mask, strict=True):
        assert padded[is_token == 1].tolist() == row

    width = ids.shape[1]
    assert width % multiple == 0
    assert width < max(map(len, rows)) + multiple
    assert not ids[mask == 0].any()


@settings(max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 20), st.integers(1, 8))
def test_truncated_row_keeps_its_last_id_and_fits(ids: list[int], limit: int, multiple: int) -> None:
    length = min(len(ids), limit)
    *start, last = truncate_row(ids, limit)
    assert last == ids[-1]
    assert start == ids[: length - 1]

    padded, _ = pad_rows([ids], 0, multiple, limit)
    width = padded.shape[1]
    assert len(ids) <= width <= max(len(ids), limit)
    assert width % multiple == 0 or width in (len(ids), limit)


def test_counter_uniform_is_uniform_and_uncorrelated() -> None:
    grid = counter_uniform(1, np.arange(50)[:, None], np.arange(200)[None, :])
    assert grid.min() >= 0
    assert grid.max() < 1
    assert len(np.unique(grid)) == grid.size

    counts, _ = np.histogram(grid, 10, (0, 1))
    assert np.abs(counts / grid.size - 0.1).max() < 0.01
    for numbers in (grid, grid.T):
        correlation = np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]
        assert abs(correlation) < 0.03


def collator_and_labels(kind: str, tokenizer: Any, **options: float) -> tuple[Callable[..., Any], str]:
    """A collator that masks, and the name of its labels."""
    if kind == "cmlm":
        return CmlmCollator(tokenizer, **options), "labels"
    if kind == "hictl":
        return HictlCollator(tokenizer, **options), "lm_labels"
    if kind == "mlm":
        return PairCollator(tokenizer, masking="mlm", **options), "mlm_labels"
    return PairCollator(tokenizer), "masked_ids"


def example(kind: str, tokenizer: Any, index: int, epoch: int) -> dict[str, Any]:
    if kind == "cmlm":
        return consecutive([5, 6, 7, 8], [9, 10, 11, 12], index, epoch)
    if kind == "hictl":
        return sentence(tokenizer, index, epoch)
    return pair(tokenizer, index, epoch=epoch)


@pytest.mark.parametrize("kind", ["single", "mlm", "cmlm", "hictl"])
def test_masks_follow_from_example_and_epoch(kind: str, framed: Any) -> None:
    collate, name = collator_and_labels(kind, framed)

    def labels_of(indices: Iterable[int], epoch: int = 0) -> torch.Tensor:
        return collate([example(kind, framed, index, epoch) for index in indices])[name]

    whole = labels_of(range(20))
    assert torch.equal(whole, labels_of(range(20)))
    assert not torch.equal(whole, labels_of(range(20), epoch=1))

    for index in (0, 7, 19):
        of_example = whole[index::20]  # one row, or one a side
        assert torch.equal(labels_of([index]), of_example)


def masked_sevens(masking: str, tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Masked ids and labels of rows of the ordinary token 7."""
    sevens = [7] * 100
    rows: list[dict[str, Any]] = [{"index": index, "epoch": 0} for index in range(300)]
    if masking == "mlm":
        for row in rows:
            row.update(source_ids=sevens, target_ids=sevens)
        batch = PairCollator(tokenizer, masking="mlm", mlm_probability=0.4)(rows)
        return batch["input_ids"], batch["mlm_labels"]

    if masking == "cmlm":
        for row in rows:
            row.update(first_ids=sevens, second_ids=sevens)
        batch = CmlmCollator(tokenizer, mlm_probability=0.4)(rows)
        return batch["second_input_ids"], batch["labels"]

    for row in rows:
        row["text_ids"] = [3, *sevens, 4]
    batch = HictlCollator(tokenizer, mlm_probability=0.4)(rows)
    return batch["lm_input_ids"][:, 1:-1], batch["lm_labels"][:, 1:-1]


@pytest.mark.parametrize("masking", ["mlm", "cmlm", "hictl"])
def test_masks_are_those_of_bert(masking: str, framed: Any) -> None:
    ids, labels = masked_sevens(masking, framed)
    selected = labels != IGNORE
    assert np.mean(selected.numpy()) == pytest.approx(0.4, abs=0.01)
    assert (labels[selected] == 7).all()
    assert (restored(ids, labels) == 7).all()

    masked = ids[selected].numpy()
    num_ordinary = len(framed) - len(framed.all_special_ids)
    assert np.mean(masked == framed.mask_token_id) == pytest.approx(0.8, abs=0.01)
    assert np.mean(masked == 7) == pytest.approx(0.1 + 0.1 / num_ordinary, abs=0.01)


@pytest.mark.parametrize("kind", ["single", "mlm", "cmlm", "hictl"])
def test_special_tokens_are_never_masked(framed: Any, kind: str) -> None:
    rows = [pair(framed, index) for index in range(40)]
    rows += [pair(framed, index, ",", ",") for index in range(40, 80)]
    for row in rows:
        row.update(first_ids=row["source_ids"], second_ids=row["target_ids"])

    collate, name = collator_and_labels(kind, framed, mlm_probability=0.9)
    labels = collate(rows)[name]

    special = torch.tensor(framed.all_special_ids)
    around = special[special != framed.unk_token_id]
    assert not torch.isin(labels, around).any()
    assert (labels != IGNORE).sum() >= 80
    assert kind != "hictl" or (labels != IGNORE).any(1).all()


@pytest.mark.parametrize(("identities", "expected"), [(True, [[6]]), (False, [[5], [6]])])
def test_hard_negatives_are_no_translations_of_the_batch(
    plain: Any, identities: bool, expected: list[list[int]]
) -> None:
    rows = random_pairs(3, 4)
    for row in rows:
        row.update(source_text=1, target_text=2, negative_ids=None)
    rows[1].update(target_text=7, negative_ids=[[5], [6]], negative_text=[2, 8])

    batch = PairCollator(plain, identities=identities)(rows)
    assert batch["negative_input_ids"].tolist() == expected


def test_single_masking_hides_one_token_of_one_side(plain: Any) -> None:
    batch = PairCollator(plain)(random_pairs(64, 12))
    hidden = batch["masked_ids"]
    is_masked = hidden != IGNORE
    sources, targets = is_masked.chunk(2)
    assert (sources ^ targets).all()
    assert 10 < sources.sum() < 54

    ids = batch["input_ids"]
    original = batch["original_ids"]
    changed = ids != original
    assert torch.equal(changed.sum(1), is_masked.long())
    assert (ids[changed] == plain.mask_token_id).all()
    assert torch.equal(original[changed], hidden[is_masked])


@pytest.mark.parametrize("mask_punctuation", [False, True])
def test_punctuation_is_masked_where_it_may_be(mask_punctuation: bool, framed: Any) -> None:
    rows = [pair(framed, index, "the cat,", "le chat,") for index in range(100)]
    labels = PairCollator(framed, mask_punctuation=mask_punctuation)(rows)["masked_ids"]

    comma = framed.convert_tokens_to_ids(",")
    assert bool((labels == comma).any()) == mask_punctuation


# CMLM.


def test_half_of_consecutive_sentences_are_swapped(tokenizer: Any) -> None:
    first = [5, 6, 7, 8]
    second = [9, 10, 11]
    batch = CmlmCollator(tokenizer)([consecutive(first, second, index) for index in range(2000)])
    batch["second_input_ids"] = restored(batch["second_input_ids"], batch["labels"])

    num_swapped = 0
    for row in range(2000):
        sides = [unpadded(batch, "first_", row), unpadded(batch, "second_", row)]
        num_swapped += sides == [second, first]
        assert sorted(sides) == [first, second]
    assert 900 < num_swapped < 1100


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=8), share=st.sampled_from([40 / 256, 80 / 256, 0.9]))
def test_exact_share_of_each_sentence_is_masked(tokenizer: Any, lengths: list[int], share: float) -> None:
    rows = []
    for index, length in enumerate(lengths):
        sevens = [7] * length
        rows.append(consecutive(sevens, sevens, index))

    labels = CmlmCollator(tokenizer, mlm_probability=share)(rows)["labels"]

    expected = [max(1, round(share * length)) for length in lengths]
    assert (labels != IGNORE).sum(1).tolist() == expected


# HICTL.


def test_hictl_batch_has_both_sentences_their_union_and_the_language_model(framed: Any) -> None:
    both_sides = pair(framed, 5)
    source = both_sides["source_ids"]
    target = both_sides["target_ids"]
    single = sentence(framed, 6)
    batch = HictlCollator(framed, mlm_probability=0.3)([both_sides, single])
    assert unpadded(batch, "", 0) == source
    assert unpadded(batch, "", 2) == target
    assert unpadded(batch, "joint_", 0) == source + target[1:]

    batch["lm_input_ids"] = restored(batch["lm_input_ids"], batch["lm_labels"])
    assert unpadded(batch, "lm_", 0) == source + target[1:]
    assert unpadded(batch, "lm_", 1) == single["text_ids"]


def test_hictl_sentences_are_truncated_to_their_last_token(framed: Any) -> None:
    batch = HictlCollator(framed, max_length=5)([sentence(framed, 0)])
    ids = unpadded(batch, "", 0)
    assert len(ids) == 5
    assert ids[-1] == framed.sep_token_id


def test_single_sentence_is_paired_with_a_reordering(framed: Any) -> None:
    rows = [sentence(framed, index) for index in range(20)]
    ids = rows[0]["text_ids"]
    batch = HictlCollator(framed)(rows)

    orders = set()
    for row in range(20):
        assert unpadded(batch, "", row) == ids
        first, *inner, last = unpadded(batch, "", 20 + row)
        assert (first, last) == (ids[0], ids[-1])
        assert sorted(inner) == sorted(ids[1:-1])
        orders.add(tuple(inner))
    assert len(orders) == 20


@settings(max_examples=50)
@given(st.integers(0, 30), st.integers(0, 30), st.integers(8, 40))
def test_joined_sides_lose_tokens_of_the_longer_side(left: int, right: int, limit: int) -> None:
    source = [0, *range(10, 10 + left), 2]
    target = [0, *range(50, 50 + right), 2]
    joined = join_sides(source, target, limit)

    while left + right + 3 > limit:  # the first side has one special token more
        if left + 2 >= right + 1:
            left -= 1
        else:
            right -= 1
    assert joined == [0, *source[1 : 1 + left], 2, *target[1 : 1 + right], 2]


# Two encoders, translation, labels.


def test_dual_sides_have_their_own_padding_and_length() -> None:
    languages = {"source_lang": "en", "target_lang": "zh"}
    rows = [
        {"source_ids": [1, 2, 3], "target_ids": [5], "source_text": -(2**63), "target_text": 7, "index": 4},
        {"source_ids": [1], "target_ids": [5, 6], "source_text": 8, "target_text": 2**63 - 1, "index": 2},
    ]
    batch = DualCollator(PADS)([{**row, **languages} for row in rows])
    assert values(batch) == {
        "source_input_ids": [[1, 2, 3], [1, 0, 0]],
        "source_attention_mask": [[1, 1, 1], [1, 0, 0]],
        "target_input_ids": [[5, 9], [5, 6]],
        "target_attention_mask": [[1, 0], [1, 1]],
        "source_texts": [-(2**63), 8],
        "target_texts": [7, 2**63 - 1],
        "examples": [4, 2],
        **languages,
    }


@pytest.mark.parametrize("kind", ["pairs", "hictl", "dual"])
def test_hard_negatives_of_all_rows_are_stacked(kind: str, framed: Any) -> None:
    cat = [3, 10, 4]  # is padded
    dog = [3, 20, 21, 22, 23, 24, 4]  # is truncated
    of_text = {"source_text": 1, "target_text": 2, "source_lang": "en", "target_lang": "zh"}
    features = [
        {**pair(framed, 0), **of_text, "negative_ids": [dog, cat], "negative_text": [8, 9]},
        {**pair(framed, 1), **of_text, "negative_ids": None},  # of a stream without them
        {**pair(framed, 2), **of_text, "negative_ids": [cat], "negative_text": [9]},
    ]
    collators: dict[str, Callable[..., Any]] = {
        "pairs": PairCollator(framed, masking="single", max_length=5),
        "hictl": HictlCollator(framed, max_length=5),
        "dual": DualCollator(PADS, max_length=5),
    }

    batch = values(collators[kind](features))

    pad = 9 if kind == "dual" else 0  # negatives are in the language of the target
    padded = [3, 10, 4, pad, pad]
    assert batch.pop("negative_input_ids") == [[3, 20, 21, 22, 4], padded, padded]
    assert batch.pop("negative_attention_mask") == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 0, 0]]
    if kind == "dual":
        assert batch.pop("negative_texts") == [8, 9, 9]

    for feature in features:
        feature["negative_ids"] = []
    assert batch == values(collators[kind](features))


def test_translation_labels_lack_the_first_token() -> None:
    rows = [
        {"source_ids": [3, 10, 11, 12, 4], "target_ids": [3, 20, 4]},
        {"source_ids": [3, 13, 4], "target_ids": [3, *range(21, 30), 4]},
    ]
    batch = TranslationCollator(0, max_length=4)(rows)
    assert values(batch) == {
        "input_ids": [[3, 10, 11, 4], [3, 13, 4, 0]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
        "labels": [[20, 4, IGNORE], [21, 22, 4]],
    }


def test_labelled_rows_are_padded_with_their_types() -> None:
    rows = [
        {"input_ids": [2, 4, 3, 5, 3], "token_type_ids": [0, 0, 0, 1, 1], "label": 1},
        {"input_ids": [2, 4, 3], "token_type_ids": [0, 0, 0], "label": 0},
    ]
    batch = LabelledCollator(9, pad_to_multiple_of=4)(rows)
    assert values(batch) == {
        "input_ids": [[2, 4, 3, 5, 3, 9, 9, 9], [2, 4, 3, 9, 9, 9, 9, 9]],
        "attention_mask": [[1] * 5 + [0] * 3, [1] * 3 + [0] * 5],
        "token_type_ids": [[0, 0, 0, 1, 1, 0, 0, 0], [0] * 8],
        "labels": [1, 0],
    }
    assert batch["labels"].dtype == torch.int64


def test_labels_may_be_scores() -> None:
    batch = LabelledCollator(0)([{"input_ids": [2], "label": 2.5}])
    assert batch["labels"].dtype == torch.float32
    assert batch.keys() == {"input_ids", "attention_mask", "labels"}
