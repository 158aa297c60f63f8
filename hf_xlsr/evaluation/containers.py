"""What the functions of protocols take: sentences and rows in any container, as lists; mappings of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from hf_xlsr.utils.errors import XlsrError

Item = TypeVar("Item")


def sentence_list(sentences: Iterable[str], name: str) -> list[str]:
    """Sentences of any iterable: a list, an array, a column of a table; errors have `name`.

    Examples:
        >>> sentence_list(iter(["one", "two"]), "sources")
        ['one', 'two']
        >>> sentence_list("one", "sources")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: `sources` must be a list of sentences, got a str, 'one'.
    """
    if isinstance(sentences, str | bytes | Mapping) or not isinstance(sentences, Iterable):
        raise XlsrError(f"`{name}` must be a list of sentences, got a {_kind(sentences)}, {sentences!r:.40}.")
    texts = list(sentences)
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise XlsrError(f"`{name}` must be a list of sentences, got {text!r:.40} as number {number}.")
    return texts


def parallel_lists(
    sources: Iterable[str], targets: Iterable[str], names: tuple[str, str] = ("sources", "targets")
) -> tuple[list[str], list[str]]:
    """The two sides of translation pairs, which must be as many."""
    source_name, target_name = names
    source_list = sentence_list(sources, source_name)
    target_list = sentence_list(targets, target_name)
    if len(source_list) != len(target_list):
        raise XlsrError(
            f"`{target_name}` must be as many as `{source_name}`, {len(source_list)}, got {len(target_list)}."
        )
    return source_list, target_list


def row_list(rows: Any, name: str) -> list[Mapping[str, Any]]:
    """Rows of a list, a generator, a `Dataset`, a table of pandas, polars or pyarrow, or a mapping of columns.

    Examples:
        >>> row_list({"text": ["a", "b"], "label": [0, 1]}, "rows")
        [{'text': 'a', 'label': 0}, {'text': 'b', 'label': 1}]
    """
    if isinstance(rows, Mapping):
        if not all(_is_column(column) for column in rows.values()):
            raise XlsrError(f"`{name}` must be rows, such as [{{'text': ...}}], got a mapping of {', '.join(rows)}.")
        return [dict(zip(rows, values, strict=True)) for values in zip(*rows.values(), strict=True)]

    if hasattr(rows, "iterrows"):  # pandas
        rows = rows.to_dict("records")
    elif hasattr(rows, "to_dicts"):  # polars
        rows = rows.to_dicts()
    elif hasattr(rows, "to_pylist"):  # pyarrow
        rows = rows.to_pylist()

    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        raise XlsrError(f"`{name}` must be rows, such as [{{'text': ...}}], got a {_kind(rows)}, {rows!r:.40}.")
    listed = list(rows)
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping):
            raise XlsrError(f"`{name}` must be rows, such as [{{'text': ...}}], got {row!r:.40} as number {number}.")
    return listed


def by_name(values: Any, name: str, key: str, example: str) -> dict[str, Any]:
    """A mapping by `key`, or the columns of a table; errors have `name` and an example.

    Examples:
        >>> by_name([], "texts", "language", "{'en': [...]}")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: `texts` must be by language, such as {'en': [...]}, got a list.
    """
    if isinstance(values, Mapping):
        return dict(values)
    columns = getattr(values, "column_names", getattr(values, "columns", None))
    if columns is None or not hasattr(values, "__getitem__"):
        raise XlsrError(f"`{name}` must be by {key}, such as {example}, got a {_kind(values)}.")
    return {str(column): values[column] for column in columns}


def check_mappings(**values: Any) -> None:
    """Raises for values that are no mappings from an id."""
    for name, value in values.items():
        if not isinstance(value, Mapping):
            raise XlsrError(f"`{name}` must be a mapping by id, such as {{'q1': ...}}, got a {_kind(value)}.")


def _is_column(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)


def _kind(value: Any) -> str:
    return type(value).__name__
