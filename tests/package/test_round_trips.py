"""What a writer wrote, its reader returns. Files of pairs: tests/mining/test_outputs.py."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.cleaning import Deduplicate, LengthBounds, Normalize, judge_rows
from hf_xlsr.data.encoding import PAIRS
from hf_xlsr.data.preparation import read_judged, write_judged
from hf_xlsr.evaluation.outcomes import Outcomes
from hf_xlsr.evaluation.results import Result, Results, load_results, save_results
from hf_xlsr.mining.work_folder import load_arrays, save_arrays

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)  # tabs and line breaks, too
VISIBLE = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=12)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
LIMITS = settings(max_examples=40)


@LIMITS
@given(pairs=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=8))
def test_judged_rows(pairs: list[tuple[str, str]]) -> None:
    languages = {"source_lang": "en", "target_lang": "zh-Hant"}
    rows = [{"source": source, "target": target, **languages} for source, target in pairs]
    steps = [Normalize(), LengthBounds(max_chars=5), Deduplicate()]
    judged_rows, verdicts = judge_rows(steps, rows)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "judged.arrow"
        write_judged(steps, PAIRS, file, rows)
        batch, stored = read_judged(steps, file)
        texts = list(zip(batch["source"].to_pylist(), batch["target"].to_pylist(), strict=True))
    assert texts == [(row["source"], row["target"]) for row in judged_rows]
    assert stored.dropped_by.tolist() == verdicts.dropped_by.tolist()
    assert stored.changed_by.tolist() == verdicts.changed_by.tolist()
    assert stored.keys[2].tolist() == verdicts.keys[2].tolist()


@LIMITS
@given(
    names=st.lists(VISIBLE, min_size=3, max_size=3),
    value=NUMBER,
    column=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=5),
)
def test_results(names: list[str], value: float, column: list[float]) -> None:
    dataset, protocol, metric = names
    record = Result(dataset, protocol, "en-de", "en", "de", "test", metric, value)
    outcomes = {record.key: Outcomes("mean", (np.array(column),))}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "a.json"
        save_results(file, Results([record], outcomes), settings={"name": dataset}, predictions=True)
        stored = load_results(file)
    assert stored["metrics"].records == {record.key: record}
    assert stored["metrics"].outcomes[record.key].columns[0].tolist() == column
    assert stored["settings"] == {"name": dataset}


@LIMITS
@given(values=st.lists(NUMBER, max_size=6), hashes=st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_arrays_of_mining(values: list[float], hashes: list[int]) -> None:
    arrays: dict[str, Any] = {"values": np.array(values), "hashes": np.array(hashes, dtype=np.uint64)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arrays.npz"
        save_arrays(file, **arrays)
        stored = load_arrays(file)
        for name, array in arrays.items():
            assert stored[name].tolist() == array.tolist()
