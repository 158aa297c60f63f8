"""Histograms of the languages that queries of each language retrieve: figure 2 of the CMLM paper."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hf_xlsr.evaluation.plots.common import COLOURS, fonts, save_figure, shorten
from hf_xlsr.evaluation.protocols.language_bias import SHARE
from hf_xlsr.evaluation.results import Results, metrics_of
from hf_xlsr.utils.errors import XlsrError, did_you_mean

OTHER, OWN = COLOURS[0], COLOURS[1]
PROTOCOL = re.compile(r"(?:.+-)?language-bias(?:-k\d+)?(?:-(pcr\d+|mean|whitening)(-self)?)?")


@dataclass
class _Column:
    """What one encoder retrieves, before or after a removal: shares and `bias` by the language of the queries."""

    title: str
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    bias: dict[str, float] = field(default_factory=dict)


def plot_languages(
    path: str | os.PathLike[str],
    results: Mapping[str, Mapping[str, Any]],
    protocols: Sequence[str] | None = None,
) -> Path:
    """Draws what `language_bias` measured: a row for each language of queries, a column before and after a removal.

    Bars are the shares of the languages retrieved, in per cent, as in figure 2 of the CMLM paper (Yang et al., 2021). The
    query's own language has a colour of its own, and a dashed line stands where all bars would end if languages played
    no part.

    Args:
        results: `Results`, or what `load_results` gave, by the name of the encoder.
        protocols: First parts of the keys to draw, such as `ntrex-language-bias-pcr1`; all of `language-bias` without.
    """
    columns = _columns({label: metrics_of(result) for label, result in results.items()}, protocols)
    queries = list(dict.fromkeys(language for column in columns for language in column.shares))
    width = max(len(shares) for column in columns for shares in column.shares.values())
    figure = Figure(
        figsize=(max(7.0, len(columns) * max(2.4, 0.24 * width + 0.5)) + 0.4, 0.85 * len(queries) + 1.3),
        layout="constrained",
    )
    grid = figure.subplots(len(queries), len(columns), sharey=True, squeeze=False)
    for row, language in enumerate(queries):
        for number, column in enumerate(columns):
            _draw(grid[row, number], column, language, last=row == len(queries) - 1)
        grid[row, 0].set_ylabel(language, rotation=0, ha="right", va="center", fontsize=10, weight="bold")
    for axes, column in zip(grid[0], columns, strict=True):
        axes.set_title(f"{column.title}\nmean bias {fmean(column.bias.values()):.2f}", fontsize=9)
    figure.supylabel("language of the queries", fontsize=9)
    figure.supxlabel("share of sentences retrieved in each language, %", fontsize=9)
    handles = [
        Patch(color=OWN, label="the query's own language"),
        Patch(color=OTHER, label="other languages"),
        Line2D([], [], color="0.25", linestyle="--", linewidth=0.9, label="no bias"),
    ]
    figure.legend(
        handles=handles, loc="outside upper center", ncols=3, frameon=False, prop={"family": fonts(), "size": 9}
    )
    return save_figure(figure, path)


def _columns(results: Mapping[str, Results], protocols: Sequence[str] | None) -> list[_Column]:
    found: dict[tuple[str, str, str], _Column] = {}
    known: set[str] = set()
    for label, values in results.items():
        for result in values.records.values():
            known.add(result.name)
            if not PROTOCOL.fullmatch(result.name) or result.is_mean:
                continue
            if protocols is not None and result.name not in protocols:
                continue
            column = found.setdefault((label, result.name, result.split), _Column(""))
            if result.metric.startswith(SHARE):
                shares = column.shares.setdefault(result.languages, {})
                shares[result.metric.removeprefix(SHARE)] = result.value
            elif result.metric == "bias":
                column.bias[result.languages] = result.value
    missing = [name for name in protocols or () if name not in {protocol for _, protocol, _ in found}]
    if missing or not found or not all(column.bias and column.shares for column in found.values()):
        name = missing[0] if missing else "language-bias"
        raise XlsrError(f"The results have no bias and shares of protocol '{name}'; {did_you_mean(name, known)}")
    # What all columns have in common is left out.
    bases = {(_base(protocol), split) for _, protocol, split in found}
    for (label, protocol, split), column in found.items():
        parts = [shorten(label, 30)] if len(results) > 1 else []
        parts += [f"{_base(protocol)}, {split}"] if len(bases) > 1 else []
        column.title = "\n".join([*parts, _removal(protocol)])
    return list(found.values())


def _base(protocol: str) -> str:
    return re.sub(r"-(pcr\d+|mean|whitening)(-self)?$", "", protocol)


def _removal(protocol: str) -> str:
    match = PROTOCOL.fullmatch(protocol)
    kind, of_itself = match.groups() if match else (None, None)
    if kind is None:
        return "as encoded"
    count = kind.removeprefix("pcr")
    words = {"mean": "mean subtracted", "whitening": "whitened"}
    what = words.get(kind, f"{count} component{'s' if count != '1' else ''} removed")
    return what + (", fitted on these texts" if of_itself else "")


def _draw(axes: Axes, column: _Column, language: str, *, last: bool) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(0, 100)
    axes.set_yticks([0, 50, 100])
    axes.tick_params(axis="y", labelsize=7)
    shares = column.shares.get(language)
    if shares is None:  # another encoder was measured on this language
        axes.set_axis_off()
        return
    names = list(shares)
    colours = [OWN if name == language else OTHER for name in names]
    axes.bar(range(len(names)), [100 * share for share in shares.values()], width=0.8, color=colours)
    axes.axhline(100 / len(names), color="0.25", linestyle="--", linewidth=0.9)
    axes.set_xticks(range(len(names)), names if last else [""] * len(names), fontsize=8)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.7, len(names) - 0.3)
