"""Kinds of protocols that are declared alike: of translation pairs, and of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.protocol import DataOptions, DebiasOptions, Inputs, Options, Protocol
from hf_xlsr.evaluation.reading import PairInputs, read_pairs
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.rows import both_sides, by_pair


def pair_protocol(
    name: str,
    summary: str,
    function: Callable[..., Results],
    options: type[Options] = DebiasOptions,
    run: Callable[[Encoder, PairInputs, Any], Results] | None = None,
    *,
    headline: str,
    lower_is_better: bool = False,
) -> Protocol:
    """A protocol of translation pairs: `function` is called for each language pair, unless `run` replaces this loop."""

    def run_pairs(encoder: Encoder, inputs: PairInputs, options: Options) -> Results:
        results = Results()
        for languages, rows in by_pair(inputs.rows).items():
            sides = both_sides(rows)
            results |= function(
                encoder,
                *sides,
                languages=languages,
                **inputs.common,
                **options.arguments(),
            )
        return results

    return Protocol(
        name,
        summary,
        "a table with source, target, or two line-aligned files",
        read_pairs,
        run or run_pairs,
        options,
        required=("source", "target"),
        optional=("source_lang", "target_lang", "split"),
        headlines=(headline,),
        lower_is_better=lower_is_better,
    )


def row_protocol(
    name: str,
    summary: str,
    columns: tuple[str, ...],
    read: Callable[[Protocol, DataOptions, Mapping[str, Any]], Inputs],
    run: Callable[[Encoder, Any, Any], Results],
    options: type[Options] = Options,
    *,
    headline: str,
    lower_is_better: bool = False,
    nullable: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
) -> Protocol:
    """A protocol of rows with these columns, each row in one language; of sentence pairs possibly in two."""
    data = f"a table with {', '.join(columns)}"
    return Protocol(
        name,
        summary,
        data,
        read,
        run,
        options,
        columns,
        (*optional, "lang", "split"),
        nullable,
        headlines=(headline,),
        lower_is_better=lower_is_better,
    )
