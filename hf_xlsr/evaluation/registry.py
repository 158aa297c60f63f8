"""The registry of protocols. Each module of `protocols` declares protocols, `PROTOCOLS`, with their options.

A protocol is imported when it is looked up. Its module imports torch, scikit-learn and the like inside functions, so
that the command knows all options at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.inputs import DataOptions, Inputs, read_table
from hf_xlsr.evaluation.protocols import NAMES, load_module
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.rows import both_sides, by_language, by_pair
from hf_xlsr.utils.errors import XlsrError, did_you_mean, require_choice

FOR_ALL = ("seed", "device")  # options of the command that are valid with every protocol


def option(default: Any, help: str, *, data: bool = False) -> Any:
    """A field of a protocol's options, None leaving the default to the function; `data`: no argument of the function."""
    return field(default=default, metadata={"help": help, "data": data})


@dataclass(frozen=True)
class Options:
    """Options of a protocol: a subclass declares each as a field, by `option`."""

    def __post_init__(self) -> None:
        for spec in specs_of(type(self)).values():
            if spec.choices and getattr(self, spec.name) is not None:
                require_choice(spec.name, getattr(self, spec.name), spec.choices)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        return cls(**{name: given[name] for name in specs_of(cls) if name in given})

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the protocol's function, without those that are left to it."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if not field.metadata["data"]}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class OptionSpec:
    """One option of protocols, for a command line: `several` values of a type, or one of the `choices`."""

    name: str
    type: type
    several: bool
    choices: tuple[str, ...]
    help: str
    protocols: tuple[str, ...] = ()  # that have it


def specs_of(options: type[Options]) -> dict[str, OptionSpec]:
    specs: dict[str, OptionSpec] = {}
    hints = get_type_hints(options)
    for one in fields(options):
        parts = (hints[one.name], *get_args(hints[one.name]))
        kind = next((part for part in parts if part in (int, float, bool)), str)
        several = any(get_origin(part) is tuple for part in parts)
        choices = next((get_args(part) for part in parts if get_origin(part) is Literal), ())
        specs[one.name] = OptionSpec(one.name, kind, several, choices, one.metadata["help"])
    return specs


@cache
def option_specs() -> dict[str, OptionSpec]:
    """The options of all protocols, which it imports.

    Examples:
        >>> spec = option_specs()["margin"]
        >>> spec.choices, "xsim" in spec.protocols
        (('ratio', 'distance', 'absolute'), True)
    """
    specs: dict[str, OptionSpec] = {}
    for name, protocol in PROTOCOLS.items():
        for spec in specs_of(protocol.options).values():
            first = specs.get(spec.name, spec)
            specs[spec.name] = replace(first, protocols=(*first.protocols, name))
    return specs


@dataclass(frozen=True)
class Protocol:
    """One protocol; protocols with equal `data` can run together."""

    name: str
    summary: str
    data: str  # what `--data` takes, in words
    read: Callable[[Protocol, DataOptions, Mapping[str, Any]], Inputs]
    run: Callable[[Encoder, Inputs, Any], Results]
    options: type[Options] = Options
    required: tuple[str, ...] = ()  # columns that every row must have
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()  # required columns that may be empty in a row
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # required columns, where each task has its own

    @property
    def columns(self) -> tuple[str, ...]:
        own = (name for columns in self.tasks.values() for name in columns)
        return tuple(dict.fromkeys((*self.required, *own, *self.optional)))


class _Protocols(Mapping[str, Protocol]):
    def __getitem__(self, name: str) -> Protocol:
        return next(protocol for protocol in load_module(name).PROTOCOLS if protocol.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __contains__(self, name: object) -> bool:
        return name in NAMES  # without an import


PROTOCOLS: Mapping[str, Protocol] = _Protocols()


def find_protocols(names: str | Sequence[str]) -> list[Protocol]:
    chosen: dict[str, Protocol] = {}
    for name in (name.strip() for name in (names.split(",") if isinstance(names, str) else names)):
        require_choice("protocol", name, PROTOCOLS)
        chosen[name] = PROTOCOLS[name]
    first, *others = chosen.values()
    for other in others:
        if other.data != first.data:
            raise XlsrError(f"protocols {first.name} and {other.name} need different data; run them one by one.")
    return list(chosen.values())


def check_options(given: Collection[str], protocols: Sequence[Protocol]) -> None:
    """Refuses an option that no chosen protocol has; the message names the protocols that have it."""
    for name in given:
        if name in FOR_ALL or any(name in specs_of(protocol.options) for protocol in protocols):
            continue
        specs = option_specs()
        hint = f"it is for {' or '.join(specs[name].protocols)}." if name in specs else did_you_mean(name, specs)
        chosen = " or ".join(protocol.name for protocol in protocols)
        raise XlsrError(f"--{name.replace('_', '-')} is not an option of protocol {chosen}; {hint}")


@dataclass(frozen=True)
class DebiasOptions(Options):
    debias: str | None = option(
        None, "folder of a fitted debias; or self: fit one component on the rows that are tested", data=True
    )


@dataclass(frozen=True)
class TrainedOptions(Options):
    """Options of a protocol that trains a head in one language; `head` and `seed` have defaults of the protocol."""

    train: tuple[str, ...] = option((), "rows to train a head on (default: split train of --data)", data=True)
    tune: tuple[str, ...] = option((), "data to tune on: the threshold, the head", data=True)
    train_language: str | None = option(None, "language of --train (default: the first of --languages)", data=True)
    hold_out: str | None = option(
        None, "column: choose the head on a tenth of the training rows, by crc32 of this column", data=True
    )
    epochs: int | None = option(None, "epochs of the head's training")
    learning_rate: float | None = option(None, "learning rate of the head's training")


def run_trained(function: Callable[..., Results], encoder: Encoder, inputs: Inputs, options: Options) -> Results:
    rows, common = (inputs.train, inputs.tune, by_language(inputs.only)), inputs.common | options.arguments()
    return function(encoder, *rows, train_language=inputs.train_language, **common)


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
