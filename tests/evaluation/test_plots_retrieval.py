from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from plot_helpers import assert_a_picture
from result_helpers import results

from hf_xlsr.evaluation.plots import plot_retrieval


def tatoeba(
    scores: dict[str, tuple[float, float]], protocol: str = "tatoeba", metric: str = "accuracy"
) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for language, (forward, backward) in scores.items():
        prefix = f"{protocol}/en-{language}/test"
        metrics[f"{prefix}/source_to_target_{metric}"] = forward
        metrics[f"{prefix}/target_to_source_{metric}"] = backward
        metrics[f"{prefix}/{metric}"] = (forward + backward) / 2
        metrics[f"{prefix}/pairs"] = 1000
    return metrics


def shown(axes: Axes) -> list[list[tuple[str, str]]]:
    """What each encoder's bars say: the row's name and the written value; bar and value agree."""
    names = [label.get_text() for label in axes.figure.axes[0].get_yticklabels()]
    written = iter(axes.texts)
    bars: list[list[tuple[str, str]]] = []
    for container in axes.containers:
        bars.append([])
        for bar in container:
            value = next(written).get_text()
            assert bar.get_width() == pytest.approx(float(value), abs=0.05)
            bars[-1].append((names[round(bar.get_y() + bar.get_height() / 2)], value))
    return bars


def test_directions_side_by_side(tmp_path: Path, figures: list[Figure]):
    metrics = tatoeba({"de": (0.5, 0.75), "fr": (0.9, 0.96), "sw": (0.25, 0.0)})
    metrics |= {"tatoeba/mean-of-3/test/accuracy": 0.1}
    assert_a_picture(plot_retrieval(tmp_path / "new" / "bars.png", {"ours": results(metrics)}))
    figure = figures[0]
    left, right = figure.axes
    assert shown(left) == [[("en-fr", "90.0"), ("en-de", "50.0"), ("en-sw", "25.0"), ("mean of 3", "55.0")]]
    assert shown(right) == [[("en-fr", "96.0"), ("en-de", "75.0"), ("en-sw", "0.0"), ("mean of 3", "57.0")]]
    assert left.get_title(loc="left") == "tatoeba, test: accuracy"
    assert [axes.get_xlabel() for axes in figure.axes] == ["en → xx: accuracy %", "xx → en: accuracy %"]
    assert left.yaxis_inverted() and left.get_xlim()[0] == 0 and left.get_xlim()[1] > 100
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours"]


def test_errors(tmp_path: Path, figures: list[Figure]):
    metrics = tatoeba({"de": (0.2, 0.2), "fr": (0.1, 0.05)}, "tico19-tatoeba-laser", "error")
    plot_retrieval(tmp_path / "bars.png", {"ours": results(metrics)})
    left, _ = figures[0].axes
    assert left.get_title(loc="left") == "tico19-tatoeba-laser, test: error (lower is better)"
    assert shown(left) == [[("en-fr", "10.0"), ("en-de", "20.0"), ("mean of 2", "15.0")]]
    assert 20 < left.get_xlim()[1] < 30


def test_pair_and_its_reverse(tmp_path: Path, figures: list[Figure]):
    metrics = {
        "ntrex-xsr/en-fr/test/precision@1": 0.5,
        "ntrex-xsr/en-fr/test/precision@5": 0.7,
        "ntrex-xsr/en-fr/test/queries": 100,
        "ntrex-xsr/fr-en/test/precision@1": 0.6,
        "ntrex-xsr/en-de/test/precision@1": 0.4,
    }
    plot_retrieval(tmp_path / "one.png", {"ours": results(metrics)})
    left, right = figures[0].axes
    assert shown(left) == [[("en-fr", "50.0"), ("en-de", "40.0"), ("mean of 2", "45.0")]]
    assert shown(right) == [[("en-fr", "60.0")]]  # no mean: German was not asked in this direction
    plot_retrieval(tmp_path / "five.png", {"ours": results(metrics)}, metric="precision@5")
    (axes,) = figures[1].axes
    assert shown(axes) == [[("en-fr", "70.0")]]
    assert axes.get_xlabel() == "precision@5 %"


def test_encoders_side_by_side(tmp_path: Path, figures: list[Figure]):
    encoders = {
        "e5": {"metrics": results(tatoeba({"de": (0.9, 0.9), "fr": (0.8, 0.8), "ru": (0.7, 0.7)})), "settings": {}},
        "fr only": results(tatoeba({"fr": (0.1, 0.1)})),
    }
    plot_retrieval(tmp_path / "bars.png", encoders)
    left, _ = figures[0].axes
    # The weak encoder pulls French down in its own bar, not in the order; and it gets no mean of one of three rows.
    assert shown(left) == [
        [("en-de", "90.0"), ("en-fr", "80.0"), ("en-ru", "70.0"), ("mean of 3", "80.0")],
        [("en-fr", "10.0")],
    ]
    colours = [container[0].get_facecolor() for container in left.containers]
    handles = figures[0].legends[0].legend_handles
    assert [handle.get_facecolor() for handle in handles] == colours and len(set(colours)) == 2


def test_blocks(tmp_path: Path, figures: list[Figure]):
    metrics = {
        "newstest-bucc-k4-ratio/de-en/2018/f1": 0.875,
        "newstest-bucc-k4-ratio/de-en/2018/threshold": 1.09,
        "newstest-bucc-k4-ratio/de-en/2017/f1": 0.9,
        "ntrex-xsim/en-de/test/error": 0.01,
        "sib200-zero-shot/en-de/test/accuracy": 0.7,
        "tatoeba-zero-shot/en-de/test/accuracy": 0.7,
    }
    plot_retrieval(tmp_path / "bars.png", {"ours": results(metrics)})
    assert [axes.get_title(loc="left") for axes in figures[0].axes] == [
        "newstest-bucc-k4-ratio, 2018: f1",
        "newstest-bucc-k4-ratio, 2017: f1",
        "ntrex-xsim, test: error (lower is better)",
    ]
    assert figures[0].axes[0].get_xlabel() == "f1 ×100"
    plot_retrieval(tmp_path / "other.png", {"ours": results(metrics)}, protocols=["sib200-zero-shot"])
    assert shown(figures[1].axes[0]) == [[("en-de", "70.0")]]
