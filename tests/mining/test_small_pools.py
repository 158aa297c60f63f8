"""A few sentences: more neighbours than there are, neighbourhoods around zero, and embeddings without a direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from mining_fakes import NumberEncoder

from hf_xlsr.mining import mine_bitext, nearest_neighbours, neighbours_both_ways, score_bitext
from hf_xlsr.mining.search.extraction import SMALLEST_MEAN, margin_scores
from hf_xlsr.utils.errors import XlsrError

VECTORS = np.random.default_rng(0).normal(size=(2, 30, 8)).astype(np.float32)
SIDES = (["en 1", "en 2", "en 3"], ["fr 1", "fr 2", "fr 3"])


class Opposites:
    """Encodes texts by their number as directions whose mean is near zero."""

    ANGLES = (0.0, 2.1, 4.19)

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        angles = np.array([self.ANGLES["123".find(text[-1])] for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


class Blank(NumberEncoder):
    """Gives texts with question marks a constant vector."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def vector(self, text: str) -> np.ndarray:
        return np.full(self.width, self.value) if "?" in text else super().vector(text)


@pytest.mark.parametrize("k", [30, 31, 10**12])
@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_neighbours_are_at_most_the_corpus(k: int, method: str) -> None:
    found = neighbours_both_ways(*VECTORS, k, method=method, memory=1 << 26)
    expected = neighbours_both_ways(*VECTORS, 30, method=method)
    np.testing.assert_array_equal(found.forward_indices, expected.forward_indices)
    np.testing.assert_array_equal(found.backward_similarities, expected.backward_similarities)
    assert nearest_neighbours(*VECTORS, k)[1].shape == (30, 30)


@pytest.mark.parametrize("average", [-0.5, -1e-9, 0.0, 1e-5, SMALLEST_MEAN])
def test_ratio_is_finite_and_grows_with_the_cosine(average: float) -> None:
    cosines = np.linspace(-1, 1, 9)
    scores = margin_scores(cosines, np.full(9, average), np.full(9, average), "ratio")
    np.testing.assert_allclose(scores, cosines / SMALLEST_MEAN)


RUNS: dict[str, Callable[..., Any]] = {
    "mine": lambda sources, targets, **options: mine_bitext(sources, targets, **options),
    "score": lambda sources, targets, **options: score_bitext(sources, targets, **options),
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("margin", ["ratio", "distance", "absolute"])
def test_raised_means_are_a_warning(run: str, margin: str, caplog: pytest.LogCaptureFixture) -> None:
    score = RUNS[run](*SIDES, encoder=Opposites(), margin=margin).score
    assert np.abs(score).max() < 1.001 / SMALLEST_MEAN
    is_warned = "the neighbours of 3 pairs have a mean cosine below 0.05, which margin ratio raises" in caplog.text
    assert is_warned == (margin == "ratio")


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(
    ("value", "message"), [(0.0, r"'en \?' is zero"), (np.nan, r"NaN.*'en \?'"), (np.inf, r"infinity.*'en \?'")]
)
def test_embeddings_without_a_direction_are_refused(run: str, value: float, message: str) -> None:
    with pytest.raises(XlsrError, match=message):
        RUNS[run]([*SIDES[0], "en ?"], [*SIDES[1], "fr 4"], encoder=Blank(value))
    with pytest.raises(XlsrError, match=message):
        score_bitext(*SIDES, source_pool=[*SIDES[0], "en ?"], encoder=Blank(value))
