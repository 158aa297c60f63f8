"""Where a recipe's rows come from: a named corpus, or files with a column mapping."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.data.corpora import CORPORA, load_corpus
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
_VERSIONS = ("source_version", "target_version")
_CORPUS_KEYS = {"corpus", "languages", "split", "limit", *_VERSIONS}
_FILE_KEYS = set(SOURCE_KEYS) - {"corpus", *_VERSIONS}


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


def as_source(value: Any) -> dict[str, Any]:
    """A source as a mapping: a bare string is a corpus if one has that name, else a path; so is a list of paths.

    Example:
        >>> as_source("bible"), as_source("pairs.tsv")
        ({'corpus': 'bible'}, {'path': 'pairs.tsv'})
    """
    if isinstance(value, Mapping):
        return dict(value)
    return {"corpus": value} if isinstance(value, str) and value in CORPORA else {"path": value}


def source_name(value: Any) -> str:
    """What metric keys and cards call a source: its corpus, or the stem of its file.

    Example:
        >>> source_name({"path": "data/test.en-fr.tsv.gz"})
        'test'
    """
    source = as_source(value)
    return str(source.get("corpus") or Path(str(as_list(source["path"])[0])).name.split(".")[0])


class RowFilter:
    """Chooses rows by the values of columns (`where`) and by the crc32 of one (`hash_split`).

    Args:
        options: A source; its keys `where`, `hash_split`, `hash_key`, `hash_modulus` count.

    Raises:
        XlsrError: `hash_split` is not `rest` or `held`, or misses its key; the modulus is no whole number.

    Example:
        >>> RowFilter({"where": {"lang": ["fr", "it"]}}).keeps({"lang": "de"})
        False
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.conditions = {name: set(map(str, as_list(value))) for name, value in (options.get("where") or {}).items()}
        self.part, self.key = options.get("hash_split"), options.get("hash_key")
        self.modulus = whole_number(options.get("hash_modulus", 100), "hash_modulus")
        if self.part not in (None, "rest", "held") or (self.part and not self.key):
            raise XlsrError(
                f"data source: hash_split is '{self.part}'; use rest (train) or held (dev), with a hash_key."
            )
        self.columns = [*self.conditions, *([self.key] if self.key else [])]

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Whether the row, with the columns of `columns`, is chosen."""
        if any(str(row[name]) not in allowed for name, allowed in self.conditions.items()):
            return False
        if not self.part or not self.key:
            return True
        return (zlib.crc32(str(row[self.key]).encode()) % self.modulus == 0) == (self.part == "held")


def whole_number(value: Any, key: str) -> int:
    """A whole number above 0 of a source.

    Raises:
        XlsrError: it is none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise XlsrError(f"data source: {key} is {value!r}; it takes a whole number above 0.")
    return value


def open_source(
    source: Any,
    *,
    languages: Sequence[str],
    split: str = "train",
    required: Sequence[str] = ("source", "target"),
    optional: Sequence[str] | None = None,
    quarantine: Quarantine | None = None,
) -> Iterator[dict[str, Any]]:
    """Streams the rows of one source of a recipe.

    Args:
        source: Keys of `SOURCE_KEYS`, or what `as_source` takes.
        languages: Languages of the recipe.
        split: Split of a corpus or data set when the source names none.
        required: Columns that no row may lack.
        optional: Columns read where a file has them; None reads all of ours unless the source maps columns.
        quarantine: Where bad lines are counted and written.

    Yields:
        Rows with `source`, `target`, `source_lang`, `target_lang` (or what `required` names).

    Raises:
        XlsrError: a key is unknown or does not go with the kind of source, a source of pairs does not say which two of
            more languages it holds, or what the readers raise.
    """
    options = as_source(source)
    for key in options:
        if key not in SOURCE_KEYS:
            raise XlsrError(f"data source: unknown key '{key}'; {nearest(key, SOURCE_KEYS)}")
    if ("corpus" in options) == ("path" in options):
        raise XlsrError(f"data source {options} needs either 'corpus', a name, or 'path', a file.")
    kind, allowed = ("corpus", _CORPUS_KEYS) if "corpus" in options else ("path", _FILE_KEYS)
    for key in options:
        if key not in allowed:
            raise XlsrError(f"data source: '{key}' does not go with '{kind}'; leave it out.")
    languages = list(options.get("languages") or languages)
    if "source" in required and len(languages) != 2:
        raise XlsrError(
            f"data source {options}: of the languages {', '.join(languages)} a source of pairs holds two; "
            "name them in its 'languages'."
        )
    limit = whole_number(options["limit"], "limit") if options.get("limit") is not None else None
    if kind == "corpus":
        extra = {key: options[key] for key in _VERSIONS if options.get(key) is not None}
        rows = load_corpus(options["corpus"], languages=languages, split=options.get("split") or split, **extra)
    else:
        rows = _file_rows(options, languages, split, required, optional, quarantine)
    return islice(rows, limit)


def _file_rows(
    options: Mapping[str, Any],
    languages: Sequence[str],
    split: str,
    required: Sequence[str],
    optional: Sequence[str] | None,
    quarantine: Quarantine | None,
) -> Iterator[dict[str, Any]]:
    columns, chosen = parse_columns(options.get("columns")), RowFilter(options)
    # Columns that only select rows are read under names of their own beside ours.
    helpers = {f"_{name}": name for name in chosen.columns if name not in (*columns, *required)}
    rows = read_rows(
        expand(options["path"]),
        columns={**columns, **helpers} if columns or helpers else None,
        languages=tuple(languages[:2]),
        required=tuple(required),
        optional=optional,
        format=options.get("format"),
        split=options.get("split"),
        default_split=split,  # of a data set; taking another than the one meant would go unnoticed
        config=options.get("config"),
        quarantine=quarantine,
    )
    for row in rows:
        if not chosen.keeps({name: row[f"_{name}" if f"_{name}" in helpers else name] for name in chosen.columns}):
            continue
        for helper in helpers:
            row.pop(helper, None)
        if "source" in required:
            row.setdefault("source_lang", languages[0])
            row.setdefault("target_lang", languages[1])
        yield row
