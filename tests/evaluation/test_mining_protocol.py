"""Protocol `mining` is BUCC's test on two halves of a parallel file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import make_pairs

from hf_xlsr.evaluation import bucc, hide_pairs, mining
from hf_xlsr.utils.errors import XlsrError


class Noisy:
    """Vectors of the number in a text, with noise."""

    def encode(self, texts: list[str], **_: Any) -> np.ndarray:
        return np.stack([self.vector(text) for text in texts])

    def vector(self, text: str) -> np.ndarray:
        meaning = np.random.default_rng(int(text.split()[-1])).normal(size=8)
        return meaning + 0.4 * np.random.default_rng(list(text.encode())).normal(size=8)


SIDES = [f"one {n}" for n in range(200)], [f"un {n}" for n in range(200)]


def test_equals_bucc_on_both_halves() -> None:
    found = mining(Noisy(), *SIDES, name="x", hide_pairs=0.4, k=3, margin="distance", seed=5)
    order = np.random.default_rng(5).permutation(200)
    rows = [{"source": SIDES[0][row], "target": SIDES[1][row]} for row in order]
    halves = [hide_pairs(half, share=0.4, seed=5) for half in (rows[:100], rows[100:])]
    expected = bucc(Noisy(), *halves, k=3, margin="distance", languages=("en", "fr"), name="x")
    for metric in ("precision", "recall", "f1", "threshold", "pairs", "gold"):
        key = f"k3-distance/en-fr/test/{metric}"
        assert found[f"x-mining-h0.4-{key}"] == expected[f"x-bucc-{key}"]
    assert 0.2 < found["x-mining-h0.4-k3-distance/en-fr/test/f1"] < 1
    assert found["x-mining-h0.4-k3-distance/en-fr/test/gold"] == 40


def test_repeated_sentences_are_in_one_half_only() -> None:
    sides = [side * 3 for side in SIDES]
    assert mining(Noisy(), *sides, name="x") == mining(Noisy(), *SIDES, name="x")


@pytest.mark.parametrize("share", [0.0, 1.5])
def test_share(share: float) -> None:
    with pytest.raises(XlsrError, match="hide_pairs"):
        mining(Noisy(), *SIDES, name="x", hide_pairs=share)


def test_too_few_pairs() -> None:
    rows = make_pairs(10)
    with pytest.raises(XlsrError, match="20"):
        mining(Noisy(), [row["source"] for row in rows], [row["target"] for row in rows], name="x")
