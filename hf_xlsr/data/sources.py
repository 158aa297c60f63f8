"""Where a recipe's rows come from: a named corpus, or files with a column mapping."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.data.corpora import load_corpus
from hf_xlsr.data.formats import read_rows
from hf_xlsr.data.quarantine import Quarantine
from hf_xlsr.errors import XlsrError, nearest

SOURCE_KEYS = {
    "corpus": "name of a corpus (hf-xlsr corpora)",
    "path": "file, pair of Moses files, folder or id of a data set; environment variables are filled in",
    "languages": "source and target; the recipe's when absent",
    "columns": "our column = column of the file, e.g. source=en,target=fr",
    "format": "moses, tsv, csv, jsonl, parquet, tmx, po, mo or datasets; from the suffix when absent",
    "split": "train, dev or test of a corpus or data set",
    "config": "configuration of a data set",
    "where": "keep rows whose columns have these values",
    "hash_split": "rest or held: keep the rows whose crc32 of hash_key modulo hash_modulus is not 0, or is 0",
    "hash_key": "column of the file for hash_split",
    "hash_modulus": "100 holds about 1 % out",
    "limit": "at most so many rows",
    "source_version": "translation of the bible corpus",
    "target_version": "translation of the bible corpus",
}
_CORPUS_OPTIONS = ("source_version", "target_version")


def as_list(value: Any) -> list[Any]:
    """A list as it is, None as nothing, anything else as a list of one."""
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]


def expand(path: Any) -> Any:
    """Fills in environment variables of a path or a list of paths.

    Raises:
        XlsrError: a variable is not set.
    """
    if isinstance(path, (list, tuple)):
        return [expand(part) for part in path]
    for name in re.findall(r"\$\{?(\w+)\}?", str(path)):
        if name not in os.environ:
            raise XlsrError(
                f"path '{path}' needs the environment variable {name}, which is not set; see docs/data.md."
            )
    return os.path.expandvars(str(path))


def open_source(
    source: Mapping[str, Any] | str,
    *,
    languages: Sequence[str],
    split: str = "train",
    required: Sequence[str] = ("source", "target"),
    quarantine: Quarantine | None = None,
) -> Iterator[dict[str, Any]]:
    """Streams the rows of one source of a recipe.

    Args:
        source: Keys of `SOURCE_KEYS`; a bare string is the name of a corpus if there is one, else a path.
        languages: Languages of the recipe.
        split: Split of a corpus when the source names none.
        required: Columns that no row may lack.
        quarantine: Where bad lines are counted and written.

    Yields:
        Rows with `source`, `target`, `source_lang`, `target_lang` (or what `required` names).

    Raises:
        XlsrError: a key is unknown, neither or both of `corpus` and `path` are given, or what the readers raise.
    """
    options = dict(source) if isinstance(source, Mapping) else {"path": source}
    for key in options:
        if key not in SOURCE_KEYS:
            raise XlsrError(f"data source: unknown key '{key}'; {nearest(key, SOURCE_KEYS)}")
    if ("corpus" in options) == ("path" in options):
        raise XlsrError(f"data source {options} needs either 'corpus', a name, or 'path', a file.")
    languages = list(options.get("languages") or languages)
    split = options.get("split") or split
    if "corpus" in options:
        extra = {key: options[key] for key in _CORPUS_OPTIONS if options.get(key) is not None}
        rows = load_corpus(options["corpus"], languages=languages[:2], split=split, **extra)
    else:
        rows = _file_rows(options, languages, required, quarantine)
    limit = options.get("limit")
    return islice(rows, int(limit)) if limit is not None else rows


def _file_rows(
    options: Mapping[str, Any], languages: Sequence[str], required: Sequence[str], quarantine: Quarantine | None
) -> Iterator[dict[str, Any]]:
    columns = parse_columns(options.get("columns"))
    conditions, hash_key = dict(options.get("where") or {}), options.get("hash_key")
    modulus, part = int(options.get("hash_modulus") or 100), options.get("hash_split")
    if part not in (None, "rest", "held") or (part and not hash_key):
        raise XlsrError(f"data source: hash_split is '{part}'; use rest (train) or held (dev), with a hash_key.")
    # Columns that only select rows are read under their own names beside ours.
    wanted = [*conditions, *([hash_key] if hash_key else [])]
    helpers = {f"_{name}": name for name in wanted if name not in (*columns, *required)}
    rows = read_rows(
        expand(options["path"]),
        columns={**columns, **helpers} if columns or helpers else None,
        languages=tuple(languages[:2]),
        required=tuple(required),
        format=options.get("format"),
        split=options.get("split"),
        config=options.get("config"),
        quarantine=quarantine,
    )
    for row in rows:
        values = {name: str(row[f"_{name}" if f"_{name}" in helpers else name]) for name in wanted}
        if any(values[name] not in map(str, as_list(allowed)) for name, allowed in conditions.items()):
            continue
        if part and (zlib.crc32(values[hash_key].encode()) % modulus == 0) != (part == "held"):
            continue
        for helper in helpers:
            row.pop(helper, None)
        if "source" in required and len(languages) > 1:
            row.setdefault("source_lang", languages[0])
            row.setdefault("target_lang", languages[1])
        yield row
