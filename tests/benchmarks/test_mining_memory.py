"""The memory of the stages of mining, at the smallest size."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.mining_memory import STAGES, measured, run_stage, table_of

SETTINGS = {"rows": 3000, "memory": 1 << 28, "width": 8, "probes": 2, "seed": 1}


@pytest.mark.parametrize("stage", STAGES)
def test_each_stage_runs(stage: str, tmp_path: Path) -> None:
    make, _ = STAGES[stage]
    make(tmp_path, SETTINGS)
    result = run_stage(stage, tmp_path, SETTINGS)
    assert result["seconds"] > 0


def test_allocated_memory_is_measured() -> None:
    def allocate() -> None:
        block = np.ones(1 << 23)
        time.sleep(0.1)
        del block

    assert (1 << 26) - (1 << 20) < measured(allocate)["allocated"] < 1 << 27


def test_slopes_are_differences_of_sizes() -> None:
    results: dict[str, dict[int, dict[str, Any]]] = {"reading": {}}
    for size in (100, 300):
        results["reading"][size] = {"allocated": 1000 + 5 * size, "mapped": 2 * size, "seconds": 1.0}
    assert table_of(results, [100, 300])[2].split("|")[-4:-1] == [" 5.0 ", " 2.0 ", " 1 "]
