from __future__ import annotations

import logging
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from result_helpers import results
from sklearn.metrics.pairwise import cosine_similarity

from hf_xlsr.evaluation.plots import (
    plot_curves,
    plot_heatmap,
    plot_languages,
    plot_retrieval,
    plot_spaces,
    plot_tsne,
)
from hf_xlsr.evaluation.plots.common import COLOURS, on_plane

LANGUAGE_PAIRS = (("en", "fr"), ("en", "de"))


def assert_a_picture(path: Path) -> None:
    pixels = imread(path)[:, :, :3]
    height, width = pixels.shape[:2]
    assert 200 < height < 3500 and 700 < width < 3500
    drawn = (pixels < 0.95).any(axis=2).mean()
    assert 0.01 < drawn < 0.85  # neither blank nor covered


def bitext(count: int) -> dict[str, Any]:
    vectors = np.random.default_rng(0).normal(size=(count, 8))
    return {
        "source_vectors": vectors,
        "target_vectors": vectors + 0.1 * np.random.default_rng(1).normal(size=vectors.shape),
        "sources": [f"sentence {i}" for i in range(count)],
        "targets": [f"phrase {i}" for i in range(count)],
        "languages": ("English", "French"),
    }


@pytest.mark.parametrize("drawn", [30, 2])
def test_tsne(tmp_path: Path, figures: list[Figure], drawn: int):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = plot_tsne(tmp_path / "new" / "pairs.png", **bitext(drawn))
    assert_a_picture(path)
    axes, listing = figures[0].axes
    assert len(axes.lines) == drawn
    assert [len(points.get_offsets()) for points in axes.collections] == [drawn, drawn]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["English", "French"]
    numbers = [str(i) for i in range(1, drawn + 1)]
    assert [text.get_text() for text in axes.texts] == numbers * 2
    listed = [text.get_text() for text in listing.texts]
    assert listed[::3] == numbers
    # Each number stands beside a sentence and its own translation.
    assert listed[1::3] == [f"sentence {i}" for i in range(drawn)]
    assert listed[2::3] == [f"phrase {i}" for i in range(drawn)]


def test_heatmap(tmp_path: Path, figures: list[Figure]):
    data = bitext(6)
    assert_a_picture(plot_heatmap(tmp_path / "heat.png", **data))
    axes, _ = figures[0].axes
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("English", "French")
    assert [label.get_text() for label in axes.get_yticklabels()] == data["sources"]
    assert [label.get_text() for label in axes.get_xticklabels()] == data["targets"]
    expected = cosine_similarity(data["source_vectors"], data["target_vectors"])
    (image,) = axes.images
    np.testing.assert_allclose(np.asarray(image.get_array()), expected, atol=1e-6)
    assert [text.get_text() for text in axes.texts] == [f"{value:.2f}" for value in expected.ravel()]


@pytest.mark.parametrize("plot", [plot_tsne, plot_heatmap])
def test_any_text_and_the_same_picture_again(tmp_path: Path, plot: Any, caplog: pytest.LogCaptureFixture):
    data = bitext(3)
    data["sources"] = ["costs $5_$ now", "two\nlines\tand a tab", "long " * 40]
    data["targets"] = ["你好", "مرحبا", "\U0010fffd \U0010fffc"]
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        assert_a_picture(plot(tmp_path / "pairs.png", **data))
    assert "are boxes" in caplog.text  # no font has the last two
    assert len({plot(tmp_path / "x.svg", **bitext(6)).read_bytes() for _ in range(2)}) == 1


def sides(mixed: bool, count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Translations side by side, or two languages that lie apart."""
    meanings = np.random.default_rng(1).normal(size=(count, 8))
    language = np.zeros(8) if mixed else np.full(8, 10.0)
    noise = 0.01 * np.random.default_rng(2).normal(size=meanings.shape)
    return meanings + language, meanings + noise - language


def test_spaces(tmp_path: Path, figures: list[Figure]) -> None:
    spaces = {
        label: dict.fromkeys(LANGUAGE_PAIRS, sides(mixed)) for label, mixed in (("near", True), ("apart", False))
    }
    assert_a_picture(plot_spaces(tmp_path / "new" / "spaces.png", spaces))
    panels = figures[0].axes
    assert [axes.get_title() for axes in panels] == ["en and fr", "en and de", "", ""]
    assert [axes.get_ylabel() for axes in panels] == ["near", "", "apart", ""]
    # Each translation is nearest in the other language where they meet; none where languages lie apart.
    below = [axes.get_xlabel() for axes in panels]
    assert below == ["nearest in the other language: 100 %"] * 2 + ["nearest in the other language: 0 %"] * 2
    for axes in panels:
        assert [len(points.get_offsets()) for points in axes.collections] == [30, 30]
        assert [to_hex(points.get_facecolor()[0]) for points in axes.collections] == list(COLOURS[:2])
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == ["en", "fr, de"]


@pytest.mark.parametrize("scale", [1.0, 1e-4])
@pytest.mark.parametrize("rounding", [0.0, 1e-8])
def test_collapsed_encoder(tmp_path: Path, scale: float, rounding: float) -> None:
    # scikit-learn divides by the spread of the vectors, and crashes the process where there is none.
    vectors = scale * np.ones((20, 8)) * (1 + rounding * np.random.default_rng(1).normal(size=(20, 8)))
    assert np.ptp(on_plane(vectors, seed=1)) == 0
    assert_a_picture(plot_spaces(tmp_path / "spaces.png", {"x": dict.fromkeys(LANGUAGE_PAIRS, (vectors, vectors))}))


def points(axes: Any) -> list[list[tuple[str, float]]]:
    """The rows and values that each encoder has."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    return [
        [(names[round(place)], round(float(value), 1)) for value, place in container.lines[0].get_xydata()]
        for container in axes.containers
    ]


def test_retrieval(tmp_path: Path, figures: list[Figure]) -> None:
    metrics = {"tatoeba/mean-of-2/test/accuracy": 0.1}
    for language, (forward, backward) in {"de": (0.5, 0.75), "fr": (0.9, 0.96)}.items():
        prefix = f"tatoeba/en-{language}/test"
        metrics |= {f"{prefix}/source_to_target_accuracy": forward, f"{prefix}/target_to_source_accuracy": backward}
        metrics |= {f"{prefix}/accuracy": (forward + backward) / 2, f"{prefix}/pairs": 1000}
    other = {"tatoeba/en-fr/test/source_to_target_accuracy": 0.1, "tatoeba/en-fr/test/accuracy": 0.2}
    other |= {"ntrex-xsr/en-fr/test/precision@5": 0.5}
    encoders = {"ours": {"metrics": results(metrics), "settings": {}}, "fr only": results(other)}
    assert_a_picture(plot_retrieval(tmp_path / "new" / "points.png", encoders, protocols=["tatoeba"]))
    first, second = figures[0].axes
    assert first.get_title(loc="left") == "tatoeba, test: source to target accuracy %"
    # One encoder lacks German: no mean of both.
    assert points(first) == [[("en-de", 50.0), ("en-fr", 90.0)], [("en-fr", 10.0)]]
    assert points(second) == [[("en-de", 75.0), ("en-fr", 96.0), ("mean of 2", 85.5)], []]
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["ours", "fr only"]
    assert [handle.get_color() for handle in legend.legend_handles] == list(COLOURS[:2])
    plot_retrieval(tmp_path / "five.png", encoders, metric="precision@5")
    assert points(figures[1].axes[0]) == [[("en-fr", 50.0)]]


def bias(languages: list[str], own: float, protocol: str) -> Any:
    metrics: dict[str, float] = {}
    for query in languages:
        rest = (1 - own) / (len(languages) - 1)
        metrics[f"{protocol}/{query}/test/bias"] = own * len(languages)
        for other in languages:
            metrics[f"{protocol}/{query}/test/share_{other}"] = own if other == query else rest
    return results({**metrics, f"{protocol}/mean-of-{len(languages)}/test/share_{languages[0]}": 0.1})


def test_languages(tmp_path: Path, figures: list[Figure]) -> None:
    languages = ["de", "fr", "zh"]
    metrics = bias(languages, 0.8, "x-language-bias") | bias(languages, 0.4, "x-language-bias-pcr1-self")
    assert_a_picture(plot_languages(tmp_path / "new" / "languages.png", {"e5": {"metrics": metrics}}))
    figure = figures[0]
    assert len(figure.axes) == 6
    assert [axes.get_title() for axes in figure.axes[:2]] == [
        "e5\nx-language-bias, test\nmean bias 2.40",
        "e5\nx-language-bias-pcr1-self, test\nmean bias 1.20",
    ]
    for number, axes in enumerate(figure.axes):
        own = (0.8, 0.4)[number % 2]
        expected = [100 * (own if place == number // 2 else (1 - own) / 2) for place in range(3)]
        assert [bar.get_height() for bar in axes.patches] == pytest.approx(expected)
        colours = [bar.get_facecolor() for bar in axes.patches]
        assert [colours.count(colour) for colour in colours].index(1) == number // 2
    # Another encoder was measured on other languages.
    other = bias(["fr", "en"], 0.5, "x-language-bias")
    plot_languages(tmp_path / "both.pdf", {"e5": metrics, "other": other}, ["x-language-bias"])
    drawn = [[bool(axes.patches) for axes in figures[1].axes[row : row + 2]] for row in (0, 2, 4, 6)]
    assert drawn == [[True, False], [True, True], [True, False], [False, True]]


def history(factor: float = 1.0) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for step in range(10, 110, 10):
        parts = {"loss/generative": factor * (5 / step + 1), "loss/alignment": math.exp(-step / 20)}
        entries.append({"loss": sum(parts.values()), **parts, "learning_rate": 1e-4, "epoch": step / 50, "step": step})
        if step % 50 == 0:
            metrics = {"eval_toy-tatoeba/en-fr/dev/accuracy": step / 200, "eval_toy-tatoeba/en-fr/dev/pairs": 10}
            entries.append({"eval_loss": 2.0, **metrics, "eval_runtime": 1.0, "step": step})
    return [*entries, {"train_loss": 1.5, "train_runtime": 9.0, "step": 100}]


@pytest.mark.parametrize(("last", "scale"), [(1.0, "linear"), (0.01, "log"), (0.0, "linear"), (-0.5, "linear")])
def test_logarithmic_axis(tmp_path: Path, figures: list[Figure], last: float, scale: str):
    entries = [{"loss": 3.0, "step": 1}, {"loss": last, "step": 2}]
    plot_curves(tmp_path / "curves.png", {"run": entries})
    (losses,) = figures[0].axes  # no accuracy was logged: no second panel
    assert losses.get_yscale() == scale


def test_curves_of_several_runs(tmp_path: Path, figures: list[Figure]):
    assert_a_picture(plot_curves(tmp_path / "curves.png", {"plain": history(), "twice": history(2.0)}))
    total, generative, alignment, accuracy = figures[0].axes
    assert [axes.get_title() for axes in figures[0].axes] == [
        "total loss",
        "generative loss",
        "alignment loss",
        "toy-tatoeba/en-fr/dev\naccuracy",
    ]
    np.testing.assert_allclose(generative.lines[1].get_ydata(), 2 * np.asarray(generative.lines[0].get_ydata()))
    assert [line.get_linestyle() for line in total.lines] == ["-", "--", "-", "--"]
    assert alignment.get_yscale() == "log"
    np.testing.assert_allclose(accuracy.lines[0].get_xydata(), [[50, 25], [100, 50]])
    assert accuracy.get_ylabel() == "per cent"
    # One colour a run, in every panel.
    colours = [line.get_color() for line in generative.lines]
    assert [line.get_color() for line in total.lines] == [colours[0]] * 2 + [colours[1]] * 2
    legend = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert legend == ["plain", "twice", "of an evaluation"]


def test_chosen_metrics(tmp_path: Path, figures: list[Figure]):
    values = {"f1": 0.5, "recall": 0.4, "threshold": 1.1}
    runs = {"run": [{"step": 1, **{f"eval_a-bucc/de-en/dev/{metric}": value for metric, value in values.items()}}]}
    plot_curves(tmp_path / "curves.png", runs, metrics=["recall", "threshold"])
    recall, threshold = figures[0].axes
    assert [recall.lines[0].get_ydata()[0], threshold.lines[0].get_ydata()[0]] == [40, 1.1]
    assert [recall.get_ylabel(), threshold.get_ylabel()] == ["per cent", ""]
