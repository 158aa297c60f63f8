"""Commands that are killed, run out of disk and find torn files end with the results of undisturbed runs, or refuse."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_faults_leave_equal_results(tmp_path: Path) -> None:
    output = tmp_path / "counts.json"
    words = ["--cases", "encode,push", "--tears", "results,checkpoint", "--torn", "3", "--output", str(output)]
    words += ["--kills", "2", "--signals", "1", "--full", "1"]
    subprocess.run([sys.executable, "-m", "benchmarks.faults", *words], cwd=ROOT, check=True)

    counts_by_case = json.loads(output.read_text("utf-8"))
    assert counts_by_case.keys() == {"encode", "push", "torn results", "torn checkpoint"}
    for name in ("encode", "push"):
        counts = counts_by_case[name]
        assert counts["killed"].keys() == {"equal"}
        assert counts["kills"]["hit"] >= 2
    assert counts_by_case["encode"]["read-only"] == {"refused": 1}
