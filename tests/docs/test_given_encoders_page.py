"""docs/encoders.md: which method takes which encoder is what the trainers do."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("encoders", "trainers"):
    sys.path.append(str(ROOT / "tests" / folder))
from given_encoders import GIVEN  # noqa: E402
from test_given_encoders import REFUSED, TRAINERS  # noqa: E402

PAGE = ROOT / "docs" / "encoders.md"
ROWS: dict[str, set[str]] = {
    "of another width": {"labse", "two_dense", "bert_two_modes"},
    "without a mask token": {"t5"},
    "decoder": {"qwen", "gemma", "chat"},
    "route for each language": {"routed"},
    "static embedding": {"static", "static_words"},
}
"""Words of a row of the table, and the encoders of the tests that it is about; the first row is about all others."""


def test_table_of_methods_and_encoders() -> None:
    section = PAGE.read_text("utf-8").partition("## Which method takes which encoder")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    (_, *head), _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    columns = [name.lower().replace("dual momentum", "dual") for name in head]
    assert sorted(columns) == sorted(TRAINERS)

    all_others = set(GIVEN).difference(*ROWS.values())
    encoders_of_rows = {"": all_others, **ROWS}
    for (text, *cells), (words, encoders) in zip(rows, encoders_of_rows.items(), strict=True):
        assert words in text
        for method, cell in zip(columns, cells, strict=True):
            refused = encoders & set(REFUSED[method])
            expected = set() if cell == "yes" else encoders
            assert refused == expected, (text, method)
