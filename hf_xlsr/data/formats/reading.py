"""Reading parallel, running and labelled text from common file formats, row by row."""

from __future__ import annotations

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import NUMERIC_COLUMNS, MissingColumn, parse_columns
from hf_xlsr.data.formats.catalogues import read_mo, read_po
from hf_xlsr.data.formats.content import refuse_markup
from hf_xlsr.data.formats.documents import is_json_lines, read_json
from hf_xlsr.data.formats.input_file import InputFile, Reader, Record
from hf_xlsr.data.formats.lines import SGM, BadLine, BrokenFile, format_suffix
from hf_xlsr.data.formats.plugged import Records, reader_of_records
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.tables import read_datasets, read_parquet
from hf_xlsr.data.formats.text import read_csv, read_jsonl, read_moses, read_tsv, read_zip
from hf_xlsr.data.formats.tmx import read_tmx
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.plugins import Registry

logger = logging.getLogger(__name__)


def _read_any_json(file: InputFile) -> Iterator[Record]:
    """A JSON document, or JSON lines, which often have the same suffix."""
    return read_jsonl(file) if is_json_lines(file.paths[0]) else read_json(file)


_READERS: dict[str, Reader] = {
    "moses": read_moses,
    "tsv": read_tsv,
    "tsv-quoted": partial(read_tsv, quoted=True),
    "tsv-literal": partial(read_tsv, quoted=False),
    "csv": read_csv,
    "csv-comma": partial(read_csv, separator=b","),
    "jsonl": read_jsonl,
    "json": _read_any_json,
    "zip": read_zip,
    "parquet": read_parquet,
    "tmx": read_tmx,
    "po": read_po,
    "mo": read_mo,
    "datasets": read_datasets,
}
_SUFFIXES = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".parquet": "parquet",
    ".tmx": "tmx",
    ".po": "po",
    ".mo": "mo",
    ".tab": "tsv",
    ".ndjson": "jsonl",
    ".json": "json",
    ".zip": "zip",
    **dict.fromkeys(SGM, "moses"),
    ".txt": "moses",
}
READERS: Registry[Reader] = Registry("format", "readers", _READERS)
"""Format -> what reads a file of it."""
SUFFIXES: Registry[str] = Registry("suffix", "readers", _SUFFIXES)
"""Suffix, of a file without that of a compression -> format."""
AnyPath = str | os.PathLike[str]

_BRACES = re.compile(r"(?P<before>[^{}]*)\{(?P<labels>[^{}]+,[^{}]+)\}(?P<after>[^{}]*)")
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def register_reader(format: str, suffixes: Iterable[str] = ()) -> Callable[[Records], Records]:
    """A decorator: files of a format are read by a function, in every command and recipe.

    The function takes the path of one file, and yields a mapping for each row, from the file's own names of columns to
    texts or numbers. Which column is which, empty cells and bad text are handled behind it. `open_binary` of
    `hf_xlsr.data.formats.lines` opens a file that may be compressed. An error of reading (`OSError`, `ValueError`) ends
    the file with one sentence.

    Args:
        format: Name of the format, as for `--format`.
        suffixes: Suffixes of its files, such as `.bitext`; without one, `--format` chooses it.
    """

    suffixes = tuple(suffixes)

    def register(function: Records) -> Records:
        for suffix in suffixes:
            if not suffix.startswith("."):
                raise XlsrError(f"The suffix of the format '{format}' must start with a full stop, got '{suffix}'.")
            SUFFIXES.check(suffix.lower(), function)

        READERS.add(format, reader_of_records(function), function)
        for suffix in suffixes:
            SUFFIXES.add(suffix.lower(), format, function)
        return function

    return register


def read_rows(
    path: AnyPath | Sequence[AnyPath],
    *,
    columns: str | Mapping[str, str | int] | None = None,
    languages: Sequence[str] | None = None,
    required: Sequence[str] = ("source", "target"),
    optional: Sequence[str] | None = None,
    selecting: Sequence[str] = (),
    nullable: Collection[str] = (),
    format: str | None = None,
    split: str | None = None,
    default_split: str = "train",
    config: str | None = None,
    quarantine: Quarantine | None = None,
) -> Iterator[dict[str, Any]]:
    r"""Streams the rows of a corpus in bounded memory.

    Bad lines (wrong column count, not UTF-8, an empty required side, ...) go to the quarantine, and reading continues,
    unless more than a fifth of a file is malformed. Some errors of a file are raised only while iterating.

    Args:
        path: A file (`.gz`, `.bz2`, `.xz`, `.zst` and `.lz4` are decompressed), line-aligned Moses files as a sequence
            or as `"corpus.{en,fr}"`, several files of another format, which are read one after the other, or a folder
            or id for `datasets`.
        columns: Our name -> file column, as a mapping or as text for `parse_columns`. None: columns of the file with our
            names; without a header, columns in the order of `required`. The columns of TMX are languages, those of PO
            and MO `msgid` and `msgstr`, those of Moses files their labels or 0 and 1.
        languages: Languages of the required columns, in their order; needed for TMX unless `columns` gives them.
        required: Our names of columns that must not be empty.
        optional: Our names that are also read where a table has such columns; None reads all, unless `columns` is given.
        selecting: Columns by which the caller selects rows; each is read unchanged, under its name after an underscore.
        nullable: Our names of required columns that may be empty.
        default_split: Split of a dataset with several when `split` is None.
        quarantine: Gets bad lines; None counts them and logs one warning at the end.

    Returns:
        Rows with our names as keys. Texts are `str`; `label` and `score` are as in the file.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "pairs.tsv"
        ...     _ = file.write_text("en\tfr\ngood day\tbonjour\n")
        ...     list(read_rows(file, columns="source=en,target=fr"))
        [{'source': 'good day', 'target': 'bonjour'}]
    """
    paths, labels = expand_braces(path)
    name = str(path) if isinstance(path, (str, os.PathLike)) else " + ".join(map(str, paths))
    is_stated = format is not None
    format = format or detect_format(paths)
    reader = READERS.find("format", format)
    if format == "datasets":
        if len(paths) > 1:
            raise XlsrError(f"{name}: the format 'datasets' has one folder or id, got {len(paths)}.")
    else:
        _check_files(name, paths, {split, config} - {None})

    if isinstance(columns, str):
        mapping = parse_columns(columns)
    else:
        mapping = {key: str(column) for key, column in (columns or {}).items()}

    if format == "moses" and not (is_stated or mapping):
        _refuse_markup(paths)

    file = InputFile(
        name=name,
        paths=paths,
        labels=labels,
        columns=mapping,
        required=tuple(required),
        optional=optional,
        languages=languages or (),
        split=split,
        config=config,
        quarantine=Quarantine() if quarantine is None else quarantine,
        default_split=default_split,
        selecting=selecting,
        nullable=nullable,
    )
    files = [file]
    if format != "moses" and len(paths) > 1:
        files = [replace(file, name=str(path), paths=(path,), malformed=Counter()) for path in paths]
    return _rows_of_files(files, reader, log=quarantine is None)


def _check_files(name: str, paths: Sequence[Path], options: Collection[str | None]) -> None:
    """Raises for options of datasets, and for missing files."""
    if options:
        raise XlsrError(f"{name}: `split` and `config` are only for datasets.")
    for path in paths:
        if not path.is_file():
            raise XlsrError(f"the file {path} does not exist.")


def _refuse_markup(paths: Sequence[Path]) -> None:
    """Raises for plain text files that hold something else; two of them may not be tables either."""
    several = len(paths) > 1
    columns = "source=0,target=1" if several else "text=0"
    for path in paths:
        refuse_markup(path, columns, tables=several)


def column_names(path: AnyPath | Sequence[AnyPath], *, config: str | None = None, split: str = "train") -> list[str]:
    """The columns of a table or dataset, or the labels of Moses files; empty for formats with fixed columns."""
    paths, _ = expand_braces(path)
    if detect_format(paths) in ("tmx", "po", "mo"):
        return []
    try:
        columns = {"source": "\0"}
        rows = read_rows(path, columns=columns, config=config, default_split=split, quarantine=Quarantine())
        next(rows, None)
    except MissingColumn as error:
        return list(error.names)
    return []


def expand_braces(path: AnyPath | Sequence[AnyPath]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files of a path, and the labels that distinguish their names."""
    names: list[AnyPath] = []
    labels: list[str] = []
    if not isinstance(path, (str, os.PathLike)):
        for file in path:
            names.append(file)
            labels.append(format_suffix(Path(file)).removeprefix("."))
    elif braces := _BRACES.fullmatch(os.fspath(path)):
        for label in map(str.strip, braces["labels"].split(",")):
            names.append(braces["before"] + label + braces["after"])
            labels.append(label)
    else:
        names.append(path)
        labels.append("0")

    return tuple(Path(name).expanduser() for name in names), tuple(labels)


def detect_format(paths: Sequence[Path]) -> str:
    """The name in `READERS` for files, by their suffixes; several files of unknown ones are Moses files.

    Examples:
        >>> detect_format([Path("pairs.tsv.gz")]), detect_format([Path("owner/data-set")])
        ('tsv', 'datasets')
        >>> detect_format([Path("one.tsv"), Path("two.tsv")]), detect_format([Path("a.en"), Path("a.de")])
        ('tsv', 'moses')
    """
    first, *others = (_format_of(path, default="moses" if len(paths) > 1 else None) for path in paths)
    for path, other in zip(paths[1:], others, strict=True):
        if other != first:
            raise XlsrError(f"{paths[0]} is of the format {first}, and {path} of {other}. Give files of one format.")
    return first


def reader_origin(paths: Sequence[str], format: str | None = None) -> str:
    """Package and version of the plug-in that reads files, on which their rows depend; empty for formats built in."""
    suffixes: set[str] = set()
    for path in paths:
        suffixes |= {format_suffix(file) for file in expand_braces(path)[0]}
    formats = {format} if format else {SUFFIXES[suffix] for suffix in suffixes if suffix in SUFFIXES}
    for name in formats:
        READERS.find("format", name)  # it took part, also where rows are already in the cache
    return ", ".join(sorted(filter(None, map(READERS.origin, formats))))


def _format_of(path: Path, default: str | None) -> str:
    """The format of one file; `default` for an unknown suffix, which is an error without one."""
    suffix = format_suffix(path)
    if path.is_dir():
        return "datasets"
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if default:
        return default

    hint = did_you_mean(suffix, SUFFIXES)
    if not path.exists() and _HUB_ID.fullmatch(path.as_posix()) and not hint.startswith("did you mean"):
        return "datasets"
    raise XlsrError(f"{path}: unknown format '{suffix}'; {hint}")


def _rows_of_files(files: Sequence[InputFile], reader: Reader, *, log: bool) -> Iterator[dict[str, Any]]:
    for file in files:
        yield from _rows(file, reader, log=log)


def _rows(file: InputFile, reader: Reader, *, log: bool) -> Iterator[dict[str, Any]]:
    count = 0
    try:
        for number, record, raw in reader(file):
            try:
                row = {name: _text(name, value, file.needs(name)) for name, value in record.items()}
            except BadLine as fault:
                text = json.dumps(record, ensure_ascii=False, default=str) if raw is None else raw
                file.reject(number, fault, text)
                continue
            file.num_rows += 1
            count += 1
            yield row
    except BrokenFile as error:
        raise XlsrError(f"{file.name} cannot be read after its first {count:,} rows ({error}).") from error
    finally:
        if log and file.quarantine.report():
            logger.warning("%s: %s", file.name, file.quarantine.report())


def _text(name: str, value: Any, required: bool) -> Any:
    """The value of a column as text; `BadLine` if it cannot be one, or is empty where it is required."""
    if value != value:  # NaN, the empty cell of a column of numbers
        value = None
    if isinstance(value, bytes):
        try:
            value = value.decode("utf-8")
        except UnicodeDecodeError:
            raise BadLine("invalid UTF-8") from None

    # Columns that select rows stay unchanged.
    if name.startswith("_"):
        return value
    if name not in NUMERIC_COLUMNS and value is not None:
        if isinstance(value, (dict, list)):
            raise BadLine(f"{name} is not a text")
        value = str(value)

    if required and (value is None or not str(value).strip()):
        raise BadLine(f"empty {name}")
    if isinstance(value, str) and "\0" in value:
        raise BadLine("NUL character")
    return value
