"""Names of columns and splits: ours, and those of a file."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hf_xlsr.utils.errors import XlsrError, did_you_mean

Row = dict[str, Any]
"""Columns of texts and of what is known about them, by our names."""

PLACEHOLDER = "{lang}"  # in paths, columns and configurations: each language in turn
NUMERIC_COLUMNS = frozenset({"label", "score", "query_id", "document_id"})  # may be numbers
_DEV = frozenset({"dev", "development", "trial", "val", "valid", "validation"})
PLACE_COLUMNS = ("document", "position")  # of a sentence in running text
KNOWN_COLUMNS = NUMERIC_COLUMNS.union(
    PLACE_COLUMNS,
    ("source", "target", "source_lang", "target_lang"),
    ("first", "second", "text", "lang"),
    ("premise", "hypothesis", "sentence1", "sentence2"),
    ("subset", "split", "category"),
)


class MissingColumn(XlsrError):
    """A file lacks the column that our name `ours` is read from; `names` are those it has."""

    def __init__(
        self,
        file: str,
        column: str,
        ours: str,
        names: Collection[str],
        hint: str = "",
    ) -> None:
        super().__init__(f"{file} has no column '{column}'{hint}; {did_you_mean(column, names)}")
        self.ours = ours
        self.names = tuple(names)


def parse_columns(text: str | Mapping[Any, Any] | None) -> dict[str, str]:
    """Reads a column mapping, written in either direction: our name -> file column.

    The side with one of our names (`KNOWN_COLUMNS`) is ours; of two, the left one. File columns are names, dotted paths
    into nested columns, or positions from 0 in tables without a header.

    Examples:
        >>> parse_columns("en=source, fr=target"), parse_columns({"source": 0})
        ({'source': 'en', 'target': 'fr'}, {'source': '0'})
    """
    if isinstance(text, str):
        pairs: list[Any] = [tuple(map(str.strip, pair.split("="))) for pair in text.split(",")]
    else:
        pairs = list((text or {}).items())

    mapping: dict[str, str] = {}
    for sides in pairs:
        # YAML reads the bare word `no`, the code of Norwegian, as False.
        if len(sides) != 2 or any(isinstance(side, bool) or side in ("", None) for side in sides):
            shown = "=".join(map(str, sides))
            raise XlsrError(f"columns must be pairs of names such as source=en (in quotes in YAML), got '{shown}'.")

        name, column = map(str, sides)
        shown = f"columns: '{name}={column}'"
        if column in KNOWN_COLUMNS and name not in KNOWN_COLUMNS:
            name, column = column, name
        if name in mapping:
            raise XlsrError(f"{shown} maps '{name}' twice")
        if name not in KNOWN_COLUMNS:
            raise XlsrError(f"{shown} has none of our columns; {did_you_mean(name, KNOWN_COLUMNS)}")
        mapping[name] = column
    return mapping


def resolve_columns(
    columns: Mapping[str, str],
    required: Sequence[str],
    names: Collection[str],
    file: str,
    optional: Sequence[str] | None = None,
    selecting: Sequence[str] = (),
) -> dict[str, str]:
    """Our name -> file column for one file; an error for a column that it lacks. See `read_rows` for the arguments."""
    mapping = dict(zip(required, required, strict=True)) | dict(columns)
    if optional is None and not columns:
        optional = list(filter(KNOWN_COLUMNS.__contains__, names))
    for name in optional or ():
        if name in names:
            mapping.setdefault(name, name)

    for name, column in mapping.items():
        if column not in names:
            hint = "" if name in columns else f" for '{name}' (columns='{name}=NAME' names another)"
            raise MissingColumn(file, column, name, names, hint)

    return mapping | selecting_columns(selecting, mapping, names, file)


def selecting_columns(
    selecting: Sequence[str],
    mapping: Collection[str],
    names: Collection[str],
    file: str,
) -> dict[str, str]:
    """Maps `_NAME` to each column that selects rows. Columns in `mapping` may be missing here."""
    columns: dict[str, str] = {}
    for name in selecting:
        if name in names:
            columns[f"_{name}"] = name
        elif name not in mapping:
            raise MissingColumn(file, name, name, names)
    return columns


def flat_names(record: Mapping[str, Any]) -> list[str]:
    """The dotted paths of all leaves of a nested record."""
    names: list[str] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            names += [f"{name}.{leaf}" for leaf in flat_names(value)]
        else:
            names.append(name)
    return names


def column_value(record: Mapping[str, Any], path: str) -> Any:
    """The value under a column's name or dotted path; None where it is missing."""
    if path in record:
        return record[path]
    head, dot, rest = path.partition(".")
    value = record.get(head)
    if isinstance(value, Mapping) and value.keys() == {"language", "translation"} and rest not in value:
        # `TranslationVariableLanguages` of datasets: two lists of equal length.
        value = dict(zip(value["language"], value["translation"], strict=True))
    return column_value(value, rest) if dot and isinstance(value, Mapping) else None


def selected(record: Mapping[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """The values of a record under our names, from our name -> column."""
    return {name: column_value(record, column) for name, column in columns.items()}


def filled(value: Any, language: str) -> Any:
    """A value with the language in place of `{lang}` in all texts inside it."""
    if isinstance(value, str):
        return value.replace(PLACEHOLDER, language)
    if isinstance(value, Mapping):
        return {key: filled(item, language) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(item, language) for item in value]
    return value


def split_name(name: str) -> str:
    """`dev` for any of its names; another name in lower case and without spaces around."""
    plain = str(name).strip().lower()
    return "dev" if plain in _DEV else plain
