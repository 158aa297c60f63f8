from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from plot_helpers import assert_a_picture
from result_helpers import results

from hf_xlsr.evaluation.plots.languages import plot_languages
from hf_xlsr.evaluation.results import Results


def measured(languages: list[str], own: float, protocol: str = "ntrex-language-bias") -> Results:
    metrics: dict[str, float] = {}
    for query in languages:
        rest = (1 - own) / (len(languages) - 1)
        metrics[f"{protocol}/{query}/test/bias"] = own * len(languages)
        for other in languages:
            metrics[f"{protocol}/{query}/test/share_{other}"] = own if other == query else rest
        metrics[f"{protocol}/{query}/test/queries"] = 10
    return results({**metrics, f"{protocol}/mean-of-{len(languages)}/test/share_{languages[0]}": 0.1})


def test_rows_and_columns(tmp_path: Path, figures: list[Figure]) -> None:
    languages = ["de", "fr", "zh"]
    metrics = measured(languages, 0.8) | measured(languages, 0.4, "ntrex-language-bias-pcr1-self")
    assert_a_picture(plot_languages(tmp_path / "new" / "languages.png", {"e5": {"metrics": metrics}}))
    figure = figures[0]
    assert len(figure.axes) == 6
    titles = [axes.get_title() for axes in figure.axes[:2]]
    assert titles == ["as encoded\nmean bias 2.40", "1 component removed, fitted on these texts\nmean bias 1.20"]
    assert [axes.get_ylabel() for axes in figure.axes[::2]] == languages
    for number, axes in enumerate(figure.axes):
        own = (0.8, 0.4)[number % 2]
        expected = [100 * (own if place == number // 2 else (1 - own) / 2) for place in range(3)]
        assert [bar.get_height() for bar in axes.patches] == pytest.approx(expected)
        colours = [bar.get_facecolor() for bar in axes.patches]
        assert [colours.count(colour) for colour in colours].index(1) == number // 2
        assert axes.lines[0].get_ydata()[0] == pytest.approx(100 / 3)  # type: ignore[index]
    assert [label.get_text() for label in figure.axes[-1].get_xticklabels()] == languages


def test_chosen_protocols(tmp_path: Path, figures: list[Figure]) -> None:
    first = measured(["de", "fr"], 0.5, "a-language-bias") | measured(["de", "fr"], 0.5, "a-language-bias-pcr2")
    second = measured(["fr", "zh"], 0.5, "b-language-bias-k7")
    plot_languages(tmp_path / "one.svg", {"e5": first}, ["a-language-bias-pcr2"])
    assert [axes.get_title() for axes in figures[0].axes[:1]] == ["2 components removed\nmean bias 1.00"]
    plot_languages(tmp_path / "both.pdf", {"e5": first | second})
    titles = [axes.get_title().splitlines()[0] for axes in figures[1].axes[:3]]
    assert titles == ["a-language-bias, test", "a-language-bias, test", "b-language-bias-k7, test"]
    rows = [figures[1].axes[start : start + 3] for start in (0, 3, 6)]
    assert [[bool(axes.patches) for axes in row] for row in rows] == [
        [True, True, False],
        [True, True, True],
        [False, False, True],
    ]
