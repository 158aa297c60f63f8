"""Comparison tables as Markdown, CSV, LaTeX or JSON, and in the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hf_xlsr.evaluation.comparison import Cell, ComparisonTable
from hf_xlsr.evaluation.protocol import protocol_of
from hf_xlsr.evaluation.report import metric_unit, metric_value
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown import escape_markdown, markdown_table
from hf_xlsr.utils.printable import csv_text, printable_line

ENDINGS = (".md", ".csv", ".tex", ".json")
LEGEND = (
    "Numbers are in per cent, correlations, F1 and average precision times 100, with 95 % intervals: exact of shares, of "
    "others and of means by the bootstrap. Bold: significantly better than every other encoder with the same test set, "
    "p < 0.05 after Holm's correction within the table. †: another test set or number of candidates than the first "
    "encoder's, not tested. n: examples. Means are unweighted, over the columns that all encoders have, without the "
    "language that a head was trained in; they have no test."
)
COUNTS = ("n", "candidates")
TEX_HEADER = (
    "% Needs \\usepackage{booktabs} in the preamble; letters beyond Latin need XeLaTeX or LuaLaTeX and a font."
)
TEX_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"$<$",
        ">": r"$>$",
        "|": r"$|$",
        '"': "''",
        "×": r"$\times$",
        "†": r"$^\dagger$",
        "–": "--",
        "…": r"\ldots{}",
        # After a line break or a rule, a bracket would begin an option.
        "[": "{[}",
        "]": "{]}",
        **{mark: f"\\{mark}" for mark in "&%$#_{}"},
    }
)


def render_tables(
    tables: Sequence[ComparisonTable], ending: str = ".md", *, caption: str | None = None, label: str | None = None
) -> str:
    """Comparison tables in the format of a file that ends in `.md`, `.csv`, `.tex` (booktabs) or `.json`.

    `caption` and `label` are those of a LaTeX table, whose title then stands in its notes.
    """
    if (caption or label) and ending != ".tex":
        raise XlsrError(f"--caption and --label need an --output that ends in .tex, got {ending}.")
    if ending == ".json":
        return json.dumps([_plain(table) for table in tables], indent=2, ensure_ascii=False) + "\n"
    if ending == ".csv":
        return _csv(tables)

    lines = [TEX_HEADER] if ending == ".tex" else [LEGEND, ""]
    for number, table in enumerate(tables, start=1):
        if ending == ".tex":
            table_label = f"{label}-{number}" if label and len(tables) > 1 else label
            lines += _latex(table, caption, table_label)
        else:
            lines += _markdown(table)
    return "\n".join(lines).rstrip() + "\n"


def table_title(table: ComparisonTable) -> str:
    return f"{table.name}: {metric_title(table)}"


def metric_title(table: ComparisonTable) -> str:
    """The metric of a table with its unit, its direction and a mark where not all rows were measured."""
    metric = table.metric.replace("_", " ")
    unit = metric_unit(table.metric)
    title = f"{metric} {unit}".rstrip()
    if table.higher_is_better is False:
        title += " (lower is better)"
    if table.limits:
        limits = ", ".join(f"--limit {limit}" for limit in sorted(table.limits))
        title += f" ({limits}: not the whole test set)"
    return title


def notes_of(table: ComparisonTable) -> list[str]:
    """What a reader of a table must know besides the legend."""
    untested = []
    for label, cells in table.rows.items():
        for cell in cells.values():
            protocol = protocol_of(cell.record.protocol)
            has_none = cell.outcomes is None and protocol is not None and protocol.has_outcomes
            if has_none and label not in untested:
                untested.append(label)
    if not untested or len(table.rows) < 2:
        return []
    return [
        f"Not tested: outcomes of single examples are missing for {', '.join(untested)} (hf-xlsr evaluate --predictions)."
    ]


def _csv(tables: Sequence[ComparisonTable]) -> str:
    rows: list[dict[str, Any]] = []
    for table in tables:
        for label, cells in table.rows.items():
            values = {column: _plain_cell(cell) for column, cell in cells.items()}
            if table.mean_name is not None:
                values[table.mean_name] = _plain_mean(table, label)

            for column, value in values.items():
                names = {
                    "table": table.name,
                    "metric": table.metric,
                    "encoder": label,
                    "column": column,
                }
                rows.append({**names, **value})
    return csv_text(rows)


def _plain_cell(cell: Cell) -> dict[str, Any]:
    record = cell.record
    return {
        "value": record.value,
        "low": record.low,
        "high": record.high,
        "n": record.n,
        "candidates": record.candidates,
        "limit": record.limit,
        "best": cell.best,
        "unequal": cell.unequal,
    }


def _plain_mean(table: ComparisonTable, label: str) -> dict[str, Any]:
    value, *ends = table.means[label]
    low, high = ends or (None, None)
    counts = {"n": None, "candidates": None, "limit": max(table.limits, default=None)}
    unequal = table.is_unequal(label, str(table.mean_name))
    return {"value": value, "low": low, "high": high, **counts, "best": False, "unequal": unequal}


def _plain(table: ComparisonTable) -> dict[str, Any]:
    rows: dict[str, dict[str, Any]] = {}
    for label, cells in table.rows.items():
        rows[label] = {column: _plain_cell(cell) for column, cell in cells.items()}

    tests = []
    for (*labels, column), p in table.p_values.items():
        tests.append({"encoders": labels, "column": column, "p": p})
    content: dict[str, Any] = {
        "table": table.name,
        "metric": table.metric,
        "higher_is_better": table.higher_is_better,
        "encoders": rows,
        "tests": tests,
    }
    if table.mean_name is not None:
        means = {label: _plain_mean(table, label) for label in table.rows}
        content["mean"] = {"name": table.mean_name, "columns": table.averaged, "encoders": means}
    return content


def _text_rows(table: ComparisonTable, bold: str, dagger: str, dash: str) -> list[list[str]]:
    """The name of each encoder and its values as text, in which `bold` is a format, `dagger` and `dash` are signs."""
    rows = []
    for label, cells in table.rows.items():
        row = [label]
        for column in table.shown:
            numbers = [metric_value(table.metric, number) for number in table.numbers(label, column)]
            text, *ends = numbers or [""]

            cell = cells.get(column)
            if cell and cell.best:
                text = bold.format(text)
            if ends:
                text += f" ({dash.join(ends)})"
            if table.is_unequal(label, column):
                text += dagger + _other_counts(table, cell, column)
            row.append(text)
        rows.append(row)
    return rows


def _other_counts(table: ComparisonTable, cell: Cell | None, column: str) -> str:
    """The numbers of examples and candidates of a value, where they are not those of the column."""
    text = ""
    for name in COUNTS:
        count = None if cell is None else getattr(cell.record, name)
        if count is not None and count != table.count(column, name):
            text += f" {name} {count}"
    return text


def _count_rows(table: ComparisonTable) -> list[list[str]]:
    """The numbers of examples and of candidates in each column, as far as they are known."""
    rows = []
    for name in COUNTS:
        counts = [table.count(column, name) for column in table.shown]
        if any(count is not None for count in counts):
            rows.append([name, *("" if count is None else str(count) for count in counts)])
    return rows


def terminal_table(table: ComparisonTable) -> Any:
    """A table of rich: encoders across, languages or tasks down, so that many languages fit."""
    from rich.markup import escape
    from rich.table import Table

    rows = [*_text_rows(table, "[bold]{}[/bold]", "†", "–"), *_count_rows(table)]
    labels, *columns = zip(*rows, strict=True)
    title = escape(printable_line(table_title(table)))
    caption = escape(printable_line(" ".join(notes_of(table))))
    headers = map(escape, map(printable_line, labels))
    printed = Table("", *headers, title=title, title_justify="left", caption=caption or None, caption_justify="left")
    for column in printed.columns:
        column.overflow = "fold"
    for name, texts in zip(table.shown, columns, strict=True):
        printed.add_row(escape(printable_line(name)), *texts)
    return printed


def _markdown(table: ComparisonTable) -> list[str]:
    header = ["encoder", *map(escape_markdown, table.shown)]
    rows = _text_rows(table, "**{}**", "†", "–")
    for row in rows:
        row[0] = escape_markdown(row[0])
    title = escape_markdown(table_title(table))
    lines = [f"### {title}", "", *markdown_table(header, [*rows, *_count_rows(table)]), ""]
    for note in notes_of(table):
        lines += [escape_markdown(note), ""]
    return lines


def _latex(table: ComparisonTable, caption: str | None, label: str | None) -> list[str]:
    rows = _text_rows(table, r"\textbf{{{}}}", r"$^\dagger$", "--")
    for row in rows:
        row[0] = _escape_tex(row[0])

    header = ["encoder", *map(_escape_tex, table.shown)]
    title = table_title(table)
    notes = [LEGEND, *notes_of(table)]
    if caption:
        notes.insert(0, f"{title}.")

    label_line = [] if label is None else [rf"\label{{{label}}}"]
    alignment = "r" * len(table.shown)

    count_lines = [_tex_line(row) for row in _count_rows(table)]
    if count_lines:
        count_lines.insert(0, r"\midrule")

    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_escape_tex(caption or title)}}}",
        *label_line,
        rf"\begin{{tabular}}{{l{alignment}}}",
        r"\toprule",
        _tex_line(header),
        r"\midrule",
        *map(_tex_line, rows),
        *count_lines,
        r"\bottomrule",
        r"\end{tabular}",
        "",
        r"\smallskip",
        rf"\parbox{{\linewidth}}{{\footnotesize {_escape_tex(' '.join(notes))}}}",
        r"\end{table}",
        "",
    ]


def _tex_line(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escape_tex(text: str) -> str:
    return printable_line(text).translate(TEX_ESCAPES)
