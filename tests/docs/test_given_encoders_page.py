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
    "static embedding": {"static"},
}
"""Words of a row of the table, and the encoders of the tests that it is about; the first row is about all others."""


def test_table_of_methods_and_encoders() -> None:
    section = PAGE.read_text("utf-8").partition("## Which method takes which encoder")[2].partition("\n## ")[0]
    head, _, first, *others = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    methods = {"dual momentum": "dual"}
    columns = [methods.get(name.strip(), name.strip().lower()) for name in head[1:]]
    assert sorted(columns) == sorted(TRAINERS)

    about = [set(GIVEN).difference(*ROWS.values()), *ROWS.values()]
    for (text, *cells), names in zip([first, *others], about, strict=True):
        for method, cell in zip(columns, cells, strict=True):
            refused = names & set(REFUSED[method])
            assert refused == (set() if cell.strip() == "yes" else names), (text, method)
    for (text, *_), words in zip(others, ROWS, strict=True):
        assert words in text
