"""Held-out texts: sentences that are removed from training data."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from hf_xlsr.data.columns import selecting_columns
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.sources import RowFilter, as_list, as_source, check_source, expand, open_source
from hf_xlsr.utils.errors import XlsrError

EVERY_COLUMN = "*"


def held_out_texts(sources: Sequence[Any], *, languages: Sequence[str]) -> Iterator[str]:
    """Texts of a recipe's `data.held_out`, which are kept out of training.

    A corpus without languages is read in those of the recipe, of more than two the first with each other one. With
    `columns: "*"` the path is a pattern of Parquet files (`*`, `?`, `**`), of which all text columns are read; `where`
    and `hash_split` select rows. Otherwise `source` and `target` of the split `test` are read, or in a recipe of one
    language `first` and `second`.
    """
    for source in sources:
        if isinstance(source, Mapping) and source.get("columns") == EVERY_COLUMN:
            yield from _every_text(check_source(source))
        else:
            for pair in _language_pairs(source, languages):
                sides = ("source", "target") if len(pair) > 1 else ("first", "second")
                for row in open_source(source, languages=pair, split="test", required=sides):
                    yield from (row[side] for side in sides)


def _language_pairs(source: Any, languages: Sequence[str]) -> list[Sequence[str]]:
    """The language pairs of a source: of many languages, the first with each other one that a corpus has."""
    options = as_source(source)
    if "corpus" not in options or options.get("languages") or len(languages) < 3:
        return [languages]
    corpus = CORPORA.get(options["corpus"])
    known = corpus.languages if corpus else ()
    return [(languages[0], other) for other in languages[1:] if not known or other in known]


def _every_text(source: Mapping[str, Any]) -> Iterator[str]:
    files: list[str] = []
    for pattern in as_list(expand(source["path"])):
        found_files = sorted(glob.glob(os.path.expanduser(pattern), recursive=True))
        if not found_files:
            raise XlsrError(f"data.held_out: no file matches '{pattern}'.")
        files += found_files
    chosen, found = RowFilter(source), False
    for file in files:
        table = pq.ParquetFile(file)
        selecting_columns(chosen.columns, (), [field.name for field in table.schema_arrow], file)
        for batch in table.iter_batches(batch_size=4096):
            for row in filter(chosen.keeps, batch.to_pylist()):
                for text in _texts_in(row):
                    found = True
                    yield text
    if not found:
        raise XlsrError(f"data.held_out: '{source['path']}' has no text that is selected.")


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts_in(part)
