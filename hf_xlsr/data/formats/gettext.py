"""Gettext catalogues (PO and MO), which are small and read whole."""

from __future__ import annotations

import gettext
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import resolve_columns
from hf_xlsr.data.formats.lines import COMPRESSIONS, open_binary, read_errors
from hf_xlsr.data.formats.source import BrokenFile, Record, Source
from hf_xlsr.utils.extras import require_package

COLUMNS = ("msgid", "msgstr")
LARGEST = 1 << 26  # bytes; the parser takes 14 times as much memory
TOO_LARGE = f"it is larger than {LARGEST:,} bytes, the most for a catalogue"


def read_po(source: Source) -> Iterator[Record]:
    """Entries of a PO file that are neither obsolete nor fuzzy."""
    return _read(source, "pofile")


def read_mo(source: Source) -> Iterator[Record]:
    """Entries of an MO file, with their numbers instead of line numbers."""
    return _read(source, "mofile")


def _read(source: Source, parser: str) -> Iterator[Record]:
    require_package("polib")
    import polib

    columns = source.columns or dict(zip(source.required, COLUMNS, strict=False))
    chosen = resolve_columns(columns, source.required, COLUMNS, source.name, selecting=source.selecting)
    # The parser lets errors of many kinds through for a damaged file.
    with read_errors((Exception,)), _plain(source.paths[0]) as path:
        catalogue = getattr(polib, parser)(path)
    forms = _plural_forms(catalogue.metadata.get("Plural-Forms", ""))
    for number, entry in enumerate(catalogue, 1):
        if entry.obsolete or "fuzzy" in getattr(entry, "flags", ()):
            continue
        for msgid, msgstr in _pairs(entry, forms):
            pair = {"msgid": msgid, "msgstr": msgstr}
            row = {ours: pair[theirs] for ours, theirs in chosen.items()}
            yield getattr(entry, "linenum", number), row, f"{msgid}\t{msgstr}"


@contextmanager
def _plain(path: Path) -> Iterator[str]:
    """The path of the decompressed file, since the parser only accepts paths."""
    if path.suffix.lower() not in COMPRESSIONS:
        if path.stat().st_size > LARGEST:
            raise BrokenFile(TOO_LARGE)
        yield str(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / path.stem
        with open_binary(path) as packed, plain.open("wb") as unpacked:
            unpacked.write(packed.read(LARGEST + 1))
            if unpacked.tell() > LARGEST:
                raise BrokenFile(TOO_LARGE)
        yield str(plain)


def _plural_forms(header: str) -> tuple[int, int] | None:
    """The forms for the number 1 and for 5, the plain plural of most languages."""
    match = re.search(r"\bplural\s*=([^;]+)", header)
    try:
        rule = gettext.c2py(match.group(1)) if match else None
        return (rule(1), rule(5)) if rule else None
    except (ValueError, ZeroDivisionError):
        return None


def _pairs(entry: Any, forms: tuple[int, int] | None) -> Iterator[tuple[str, str]]:
    """The singular with the form of 1 and the plural with the form of 5; one form alone belongs to the plural."""
    if not entry.msgid_plural:
        yield entry.msgid, entry.msgstr
        return
    translations: dict[int, str] = entry.msgstr_plural
    one, many = forms or (0, max(translations, default=0))
    if one != many:
        yield entry.msgid, translations.get(one, "")
    yield entry.msgid_plural, translations.get(many, "")
