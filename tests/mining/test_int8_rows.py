"""Vectors in one byte a number, against float64 arithmetic on what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mining_fakes import (
    SOURCE,
    TARGET,
    Copies,
    NumberEncoder,
    assert_same,
    assert_same_pairs,
    clustered,
    mapped,
    two_searches,
    unit,
    use_small_blocks,
)

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining import (
    MiningOptions,
    hard_negatives,
    int8_rows,
    mine_bitext,
    mine_vectors,
    neighbours_both_ways,
    score_bitext,
)
from hf_xlsr.mining.pipeline import run_mining
from hf_xlsr.mining.plan import Rates, plan_mining
from hf_xlsr.mining.search import cells, tiles
from hf_xlsr.mining.search.int8_rows import as_float32
from hf_xlsr.utils.errors import XlsrError


def rounded(vectors: np.ndarray) -> np.ndarray:
    """What `int8_rows` stands for, number by number."""
    rows = []
    for vector in vectors.astype(np.float32):
        scale = max(abs(number) for number in vector) / 127
        numbers = np.array([np.rint(number / scale) for number in vector], np.float64)
        rows.append(numbers / np.sqrt((numbers**2).sum()))
    return np.array(rows)


def test_rows_are_rounded_to_127_steps_and_have_length_1() -> None:
    vectors = unit(0, 200, 48) * np.random.default_rng(1).uniform(0.1, 30, size=(200, 1))

    rows = int8_rows(vectors)

    assert rows.nbytes == 200 * 48
    np.testing.assert_allclose(as_float32(rows), rounded(vectors), rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(as_float32(rows), axis=1), 1, rtol=1e-6)


def test_rows_are_the_same_after_they_are_rounded_again() -> None:
    rows = int8_rows(unit(2, 300, 24))
    np.testing.assert_array_equal(int8_rows(as_float32(rows)), rows)


def test_row_of_zeros_stays_one() -> None:
    assert not as_float32(int8_rows(np.zeros((2, 8)))).any()


def sides() -> tuple[np.ndarray, np.ndarray]:
    """With more equal rows than neighbours."""
    source = int8_rows(clustered(3, 500))
    source[20:29] = source[10]
    return source, int8_rows(clustered(4, 400))


@pytest.mark.parametrize("is_fast", [False, True])
@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_search_equals_a_naive_one_of_the_rounded_vectors(
    method: str, is_fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_blocks(monkeypatch)
    monkeypatch.setattr(tiles, "cpu_has_fast_bfloat16", lambda: is_fast)
    source, target = sides()

    found = neighbours_both_ways(source, mapped(tmp_path / "target.npy", target), 4, method=method, cells=4, probes=4)

    assert_same(found, two_searches(as_float32(source), as_float32(target), 4))


@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_copies_of_the_work_find_what_one_process_does(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_small_blocks(monkeypatch)
    monkeypatch.setattr(cells, "TWO_LEVELS", 16)
    source, target = sides()
    options: dict[str, Any] = {"method": method, "cells": 16, "probes": 3, "recall": 0.8}

    shared = neighbours_both_ways(source, target, 4, **options, folder=tmp_path / "work", runner=Copies())

    assert_same(shared, neighbours_both_ways(source, target, 4, **options))


def test_matrix_of_small_integers_is_searched_as_it_is() -> None:
    integers = np.random.default_rng(5).integers(-127, 128, (60, 8)).astype(np.int8)
    found = neighbours_both_ways(integers, integers, 3)
    assert_same(found, two_searches(integers, integers, 3))


def test_texts_are_mined_as_their_rounded_vectors(tmp_path: Path) -> None:
    work = tmp_path / "work"
    mined = mine_bitext(SOURCE, TARGET, encoder=NumberEncoder(), folder=work, k=3, vectors_dtype="int8")

    vectors = [int8_rows(embed(NumberEncoder(), texts)) for texts in (SOURCE, TARGET)]
    assert_same_pairs(mined, mine_vectors(*vectors, k=3))
    np.testing.assert_array_equal(np.load(work / "source.vectors" / "vectors.npy"), vectors[0])


def test_given_vectors_are_rounded(tmp_path: Path) -> None:
    source = 3 * unit(6, 80, 24)
    target = unit(7, 90, 24)

    mined = mine_bitext(source, target, folder=tmp_path / "work", vectors_dtype="int8")

    assert_same_pairs(mined, mine_vectors(int8_rows(source), int8_rows(target)))


def test_rounded_vectors_can_be_given() -> None:
    source, target = sides()
    assert_same_pairs(mine_bitext(source, target), mine_vectors(source, target))


def test_another_type_encodes_again_and_the_same_does_not(tmp_path: Path) -> None:
    def encoded(vectors_dtype: str | None) -> int:
        """Texts that are encoded, without those that identify the encoder."""
        encoder = NumberEncoder()
        options = MiningOptions(vectors_dtype=vectors_dtype)
        run_mining(SOURCE, TARGET, tmp_path / "work", options, encoder=encoder)
        return sum(map(len, encoder.calls[1:]))

    texts = len(SOURCE) + len(TARGET)
    dtypes = ["int8", "int8", None, "float16", "float32", "int8"]
    assert [encoded(dtype) for dtype in dtypes] == [texts, 0, texts, 0, texts, texts]


def test_scores_are_those_of_the_rounded_vectors() -> None:
    sources = SOURCE[:40]
    targets = TARGET[:40]
    vectors = [rounded(embed(NumberEncoder(), texts)) for texts in (sources, targets)]

    scores = score_bitext(sources, targets, encoder=NumberEncoder(), vectors_dtype="int8")

    np.testing.assert_allclose(scores.cosine, (vectors[0] * vectors[1]).sum(axis=1), rtol=1e-5)


def test_negatives_are_those_of_the_rounded_vectors() -> None:
    """Nearly all are those of float16: there are more candidates than negatives."""
    sources = SOURCE[:40]
    targets = TARGET[:40]

    def negatives(vectors_dtype: str) -> np.ndarray:
        mining = MiningOptions(vectors_dtype=vectors_dtype)
        encoders: dict[str, Any] = {"encoder": NumberEncoder(), "second_encoder": NumberEncoder(0.2)}
        rows = hard_negatives(sources, targets, **encoders, mining=mining, per_pair=2)
        return np.array([rows["negative_1"], rows["negative_2"]])

    assert (negatives("int8") == negatives("float16")).mean() > 0.8


def test_plan_has_half_the_bytes_of_float16() -> None:
    rates = Rates(2e5, 100, 1e10, 5e8, 1e5, 384, "a processor")
    stored = [plan_mining(10**6, 8, rates, vectors_dtype=dtype)[1].disk for dtype in ("float16", "int8")]
    assert stored[1] == stored[0] / 2


def test_unknown_type_is_refused() -> None:
    with pytest.raises(XlsrError, match="int4"):
        MiningOptions(vectors_dtype="int4")
