"""Reading parallel, running and labelled text from common file formats, row by row."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import NUMERIC_COLUMNS, parse_columns
from hf_xlsr.data.formats.catalogues import read_mo, read_po, read_tmx
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.source import OPENERS, BrokenFile, Reader, Source
from hf_xlsr.data.formats.tables import read_datasets, read_parquet
from hf_xlsr.data.formats.text import read_csv, read_jsonl, read_moses, read_tsv
from hf_xlsr.utils.errors import XlsrError, did_you_mean, require_choice

logger = logging.getLogger(__name__)

READERS: dict[str, Reader] = {
    "moses": read_moses,
    "tsv": read_tsv,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "parquet": read_parquet,
    "tmx": read_tmx,
    "po": read_po,
    "mo": read_mo,
    "datasets": read_datasets,
}
SUFFIXES = {f".{name}": name for name in READERS if name not in ("moses", "datasets")} | {
    ".tab": "tsv",
    ".ndjson": "jsonl",
    ".txt": "moses",
}
AnyPath = str | os.PathLike[str]

_BRACES = re.compile(r"(?P<before>[^{}]*)\{(?P<labels>[^{}]+,[^{}]+)\}(?P<after>[^{}]*)")
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)


def read_rows(
    path: AnyPath | Sequence[AnyPath],
    *,
    columns: str | Mapping[str, str | int] | None = None,
    languages: Sequence[str] | None = None,
    required: Sequence[str] = ("source", "target"),
    optional: Sequence[str] | None = None,
    selecting: Sequence[str] = (),
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
        path: A file (`.gz`, `.bz2`, `.xz` and `.zst` are decompressed), line-aligned Moses files as a sequence or as
            `"corpus.{en,fr}"`, or a folder or id for `datasets`.
        columns: Our name -> file column, as a mapping or as text for `parse_columns`. None: columns of the file with our
            names; without a header, columns in the order of `required`. The columns of TMX are languages, those of PO
            and MO `msgid` and `msgstr`, those of Moses files their labels or 0 and 1.
        languages: Languages of the required columns, in their order; needed for TMX unless `columns` gives them.
        required: Our names of columns that must not be empty.
        optional: Our names that are also read where a table has such columns; None reads all, unless `columns` is given.
        selecting: Columns by which the caller selects rows; each is read unchanged, under its name after an underscore.
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
    format = format or detect_format(paths)
    require_choice("format", format, READERS)
    fault = None
    if format != "moses" and len(paths) > 1:
        fault = f"format '{format}' reads one file, got {len(paths)} files"
    elif format != "datasets" and (split is not None or config is not None):
        fault = f"`{'config' if split is None else 'split'}` is only for datasets, but this is a {format} file"
    elif format != "datasets" and (missing := [file for file in paths if not file.is_file()]):
        fault = f"the file {missing[0]} does not exist"
    if fault:
        raise XlsrError(f"{name}: {fault}.")
    mapping = parse_columns(columns) if isinstance(columns, str) else {k: str(v) for k, v in (columns or {}).items()}
    source = Source(
        name=name,
        paths=paths,
        labels=labels,
        columns=mapping,
        required=tuple(required),
        optional=None if optional is None else tuple(optional),
        languages=tuple(languages or ()),
        split=split,
        config=config,
        quarantine=Quarantine() if quarantine is None else quarantine,
        default_split=default_split,
        selecting=tuple(selecting),
    )
    return _rows(source, READERS[format], log=quarantine is None)


def expand_braces(path: AnyPath | Sequence[AnyPath]) -> tuple[tuple[Path, ...], tuple[str, ...]]:
    """The files of a path, and the labels that distinguish their names."""
    if not isinstance(path, (str, os.PathLike)):
        paths = tuple(Path(part).expanduser() for part in path)
        return paths, tuple(format_suffix(part).removeprefix(".") for part in paths)
    braces = _BRACES.fullmatch(os.fspath(path))
    if braces is None:
        return (Path(path).expanduser(),), ("0",)
    labels = tuple(label.strip() for label in braces["labels"].split(","))
    return tuple(Path(braces["before"] + label + braces["after"]).expanduser() for label in labels), labels


def format_suffix(path: Path) -> str:
    """The suffix before that of a compression."""
    return (path.with_suffix("") if path.suffix.lower() in OPENERS else path).suffix.lower()


def detect_format(paths: Sequence[Path]) -> str:
    """The name in `READERS` for files, by their suffixes.

    Examples:
        >>> detect_format([Path("pairs.tsv.gz")]), detect_format([Path("owner/data-set")])
        ('tsv', 'datasets')
    """
    if len(paths) > 1:
        return "moses"
    path, suffix = paths[0], format_suffix(paths[0])
    if path.is_dir():
        return "datasets"
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    hint = did_you_mean(suffix, SUFFIXES)
    if not path.exists() and _HUB_ID.fullmatch(path.as_posix()) and not hint.startswith("did you mean"):
        return "datasets"
    missing = "" if path.exists() else " (and the file does not exist)"
    raise XlsrError(f"{path}: unknown format '{suffix}'{missing}; {hint}")


def _rows(source: Source, reader: Reader, *, log: bool) -> Iterator[dict[str, Any]]:
    count = 0
    try:
        for number, row, raw in reader(source):
            fault = _clean(row, source.required)
            if fault is not None:
                source.reject(number, fault, json.dumps(row, ensure_ascii=False, default=str) if raw is None else raw)
                continue
            source.num_rows += 1
            count += 1
            yield row
    except BrokenFile as error:
        raise XlsrError(f"{source.name} cannot be read after its first {count:,} rows ({error}).") from error
    finally:
        if log and source.quarantine.report():
            logger.warning("%s: %s", source.name, source.quarantine.report())


def _clean(row: dict[str, Any], required: Sequence[str]) -> str | None:
    """Converts the values to text, in place; returns the fault of the row, if any."""
    for name, value in row.items():
        if value != value:  # NaN, the empty cell of a column of numbers
            row[name] = value = None
        # Columns that select rows stay unchanged.
        if name.startswith("_") and not isinstance(value, bytes):
            continue
        if name not in NUMERIC_COLUMNS and not isinstance(value, str) and value is not None:
            if isinstance(value, (dict, list)):
                return f"{name} is not a text"
            try:
                row[name] = value = value.decode("utf-8") if isinstance(value, bytes) else str(value)
            except UnicodeDecodeError:
                return "invalid UTF-8"
        if name in required and (value is None or (isinstance(value, str) and not value.strip())):
            return f"empty {name}"
        if isinstance(value, str) and "\0" in value:
            return "NUL character"
    return None
