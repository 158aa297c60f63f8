"""What tells one training of a campaign from another: a short hash of its recipe, its time and what it starts from."""

from __future__ import annotations

import json
import os
from functools import cache
from hashlib import sha256
from pathlib import Path

from campaign_plan import Row, Table, is_staged, resolved, run_of

VARIABLES = ("HF_XLSR_DATA", "HF_XLSR_ENCODERS")
NOWHERE = Path("/campaign")  # in place of a folder of runs, which is no part of a recipe


def training_fingerprint(table: Table, row: Row) -> str:
    """Of the training behind a row, the same for all its seeds and wherever data, encoders and runs lie.

    Rows that are stages of one training have the same; of an encoder as it came it is the name.

    Args:
        table: Of the row.
        row: One of its rows.
    """
    places = [(str(Path(os.environ[name])), f"${{{name}}}") for name in VARIABLES if os.environ.get(name)]
    # The longer first: one folder may be in the other.
    return _fingerprint(table, row.name, tuple(sorted(places, key=lambda place: -len(place[0]))))


def row_fingerprint(table: Table, row: Row) -> str:
    """Of a row's figures: its training's and, where that has stages, which of them the row shows."""
    run = run_of(table, row, 1, NOWHERE)
    stage = f".{run.run}" if run and run.run and is_staged(run) else ""
    return training_fingerprint(table, row) + stage


@cache
def _fingerprint(table: Table, name: str, places: tuple[tuple[str, str], ...]) -> str:
    row = table.row(name)
    run = run_of(table, row, 1, NOWHERE)
    if run is None:
        return str(row.encoder)
    recipes = [
        {key: value for key, value in recipe.items() if key not in ("output_dir", "description")}
        for recipe in resolved(run)
    ]
    text = json.dumps([recipes, run.control, run.seconds], sort_keys=True)
    for place, variable in places:
        text = text.replace(f"{place}/", f"{variable}/")
    starts = [_fingerprint(other, start.name, places) for other, start in table.starts(row).values()]
    return sha256("".join([text, *starts]).encode()).hexdigest()[:12]
