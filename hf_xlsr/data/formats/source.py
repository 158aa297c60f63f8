"""What readers take and yield."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import resolve_columns
from hf_xlsr.data.formats.quarantine import Quarantine


class BadLine(Exception):
    """One line cannot be used; the message is the reason under which it is counted."""


class BrokenFile(Exception):
    """The file cannot be read any further; the message is the cause."""


@dataclass(frozen=True)
class Source:
    """A corpus to read.

    Attributes:
        name: Name for messages, as the user gave it.
        paths: One file, or one per side for Moses; the id for a dataset on the Hub.
        labels: Distinct parts of the names of Moses files, usually languages.
        columns: Our name -> file column; empty for the default of the format.
        required: Our names that every row must have.
        optional: Our names that are read where a table has them; None reads all of ours when `columns` is empty.
        selecting: Columns that select rows, read under their names after an underscore.
        languages: Languages of the required columns, for TMX.
        split: Split of a dataset.
        default_split: Split of a dataset with several, when none is named.
        config: Configuration of a dataset.
        quarantine: Gets bad lines.
    """

    name: str
    paths: tuple[Path, ...]
    labels: tuple[str, ...]
    columns: Mapping[str, str]
    required: tuple[str, ...]
    languages: tuple[str, ...]
    split: str | None
    config: str | None
    quarantine: Quarantine
    default_split: str = "train"
    optional: tuple[str, ...] | None = None
    selecting: tuple[str, ...] = ()

    def resolve(self, names: Collection[str]) -> dict[str, str]:
        """Our name -> column, for a table that has columns of these names."""
        return resolve_columns(self.columns, self.required, names, self.name, self.optional, self.selecting)

    def reject(self, number: int, reason: object, text: str | bytes, path: Path | None = None) -> None:
        """Sends a line to the quarantine, under the source's name unless one of several files is meant."""
        self.quarantine.reject(path or self.name, number, str(reason), text)


# Line number, row by our names, and the raw line (None where a format has none).
Record = tuple[int, dict[str, Any], "str | bytes | None"]
Reader = Callable[[Source], Iterator[Record]]
