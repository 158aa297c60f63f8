"""The benchmark of our queue loss inside sentence-transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.queue_loss import DEFAULTS, QUICK, SIDES, prepare


@pytest.mark.slow
def test_losses_train_for_equal_time_and_only_once(tmp_path: Path) -> None:
    job = {**DEFAULTS, **QUICK, "seeds": [1, 2], "budget": 0.2, "folder": str(tmp_path)}
    step = prepare(job, list(SIDES))
    for side in SIDES:
        figures = step(side, False) or {}
        assert not figures["steps"].startswith("0 ")
        assert figures["seconds"] >= 0.2
        assert step(side, False) == figures

    assert len(list(tmp_path.glob("*.json"))) == 2 * len(SIDES)
