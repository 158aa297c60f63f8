"""The memory of the stages of mining, at the smallest size."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness import Job
from benchmarks.mining_memory import DEFAULTS, STAGES, measured, page, prepare

JOB: Job = {**DEFAULTS, "rows": 3000, "width": 8, "probes": 2}


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_runs(stage: str, tmp_path: Path) -> None:
    make, work = STAGES[stage]
    make(tmp_path, JOB)
    figures = measured(lambda: work(tmp_path, JOB))
    assert figures["seconds"] > 0


@pytest.mark.slow
def test_input_is_made_by_another_process() -> None:
    step = prepare(JOB, ["search"])
    step("search", True)
    figures = step("search", False)
    assert figures is not None
    assert figures["allocated_bytes"] > 0


def test_allocated_memory_is_measured() -> None:
    def allocate() -> None:
        block = np.ones(1 << 23)
        time.sleep(0.1)
        del block

    assert (1 << 26) - (1 << 20) < measured(allocate)["allocated_bytes"] < 1 << 27


def test_slopes_are_differences_of_sizes() -> None:
    rows = []
    for size in (100, 300):
        figures = {"allocated_bytes": 1000 + 5 * size, "mapped_bytes": 2 * size, "seconds": 1.0}
        rows.append({"rows": size, "side": "reading", **figures})
    assert page(rows)[2].split("|")[-4:-1] == [" 5.0 ", " 2.0 ", " 1 "]
