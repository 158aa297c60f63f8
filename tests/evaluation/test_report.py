from __future__ import annotations

import io
import json
import platform
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from hf_xlsr import __version__
from hf_xlsr.errors import XlsrError
from hf_xlsr.evaluation import data_hash, load_results, results_table, save_results
from hf_xlsr.evaluation.report import metric_prefix

METRICS = {
    "tatoeba/en-fr/test/accuracy": 0.9449,
    "tatoeba/en-fr/test/pairs": 1000,
    "tatoeba/en-de/test/source_to_target_accuracy": 1.0,
    "multi30k-xsr/en-fr/test/precision@1": 0.0,
    "multi30k-xsr/en-fr/test/threshold": 1.0863,
    "eval_loss": 2.5,
}


def printed(table: Table) -> list[str]:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text().splitlines()


def test_results_come_back_as_saved(tmp_path: Path):
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
    assert set(content["versions"]) == {"hf_xlsr", "python", "torch", "transformers", "sentence-transformers"}
    age = datetime.now(timezone.utc) - datetime.fromisoformat(content["created"])
    assert timedelta(seconds=-1) <= age < timedelta(minutes=1)
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


def test_numpy_numbers_are_saved_as_numbers(tmp_path: Path):
    save_results(tmp_path / "r.json", {"a": np.float32(0.5), "n": np.int64(3)}, settings={})
    assert load_results(tmp_path / "r.json")["metrics"] == {"a": 0.5, "n": 3}


def test_a_failed_save_leaves_the_old_results(tmp_path: Path):
    path = tmp_path / "results.json"
    save_results(path, {"a": 0.5}, settings={})
    for bad in (float("nan"), float("inf"), "0.5", None):
        with pytest.raises(XlsrError, match="metric 'b' is"):
            save_results(path, {"a": 0.1, "b": bad}, settings={})
    assert load_results(path)["metrics"] == {"a": 0.5}


def test_files_that_are_no_results_are_named(tmp_path: Path):
    path = tmp_path / "results.json"
    with pytest.raises(XlsrError, match="results.json cannot be read"):
        load_results(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(XlsrError, match="results.json is not JSON"):
        load_results(path)
    for content in ([1], {"settings": {}}):
        path.write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(XlsrError, match="results.json has no 'metrics'"):
            load_results(path)


@settings(max_examples=50, deadline=None)
@given(first=st.lists(st.text(max_size=5), max_size=5), second=st.lists(st.text(max_size=5), max_size=5))
def test_hashes_are_equal_exactly_for_equal_lists(first: list[str], second: list[str]):
    assert (data_hash(first) == data_hash(second)) == (first == second)
    assert data_hash(iter(first)) == data_hash(first)


def test_hash_sees_order_and_borders():
    lists = [[], [""], ["ab"], ["a", "b"], ["b", "a"], ["a\nb"], ["a", "", "b"]]
    assert len({data_hash(texts) for texts in lists}) == len(lists)


def test_table_is_readable():
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
    assert "2.5000" in line("eval loss")
    # What a line shares with the one above is not repeated.
    assert text.count("tatoeba") == text.count("multi30k-xsr") == 1
    assert text.count("en-fr") == 2 and text.count("en-de") == 1


def test_metric_prefix_names_everything_once():
    assert metric_prefix("xnli", "zero-shot", "en-fr", "test") == "xnli-zero-shot/en-fr/test"
    assert metric_prefix("tatoeba", "tatoeba", "en-fr", "dev") == "tatoeba/en-fr/dev"
    assert metric_prefix("tatoeba", "xsr", "en-fr", "dev") == "tatoeba-xsr/en-fr/dev"
    with pytest.raises(XlsrError, match="dataset name is 'owner/name'"):
        metric_prefix("owner/name", "xsr", "en-fr", "test")
    with pytest.raises(XlsrError, match="split is ''"):
        metric_prefix("name", "xsr", "en-fr", "")
