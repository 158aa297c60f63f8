"""What a campaign compares: tables of `campaign_tables.yaml`, their rows, and the runs that rows need.

A row is a run of a recipe, a control of sentence-transformers on the same pairs, or an encoder as it came. Rows of
several tables may be the same run, which is then trained once. `ends` of a table get three seeds, its other rows one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from hf_xlsr.runs.recipe import load_runs, parse_yaml, read_recipe
from hf_xlsr.utils.errors import XlsrError, nearest

ROOT = Path(__file__).resolve().parents[1]
SEEDS = 3  # of the two ends of a table


@dataclass(frozen=True)
class Column:
    """One figure of every row.

    Args:
        title: Heading.
        metric: Names of metrics with `*`, several apart by spaces, whose mean is taken; `log:NAME` is the last value
            that the training logged, `settings:a.b` what the run's results say of it.
        scale: What it is multiplied by.
        digits: After the point.
    """

    title: str
    metric: str
    scale: float = 100.0
    digits: int = 1


@dataclass(frozen=True)
class Claim:
    """A sentence that two figures decide: row `better` is to be above row `worse` in a column.

    Args:
        text: The sentence.
        better: A row.
        worse: A row.
        column: Of both.
        against: Column of `worse`, where it is another; of one row the columns are compared seed by seed.
        goes_on: Whether one of the rows goes on from the other's weights; they are compared seed by seed.
        margin: What `better` may lack, for sentences that say that it is as good.
        ours: Whether no paper says it.
    """

    text: str
    better: str
    worse: str
    column: str
    against: str = ""
    goes_on: bool = False
    margin: float = 0.0
    ours: bool = False


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        name: What claims and other rows call it.
        label: What the table calls it; the name when absent.
        run: Of a recipe's list, or of its stages; None for a recipe of one run.
        recipe: Name or path; that of the table when absent.
        options: For the recipe, as on the command line; `{ROW}`, or `{TABLE/ROW}`, is the folder of another row's run.
        control: A training by sentence-transformers (`mnrl`, `distillation`) on the recipe's pairs instead of the recipe.
        encoder: Of HF_XLSR_ENCODERS, as it came, instead of a run.
        share: Of the table's seconds.
        x: Place on the horizontal axis of the table's plot.
        hidden: Whether it is there for other rows to start from alone.
        seeds: How many, instead of three for ends and one for others.
    """

    name: str
    label: str = ""
    run: str | None = None
    recipe: str = ""
    options: tuple[str, ...] = ()
    control: str | None = None
    encoder: str | None = None
    share: float = 1.0
    x: float | None = None
    hidden: bool = False
    seeds: int | None = None


@dataclass(frozen=True)
class Table:
    """One comparison of `campaign_tables.yaml`.

    Args:
        name: For `--only`.
        title: Heading.
        paper: Which paper's which table, and what is different here.
        recipe: Of its rows.
        equal: What is the same for all rows: "steps", "pairs" or "processor time".
        but: Rows of which that is not true, and why.
        units: Of peer_units, measured on every row's encoder.
        languages: Of the encoders, as peers.py takes them: en, en-de, en-fr+de.
        ends: The rows that get three seeds.
        rows: All of them.
        columns: What is shown.
        claims: What is decided.
        options: Of every row's recipe.
        seconds: Processor time of each training, from which its steps follow; the recipe's own steps when absent.
        axis: Of the plot over the rows' `x`; none without.
        cards: Rows whose runs get a model card, named after their recipe; of the first the plot of translations is shown.
        histograms: Rows whose retrieved languages are drawn; they need the unit `removal`.
        spaces: Rows whose sentences of Tatoeba are drawn on a plane.
        note: A sentence that a reader needs.
        siblings: All tables of the file, by name.
    """

    name: str
    title: str
    paper: str
    equal: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    recipe: str = ""
    units: tuple[str, ...] = ()
    languages: str = "en"
    ends: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    options: tuple[str, ...] = ()
    seconds: float | None = None
    but: str = ""
    axis: str = ""
    cards: tuple[str, ...] = ()
    histograms: tuple[str, ...] = ()
    spaces: tuple[str, ...] = ()
    note: str = ""
    siblings: dict[str, Table] = field(default_factory=dict, compare=False, repr=False)

    def row(self, name: str) -> Row:
        """The row of that name."""
        return next(row for row in self.rows if row.name == name)

    def seeds(self, row: Row) -> tuple[int, ...]:
        """The seeds that a row is trained with."""
        usual = 1 if row.encoder or row.name not in self.ends else SEEDS
        return tuple(range(1, (row.seeds or usual) + 1))

    def places(self) -> dict[str, tuple[Table, Row]]:
        """What may stand between the braces of an option: `ROW` of this table, `TABLE/ROW` of any."""
        own = {row.name: (self, row) for row in self.rows}
        return own | {
            f"{name}/{row.name}": (table, row) for name, table in self.siblings.items() for row in table.rows
        }

    def starts(self, row: Row) -> dict[str, tuple[Table, Row]]:
        """The rows whose runs a row's options name, by what stands between the braces.

        Raises:
            XlsrError: such a row is an encoder as it came.
        """
        found: dict[str, tuple[Table, Row]] = {}
        for name, (table, other) in self.places().items():
            if any(f"{{{name}}}" in option for option in row.options):
                if other.encoder:
                    raise XlsrError(
                        f"table '{self.name}', row '{row.name}': '{name}' is no run that it could start from."
                    )
                found[name] = (table, other)
        return found


@dataclass(frozen=True)
class Run:
    """One training, by the folder that it leaves under the campaign's `runs`."""

    folder: Path
    recipe: str
    run: str | None
    options: tuple[str, ...]
    seed: int
    control: str | None = None
    seconds: float | None = None

    @property
    def output_dir(self) -> Path:
        """For the recipe: `hf-xlsr train` puts a run of a list below it."""
        return self.folder.parent if self.run else self.folder


def read_tables(path: Path, only: list[str] | None = None) -> list[Table]:
    """The tables of a file, in its order.

    Args:
        path: YAML: a list of tables.
        only: Names of those wanted; all when absent.

    Raises:
        XlsrError: an unknown, missing or repeated key or name, a row is named that is not there, or what rows start from
            or how long they train cannot be.
    """
    entries = parse_yaml(path.read_text("utf-8"), path.name)
    if not isinstance(entries, list) or not entries:
        raise XlsrError(f"{path.name} holds no list of tables; begin each with '- name:'.")
    tables = [_read(Table, entry, "table") for entry in entries]
    names = [table.name for table in tables]
    _check_unique(names, f"{path.name} has two tables")
    for table in tables:
        table.siblings.update(zip(names, tables, strict=True))
    for name in only or ():
        if name not in names:
            raise XlsrError(f"--only names '{name}'; {nearest(name, names)}")
    for table in tables:
        rows = [row.name for row in table.rows]
        columns = [column.title for column in table.columns]
        _check_unique(rows, f"table '{table.name}' has two rows")
        _check_unique(columns, f"table '{table.name}' has two columns")
        for row in table.rows:
            _check_starts(table, row)
            if table.seconds and not (row.encoder or row.control) and _has_stages(row.recipe or table.recipe):
                raise XlsrError(
                    f"table '{table.name}' has seconds, and row '{row.name}' a recipe of stages, whose steps do not "
                    "follow from a time; give the table steps."
                )
        for claim in table.claims:
            for title in filter(None, (claim.column, claim.against)):
                if title not in columns:
                    raise XlsrError(f"table '{table.name}': a claim has column '{title}'; {nearest(title, columns)}")
        named = [*table.ends, *(name for claim in table.claims for name in (claim.better, claim.worse))]
        for name in [*named, *table.cards, *table.histograms, *table.spaces]:
            if name not in rows:
                raise XlsrError(f"table '{table.name}' names row '{name}'; {nearest(name, rows)}")
    return [table for table in tables if not only or table.name in only]


def _check_unique(names: list[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise XlsrError(f"{what} of the name '{name}'; give one of them another.")


def _check_starts(table: Table, row: Row) -> None:
    known = table.places()
    for option in (*table.options, *row.options):
        named = re.match(r"\{([^{}]+)\}(/|$)", option)
        if named and option in table.options:
            raise XlsrError(
                f"table '{table.name}' has all of its rows start from '{named[1]}'; give this option to the rows."
            )
        if named and named[1] not in known:
            raise XlsrError(
                f"table '{table.name}', row '{row.name}' starts from '{named[1]}'; {nearest(named[1], list(known))}"
            )


def _read(kind: type, entry: Any, what: str) -> Any:
    if not isinstance(entry, Mapping):
        raise XlsrError(f"a {what} is {entry!r}; write it as a mapping of keys to values.")
    name = entry.get("name", entry.get("title", entry.get("text", "")))
    known = {part.name for part in fields(kind)} - {"siblings"}
    for key in entry:
        if key not in known:
            raise XlsrError(f"{what} '{name}' has key '{key}'; {nearest(key, sorted(known))}")
    for part in fields(kind):
        if part.default is MISSING and part.default_factory is MISSING and part.name not in entry:
            raise XlsrError(f"{what} '{name}' has no '{part.name}'; give it one.")
    parts = {"rows": Row, "columns": Column, "claims": Claim}
    values = {
        key: tuple(_read(parts[key], part, key[:-1]) for part in value) if key in parts else _tuple(value)
        for key, value in entry.items()
    }
    return kind(**values)


def _tuple(value: Any) -> Any:
    return tuple(map(str, value)) if isinstance(value, list) else value


def run_of(table: Table, row: Row, seed: int, home: Path) -> Run | None:
    """The training behind a row, None for an encoder as it came.

    Args:
        table: Of the row.
        row: One of its rows.
        seed: One of the row's seeds; rows that it starts from have the same, or else their first.
        home: The campaign's folder of runs.
    """
    if row.encoder:
        return None
    recipe = row.recipe or table.recipe
    options = (*table.options, *row.options)
    place = home / "-".join([Path(recipe).stem, *([row.control] if row.control else [])])
    seconds = table.seconds * row.share if table.seconds else None
    # What makes it another run of the recipe: options of the table, its time, options of the row.
    for differs in (table.name if table.options else "", f"{seconds:g}s" if seconds else ""):
        place = place.with_name("-".join(filter(None, (place.name, differs))))
    folder = place / (row.name if row.options else "") / f"seed-{seed}" / (row.run or "")
    needed: dict[str, str] = {}
    for name, (other_table, other) in table.starts(row).items():
        start = run_of(other_table, other, seed if seed in other_table.seeds(other) else 1, home)
        needed[name] = str(start.folder) if start else ""
    filled = tuple(_fill(option, needed) for option in options)
    return Run(folder, recipe, row.run, filled, seed, row.control, seconds)


@cache
def starts_of_all(table: Table, home: Path) -> frozenset[str]:
    """Options of all rows of the table's file; the folders of runs that rows start from are among them."""
    tables = table.siblings.values()
    runs = (run_of(one, row, seed, home) for one in tables for row in one.rows for seed in one.seeds(row))
    return frozenset(option for run in runs if run for option in run.options)


def _fill(option: str, values: Mapping[str, str]) -> str:
    # Not str.format: recipes have braces of their own, ${HF_XLSR_DATA} and {lang}.
    for name, value in values.items():
        option = option.replace(f"{{{name}}}", value)
    return option


def resolved(run: Run, steps: int | None = None) -> list[dict[str, Any]]:
    """The recipe of a run as `hf-xlsr train` resolves it: one, or all stages, which one process trains.

    Args:
        run: The run.
        steps: Instead of the recipe's.

    Raises:
        XlsrError: what the recipe's own reading raises.
    """
    return load_runs(run.recipe, arguments(run, steps), only(run)[1:])


def is_staged(run: Run) -> bool:
    """Whether its recipe has stages, which are trained one after another."""
    return _has_stages(run.recipe)


@cache
def _has_stages(recipe: str) -> bool:
    return bool(read_recipe(recipe).get("stages"))


def only(run: Run) -> list[str]:
    """`--only` and the run of a list; nothing for a recipe of one run, and for stages, which need each other."""
    return ["--only", run.run] if run.run and not is_staged(run) else []


def seeded(run: Run) -> list[str]:
    """Options of the run's recipe, its seed among them."""
    return [*run.options, "--seed", str(run.seed)]


def arguments(run: Run, steps: int | None = None) -> list[str]:
    """Options of `hf-xlsr train` for a run, the folder among them."""
    more = ["--max_steps", str(steps)] if steps else []
    return [*seeded(run), *more, "--output_dir", str(run.output_dir)]
