"""What every reader gets and what it gives back."""

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
    """One corpus, found on disk and not opened yet.

    Attributes:
        name: What the user gave, for messages.
        paths: Its files: one, or one a side for Moses. The id itself for a data set on the Hub.
        labels: What tells the files of a Moses corpus apart, usually languages.
        columns: Our name -> file column; empty for the default of the format.
        required: Our names that no row may lack.
        optional: Our names that are read where a table has them; None reads all of ours when `columns` is empty.
        selecting: Columns of the file that rows are chosen by, read under their names behind an underscore.
        languages: Languages of the required columns, for TMX.
        split: Split of a data set.
        default_split: The split of a data set that has several, when none is named.
        config: Configuration of a data set.
        quarantine: Where bad lines go.
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
