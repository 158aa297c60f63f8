"""A report of evaluations as one Markdown file: tables, plots, nearest neighbours, settings."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hf_xlsr.evaluation.averages import mean_over_languages
from hf_xlsr.evaluation.markdown_tables import metric_tables
from hf_xlsr.evaluation.report import metrics_of
from hf_xlsr.evaluation.retrieval_lists import NeighbourList, neighbours_markdown
from hf_xlsr.utils.markdown_text import escape_markdown, markdown_table

LEGEND = (
    "Shares and error rates are in per cent (%); correlations, F1 and average precision are times 100; counts are whole "
    "numbers. Errors are better when lower. The best of several encoders is bold. A mean is unweighted, over as many "
    "rows as it says."
)


def markdown_report(
    folder: str | os.PathLike[str],
    results: Mapping[str, Mapping[str, Any]],
    *,
    title: str = "Evaluation",
    plots: Mapping[str, str | os.PathLike[str]] | None = None,
    neighbours: Mapping[str, Sequence[NeighbourList]] | None = None,
) -> Path:
    """Writes `report.md`: a table for each protocol and split, encoders side by side, and how it was measured.

    The tables are those of `metric_tables`, with `mean_over_languages`. Data hashes are truncated to 16 digits; a
    sentence names those that differ between encoders.

    Args:
        folder: Folder of the file; it is created.
        results: Results (`load_results`) or bare metrics, by the name of the encoder.
        title: The heading.
        plots: Existing pictures, by caption; the report links to them.
        neighbours: From `nearest_neighbour_lists`, by caption.

    Returns:
        The file.
    """
    home = Path(folder)
    metrics = {label: mean_over_languages(metrics_of(result)) for label, result in results.items()}
    lines = [f"# {escape_markdown(title)}", "", "## Results", "", LEGEND, ""]
    for heading, table in metric_tables(metrics).items():
        lines += [f"### {escape_markdown(heading)}", "", *table, ""]
    if plots:
        lines += ["## Plots", ""]
        for caption, plot in plots.items():
            target = quote(Path(os.path.relpath(plot, home)).as_posix())
            lines += [f"![{escape_markdown(caption)}]({target})", ""]
    if neighbours:
        lines += ["## Nearest neighbours", ""]
        for caption, lists in neighbours.items():
            lines += [f"### {escape_markdown(caption)}", "", neighbours_markdown(lists)]
    lines += _provenance(results)
    file = home / "report.md"
    home.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    return file


def _provenance(results: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Settings, data hashes and versions, as far as the results have them."""
    full = {label: result for label, result in results.items() if isinstance(result.get("metrics"), Mapping)}
    if not full:
        return []
    settings = {
        label: {**({"created": result["created"]} if "created" in result else {}), **result.get("settings", {})}
        for label, result in full.items()
    }
    lines = ["## How it was measured", ""]
    simple = {label: {k: v for k, v in of.items() if _is_simple(v)} for label, of in settings.items()}
    lines += _side_by_side("setting", simple)
    for label, of in settings.items():
        for name in (name for name, value in of.items() if not _is_simple(value)):
            content = json.dumps(of[name], indent=2, ensure_ascii=False, default=str)
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", content)), default=0))
            summary = f"<summary>{html.escape(f'{label}: {name}')}</summary>"
            lines += ["<details>", summary, "", f"{fence}json", content, fence, "", "</details>", ""]
    hashes = {
        label: {name: str(value)[:16] for name, value in result.get("data_sha256", {}).items()}
        for label, result in full.items()
    }
    lines += _side_by_side("SHA-256 of the data", hashes)
    names = dict.fromkeys(name for of in hashes.values() for name in of)
    if differing := [name for name in names if len({of[name] for of in hashes.values() if name in of}) > 1]:
        shown = ", ".join(map(escape_markdown, differing))
        lines += [f"**The encoders were not measured on the same data:** {shown} differs between them.", ""]
    return lines + _side_by_side("version", {label: result.get("versions", {}) for label, result in full.items()})


def _is_simple(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return len(value) <= 16 and all(_is_simple(item) and not isinstance(item, (list, tuple)) for item in value)
    return not isinstance(value, Mapping)


def _side_by_side(head: str, columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[escape_markdown(name), *(_plain(column.get(name)) for column in columns.values())] for name in names]
    header = [head, *map(escape_markdown, columns)]
    return [*markdown_table(header, rows, numbers_from=len(header)), ""] if rows else []


def _plain(value: Any) -> str:
    if value is None:
        return ""
    return escape_markdown(", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
