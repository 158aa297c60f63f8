"""Kinds of protocols that are declared alike: of translation pairs, of rows, and those of plug-ins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar

import numpy as np

from hf_xlsr.data.columns import KNOWN_COLUMNS
from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.outcomes import Outcomes
from hf_xlsr.evaluation.protocol import (
    PROTOCOLS,
    RESERVED_OPTIONS,
    DataOptions,
    DebiasOptions,
    Inputs,
    Options,
    Protocol,
)
from hf_xlsr.evaluation.reading import PairInputs, RowInputs, read_language_rows, read_pairs
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import both_sides, by_language, by_pair
from hf_xlsr.utils.errors import XlsrError, did_you_mean

PAIR = ("source", "target")
CANDIDATES = "candidates"
Measured = Mapping[str, Any]
"""Metric -> a number; or what it is measured on, example by example: an array of them, or `Outcomes`."""
FunctionT = TypeVar("FunctionT", bound=Callable[..., Measured])


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
        required=PAIR,
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


def register_protocol(
    name: str,
    *,
    headline: str,
    lower_is_better: bool = False,
    unit: Literal["%", "×100", ""] = "%",
    columns: tuple[str, ...] = PAIR,
    options: type[Options] | None = None,
) -> Callable[[FunctionT], FunctionT]:
    """A decorator: a function becomes a protocol of `hf-xlsr evaluate`, of suites, tables, plots and cards.

    With the columns `source` and `target` it is called for each language pair, as `function(encoder, sources, targets,
    languages=("en", "de"), ...)`; with other columns for each language, as `function(encoder, rows, language="en", ...)`.
    Further keyword arguments are those of `EncodingOptions`, which `encode_pairs` and `encoder.encode` take, and the
    protocol's options. The first line of its docstring is the summary.

    It gives a mapping from metrics to numbers, or to arrays with a value for each example, `(examples,)`, whose mean is
    the metric, with an interval and tests; `Outcomes` are for other statistics. Integers are counts: give the number of
    examples as `pairs`, `rows`, `queries` or `sentences`, and that of the texts that are searched as `candidates`.

    Args:
        name: Name in commands and metric keys.
        headline: The metric by which encoders are compared; a name of its own if its unit is.
        lower_is_better: Whether lower values of the headline are better.
        unit: `%` for shares, `×100` for other values that are printed times 100, empty for plain numbers.
        columns: What it reads: names of `KNOWN_COLUMNS`, which `--columns` maps to those of a file.
        options: A subclass of `Options`, or of `DebiasOptions`, whose fields are made by `option`. Values other than the
            default become a part of the metric keys.

    Raises:
        XlsrError: A name is taken, or unknown.
    """

    def register(function: FunctionT) -> FunctionT:
        summary = (inspect.getdoc(function) or name).partition("\n")[0].rstrip(".")
        is_of_pairs = columns == PAIR
        declared = options or (DebiasOptions if is_of_pairs else Options)
        _check_declaration(name, columns, declared)

        def run(encoder: Encoder, inputs: RowInputs, values: Options) -> Results:
            results = Results()
            common = {**inputs.encoding, **values.arguments()}
            groups: Mapping[Any, Any] = by_pair(inputs.rows) if is_of_pairs else by_language(inputs.rows)
            for languages, rows in groups.items():
                if is_of_pairs:
                    metrics = function(encoder, *both_sides(rows), languages=languages, **common)
                else:
                    metrics = function(encoder, rows, language=languages, **common)
                if headline not in metrics:
                    raise XlsrError(f"protocol '{name}' must give '{headline}', got {', '.join(metrics)}.")
                variant = f"{name}{_variant(values)}"
                results |= _results_of(metrics, inputs, variant, languages, is_share=unit != "")
            return results

        protocol = Protocol(
            name,
            summary,
            "a table with source, target, or two line-aligned files" if is_of_pairs else _table_of(columns),
            read_pairs if is_of_pairs else read_language_rows,
            run,
            declared,
            required=columns,
            optional=("source_lang", "target_lang", "split") if is_of_pairs else ("lang", "split"),
            headlines=(headline,),
            lower_is_better=lower_is_better,
            unit=unit,
        )
        PROTOCOLS.add(name, protocol, function)
        return function

    return register


def _table_of(columns: tuple[str, ...]) -> str:
    return f"a table with {', '.join(columns)}"


def _check_declaration(name: str, columns: tuple[str, ...], options: type[Options]) -> None:
    """Raises for columns that no file can have, for options of the command, and for a name like that of a variant."""
    for column in columns:
        if column not in KNOWN_COLUMNS:
            raise XlsrError(
                f"The column '{column}' of protocol '{name}' is not known; {did_you_mean(column, KNOWN_COLUMNS)}"
            )
    for declared in fields(options):
        if declared.name in RESERVED_OPTIONS:
            raise XlsrError(f"The option '{declared.name}' of protocol '{name}' is one of the command. Rename it.")
    for known in PROTOCOLS.built_in:
        if name.startswith(f"{known}-") and name not in PROTOCOLS.built_in:
            raise XlsrError(
                f"The protocol '{name}' would have results like those of a variant of '{known}'. Rename it."
            )


def _variant(options: Options) -> str:
    """The options of a protocol that differ from their defaults, as the end of its name: `-power2`."""
    values = options.arguments()
    parts = []
    for declared in fields(options):
        if declared.name in values and values[declared.name] != declared.default:
            parts.append(f"-{declared.name}{values[declared.name]}".replace("/", "-"))
    return "".join(parts)


def _results_of(
    metrics: Measured, inputs: Inputs, protocol: str, languages: str | tuple[str, str], *, is_share: bool
) -> Results:
    """The results of what a function gave."""
    values: dict[str, Any] = {}
    outcomes: dict[str, Outcomes] = {}
    for metric, value in metrics.items():
        if isinstance(value, Outcomes):
            outcomes[metric] = value
        elif isinstance(value, np.ndarray) and value.ndim == 1:
            outcomes[metric] = Outcomes("mean" if is_share else "unbounded_mean", (value,))
        else:
            values[metric] = value
    candidates = values.pop(CANDIDATES, None)
    return measured(inputs.name, protocol, languages, inputs.split, values, outcomes, candidates=candidates)
