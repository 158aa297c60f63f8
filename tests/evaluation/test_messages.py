"""Errors name the value, the file and the fix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import failing
from input_helpers import bucc_files, write_tsv

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.evaluation.bitexts import read_bucc
from hf_xlsr.evaluation.outcomes import Outcomes
from hf_xlsr.evaluation.protocols.pair_similarity import sts
from hf_xlsr.evaluation.results import load_results, measured, save_results
from hf_xlsr.evaluation.suites.suite import load_suite
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.thresholds import PrecisionCurve
from hf_xlsr.utils.errors import XlsrError

NO_SCORE = [{"sentence1": "a", "sentence2": "b", "score": score} for score in ("", None)]
CURVE = PrecisionCurve(*[np.ones(1)] * 2, "labels", *[np.ones(1)] * 3)  # type: ignore[arg-type]


def repeated_id() -> Any:
    bucc_files(Path())
    write_tsv(Path("test.de"), ["x\tone", "x\ttwo"])
    return read_bucc("test.de", "test.en", "test.gold")


def unknown_id() -> Any:
    bucc_files(Path())
    return read_bucc("train.de", "test.en", "test.gold")


def without_outcomes() -> Any:
    outcomes = Outcomes("mean", (np.array([0.0, 1.0]),))
    save_results("a.json", measured("d", "p", "en", "test", {}, {"m": outcomes}), settings={}, predictions=True)
    Path("a.npz").unlink()
    return load_results("a.json")


def without_statistics() -> Any:
    Path("b.json").write_text(json.dumps({"records": {}}), "utf-8")
    return load_results("b.json")


def suite(content: str) -> Callable[[], Any]:
    def load() -> Any:
        Path("s.yaml").write_text(content, "utf-8")
        return load_suite("s.yaml")

    return load


MESSAGES: list[tuple[Callable[[], Any], str]] = [
    (lambda: sts(None, {"STS-B": NO_SCORE}), "task 'STS-B' has no row with a score: all 2 | --columns score=NAME"),  # type: ignore[arg-type]
    (repeated_id, "test.de | test.gold | `source_ids` has the id 'x' 2 times"),
    (unknown_id, "train.de | `source_ids` lacks 1 ids of `gold`, such as 'test-de-0'"),
    (without_outcomes, "outcomes of a.json are missing | 'a.npz' | --predictions"),
    (without_statistics, "b.json is not a file of results | 'statistics' | --output"),
    (suite("encoders: ./model\n"), "s.yaml | `encoders: {NAME: ...}` | './model'"),
    (suite("tasks: [a, b]\n"), "s.yaml | `tasks: {NAME: ...}` | 'a'"),
    (suite("tasks: {one: {protocol: sts, data: a.tsv, languges: en}}\n"), "languges | did you mean 'languages'"),
    (lambda: MiningOptions(threshold=float("nan")), "`threshold` | nan"),
    (lambda: MiningOptions(threshold=float("inf")), "`threshold` | inf"),
    (lambda: MiningOptions(recall=float("nan")), "`recall` | nan"),
    (lambda: CURVE.choose(float("nan")), "`precision` must be above 0 and at most 1 | nan"),
    (lambda: CURVE.choose(1.5), "`precision` must be above 0 and at most 1 | 1.5"),
    (lambda: parse_columns("source"), "got 'source'"),
    (lambda: embed(None, "one text"), "a list of sentences, got one text, 'one text'"),  # type: ignore[arg-type]
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("call", "parts"), MESSAGES)
def test_message_names_value_file_and_fix(call: Callable[[], Any], parts: str) -> None:
    with pytest.raises(XlsrError) as error:
        call()
    message = str(error.value)
    assert [part for part in parts.split(" | ") if part not in message] == []
    assert "\n" not in message and "pydantic" not in message


@pytest.mark.parametrize("verb", ["mine a.txt b.txt", "score a.txt b.txt"])
def test_threshold_that_is_no_number(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    error = failing(capsys, *verb.split(), "--model", "model", "--threshold", "nan", "--output", "out.tsv")
    assert "`threshold`" in error and "nan" in error
