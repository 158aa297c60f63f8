from __future__ import annotations

import io
import platform
import sys
from datetime import datetime, timedelta, timezone
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from result_helpers import results
from rich.console import Console
from rich.table import Table

from hf_xlsr import __version__
from hf_xlsr.evaluation import load_results, results_table, save_results
from hf_xlsr.evaluation.results import PACKAGES, Results, mean_over_languages, measured, with_intervals
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import data_hash

METRICS = results(
    {
        "tatoeba/en-fr/test/accuracy": 0.9449,
        "tatoeba/en-fr/test/pairs": 1000,
        "tatoeba/en-de/test/source_to_target_accuracy": 1.0,
        "multi30k-xsr/en-fr/test/precision@1": 0.0,
        "multi30k-xsr/en-fr/test/threshold": 1.0863,
    }
)


def printed(table: Table, width: int = 100) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text().splitlines()


def test_save_and_load(tmp_path: Path):
    path = tmp_path / "new" / "results.json"
    hashes = {"tatoeba": data_hash(["a", "b"])}
    save_results(path, METRICS, settings={"model": Path("m"), "seed": 1, "prompt": "query: é"}, data_hashes=hashes)
    content = load_results(path)
    assert content["metrics"] == METRICS
    assert [type(value) for value in content["metrics"].values()] == [type(value) for value in METRICS.values()]
    assert content["settings"] == {"model": "m", "seed": 1, "prompt": "query: é"}
    assert content["data_sha256"] == hashes
    assert content["versions"]["hf_xlsr"] == __version__
    assert content["versions"]["python"] == platform.python_version()
    assert content["versions"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"hf_xlsr", "python", *PACKAGES[:-1]} <= set(content["versions"])
    assert content["versions"]["numpy"] == np.__version__
    age = datetime.now(timezone.utc) - datetime.fromisoformat(content["created"])
    assert timedelta(seconds=-1) <= age < timedelta(minutes=1)
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


def test_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def written() -> set[str]:
        save_results(tmp_path / "r.json", Results(), settings={})
        return set(load_results(tmp_path / "r.json")["versions"])

    monkeypatch.delitem(sys.modules, "mteb", raising=False)
    assert "mteb" not in written()  # installed perhaps, but nothing here comes from it
    monkeypatch.setitem(sys.modules, "mteb", ModuleType("mteb"))

    def version(package: str) -> str:
        if package == "faiss-cpu":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr("hf_xlsr.evaluation.results.version", version)
    assert written() == {"hf_xlsr", "python", *PACKAGES} - {"faiss-cpu"}


def test_failed_save_keeps_the_old_results(tmp_path: Path):
    path = tmp_path / "results.json"
    good = measured("a", "xsim", "en", "test", {"error": np.float32(0.5), "pairs": np.int64(3)})
    save_results(path, good, settings={})
    for bad in (float("nan"), float("inf"), "0.5", None):
        with pytest.raises(XlsrError, match="a-xsim/en/test/error"):
            save_results(path, measured("a", "xsim", "en", "test", {"error": bad}), settings={})  # type: ignore[dict-item]
    assert load_results(path)["metrics"] == {"a-xsim/en/test/error": 0.5, "a-xsim/en/test/pairs": 3}


def test_table():
    lines = printed(results_table(METRICS, "Results of quickstart"))
    text = "\n".join(lines)
    assert "Results of quickstart" in lines[0]

    def line(metric: str) -> str:
        (found,) = [line for line in lines if f"│ {metric} " in line]
        return found

    assert "94.5 %" in line("accuracy") and "en-fr" in line("accuracy")
    assert " 1000 " in line("pairs") and "%" not in line("pairs")
    assert "100.0 %" in line("source to target accuracy")
    assert " 0.0 %" in line("precision@1")
    assert "1.0863" in line("threshold") and "%" not in line("threshold")
    # What a line shares with the one above is not repeated.
    assert text.count("tatoeba") == text.count("multi30k-xsr") == 1
    assert text.count("en-fr") == 2 and text.count("en-de") == 1


@pytest.mark.parametrize(
    ("metric", "value", "name", "written"),
    [
        ("accuracy", 0.94449, "accuracy", "94.4 %"),
        ("precision@10", 0.5, "precision@10", "50.0 %"),
        ("source_to_target_error", 0.5, "source to target error", "50.0 %"),
        ("cosine_best_threshold_f1", 0.8766, "cosine best threshold f1 ×100", "87.7"),
        ("cosine_f1_threshold", 0.8766, "cosine f1 threshold", "0.8766"),
        ("spearman_all", -0.0312, "spearman all ×100", "-3.1"),
        ("max_ap", 0.25, "max ap ×100", "25.0"),
        ("average_precision", 0.25, "average precision ×100", "25.0"),
        ("main_score", 0.25, "main score ×100", "25.0"),
        ("pairs", 14000, "pairs", "14000"),
        ("pairs", 0, "pairs", "0"),
    ],
)
def test_units(metric: str, value: float, name: str, written: str):
    table = results_table(measured("toy", "xsr", ("en", "fr"), "test", {metric: value}), "t")
    (line,) = [line for line in printed(table) if "toy-xsr" in line]
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["toy-xsr", "en-fr", "test", name, written]


@pytest.mark.parametrize("name", ["a", "my_rather_long_dataset_name", "a_name_of_45_characters_" + 21 * "x"])
def test_table_at_80_columns(name: str):
    protocol, languages = f"{name}-bucc-k3-distance", "zho-Hans-zho-Hant"
    values = {
        "f1": 0.3333,
        "threshold": 1.08632,
        "mined_pairs": 1234567,
        "target_to_source_weighted_precision": 1.0,
    }
    metrics = measured(name, "bucc-k3-distance", ("zho-Hans", "zho-Hant"), "test", values)
    lines = printed(results_table(metrics, "t"), width=80)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert [row[3:] for row in rows if row[3]] == [
        ["f1 ×100", "33.3"],
        ["threshold", "1.0863"],
        ["mined pairs", "1234567"],
        ["target to source weighted precision", "100.0 %"],
    ]
    assert ["".join(row[place] for row in rows) for place in range(3)] == [protocol, languages, "test"]


def test_square_brackets():
    lines = printed(results_table(measured("a[red]", "xsr", "en[b]", "test", {"x[/b]": 0.5}), "model [/x] and [red]"))
    assert "model [/x] and [red]" in lines[0] and any("a[red]" in line and "x[/b]" in line for line in lines)


@pytest.mark.parametrize(
    ("dataset", "protocol", "name"),
    [
        ("tatoeba", "tatoeba", "tatoeba"),
        ("tatoeba", "tatoeba-xtreme", "tatoeba-xtreme"),
        ("tico19", "tatoeba", "tico19-tatoeba"),
        ("newstest", "bucc-k3-distance", "newstest-bucc-k3-distance"),
        ("my-nli", "tatoeba", "my-nli-tatoeba"),
        ("average-of-3", "senteval-fast", "senteval-fast-average-of-3"),
    ],
)
def test_names_in_keys(dataset: str, protocol: str, name: str):
    assert list(measured(dataset, protocol, ("pt-br", "en"), "test", {"x": 1})) == [f"{name}/pt-br-en/test/x"]


def test_records():
    found = measured("nli", "xsr", ("en", "zho-Hans"), "test", {"precision@1": 0.5, "queries": 40})
    found |= measured("tatoeba", "tatoeba", "mean-of-3", "test", {"accuracy": 0.9})
    first, _, mean = found.records.values()
    assert first == ("nli", "xsr", "en-zho-Hans", "en", "zho-Hans", "test", "precision@1", 0.5, 40, None, None)
    right = np.arange(100) < 80
    found_with = with_intervals(
        measured("a", "xsr", ("en", "de"), "test", {"precision@1": 0.8}, {"precision@1": right})
    )
    (record,) = found_with.records.values()
    assert 0.7 < record.low < 0.8 < record.high < 0.9  # type: ignore[operator]
    assert any("80.0 % │" in line and "–" in line for line in printed(results_table(found_with, "t")))
    assert mean.is_mean and mean.source == mean.target == "" and mean.n is None
    both = found | measured("tatoeba", "tatoeba", "mean-of-3", "test", {"accuracy": 0.8})
    assert both["tatoeba/mean-of-3/test/accuracy"] == 0.8 and list(both) == list(both.records) == list(found)


def test_mean_over_languages():
    metrics = results(
        {
            "tatoeba/en-fr/test/accuracy": 0.9,
            "tatoeba/en-fr/test/pairs": 1000,
            "tatoeba/en-de/test/accuracy": 0.6,
            "tatoeba/en-de/test/pairs": 800,
            "tatoeba/en-sw/test/accuracy": 0.3,
            "tatoeba/en-sw/test/pairs": 390,
        }
    )
    averaged = mean_over_languages(metrics)
    assert averaged == dict(metrics) | {"tatoeba/mean-of-3/test/accuracy": pytest.approx(0.6)}  # not weighted by pairs
    assert list(averaged)[:6] == list(metrics)


def test_mean_without_training_language_and_mixed_pairs():
    cells = {"en-en": 0.9, "en-de": 0.5, "en-fr": 0.7, "en-de_fr": 0.1}
    metrics = results({f"xnli-nli-mlp/{pair}/test/accuracy": value for pair, value in cells.items()})
    averaged = mean_over_languages(metrics)
    assert averaged == dict(metrics) | {"xnli-nli-mlp/mean-of-2/test/accuracy": pytest.approx(0.6)}
    hans = "zho-Hans"
    metrics = Results()
    for tested, value in ((hans, 0.9), ("zho-Hant", 0.4), ("en", 0.2)):
        metrics |= measured("sib", "zero-shot", (hans, tested), "test", {"accuracy": value})
    averaged = mean_over_languages(metrics)
    assert averaged == dict(metrics) | {"sib-zero-shot/mean-of-2/test/accuracy": pytest.approx(0.3)}


def test_counts_and_thresholds_have_no_mean():
    metrics = results(
        {
            "news-bucc-k4-ratio/de-en/test/threshold": 1.08,
            "news-bucc-k4-ratio/fr-en/test/threshold": 1.10,
            "news-bucc-k4-ratio/de-en/test/pairs": 10,
            "news-bucc-k4-ratio/fr-en/test/pairs": np.int64(20),
        }
    )
    assert mean_over_languages(metrics) == metrics
