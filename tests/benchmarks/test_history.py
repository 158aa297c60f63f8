"""The history of the speed cases: what is kept, what is compared, and what a release stops at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, history

MACHINE = "AMD EPYC, 2 cores, AVX2, torch 2.13.0"


def add(file: Path, ratios: list[float], *, machine: str = MACHINE, rows: int = 1000) -> None:
    """Results of the case `mining`, one after the other."""
    for ratio in ratios:
        sides = [{"side": "ours", "ratio": ratio, "memory_ratio": 0.5}, {"side": "faiss", "ratio": 1.0}]
        job = {"rows": rows, "threads": 2}
        history.append_results(file, "mining", job, machine, [{"reference": "faiss", **side} for side in sides])


def test_newest_ratio_is_compared_with_the_median(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    add(file, [0.40, 0.20, 0.40, 0.43])  # the lucky 0.20 calls nothing slow
    time, memory = history.comparisons(history.read_results(file))
    assert (time.series.side, time.usual, time.newest, time.earlier) == ("ours", 0.40, 0.43, 3)
    assert time.change == pytest.approx(0.075)
    assert (memory.series.kind, memory.change) == ("memory", 0)
    assert history.regressions(history.read_results(file)) == []

    add(file, [0.45])
    (slower,) = history.regressions(history.read_results(file))
    assert (slower.series.kind, slower.newest) == ("time", 0.45)


def test_other_machines_and_options_are_not_compared(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    add(file, [0.40])
    add(file, [0.80], machine="Intel Xeon, 4 cores, AMX, torch 2.13.0")
    add(file, [0.80], rows=2000)
    assert history.comparisons(history.read_results(file)) == []


def test_release_stops_at_a_regression(tmp_path: Path) -> None:
    release_check = pytest.importorskip("release_check", exc_type=ImportError)  # of Python 3.11
    file = tmp_path / "history.jsonl"
    assert "no results" in release_check.speed(file)
    add(file, [0.40, 0.41])
    assert "2 ratios" in release_check.speed(file)
    add(file, [0.50])
    with pytest.raises(release_check.Wrong, match=r"mining, ours: time 0\.50, \+23%"):
        release_check.speed(file)


def test_case_adds_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[dict[str, Any]] = [
        {"side": "ours", "seconds": 2.0, "ratio": 0.5, "range": [0.5, 0.5]},
        {"side": "full logits", "seconds": 4.0, "ratio": 1.0, "range": [1.0, 1.0]},
    ]
    monkeypatch.setattr(harness, "measure", lambda case, job, rounds: rows)
    file = tmp_path / "history.jsonl"
    harness.run_case("cmlm", {"layers": 4}, 1, tmp_path / "cmlm.json", file)
    first, last = history.read_results(file)
    assert (first["case"], first["options"], first["ratio"]) == ("cmlm", {"layers": 4}, 0.5)
    assert first["reference"] == last["side"] == "full logits"
    assert "cores" in first["machine"] and first["commit"]

    harness.run_case("cmlm", {"layers": 4}, 1, tmp_path / "cmlm.json", None)
    assert len(history.read_results(file)) == 2


def test_report_draws_a_picture_of_each_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "history.jsonl"
    add(file, [0.40, 0.42, 0.41])
    add(file, [0.30], rows=2000)
    history.report(history.read_results(file), tmp_path)
    assert "mining" in capsys.readouterr().out
    assert (tmp_path / "mining.svg").read_text("utf-8").startswith("<?xml")
