from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from result_helpers import results

from hf_xlsr.evaluation.comparison import compare_encoders
from hf_xlsr.evaluation.pairs import both_ways
from hf_xlsr.evaluation.plots import (
    plot_comparison,
    plot_comparisons,
    plot_curves,
    plot_languages,
    plot_spaces,
    plot_tsne,
)
from hf_xlsr.evaluation.results import Results, measured

LANGUAGE_PAIRS = (("en", "fr"), ("en", "de"))


def assert_a_picture(path: Path) -> None:
    pixels = imread(path)[:, :, :3]
    height, width = pixels.shape[:2]
    assert 200 < height < 3500
    assert 700 < width < 3500
    covered_share = (pixels < 0.95).any(axis=2).mean()
    assert 0.01 < covered_share < 0.85  # neither blank nor full


def bitext(count: int) -> dict[str, Any]:
    vectors = np.random.default_rng(0).normal(size=(count, 8))
    noise = np.random.default_rng(1).normal(size=(count, 8))
    return {
        "source_vectors": vectors,
        "target_vectors": vectors + 0.1 * noise,
        "sources": [f"sentence {i}" for i in range(count)],
        "targets": [f"phrase {i}" for i in range(count)],
        "languages": ("English", "French"),
    }


@pytest.mark.parametrize("count", [30, 2])
def test_tsne(tmp_path: Path, figures: list[Figure], count: int):
    pairs = bitext(count)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = plot_tsne(tmp_path / "new" / "pairs.png", **pairs)
    assert_a_picture(path)

    axes, listing = figures[0].axes
    assert len(axes.lines) == count
    sources, targets = axes.collections
    assert len(sources.get_offsets()) == count
    assert len(targets.get_offsets()) == count

    # The list has the number, the sentence and its translation of each pair.
    texts = [text.get_text() for text in listing.texts]
    assert texts[::3] == [str(number) for number in range(1, count + 1)]
    assert texts[1::3] == pairs["sources"]
    assert texts[2::3] == pairs["targets"]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_any_text_and_the_same_picture_again(tmp_path: Path):
    data = bitext(3)
    data["sources"] = ["costs $5_$ now", "two\nlines\tand a tab", "long " * 40]
    data["targets"] = ["你好", "مرحبا", "\U0010fffd \U0010fffc"]  # no font has the last two
    assert_a_picture(plot_tsne(tmp_path / "pairs.png", **data))

    first = plot_tsne(tmp_path / "first.svg", **bitext(6))
    again = plot_tsne(tmp_path / "again.svg", **bitext(6))
    assert again.read_bytes() == first.read_bytes()


def sides(mixed: bool, count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Translations side by side, or two languages that lie apart."""
    meanings = np.random.default_rng(1).normal(size=(count, 8))
    noise = 0.01 * np.random.default_rng(2).normal(size=(count, 8))
    language = 0 if mixed else 10
    return meanings + language, meanings + noise - language


def test_spaces(tmp_path: Path, figures: list[Figure]) -> None:
    spaces = {
        "near": dict.fromkeys(LANGUAGE_PAIRS, sides(mixed=True)),
        "apart": dict.fromkeys(LANGUAGE_PAIRS, sides(mixed=False)),
    }
    assert_a_picture(plot_spaces(tmp_path / "new" / "spaces.png", spaces))

    panels = figures[0].axes
    assert [axes.get_title() for axes in panels] == ["en and fr", "en and de", "", ""]
    assert [axes.get_ylabel() for axes in panels] == ["near", "", "apart", ""]
    # Each translation is nearest in the other language where they meet; none where languages lie apart.
    near, _, apart, _ = panels
    assert near.get_xlabel() == "nearest in the other language: 100 %"
    assert apart.get_xlabel() == "nearest in the other language: 0 %"


def test_collapsed_encoder(tmp_path: Path) -> None:
    # scikit-learn divides by the spread of the vectors, and crashes the process where there is none.
    vectors = 1 + 1e-8 * np.random.default_rng(1).normal(size=(20, 8))
    spaces = {"x": dict.fromkeys(LANGUAGE_PAIRS, (vectors, vectors))}
    assert_a_picture(plot_spaces(tmp_path / "spaces.png", spaces))


def points(axes: Any) -> list[list[tuple[str, float]]]:
    """The rows and values that each encoder has."""
    names = [label.get_text() for label in axes.get_yticklabels()]
    encoders = []
    for container in axes.containers:
        values, heights = container.lines[0].get_data()
        rows = [names[round(height)] for height in heights]
        rounded_values = np.round(values, 1).tolist()
        encoders.append(list(zip(rows, rounded_values, strict=True)))
    return encoders


def test_retrieval(tmp_path: Path, figures: list[Figure]) -> None:
    both_languages = {
        "tatoeba/mean-of-2/test/accuracy": 0.1,
        "tatoeba/en-de/test/source_to_target_accuracy": 0.5,
        "tatoeba/en-de/test/target_to_source_accuracy": 0.75,
        "tatoeba/en-de/test/accuracy": 0.625,
        "tatoeba/en-de/test/pairs": 1000,
        "tatoeba/en-fr/test/source_to_target_accuracy": 0.9,
        "tatoeba/en-fr/test/target_to_source_accuracy": 0.96,
        "tatoeba/en-fr/test/accuracy": 0.93,
        "tatoeba/en-fr/test/pairs": 1000,
    }
    french = {
        "tatoeba/en-fr/test/source_to_target_accuracy": 0.1,
        "tatoeba/en-fr/test/accuracy": 0.2,
    }
    encoders = {
        "both": {"metrics": results(both_languages), "settings": {}, "data_sha256": {}},
        "fr only": results(french),
    }
    assert_a_picture(plot_comparison(tmp_path / "new" / "points.png", *compare_encoders(encoders)))

    forward, backward = figures[0].axes
    # One encoder lacks German: no mean of both.
    assert points(forward) == [[("en-de", 50.0), ("en-fr", 90.0)], [("en-fr", 10.0)]]
    assert points(backward) == [[("en-de", 75.0), ("en-fr", 96.0), ("mean of 2", 85.5)], []]


def retrieval(share: float, dataset: str = "news") -> Results:
    """Results in both directions of an encoder that is right on about this share of 400 pairs."""
    metrics = Results()
    for number, language in enumerate(("de", "fr", "sw")):
        right = np.arange(400) < 400 * share - 4 * number
        scores = both_ways("accuracy", right, right[::-1])
        metrics |= measured(dataset, "tatoeba", ("en", language), "test", *scores, candidates=400)
    return metrics


@pytest.mark.parametrize("weak", [0.05, 0.9])
def test_one_weak_encoder_does_not_stretch_the_axis(weak: float, tmp_path: Path, figures: list[Figure]) -> None:
    encoders = {"good": retrieval(0.95), "better": retrieval(0.97), "weak": retrieval(weak)}
    (path,) = plot_comparisons(tmp_path, compare_encoders(encoders))
    assert_a_picture(path)
    assert path.name == "news-tatoeba-test-accuracy.png"  # both directions

    axes_of_directions = np.array(figures[0].axes).reshape(2, -1)
    for axes_of_direction in axes_of_directions:
        shown = set()
        for axes in axes_of_direction:
            low, high = axes.get_xlim()
            for label, container in zip(encoders, axes.containers, strict=True):
                values = container.lines[0].get_xdata()
                if np.all((low < values) & (values < high)):
                    shown.add(label)
        assert shown == set(encoders)

        low, high = axes_of_direction[-1].get_xlim()
        assert high - low < 20  # an interval of 4 points can be seen
    assert "n 400, candidates 400" in figures[0].get_suptitle()


def test_names_that_differ_in_signs_have_their_own_pictures(tmp_path: Path) -> None:
    tables = compare_encoders({"a": retrieval(0.9, "x/y") | retrieval(0.8, "x:y")})
    assert len(set(plot_comparisons(tmp_path, tables))) == 2


def bias(languages: list[str], own_share: float, protocol: str) -> Any:
    """Results in which each query retrieves its own language with a share, and all others alike."""
    other_share = (1 - own_share) / (len(languages) - 1)
    metrics: dict[str, float] = {}
    for query in languages:
        metrics[f"{protocol}/{query}/test/bias"] = own_share * len(languages)
        for retrieved in languages:
            share = own_share if retrieved == query else other_share
            metrics[f"{protocol}/{query}/test/share_{retrieved}"] = share
    metrics[f"{protocol}/mean-of-{len(languages)}/test/share_{languages[0]}"] = 0.1
    return results(metrics)


def test_languages(tmp_path: Path, figures: list[Figure]) -> None:
    languages = ["de", "fr", "zh"]
    metrics = bias(languages, 0.8, "x-language-bias") | bias(languages, 0.4, "x-language-bias-pcr1-self")
    assert_a_picture(plot_languages(tmp_path / "new" / "languages.png", {"e5": {"metrics": metrics}}))

    heights = []
    for axes in figures[0].axes:
        heights.append([bar.get_height() for bar in axes.patches])
    before = [[80, 10, 10], [10, 80, 10], [10, 10, 80]]
    np.testing.assert_allclose(heights[::2], before)
    after = [[40, 30, 30], [30, 40, 30], [30, 30, 40]]
    np.testing.assert_allclose(heights[1::2], after)


def history() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    for step in range(10, 110, 10):
        generative = 5 / step + 1
        alignment = math.exp(-step / 20)
        training = {
            "loss": generative + alignment,
            "loss/generative": generative,
            "loss/alignment": alignment,
            "learning_rate": 1e-4,
            "epoch": step / 50,
            "step": step,
        }
        entries.append(training)

        if step % 50 == 0:
            evaluation = {
                "eval_loss": 2.0,
                "eval_toy-tatoeba/en-fr/dev/accuracy": step / 200,
                "eval_toy-tatoeba/en-fr/dev/pairs": 10,
                "eval_runtime": 1.0,
                "step": step,
            }
            entries.append(evaluation)
    entries.append({"train_loss": 1.5, "train_runtime": 9.0, "step": 100})
    return entries


def test_curves(tmp_path: Path, figures: list[Figure]):
    assert_a_picture(plot_curves(tmp_path / "curves.png", history()))

    _, generative, _, accuracy = figures[0].axes
    np.testing.assert_allclose(generative.lines[0].get_ydata()[:2], [1.5, 1.25])
    np.testing.assert_allclose(accuracy.lines[0].get_xydata(), [[50, 25], [100, 50]])
