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
    words = ["--cases", "encode,suite", "--kills", "2", "--torn", "3", "--output", str(output)]
    subprocess.run([sys.executable, "-m", "benchmarks.faults", *words], cwd=ROOT, check=True)

    counts_by_case = json.loads(output.read_text("utf-8"))
    for counts in counts_by_case.values():
        assert counts["killed"]["equal"] >= 1
        assert counts["kills"]["hit"] >= 2
        assert counts["full disk, then room"].keys() == {"equal"}
        assert counts["read-only"] == {"refused": 1}
