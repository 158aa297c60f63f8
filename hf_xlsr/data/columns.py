"""Which column of a file is which of ours."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hf_xlsr.utils.errors import XlsrError, nearest

NUMERIC_COLUMNS = frozenset({"label", "score"})
PLACE_COLUMNS = ("document", "position")  # of a sentence in running text
KNOWN_COLUMNS = NUMERIC_COLUMNS | {
    *PLACE_COLUMNS,
    *("source", "target", "source_lang", "target_lang"),
    *("first", "second", "text", "lang"),
    *("premise", "hypothesis", "sentence1", "sentence2"),
    *("subset", "split", "category"),
}


class MissingColumn(XlsrError):
    """A file lacks a column.

    Args:
        message: The sentence for the user.
        file: What lacks it.
        column: The name looked for in the file.
        ours: Our name of it.
        names: The columns that the file has.
    """

    def __init__(self, message: str, *, file: str, column: str, ours: str, names: Collection[str]) -> None:
        super().__init__(message)
        self.file, self.column, self.ours, self.names = file, column, ours, tuple(names)


def parse_columns(text: str | Mapping[Any, Any] | None) -> dict[str, str]:
    """Reads a column mapping, written in either direction.

    The side that is one of our names (`KNOWN_COLUMNS`) is ours; where both are, the left one. File columns are names,
    dotted paths into nested columns, or positions from 0 in tables without a header.

    Args:
        text: `"source=en,target=fr"`, `"en=source,fr=target"`, the same as a mapping, or None for an empty one.

    Returns:
        Our name -> file column, in the order given.

    Raises:
        XlsrError: A piece is malformed, holds none of our names, or one of our names is given twice.

    Example:
        >>> parse_columns("en=source, fr=target")
        {'source': 'en', 'target': 'fr'}
        >>> parse_columns({"source": 0, "target": 1})
        {'source': '0', 'target': '1'}
    """
    pairs: list[tuple[Any, Any]]
    if text is None:
        pairs = []
    elif isinstance(text, str):
        pairs = [_split(piece, text) for piece in text.split(",")]
    else:
        pairs = list(text.items())
    mapping: dict[str, str] = {}
    for sides in pairs:
        # YAML reads the bare word `no`, the code of Norwegian, as False.
        if any(isinstance(side, bool) or not isinstance(side, (str, int)) or side == "" for side in sides):
            raise XlsrError(f"columns maps {sides[0]!r} to {sides[1]!r}; both must be names, in quotes in YAML.")
        left, right = map(str, sides)
        if left in KNOWN_COLUMNS:
            ours, theirs = left, right
        elif right in KNOWN_COLUMNS:
            ours, theirs = right, left
        else:
            hint = min((nearest(side, KNOWN_COLUMNS) for side in (left, right)), key=len)
            raise XlsrError(f"columns piece '{left}={right}' names none of our columns; {hint}")
        if ours in mapping:
            raise XlsrError(f"columns names '{ours}' twice, for '{mapping[ours]}' and '{theirs}'; keep one of them.")
        mapping[ours] = theirs
    return mapping


def _split(piece: str, text: str) -> tuple[str, str]:
    sides = [side.strip() for side in piece.split("=")]
    if len(sides) != 2 or not all(sides):
        raise XlsrError(f"columns piece '{piece.strip()}' in '{text}' is not OURS=THEIRS; write source=en,target=fr.")
    return sides[0], sides[1]


def resolve_columns(
    columns: Mapping[str, str],
    required: Sequence[str],
    names: Collection[str],
    file: str,
    optional: Sequence[str] | None = None,
    selecting: Sequence[str] = (),
) -> dict[str, str]:
    """Completes a mapping for one file and checks that the file has the columns.

    Args:
        columns: Our name -> file column; empty, without `optional`, means identity: all columns of the file that bear
            one of our names.
        required: Our names that must be there; those without a mapping stand under their own name.
        names: The columns of the file.
        file: For the error sentence.
        optional: Our names that are read where the file has a column of that name and nothing else is mapped to it.
        selecting: Columns that rows are chosen by: those of the file, and of our names only where it has no such.

    Returns:
        Our name -> file column, the required ones first; of a column of `selecting`, its name behind an underscore.

    Raises:
        MissingColumn: The file lacks a column.

    Example:
        >>> resolve_columns({"target": "fr"}, ["source", "target"], ["source", "fr", "id"], "a.tsv")
        {'source': 'source', 'target': 'fr'}
    """
    mapping = {ours: ours for ours in required} | dict(columns)
    if optional is not None:
        mapping |= {name: name for name in optional if name in names and name not in mapping}
    elif not columns:
        mapping |= {name: name for name in names if name in KNOWN_COLUMNS}
    for ours, theirs in mapping.items():
        if theirs not in names:
            way = "" if ours in columns else f" for '{ours}' (columns='{ours}=NAME' names another)"
            message = f"{file} has no column '{theirs}'{way}; {nearest(theirs, names)}"
            raise MissingColumn(message, file=file, column=theirs, ours=ours, names=names)
    return mapping | selecting_columns(selecting, mapping, names, file)


def selecting_columns(
    selecting: Sequence[str], mapping: Collection[str], names: Collection[str], file: str
) -> dict[str, str]:
    """The columns of a file that rows are chosen by, under names of their own beside ours.

    Args:
        selecting: Their names.
        mapping: Our names that are read anyway; one of these serves where the file has no column of the name.
        names: The columns of the file.
        file: For the error sentence.

    Raises:
        MissingColumn: The file lacks a column.

    Example:
        >>> selecting_columns(["id", "source"], ["source", "target"], ["id", "en", "de"], "a.tsv")
        {'_id': 'id'}
    """
    for name in selecting:
        if name not in names and name not in mapping:
            message = f"{file} has no column '{name}'; {nearest(name, names)}"
            raise MissingColumn(message, file=file, column=name, ours=name, names=names)
    return {f"_{name}": name for name in selecting if name in names}


def flat_names(record: Mapping[str, Any]) -> list[str]:
    """The dotted paths of all leaves of a nested record.

    Example:
        >>> flat_names({"id": 1, "translation": {"en": "a", "fr": "b"}})
        ['id', 'translation.en', 'translation.fr']
    """
    names: list[str] = []
    for name, value in record.items():
        names += [f"{name}.{leaf}" for leaf in flat_names(value)] if isinstance(value, Mapping) else [name]
    return names


def column_value(record: Mapping[str, Any], path: str) -> Any:
    """The value under a column's name or dotted path; None where it is missing.

    Example:
        >>> column_value({"translation": {"en": "a"}}, "translation.en")
        'a'
    """
    if path in record:
        return record[path]
    head, dot, rest = path.partition(".")
    value = record.get(head)
    return column_value(value, rest) if dot and isinstance(value, Mapping) else None
