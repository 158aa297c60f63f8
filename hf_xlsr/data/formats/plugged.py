"""Readers of plug-ins: functions that yield the rows of a file under its own names of columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import flat_names, selected
from hf_xlsr.data.formats.input_file import InputFile, Reader, Record
from hf_xlsr.data.formats.lines import BrokenFile, cause
from hf_xlsr.utils.errors import XlsrError

Records = Callable[[Path], Iterable[Mapping[str, Any]]]
"""From the path of a file to its rows: column of the file -> value."""


def reader_of_records(function: Records) -> Reader:
    """The reader of a format whose rows a function yields. The first row names the columns."""

    def read(file: InputFile) -> Iterator[Record]:
        records = _guarded(function, file.paths[0])
        first = next(records, None)
        if first is None:
            return
        columns = file.resolve(flat_names(first))
        for number, record in enumerate(chain([first], records), 1):
            yield number, selected(record, columns), None

    return read


def _guarded(function: Records, path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows that the function yields; its errors of reading become `BrokenFile`."""
    try:
        yield from function(path)
    except (XlsrError, BrokenFile):
        raise
    except (OSError, EOFError, ValueError) as error:
        raise BrokenFile(cause(error)) from error
