"""What the functions of protocols take: sentences and rows in any container, as lists; mappings of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hf_xlsr.utils.errors import XlsrError

SENTENCES = "a list of sentences"
ROWS = "rows, such as [{'text': ...}]"


def sentence_list(sentences: Iterable[str], name: str) -> list[str]:
    """Sentences of any iterable: a list, an array, a column of a table; errors have `name`.

    Examples:
        >>> sentence_list(iter(["one", "two"]), "sources")
        ['one', 'two']
        >>> sentence_list("one", "sources")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: `sources` must be a list of sentences, got a str: 'one'.
    """
    if not _has_items(sentences):
        raise _error(name, SENTENCES, sentences)
    texts = list(sentences)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise _error(f"{name}[{number}]", "a sentence", text)
    return texts


def parallel_lists(
    sources: Iterable[str], targets: Iterable[str], names: tuple[str, str] = ("sources", "targets")
) -> tuple[list[str], list[str]]:
    """The two sides of translation pairs, which must be as many."""
    source_name, target_name = names
    source_list = sentence_list(sources, source_name)
    target_list = sentence_list(targets, target_name)
    count = len(source_list)
    if len(target_list) != count:
        raise XlsrError(f"`{target_name}` must be as many as `{source_name}`, {count}, got {len(target_list)}.")
    return source_list, target_list


def row_list(rows: Any, name: str) -> list[Mapping[str, Any]]:
    """Rows of a list, a generator, a `Dataset`, a table of pandas, polars or pyarrow, or a mapping of columns.

    Examples:
        >>> row_list({"text": ["a", "b"], "label": [0, 1]}, "rows")
        [{'text': 'a', 'label': 0}, {'text': 'b', 'label': 1}]
    """
    if isinstance(rows, Mapping):
        return _rows_of_columns(rows, name)
    if hasattr(rows, "iterrows"):  # pandas
        rows = rows.to_dict("records")
    elif hasattr(rows, "to_dicts"):  # polars
        rows = rows.to_dicts()
    elif hasattr(rows, "to_pylist"):  # pyarrow
        rows = rows.to_pylist()

    if not _has_items(rows):
        raise _error(name, ROWS, rows)
    listed_rows = list(rows)
    for number, row in enumerate(listed_rows):
        if not isinstance(row, Mapping):
            raise _error(f"{name}[{number}]", "a row, such as {'text': ...}", row)
    return listed_rows


def _rows_of_columns(columns: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    if not all(map(_has_items, columns.values())):
        raise _error(name, ROWS, columns)
    rows: list[Mapping[str, Any]] = []
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        rows.append(row)
    return rows


def by_name(values: Any, name: str, key: str, example: str) -> dict[str, Any]:
    """A mapping by `key`, or the columns of a table; errors have `name` and an example.

    Examples:
        >>> by_name([], "texts", "language", "{'en': [...]}")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: `texts` must be by language, such as {'en': [...]}, got a list: [].
    """
    if isinstance(values, Mapping):
        return dict(values)
    columns = getattr(values, "column_names", getattr(values, "columns", None))
    if columns is None:
        raise _error(name, f"by {key}, such as {example}", values)
    return {str(column): values[column] for column in columns}


def check_mappings(**values: Any) -> None:
    """Raises for values that are no mappings from an id."""
    for name, value in values.items():
        if not isinstance(value, Mapping):
            raise _error(name, "a mapping by id, such as {'q1': ...}", value)


def _has_items(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _error(name: str, expected: str, value: Any) -> XlsrError:
    kind = type(value).__name__
    return XlsrError(f"`{name}` must be {expected}, got a {kind}: {value!r:.40}.")
