"""Protocols: what each reads, how it is run, and its options. The modules of `protocols` declare them as `PROTOCOLS`.

A protocol is imported when it is looked up. Its module imports torch, scikit-learn and the like inside functions, so
that the command knows all options at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.protocols import NAMES, load_module
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.table import Row
from hf_xlsr.utils.errors import XlsrError, did_you_mean, require_choice
from hf_xlsr.utils.plugins import Registry

if TYPE_CHECKING:
    from hf_xlsr.encoders.debias import Debias

FOR_ALL = ("seed", "device")  # options of the command that are valid with every protocol
RESERVED_OPTIONS = frozenset(
    "model protocol data suite vectors show_list name seed output metric predictions columns languages where config "
    "format split limit prompt routes batch_size device dtype truncate_dim num_proc num_gpus engine address help list "
    "protocol_options".split()
)
"""Names of the command's own options, which no protocol may have."""
Rows = list[Row]


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
        format: Format of the files, by default as suffix and content say; see `read_rows`.
        limit: Maximum number of rows of each language (pair) and split, which `drawn_rows` draws.
        name: Name of the data in metric keys; None: the corpus or the stem of the first file.
    """

    files: tuple[str, ...]
    columns: str | None = None
    languages: tuple[str, ...] = ()
    split: str = "test"
    where: tuple[str, ...] = ()
    config: str | None = None
    format: str | None = None
    limit: int | None = None
    name: str | None = None

    def refuse(self, protocol: str, *names: str) -> None:
        for name in names:
            if getattr(self, name) != getattr(DataOptions, name):
                raise XlsrError(f"--{name} is not supported by protocol {protocol}; its data determine it.")


@dataclass
class Inputs:
    """What a protocol is run on; a subclass for each kind of data holds the rows.

    Attributes:
        name: Name of the data in metric keys.
        split: Name of the tested split in metric keys.
        hashes: `data_hash` of the rows, by role and language.
        skipped: Numbers of invalid rows, by reason.
        encoding: How texts are encoded.
        debias: Language bias that is removed; `self`: fitted on the rows to test on.
    """

    name: str
    split: str
    hashes: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, int] = field(default_factory=dict)
    encoding: EncodingOptions = field(default_factory=lambda: EncodingOptions())
    debias: Debias | Literal["self"] | None = None

    @property
    def common(self) -> dict[str, Any]:
        """Arguments that all functions of protocols take."""
        return {"name": self.name, "split": self.split, **self.encoding}


def option(default: Any, help: str, *, data: bool = False, files: bool = False) -> Any:
    """A field of a protocol's options.

    Args:
        default: Its value where the user gives none; None leaves it to the protocol's function.
        help: A phrase for `--help`.
        data: Whether it says what is read, and is no argument of the function.
        files: Whether its values are files that are read.
    """
    return field(default=default, metadata={"help": help, "data": data, "files": files})


@dataclass(frozen=True)
class Options:
    """Options of a protocol: a subclass declares each as a field, by `option`."""

    def __post_init__(self) -> None:
        for spec in specs_of(type(self)).values():
            value = getattr(self, spec.name)
            if spec.choices and value is not None:
                require_choice(spec.name, value, spec.choices)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Options:
        """The options of this protocol among those of a command."""
        return cls(**{name: values[name] for name in specs_of(cls) if name in values})

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the protocol's function, without those that are left to it."""
        names = [declared.name for declared in fields(self) if not declared.metadata["data"]]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


@dataclass(frozen=True)
class DebiasOptions(Options):
    debias: str | None = option(
        None, "folder of a fitted debias; or self: fit one component on the rows that are tested", data=True
    )


@dataclass(frozen=True)
class OptionSpec:
    """One option of protocols, for a command line: `several` values of a type, or one of the `choices`."""

    name: str
    type: type
    several: bool
    choices: tuple[str, ...]
    help: str
    files: bool = False
    protocols: tuple[str, ...] = ()  # that have it


def specs_of(options: type[Options]) -> dict[str, OptionSpec]:
    """The options that a class declares, by name."""
    specs: dict[str, OptionSpec] = {}
    hints = get_type_hints(options)

    for declared in fields(options):
        hint = hints[declared.name]
        types = (hint, *get_args(hint))
        value_type = next((part for part in types if part in (int, float, bool)), str)
        origins = {get_origin(part): part for part in types}
        choices = get_args(origins.get(Literal))
        specs[declared.name] = OptionSpec(
            name=declared.name,
            type=value_type,
            several=tuple in origins,
            choices=choices,
            help=declared.metadata["help"],
            files=declared.metadata["files"],
        )

    return specs


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
    """One protocol; protocols with equal `data` can run together.

    Attributes:
        name: Name in commands and metric keys.
        summary: What it measures.
        data: What `--data` takes, in words.
        read: Reads the data of a command, with the options that were set, as inputs of one kind.
        run: Measures an encoder on these inputs, with the protocol's options.
        options: The class of its options.
        required: Columns that every row must have.
        optional: Columns that a row may have.
        nullable: Required columns that may be empty in a row.
        tasks: Required columns by task, where each task has its own.
        headlines: Metrics by which encoders are compared; of a result the first that was measured.
        lower_is_better: Whether lower values of the headlines are better.
        has_outcomes: Whether it gives outcomes of single examples for its headlines, for intervals and tests.
        unit: Unit of the headlines: `%`, `×100` or empty for plain numbers; None: as their names say, see `metric_unit`.
    """

    name: str
    summary: str
    data: str
    read: Callable[[Protocol, DataOptions, Mapping[str, Any]], Inputs]
    run: Callable[[Encoder, Any, Any], Results]
    options: type[Options] = Options
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    nullable: tuple[str, ...] = ()
    tasks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    headlines: tuple[str, ...] = ()
    lower_is_better: bool = False
    has_outcomes: bool = True
    unit: str | None = None

    def __reduce__(self) -> tuple[Callable[[str], Protocol], tuple[str]]:
        """Another process finds its functions by its name."""
        return _named, (self.name,)

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it reads."""
        names = chain(self.required, *self.tasks.values(), self.optional)
        return tuple(dict.fromkeys(names))


class _BuiltIn(Mapping[str, Protocol]):
    """The protocols of this package by name, each imported when it is looked up."""

    def __getitem__(self, name: str) -> Protocol:
        protocols: tuple[Protocol, ...] = load_module(name).PROTOCOLS
        return next(protocol for protocol in protocols if protocol.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)

    def __contains__(self, name: object) -> bool:
        return name in NAMES  # without an import


PROTOCOLS: Registry[Protocol] = Registry("protocol", "protocols", _BuiltIn())


def _named(name: str) -> Protocol:
    return PROTOCOLS[name]


def protocol_of(name: str) -> Protocol | None:
    """The protocol of a result, whose name may have settings: `xsim-k3-distance`; None for one of another function.

    Examples:
        >>> [protocol_of(name).name for name in ("tatoeba-mteb", "zero-shot-linear", "search-pcr1")]
        ['tatoeba-mteb', 'zero-shot', 'search']
    """
    names = [known for known in PROTOCOLS if f"{name}-".startswith(f"{known}-")]
    return PROTOCOLS[max(names, key=len)] if names else None


def protocols_of_key(key: str) -> list[Protocol]:
    """The protocols that a metric key may be of, `DATASET-PROTOCOL/LANGUAGES/SPLIT/METRIC`; all for a bare metric.

    Examples:
        >>> [protocol.name for protocol in protocols_of_key("ntrex-xsim-k3/en-de/test/error")]
        ['xsim']
    """
    name, *others = key.removeprefix("eval_").split("/")
    if not others:
        return list(PROTOCOLS.values())
    names = [known for known in PROTOCOLS if f"-{known}-" in f"-{name}-"]
    longest = [known for known in names if not any(f"-{known}-" in f"-{other}-" for other in names if other != known)]
    return [PROTOCOLS[known] for known in longest]


def find_protocols(names: str | Sequence[str]) -> list[Protocol]:
    """Protocols by their names, which may be one text with commas; all must take the same data."""
    if isinstance(names, str):
        names = names.split(",")
    protocols: dict[str, Protocol] = {}
    for name in map(str.strip, names):
        protocols[name] = PROTOCOLS.find("protocol", name)

    first, *others = protocols.values()
    for protocol in others:
        if protocol.data != first.data:
            raise XlsrError(f"protocols {first.name} and {protocol.name} need different data; run them one by one.")
    return [first, *others]


def check_options(names: Collection[str], protocols: Sequence[Protocol]) -> None:
    """Refuses an option that no chosen protocol has; the message names the protocols that have it."""
    valid = {*FOR_ALL}
    for protocol in protocols:
        valid |= specs_of(protocol.options).keys()

    for name in names:
        if name in valid:
            continue
        specs = option_specs()
        hint = did_you_mean(name, specs)
        if name in specs:
            hint = f"it is for {' or '.join(specs[name].protocols)}."
        option_name = name.replace("_", "-")
        raise XlsrError(f"--{option_name} is not an option of this protocol; {hint}")
