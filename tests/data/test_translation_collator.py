from __future__ import annotations

import torch
from conftest import make_pairs
from translation_helpers import translation_pairs, translation_tokenizer

from hf_xlsr.data.collators.translation import TranslationCollator


def test_sides_are_padded_by_themselves_and_labels_lose_their_first_piece() -> None:
    rows = [
        {"source_ids": [3, 10, 11, 12, 4], "target_ids": [3, 20, 4]},
        {"source_ids": [3, 13, 4], "target_ids": [3, 21, 22, 4]},
    ]
    batch = TranslationCollator(0)(rows)
    assert batch["input_ids"].tolist() == [[3, 10, 11, 12, 4], [3, 13, 4, 0, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert batch["labels"].tolist() == [[20, 4, -100], [21, 22, 4]]
    assert {value.dtype for value in batch.values()} == {torch.int64}


def test_long_sides_are_cut_before_their_end() -> None:
    row = {"source_ids": [3, *range(10, 20), 4], "target_ids": [3, *range(30, 40), 4]}
    batch = TranslationCollator(0, max_length=5)([row])
    assert batch["input_ids"].tolist() == [[3, 10, 11, 12, 4]]
    assert batch["labels"].tolist() == [[30, 31, 32, 4]]


def test_lengths_are_rounded_up() -> None:
    rows = [{"source_ids": [3, 10, 4], "target_ids": [3, 11, 4]}]
    batch = TranslationCollator(0, pad_to_multiple_of=8)(rows)
    assert batch["input_ids"].shape == batch["labels"].shape == (1, 8)
    assert batch["labels"][0].tolist() == [11, 4, *[-100] * 6]


def test_prepared_pairs_become_sources_and_labels() -> None:
    tokenizer, pairs = translation_tokenizer(), make_pairs(3)
    batch = TranslationCollator(tokenizer.pad_token_id)(translation_pairs(3).__getitems__([(0, 0), (0, 1), (0, 2)]))
    for row, pair in enumerate(pairs):
        assert tokenizer.decode(batch["input_ids"][row], skip_special_tokens=True) == pair["source"]
        labels = batch["labels"][row]
        assert tokenizer.decode(labels[labels >= 0], skip_special_tokens=True) == pair["target"]
        assert labels[labels >= 0][-1] == tokenizer.eos_token_id
