from __future__ import annotations

import numpy as np
import pytest

from hf_xlsr.mining import MARGINS, margin_scores
from hf_xlsr.utils.errors import XlsrError


def test_scores_by_hand():
    cosine, mean_x, mean_y = np.array([0.9, 0.2]), np.array([0.8, 0.5]), np.array([0.4, 0.3])
    np.testing.assert_allclose(margin_scores(cosine, mean_x, mean_y), [1.5, 0.5])
    np.testing.assert_allclose(margin_scores(cosine, mean_x, mean_y, "distance"), [0.3, -0.2])
    np.testing.assert_allclose(margin_scores(cosine, mean_x, mean_y, "absolute"), cosine)


def test_scores_broadcast_neighbour_means():
    scores = margin_scores(np.full((2, 3), 0.6), np.array([[0.4], [0.2]]), np.full((2, 3), 0.4), "distance")
    np.testing.assert_allclose(scores, [[0.2] * 3, [0.3] * 3])


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("mean", [-0.3, 0.0, 0.3])
def test_a_better_cosine_is_never_a_worse_score(margin: str, mean: float):
    cosines = np.linspace(-1, 1, 21)
    scores = margin_scores(cosines, np.array(mean), np.array(mean), margin)
    assert (np.diff(scores) > 0).all() and np.isfinite(scores).all()


def test_an_unknown_margin_is_named():
    with pytest.raises(XlsrError, match="margin is 'ration'; did you mean 'ratio'?"):
        margin_scores(np.ones(1), np.ones(1), np.ones(1), "ration")
