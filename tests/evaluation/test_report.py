from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from result_helpers import results
from rich.console import Console
from rich.table import Table

from hf_xlsr import __version__
from hf_xlsr.evaluation import load_results, results_table, save_results
from hf_xlsr.evaluation.results import Results, mean_over_languages, measured, with_intervals
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import data_hash

METRICS = results(
    {
        "tatoeba/en-fr/test/accuracy": 0.9449,
        "tatoeba/en-fr/test/pairs": 1000,
        "tatoeba/en-de/test/source_to_target_accuracy": 1.0,
        "multi[30]k-xsr/en-fr/test/precision@1": 0.0,
        "multi[30]k-xsr/en-fr/test/threshold": 1.0863,
    }
)


def printed(table: Table, width: int = 100) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text().splitlines()


def test_save_and_load(tmp_path: Path):
    path = tmp_path / "new" / "results.json"
    settings = {"model": Path("m"), "seed": 1, "prompt": "query: é"}
    data_hashes = {"tatoeba": data_hash(["a", "b"])}
    save_results(path, METRICS, settings=settings, data_hashes=data_hashes)

    content = load_results(path)
    assert content["metrics"] == METRICS
    assert content["settings"] == {**settings, "model": "m"}
    assert content["data_sha256"] == data_hashes
    assert content["versions"]["hf_xlsr"] == __version__
    assert content["versions"]["numpy"] == np.__version__


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.5", None])
def test_failed_save_keeps_the_old_results(value: Any, tmp_path: Path):
    path = tmp_path / "results.json"
    valid = measured("a", "xsim", "en", "test", {"error": np.float32(0.5), "pairs": np.int64(3)})
    invalid = measured("a", "xsim", "en", "test", {"error": value})
    save_results(path, valid, settings={})

    with pytest.raises(XlsrError, match="a-xsim/en/test/error"):
        save_results(path, invalid, settings={})

    assert load_results(path)["metrics"] == {"a-xsim/en/test/error": 0.5, "a-xsim/en/test/pairs": 3}


def test_records():
    values = {"precision@1": 0.8, "queries": 100}
    outcomes = {"precision@1": np.arange(100) < 80}
    metrics = with_intervals(measured("a", "xsr", ("en", "zho-Hans"), "test", values, outcomes))
    metrics |= measured("tatoeba", "tatoeba", "mean-of-3", "test", {"accuracy": 0.9})

    precision, _, mean = metrics.records.values()
    assert precision[:9] == ("a", "xsr", "en-zh-Hans", "en", "zh-Hans", "test", "precision@1", 0.8, 100)
    assert 0.7 < precision.low < 0.8 < precision.high < 0.9  # type: ignore[operator]
    assert mean.is_mean
    assert mean.source == ""
    assert mean.target == ""
    assert mean.n is None

    (line,) = [line for line in printed(results_table(metrics, "t")) if "80.0 % │" in line]
    assert "–" in line


def test_counts_and_limit_are_shown():
    metrics = Results()
    for language in ("de", "fr"):
        right = {"error": np.arange(8) < 2}
        metrics |= measured("a", "xsim", ("en", language), "test", {"pairs": 8}, right, candidates=40)
    records = [record._replace(limit=8) for record in metrics.records.values()]

    lines = printed(results_table(Results(records), "t"))
    shown = [line.split("│")[-2].strip() for line in lines if "│ pairs" in line or "│ candidates" in line]
    assert shown == ["8", "40", "8", "40"]
    assert any("--limit 8" in line for line in lines)


def test_later_results_replace_earlier_ones():
    results = METRICS | measured("tatoeba", "tatoeba", ("en", "fr"), "test", {"accuracy": 0.8})
    assert results["tatoeba/en-fr/test/accuracy"] == 0.8
    assert list(results) == list(METRICS)
    assert list(results.records) == list(METRICS)


def test_mean_over_languages():
    metrics = results(
        {
            "tatoeba/en-fr/test/accuracy": 0.9,
            "tatoeba/en-fr/test/pairs": 1000,
            "tatoeba/en-sw/test/accuracy": 0.3,
            "tatoeba/en-sw/test/pairs": np.int64(390),
            "news-bucc-k4-ratio/de-en/test/threshold": 1.08,
            "news-bucc-k4-ratio/fr-en/test/threshold": 1.10,
        }
    )
    # Not weighted by pairs; counts and thresholds have no mean.
    mean = {"tatoeba/mean-of-2/test/accuracy": pytest.approx(0.6)}
    assert mean_over_languages(metrics) == dict(metrics) | mean


def test_mean_skips_the_training_language():
    metrics = Results()
    for tested, value in (("zho-Hans", 0.9), ("zho-Hant", 0.4), ("en", 0.2)):
        metrics |= measured("sib", "zero-shot", ("zho-Hans", tested), "test", {"accuracy": value})
    assert mean_over_languages(metrics)["sib-zero-shot/mean-of-2/test/accuracy"] == pytest.approx(0.3)
