"""Plug-ins: what other packages add under names of their own, found by their entry points.

A package names modules in the group `hf_xlsr.plugins`. They are imported once, on the first look-up of a name that is not
built in, or when names are listed: those whose entry is named for what is looked up (`ENTRIES`), and those with other
names. Each registers what it adds by the decorators `register_...` of the packages here. A look-up is of names only:
nothing that a file says is imported.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.metadata import EntryPoint, entry_points
from threading import RLock
from typing import Any, Generic, TypeVar
from uuid import uuid4

from hf_xlsr.utils.errors import XlsrError, did_you_mean, error_line

GROUP = "hf_xlsr.plugins"
"""The group of entry points."""
MODULE = "module "
PLUGINS = "plugins"
"""Key of what `recorded` gives, in results, recipes and facts."""
ENTRIES = ("identifiers", "losses", "methods", "protocols", "readers", "steps")
"""Names of entry points whose modules are imported only when such names are looked up."""
T = TypeVar("T")

_NAME = re.compile(r"\.?\w[\w.-]*")
logger = logging.getLogger(__name__)


class _Loader:
    """Imports the modules of entry points, each once in a process.

    Attributes:
        failures: A sentence for each entry point that cannot be imported.
        current: The entry point whose module is being imported.
    """

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.current: EntryPoint | None = None
        self._begun: set[EntryPoint] = set()
        self._lock = RLock()

    def load(self, wanted: str) -> None:
        """Imports those for one of `ENTRIES`; a module that looks up names meanwhile sees those that are there so far."""
        with self._lock:
            for entry in _entry_points():
                is_wanted = entry.name == wanted or entry.name not in ENTRIES
                if is_wanted and entry not in self._begun:
                    self._begun.add(entry)
                    self._load_one(entry)

    def _load_one(self, entry: EntryPoint) -> None:
        outer, self.current = self.current, entry
        try:
            entry.load()
        except (Exception, SystemExit) as error:  # of any kind: it is another package's code
            package = f" of package {package_of(entry)}" if entry.dist else ""
            cause = error_line(error)
            if not isinstance(error, XlsrError):
                cause = f"{type(error).__name__}: {cause}"
            sentence = f"The plug-in '{entry.name} = {entry.value}'{package} cannot be imported: {cause.rstrip('.')}."
            self.failures.append(sentence)
            logger.warning("%s", sentence)
        finally:
            self.current = outer


_loader = _Loader()
_recorders: list[dict[str, str]] = []


def package_of(entry: EntryPoint) -> str:
    """Name and version of the package of an entry point; empty where it has none."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else ""


def origin_of(definition: Any) -> str:
    """Name and version of the package of a function or class; for one of no package, its module and a hash of its code.

    The package is the one whose entry points name the nearest module: packages can share the first part of their names.

    Examples:
        >>> class Square: ...
        >>> origin_of(Square).startswith("module ")
        True
    """
    module = _module_of(definition)
    nearest = 0
    package = ""
    for entry in _entry_points():
        shared = _shared_parts(entry.module, module)
        if shared > nearest and entry.dist:
            nearest = shared
            package = package_of(entry)
    return package or f"{MODULE}{module} {_code_hash(definition)}"


def _module_of(definition: Any) -> str:
    return str(definition.__module__).replace("__mp_main__", "__main__")  # as processes import a script


def _shared_parts(first: str, second: str) -> int:
    """How many parts of two dotted names are equal from the start."""
    count = 0
    for first_part, second_part in zip(first.split("."), second.split("."), strict=False):
        if first_part != second_part:
            break
        count += 1
    return count


def _code_hash(definition: Any) -> str:
    """A hash of the source of a function or class; a new one in each process where there is no source."""
    try:
        source = inspect.getsource(definition)
    except (OSError, TypeError):
        return uuid4().hex[:12]
    return sha256(source.encode()).hexdigest()[:12]


def is_package(origin: str) -> bool:
    """Whether an origin is a package with a version, rather than a module."""
    return not origin.startswith(MODULE)


def plugin_failures() -> str:
    """What kept plug-ins from being imported: a sentence for each."""
    return " ".join(_loader.failures)


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


@contextmanager
def recorded() -> Iterator[dict[str, str]]:
    """Collects the plug-ins that are found inside: kind and name -> package and version."""
    used: dict[str, str] = {}
    _recorders.append(used)
    try:
        yield used
    finally:
        _recorders[:] = [other for other in _recorders if other is not used]


def used_so_far() -> dict[str, str]:
    """What the outermost `recorded`, that of a command, has collected; empty outside of one."""
    return dict(_recorders[0]) if _recorders else {}


def with_plugins(settings: Mapping[str, Any], used: Mapping[str, str]) -> dict[str, Any]:
    """Settings with the plug-ins that were used, if there are any, under `PLUGINS`."""
    return {**settings, PLUGINS: dict(used)} if used else dict(settings)


def in_words(used: Mapping[str, str]) -> str:
    """What `recorded` gave, in a line.

    Examples:
        >>> in_words({"protocol vowels": "my-plugin 1.0"})
        'protocol vowels of my-plugin 1.0'
    """
    return ", ".join(f"{name} of {origin}" for name, origin in used.items())


@dataclass(frozen=True)
class _Added(Generic[T]):
    """A value that was registered, where it is from (`origin_of`), and the name of its definition."""

    value: T
    origin: str
    definition: str


class Registry(Mapping[str, T]):
    """Values of one kind by name: those that are built in, and those of plug-ins.

    A look-up of a built-in name imports no plug-in; a list of the names imports all.

    Args:
        kind: What a value is, in words: `protocol`.
        entry: The one of `ENTRIES` that modules of plug-ins with such values may be named for.
        built_in: Those of this package.
        reserved: Further names that plug-ins may not have.

    Examples:
        >>> shapes = Registry("shape", "shapes", {"circle": "round"})
        >>> class Square: ...
        >>> shapes.add("square", "angular", Square)
        >>> shapes["square"], shapes["circle"]
        ('angular', 'round')
    """

    def __init__(self, kind: str, entry: str, built_in: Mapping[str, T], reserved: Collection[str] = ()) -> None:
        self.kind = kind
        self.entry = entry
        self.built_in = built_in
        self.reserved = reserved
        self._added: dict[str, _Added[T]] = {}

    def __getitem__(self, name: str) -> T:
        if name in self.built_in:
            return self.built_in[name]
        if name not in self._added:
            _loader.load(self.entry)
        return self._added[name].value

    def __iter__(self) -> Iterator[str]:
        _loader.load(self.entry)
        yield from self.built_in
        yield from sorted(self._added)

    def __len__(self) -> int:
        _loader.load(self.entry)
        return len(self.built_in) + len(self._added)

    def __contains__(self, name: object) -> bool:
        if name in self.built_in or name in self._added:
            return True
        _loader.load(self.entry)
        return name in self._added

    @property
    def plugged(self) -> dict[str, T]:
        """Those of plug-ins by name."""
        _loader.load(self.entry)
        return {name: added.value for name, added in self._added.items()}

    def find(self, label: str, name: str) -> T:
        """The value of a name that a user gave; that a plug-in is used is kept by `recorded`.

        Args:
            label: What the user calls it, for the error.
            name: The name.

        Raises:
            XlsrError: It is not known; the message also has what kept plug-ins from being imported.
        """
        if name not in self:
            names = ", ".join(self)
            hint = did_you_mean(str(name), self)
            raise XlsrError(f"`{label}` must be one of {names}, got '{name}'; {hint} {plugin_failures()}".rstrip())

        origin = self.origin(name)
        if origin:
            for used in _recorders:
                used[f"{self.kind} {name}"] = origin
        return self[name]

    def origin(self, name: str) -> str:
        """Package and version that a name is from; empty for one that is built in."""
        if name in self.built_in or name not in self:
            return ""
        return self._added[name].origin

    def add(self, name: str, value: T, definition: Any) -> None:
        """Registers a value under a name.

        Args:
            name: Letters, digits, hyphens, dots and underscores.
            value: What a look-up gives.
            definition: The function or class that it is made of. The same one again replaces it, as in a notebook.

        Raises:
            XlsrError: The name is taken.
        """
        self.check(name, definition)
        origin = origin_of(definition)
        if not is_package(origin) and _loader.current is not None:
            origin = package_of(_loader.current) or origin
        self._added[name] = _Added(value, origin, _full_name(definition))

    def check(self, name: str, definition: Any) -> None:
        """Raises what `add` would raise."""
        full_name = _full_name(definition)
        if not _NAME.fullmatch(name):
            raise XlsrError(f"The name of a {self.kind} must be letters, digits, '-', '.' and '_', got '{name}'.")
        if name in self.built_in or name in self.reserved:
            raise XlsrError(
                f"The {self.kind} '{name}' of {full_name} has the name of the one built into hf-xlsr. Rename it."
            )
        earlier = self._added.get(name)
        if earlier is not None and earlier.definition != full_name:
            raise XlsrError(
                f"The {self.kind} '{name}' is registered by {earlier.definition} and by {full_name}. Rename one."
            )


def _full_name(definition: Any) -> str:
    return f"{_module_of(definition)}.{definition.__qualname__}"
