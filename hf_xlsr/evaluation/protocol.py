"""The registry of protocols. Each module of `protocols` declares protocols, `PROTOCOLS`, with their options.

A protocol is imported when it is looked up. Its module imports torch, scikit-learn and the like inside functions, so
that the command knows all options at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.protocols import NAMES, load_module
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.rows import by_language
from hf_xlsr.evaluation.table import Row
from hf_xlsr.utils.errors import XlsrError, did_you_mean, require_choice
from hf_xlsr.utils.hashing import data_hash

if TYPE_CHECKING:
    from hf_xlsr.encoders.debias import Debias
    from hf_xlsr.evaluation.bitexts import BuccData

FOR_ALL = ("seed", "device")  # options of the command that are valid with every protocol
Rows = list[Row]
LANGUAGE_COLUMNS = ("source_lang", "target_lang", "lang")


@dataclass(frozen=True)
class DataOptions:
    """Which data a command reads, and how; each attribute but `files` is the option of that name.

    Attributes:
        files: Files; the name of a corpus, the id or folder of a dataset, or `mteb:TASK`.
        columns: Our column = column of the file; `{lang}` is replaced by each language in turn.
        languages: Codes; the first is the source's, or that of the only text.
        split: Rows that are tested, where the data has splits; part of the metric keys.
        where: `column=value`: only rows with one of the values.
        config: Configuration of a dataset; may contain `{lang}`.
        limit: Maximum number of rows of each language (pair) and split.
        name: Name of the data in metric keys; None: the corpus or the stem of the first file.
    """

    files: tuple[str, ...]
    columns: str | None = None
    languages: tuple[str, ...] = ()
    split: str = "test"
    where: tuple[str, ...] = ()
    config: str | None = None
    limit: int | None = None
    name: str | None = None

    def refuse(self, protocol: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) != getattr(DataOptions, name):
                raise XlsrError(f"--{name} is not supported by protocol {protocol}; its data determine it.")


@dataclass
class Inputs:
    """The data of one command, read."""

    name: str  # in metric keys
    split: str  # in metric keys
    rows: dict[str, Rows] = field(default_factory=dict)  # to test on; one list, or one for each task
    train: Rows = field(default_factory=list)
    tune: Rows = field(default_factory=list)
    pool: Rows = field(default_factory=list)  # candidates only
    relevance: Rows = field(default_factory=list)
    bitexts: dict[str, BuccData] = field(default_factory=dict)  # `test` and `tune`
    languages: tuple[str, str] = ("", "")  # of `bitexts`
    train_language: str = ""
    mteb_tasks: dict[str, Any] = field(default_factory=dict)
    revisions: dict[str, str] = field(default_factory=dict)  # of data that mteb reads itself
    encoding: EncodingOptions = field(default_factory=lambda: EncodingOptions())
    skipped: dict[str, int] = field(default_factory=dict)  # numbers of invalid rows, by reason
    debias: Debias | Literal["self"] | None = None  # `self`: fitted on the rows to test on

    @property
    def only(self) -> Rows:
        """The rows of a protocol that has one list of them."""
        return next(iter(self.rows.values()))

    @property
    def common(self) -> dict[str, Any]:
        return {"name": self.name, "split": self.split, **self.encoding}

    @property
    def tasks(self) -> dict[str, dict[str, Rows]]:
        languages: dict[str, dict[str, Rows]] = {}
        for task, rows in self.rows.items():
            for language, group in by_language(rows).items():
                languages.setdefault(language, {})[task] = group
        return languages

    @property
    def texts(self) -> dict[str, list[str]]:
        """The distinct sentences to test on, of each language."""
        texts: dict[str, dict[str, None]] = {}
        for row in self.only:
            for column, tag in (("source", "source_lang"), ("target", "target_lang"), ("text", "lang")):
                if column in row:
                    texts.setdefault(row[tag], {})[row[column]] = None
        return {language: list(distinct) for language, distinct in texts.items()}

    def hashes(self, columns: Sequence[str]) -> dict[str, str]:
        """`data_hash` of all rows, by role, task and language."""
        parts = {f"data/{task}": rows for task, rows in self.rows.items()}
        parts |= {"train": self.train, "tune": self.tune, "pool": self.pool, "relevance": self.relevance}
        cells: dict[str, list[str]] = {}
        for part, rows in parts.items():
            for row in rows:
                tags = [row[name] for name in LANGUAGE_COLUMNS if name in row]
                key = f"{part}/{'-'.join(tags)}" if tags else part
                cells.setdefault(key, []).extend(str(row.get(column, "")) for column in columns)
        for part, data in self.bitexts.items():
            cells[part] = data.texts
        return self.revisions | {key: data_hash(texts) for key, texts in cells.items()}


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
