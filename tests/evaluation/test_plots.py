from __future__ import annotations

import logging
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation import plot_loss_curves, plot_tsne, plots
from hf_xlsr.evaluation.plots import shorten


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved during a test."""
    saved: list[Figure] = []
    save = plots._save
    monkeypatch.setattr(plots, "_save", lambda figure, path: saved.append(figure) or save(figure, path))
    return saved


def bitext(count: int) -> dict[str, Any]:
    vectors = np.random.default_rng(0).normal(size=(count, 8))
    return {
        "source_vectors": vectors,
        "target_vectors": vectors + 0.1 * np.random.default_rng(1).normal(size=vectors.shape),
        "sources": [f"sentence {i}" for i in range(count)],
        "targets": [f"phrase {i}" for i in range(count)],
        "languages": ("English", "French"),
    }


def history() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for step in range(10, 110, 10):
        parts = {"loss/generative": 5 / step + 1, "loss/alignment": math.exp(-step / 20)}
        entries.append({"loss": sum(parts.values()), **parts, "learning_rate": 1e-4, "epoch": step / 50, "step": step})
        if step % 50 == 0:
            metrics = {"eval_toy-tatoeba/en-fr/dev/accuracy": step / 200, "eval_toy-tatoeba/en-fr/dev/pairs": 10}
            entries.append({"eval_loss": 2.0, **metrics, "eval_runtime": 1.0, "step": step})
    return [*entries, {"train_loss": 1.5, "train_runtime": 9.0, "step": 100}]


def assert_a_picture(path: Path) -> None:
    pixels = imread(path)[:, :, :3]
    height, width = pixels.shape[:2]
    assert 500 < height < 2500 and 1000 < width < 3500
    drawn = (pixels < 0.95).any(axis=2).mean()
    assert 0.01 < drawn < 0.5  # neither blank nor covered


@pytest.mark.parametrize(("count", "pairs", "drawn"), [(40, 15, 15), (40, 30, 30), (5, 15, 5), (2, 2, 2)])
def test_tsne_draws_the_pairs(tmp_path: Path, figures: list[Figure], count: int, pairs: int, drawn: int):
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


def test_tsne_line_joins_the_points_of_a_pair(tmp_path: Path, figures: list[Figure]):
    plot_tsne(tmp_path / "pairs.png", **bitext(20), pairs=8)
    axes = figures[0].axes[0]
    sources, targets = (np.asarray(points.get_offsets()) for points in axes.collections)
    np.testing.assert_allclose([line.get_xydata() for line in axes.lines], np.stack([sources, targets], axis=1))
    # Close vectors come out closer than strangers.
    distances = np.linalg.norm(sources[:, None] - targets[None], axis=2)
    assert np.diag(distances).mean() < 0.5 * distances.mean()


def test_tsne_repeats_with_its_seed(tmp_path: Path):
    pictures = [
        plot_tsne(tmp_path / f"{name}.png", **bitext(30), pairs=6, seed=seed).read_bytes()
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert pictures[0] == pictures[1] != pictures[2]


def test_tsne_takes_any_text(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    data = bitext(3)
    data["sources"] = ["costs $5_$ now", "two\nlines\tand a tab", "long " * 40]
    data["targets"] = ["你好", "مرحبا", "\U0010fffd \U0010fffc"]
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        assert_a_picture(plot_tsne(tmp_path / "pairs.png", **data))
    assert "drawn as boxes" in caplog.text  # no font has the last two


def test_tsne_mistakes_are_named(tmp_path: Path):
    with pytest.raises(XlsrError, match=r"differ in number \(5, 5, 5, 4\)"):
        plot_tsne(tmp_path / "p.png", **(bitext(5) | {"targets": ["a"] * 4}))
    with pytest.raises(XlsrError, match="there is 1 pair to draw"):
        plot_tsne(tmp_path / "p.png", **bitext(1))
    with pytest.raises(XlsrError, match=r"p.xyz ends in '.xyz'; use .png"):
        plot_tsne(tmp_path / "p.xyz", **bitext(3))
    assert not list(tmp_path.iterdir())


def test_loss_curves_show_total_parts_and_accuracy(tmp_path: Path, figures: list[Figure]):
    path = plot_loss_curves(tmp_path / "new" / "losses.png", history())
    assert_a_picture(path)
    losses, accuracies = figures[0].axes
    labels = [line.get_label() for line in losses.lines]
    assert labels == ["total", "total, evaluation", "generative", "alignment"]
    np.testing.assert_array_equal(losses.lines[0].get_xdata(), range(10, 110, 10))
    np.testing.assert_allclose(losses.lines[3].get_ydata(), [math.exp(-step / 20) for step in range(10, 110, 10)])
    assert [line.get_label() for line in accuracies.lines] == ["toy-tatoeba/en-fr/dev/accuracy"]
    np.testing.assert_allclose(accuracies.lines[0].get_xydata(), [[50, 25], [100, 50]])


@pytest.mark.parametrize(("last", "scale"), [(1.0, "linear"), (0.01, "log"), (0.0, "linear"), (-0.5, "linear")])
def test_the_axis_is_logarithmic_when_losses_span_much(tmp_path: Path, figures: list[Figure], last: float, scale: str):
    plot_loss_curves(tmp_path / "losses.png", [{"loss": 3.0, "step": 1}, {"loss": last, "step": 2}])
    (losses,) = figures[0].axes  # no accuracy was logged: no second panel
    assert losses.get_yscale() == scale


def test_points_are_drawn_by_step_and_broken_ones_left_out(tmp_path: Path, figures: list[Figure]):
    entries = [{"loss": 1.0, "step": 20}, {"loss": 2.0, "step": 10}, {"loss": float("nan"), "step": 30}]
    plot_loss_curves(tmp_path / "losses.png", [*entries, {"eval_accuracy": 0.5, "step": 10}])
    np.testing.assert_allclose(figures[0].axes[0].lines[0].get_xydata(), [[10, 2], [20, 1]])
    assert figures[0].axes[1].lines[0].get_marker() == "o"


def test_loss_curves_need_a_loss(tmp_path: Path):
    with pytest.raises(XlsrError, match="log_history holds no 'loss'"):
        plot_loss_curves(tmp_path / "losses.png", [{"train_loss": 1.0, "step": 5}])


@pytest.mark.parametrize("ending", ["pdf", "svg"])
def test_other_formats(tmp_path: Path, ending: str):
    assert plot_loss_curves(tmp_path / f"losses.{ending}", history()).stat().st_size > 5000


def test_pyplot_keeps_no_figure(tmp_path: Path):
    plot_loss_curves(tmp_path / "losses.png", history())
    pyplot = sys.modules.get("matplotlib.pyplot")
    assert pyplot is None or not pyplot.get_fignums()


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("short", 5, "short"),
        ("too long", 5, "too…"),
        ("abcdef", 5, "abcd…"),
        ("a\n b", 5, "a b"),
        ("你好世", 6, "你好世"),
        ("你好世界", 6, "你好…"),
        ("", 5, ""),
    ],
)
def test_shorten(text: str, width: int, expected: str):
    assert shorten(text, width) == expected
