"""The comparisons of `tables.yaml`, whose head explains the keys, and the folders of the runs that rows show."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml
from pydantic import BaseModel, PrivateAttr

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 3  # of the rows in `ends`
START = re.compile(r"(?<!\$)\{([\w./-]+)\}")  # {ROW} or {TABLE/ROW}; ${VARIABLE} is for recipes


class Strict(BaseModel, extra="forbid", frozen=True):
    """Refuses unknown keys."""


class Column(Strict):
    title: str
    metric: str
    scale: float = 100.0
    digits: int = 1


class Claim(Strict):
    """Row `better` is above row `worse` in a column."""

    text: str
    better: str
    worse: str
    column: str
    against: str = ""
    goes_on: bool = False
    margin: float = 0.0
    ours: bool = False


class Row(Strict):
    """One row: a run of a recipe, a control (of `controls.py` or `negatives.py`), or a public encoder."""

    name: str
    label: str = ""
    recipe: str = ""
    run: str = ""
    stage: str = ""
    options: tuple[str, ...] = ()
    control: tuple[str, ...] = ()
    encoder: str = ""
    x: float | None = None
    hidden: bool = False
    seeds: int | None = None

    @property
    def title(self) -> str:
        return self.label or self.name


class Picture(Strict):
    """A picture below a table, made by `hf-xlsr plot COMMAND`."""

    kind: str
    caption: str
    command: tuple[str, ...]


class Table(Strict):
    name: str
    title: str
    paper: str
    recipe: str
    equal: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    but: str = ""
    languages: str = "en"
    units: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    options: tuple[str, ...] = ()
    axis: str = ""
    tsne: str = ""
    pictures: tuple[Picture, ...] = ()
    note: str = ""
    method: str = ""
    start: str = ""
    paper_steps: int | None = None
    _places: dict[str, tuple[Table, Row]] = PrivateAttr(default_factory=dict)

    def row(self, name: str) -> Row:
        return self._places[name][1]

    def seeds(self, row: Row) -> range:
        usual = SEEDS if row.name in self.ends and not row.encoder else 1
        return range(1, (row.seeds or usual) + 1)

    def encoder(self, row: Row) -> Path:
        """Folder of a row that is not trained here: in HF_XLSR_ENCODERS, or below the root if its name has a slash."""
        home = ROOT if "/" in row.encoder else Path(os.environ.get("HF_XLSR_ENCODERS", ""))
        return home / row.encoder

    def starts(self, row: Row) -> list[tuple[Table, Row]]:
        """Rows whose runs the options of a row name."""
        named = START.findall(" ".join((*row.options, *row.control)))
        return [self._places[name] for name in named if name in self._places]

    def folder(self, row: Row, seed: int, home: Path) -> Path:
        """Folder of a row's run below `home`; rows of several tables that show the same run share it."""
        if row.encoder:
            return home / "encoders" / row.encoder.replace("/", "-")
        place = home / Path(row.recipe or self.recipe).stem
        if self.options or row.options or row.control:
            place = place.with_name(f"{place.name}-{self.name}") / row.name
        return place / f"seed-{seed}" / (row.run or row.stage)

    def filled(self, options: tuple[str, ...], seed: int, home: Path) -> list[str]:
        """Options with the folders of the runs that they name, of the same seed where there is one."""

        def fill(match: re.Match[str]) -> str:
            if match[1] not in self._places:
                return match[0]
            table, row = self._places[match[1]]
            return str(table.folder(row, seed if seed in table.seeds(row) else 1, home))

        return [START.sub(fill, option) for option in options]


class Book(Strict):
    tables: tuple[Table, ...]


def read_tables(path: Path) -> Book:
    book = Book.model_validate(yaml.safe_load(path.read_text("utf-8")))
    everywhere = {f"{table.name}/{row.name}": (table, row) for table in book.tables for row in table.rows}
    for table in book.tables:
        table._places.update(everywhere | {row.name: (table, row) for row in table.rows})
        rows, titles = {row.name for row in table.rows}, {column.title for column in table.columns}
        named = {
            *table.ends,
            *filter(None, [table.tsne, table.start]),
            *(n for c in table.claims for n in (c.better, c.worse)),
        }
        columns = {title for c in table.claims for title in (c.column, c.against) if title}
        if missing := sorted((named - rows) | (columns - titles)):
            raise ValueError(f"table '{table.name}' names {missing}, which are no rows or columns of it.")
    return book
