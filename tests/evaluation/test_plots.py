from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from plot_helpers import assert_a_picture
from sklearn.metrics.pairwise import cosine_similarity

from hf_xlsr.evaluation.plots import plot_heatmap, plot_tsne

WORDS = "where does the river that runs past our house end and who has seen it there".split()


def bitext(count: int) -> dict[str, Any]:
    vectors = np.random.default_rng(0).normal(size=(count, 8))
    return {
        "source_vectors": vectors,
        "target_vectors": vectors + 0.1 * np.random.default_rng(1).normal(size=vectors.shape),
        "sources": [f"sentence {i}" for i in range(count)],
        "targets": [f"phrase {i}" for i in range(count)],
        "languages": ("English", "French"),
    }


@pytest.mark.parametrize(("count", "pairs", "drawn"), [(40, 15, 15), (40, 30, 30), (5, 15, 5), (2, 2, 2)])
def test_tsne(tmp_path: Path, figures: list[Figure], count: int, pairs: int, drawn: int):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = plot_tsne(tmp_path / "new" / "pairs.png", **bitext(count), pairs=pairs)
    assert_a_picture(path)
    axes, listing = figures[0].axes
    assert len(axes.lines) == drawn
    assert [len(points.get_offsets()) for points in axes.collections] == [drawn, drawn]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["English", "French"]
    numbers = [str(i) for i in range(1, drawn + 1)]
    assert [text.get_text() for text in axes.texts] == numbers * 2
    listed = [text.get_text() for text in listing.texts]
    assert listed[::3] == numbers
    # Each number stands beside a sentence and its own translation, each pair once.
    chosen = [text.removeprefix("sentence ") for text in listed[1::3]]
    assert chosen == [text.removeprefix("phrase ") for text in listed[2::3]]
    assert len(set(chosen)) == drawn


def test_heatmap(tmp_path: Path, figures: list[Figure]):
    data = bitext(40)
    assert_a_picture(plot_heatmap(tmp_path / "heat.png", **data, pairs=6))
    axes, bar = figures[0].axes
    assert bar.get_ylabel() == "cosine"
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("English", "French")
    chosen = [int(label.get_text().removeprefix("sentence ")) for label in axes.get_yticklabels()]
    assert chosen == [int(label.get_text().removeprefix("phrase ")) for label in axes.get_xticklabels()]
    assert len(set(chosen)) == 6
    for labels in (axes.get_yticklabels(minor=True), axes.get_xticklabels(minor=True)):
        assert [label.get_text() for label in labels] == ["1", "2", "3", "4", "5", "6"]
    expected = cosine_similarity(data["source_vectors"][chosen], data["target_vectors"][chosen])
    (image,) = axes.images
    np.testing.assert_allclose(np.asarray(image.get_array()), expected, atol=1e-6)
    assert [text.get_text() for text in axes.texts] == [f"{value:.2f}" for value in expected.ravel()]
    assert image.get_cmap().name == "viridis"
    # Two frames, black and white, around each cell of the diagonal.
    centres = [
        (frame.get_x() + frame.get_width() / 2, frame.get_y() + frame.get_height() / 2) for frame in axes.patches
    ]
    np.testing.assert_allclose(centres, np.repeat(np.arange(6), 2)[:, None] * [1, 1])


@pytest.mark.parametrize("plot", [plot_tsne, plot_heatmap])
def test_plots_of_pairs_are_reproducible(tmp_path: Path, plot: Any):
    pictures = [
        plot(tmp_path / f"{name}.png", **bitext(30), pairs=6, seed=seed).read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert pictures[0] == pictures[1] != pictures[2]


@pytest.mark.parametrize("plot", [plot_tsne, plot_heatmap])
def test_plots_of_any_text(tmp_path: Path, plot: Any, caplog: pytest.LogCaptureFixture):
    data = bitext(3)
    data["sources"] = ["costs $5_$ now", "two\nlines\tand a tab", "long " * 40]
    data["targets"] = ["你好", "مرحبا", "\U0010fffd \U0010fffc"]
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        assert_a_picture(plot(tmp_path / "pairs.png", **data))
    assert "are boxes" in caplog.text  # no font has the last two
