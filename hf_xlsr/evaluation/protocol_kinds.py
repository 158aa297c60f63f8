"""Kinds of protocols that are declared alike: of translation pairs, of rows, and those of plug-ins."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
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
    OptionSpec,
    Protocol,
    specs_of,
)
from hf_xlsr.evaluation.reading import PairInputs, RowInputs, read_language_rows, read_pairs
from hf_xlsr.evaluation.report import metric_unit, names_its_unit
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
        is_of_pairs = tuple(columns) == PAIR
        declared = options or (DebiasOptions if is_of_pairs else Options)
        _check_columns(name, columns)
        _check_options(name, declared)
        _check_unit(name, headline, unit)

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
                metrics = {**metrics, headline: _floating(metrics[headline])}
                results |= _results_of(metrics, inputs, variant, languages, is_share=unit != "")
            return results

        protocol = Protocol(
            name,
            summary,
            "a table with source, target, or two line-aligned files" if is_of_pairs else _table_of(columns),
            read_pairs if is_of_pairs else read_language_rows,
            run,
            declared,
            required=tuple(columns),
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


def _check_columns(name: str, columns: tuple[str, ...]) -> None:
    """Raises for columns that no file can have, and for a name like that of a variant."""
    if not set(PAIR).isdisjoint(columns) and tuple(columns) != PAIR:
        raise XlsrError(f"The columns of protocol '{name}' must be source and target alone, or others without them.")
    for column in columns:
        if column not in KNOWN_COLUMNS:
            raise XlsrError(
                f"The column '{column}' of protocol '{name}' is not known; {did_you_mean(column, KNOWN_COLUMNS)}"
            )
    for known in PROTOCOLS.built_in:
        if name.startswith(f"{known}-") and name not in PROTOCOLS.built_in:
            raise XlsrError(
                f"The protocol '{name}' would have results like those of a variant of '{known}'. Rename it."
            )


def _check_options(name: str, options: type[Options]) -> None:
    """Raises for options that the command cannot show beside those of itself and of the other protocols."""
    for declared in fields(options):
        if "help" not in declared.metadata:
            raise XlsrError(
                f"The option '{declared.name}' of protocol '{name}' must be made by `option(default, help)`."
            )
        if declared.name in RESERVED_OPTIONS:
            raise XlsrError(f"The option '{declared.name}' of protocol '{name}' is one of the command. Rename it.")
        if declared.default is True:
            raise XlsrError(
                f"The option '{declared.name}' of protocol '{name}' must be False by default: it is a switch."
            )

    others: dict[str, OptionSpec] = {}
    for protocol in (*PROTOCOLS.built_in.values(), *PROTOCOLS.plugged.values()):
        if protocol.name != name:
            others |= specs_of(protocol.options)
    for spec in specs_of(options).values():
        other = others.get(spec.name, spec)
        if replace(other, help=spec.help) != spec:
            raise XlsrError(
                f"The option '{spec.name}' of protocol '{name}' has other values than in another protocol. Rename it."
            )


def _check_unit(name: str, headline: str, unit: str) -> None:
    """Raises if the headline is printed in another unit where other protocols have it, see `metric_unit`."""
    is_known = names_its_unit(headline) or any(headline in other.headlines for other in PROTOCOLS.plugged.values())
    if is_known and metric_unit(headline) != unit and name not in PROTOCOLS.plugged:
        raise XlsrError(
            f"The headline '{headline}' of protocol '{name}' has the unit '{metric_unit(headline)}' elsewhere, got "
            f"'{unit}'. Declare that unit, or rename the headline."
        )


def _floating(value: Any) -> Any:
    """A whole number as a float: the headline is no count."""
    return float(value) if isinstance(value, int) else value


def _variant(options: Options) -> str:
    """The options of a protocol that differ from their defaults, as the end of its name: `-power2`."""
    values = options.arguments()
    parts = []
    for declared in fields(options):
        if declared.name in values and values[declared.name] != declared.default:
            value = values[declared.name]
            items = value if isinstance(value, (tuple, list)) else [value]
            if declared.metadata["files"]:
                items = [Path(item).name for item in items]  # folders differ between machines
            parts.append(f"-{declared.name}{'+'.join(map(str, items))}".replace("/", "-"))
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
            continue

        array = np.asarray(value)
        if array.ndim > 1 or array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise XlsrError(
                f"protocol '{protocol}' must give a finite number as '{metric}', or one for each example, got {value!r}."
            )
        if array.ndim == 1:
            outcomes[metric] = Outcomes("mean" if is_share else "unbounded_mean", (array,))
        else:
            values[metric] = array.item()
    candidates = values.pop(CANDIDATES, None)
    return measured(inputs.name, protocol, languages, inputs.split, values, outcomes, candidates=candidates)
