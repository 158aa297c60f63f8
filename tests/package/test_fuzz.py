"""A few seconds of `fuzz.py` for each reader."""

from __future__ import annotations

import fuzz
import pytest


@pytest.mark.slow
@pytest.mark.parametrize("reader", fuzz.READERS)
def test_damaged_files_give_one_error_or_a_result(reader: str) -> None:
    runs, errors = fuzz.fuzz(reader, seconds=2.0)
    assert runs > 3
    # Cards with an invalid header have no metadata; invalid jobs, stages and vectors are made again.
    assert errors or reader in ("cards", "work_folder", "work_stage", "vectors")
