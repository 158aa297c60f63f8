"""Kinds of protocols that are declared alike: of translation pairs, and of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.protocol import DataOptions, DebiasOptions, Inputs, Options, Protocol
from hf_xlsr.evaluation.reading import read_table
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.rows import both_sides, by_pair


def pair_protocol(
    name: str,
    summary: str,
    function: Callable[..., Results],
    options: type[Options] = DebiasOptions,
    run: Callable[[Encoder, Inputs, Any], Results] | None = None,
) -> Protocol:
    """A protocol of translation pairs: `function` is called for each language pair, unless `run` replaces this loop."""

    def run_pairs(encoder: Encoder, inputs: Inputs, chosen: Options) -> Results:
        results = Results()
        for languages, rows in by_pair(inputs.only).items():
            sides = both_sides(rows)
            results |= function(encoder, *sides, languages=languages, **inputs.common, **chosen.arguments())
        return results

    return Protocol(
        name,
        summary,
        "a table with source, target, or two line-aligned files",
        read_table,
        run or run_pairs,
        options,
        required=("source", "target"),
        optional=("source_lang", "target_lang", "split"),
    )


def row_protocol(
    name: str,
    summary: str,
    columns: tuple[str, ...],
    run: Callable[[Encoder, Inputs, Any], Results],
    options: type[Options],
    *,
    read: Callable[[Protocol, DataOptions, Mapping[str, Any]], Inputs] | None = None,
    nullable: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> Protocol:
    """A protocol of rows, each in one language (of sentence pairs possibly in two), by default read from one table."""
    data = f"a table with {', '.join(columns)}"
    return Protocol(
        name, summary, data, read or read_table, run, options, columns, (*optional, "lang", "split"), nullable
    )
