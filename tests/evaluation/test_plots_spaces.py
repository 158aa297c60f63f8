from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from plot_helpers import assert_a_picture, assert_apart, assert_inside, extents

from hf_xlsr.evaluation.plots import plot_spaces, plot_tsne
from hf_xlsr.evaluation.plots.common import COLOURS, on_plane

PAIRS = (("en", "fr"), ("en", "de"))


def sides(mixed: bool, count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Translations side by side, or two languages that lie apart."""
    meanings = np.random.default_rng(1).normal(size=(count, 8))
    language = np.zeros(8) if mixed else np.full(8, 10.0)
    noise = 0.01 * np.random.default_rng(2).normal(size=meanings.shape)
    return meanings + language, meanings + noise - language


def spaces(**labels: bool) -> dict[str, Any]:
    return {label: {pair: sides(mixed) for pair in PAIRS} for label, mixed in labels.items()}


def test_panels(tmp_path: Path, figures: list[Figure]) -> None:
    path = plot_spaces(tmp_path / "new" / "spaces.png", spaces(aligned=True, apart=False))
    assert_a_picture(path)
    (figure,) = figures
    panels = figure.axes
    assert len(panels) == 4
    assert [axes.get_title() for axes in panels] == ["en and fr", "en and de", "", ""]
    assert [axes.get_ylabel() for axes in panels] == ["aligned", "", "apart", ""]
    # Each translation is nearest in the other language where they meet; none where languages lie apart.
    below = [axes.get_xlabel() for axes in panels]
    assert below == ["nearest in the other language: 100 %"] * 2 + ["nearest in the other language: 0 %"] * 2
    for axes in panels:
        assert [len(points.get_offsets()) for points in axes.collections] == [30, 30]
        assert [to_hex(points.get_facecolor()[0]) for points in axes.collections] == list(COLOURS[:2])
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["en", "fr, de"]
    texts = extents(figure, [text for axes in panels for text in (axes.title, axes.xaxis.label)])
    assert_inside(figure, texts)
    assert_apart(texts)


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("rounding", [0.0, 1e-8])
def test_collapsed_encoder(tmp_path: Path, figures: list[Figure], scale: float, rounding: float) -> None:
    # scikit-learn divides by the spread of the vectors, and crashes the process where there is none.
    vectors = scale * np.ones((20, 8)) * (1 + rounding * np.random.default_rng(1).normal(size=(20, 8)))
    assert np.ptp(on_plane(vectors, seed=1)) == 0
    assert_a_picture(plot_spaces(tmp_path / "spaces.png", {"collapsed": dict.fromkeys(PAIRS, (vectors, vectors))}))
    words = [f"word {number}" for number in range(20)]
    assert_a_picture(plot_tsne(tmp_path / "pairs.png", vectors, vectors, words, words, ("en", "fr")))
