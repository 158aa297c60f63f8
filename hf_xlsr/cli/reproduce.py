"""The command that a verb was called by, without folders and without what only this machine decides."""

import os
import shlex
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo

from hf_xlsr.data.sources import as_list
from hf_xlsr.utils.local_paths import last_name, public_name, without_folders

# Options that change no result: of the machine, and of what is printed.
OF_THE_MACHINE = {"json", "work", "vectors", "device", "memory", "num_proc", "engine", "address", "num_gpus"}
TEXTS = {"prompt"}  # which may look like anything
# Of these a name may be an id of the Hub.
INPUTS = {"source", "target", "pairs", "model", "known", "gold", "source_pool", "target_pool"}
FILES = {"output", "report", "labels", "source_vectors", "target_vectors", "save_training"}


def command_of(verb: str, options: Any) -> str:
    """The command of a verb from its options; those with their default are left out.

    Files of one name in several folders are numbered: `text.txt`, `2-text.txt`.
    """
    hints = get_type_hints(type(options), include_extras=True)
    names = _FileNames()
    arguments: list[str] = []
    named: list[str] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if field.name in OF_THE_MACHINE or value is None or value == _default(field):
            continue
        _, declaration = get_args(hints[field.name])
        if isinstance(declaration, ArgumentInfo):
            arguments += _words(field.name, value, names)
            continue
        option = f"--{field.name.replace('_', '-')}"
        if value is True:
            named.append(option)
        for word in _words(field.name, value, names):
            named += [option, word]
    return shlex.join(["hf-xlsr", verb, *arguments, *named])


def _default(field: Field[Any]) -> Any:
    return None if field.default is MISSING else field.default


class _FileNames:
    """A name without folders for each file, different for different files."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}

    def __call__(self, file: str, name: str) -> str:
        """`name`, with a number before it if it is that of another file."""
        path = os.path.realpath(os.path.expanduser(file))
        different = name
        number = 2
        while self.files.setdefault(different, path) != path:
            different = f"{number}-{name}"
            number += 1
        return different


def _words(name: str, value: Any, names: _FileNames) -> Iterator[str]:
    """The values of an option, without folders."""
    for item in as_list(value):
        if isinstance(item, bool):
            continue
        text = str(item)
        if name in INPUTS:
            yield names(text, public_name(text))
        elif name in FILES:
            yield names(text, last_name(text))
        elif name in TEXTS:
            yield text
        else:
            yield without_folders(text)
