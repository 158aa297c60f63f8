"""Gettext catalogues (PO, MO), read whole."""

from __future__ import annotations

import re
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from gettext import c2py
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hf_xlsr.data.formats.input_file import InputFile, Record
from hf_xlsr.data.formats.lines import BadLine, BrokenFile, open_binary, read_errors
from hf_xlsr.utils.extras import require_package

LARGEST = 1 << 26  # bytes; the parser takes 14 times as much memory
GERMANIC = "nplurals=2; plural=n != 1;"  # what gettext takes where a catalogue does not say it
NUMBERS = range(1000)  # for which plural forms are compared; rules of languages look at the last two digits
_PLURAL_FORMS = re.compile(r"nplurals\s*=\s*(?P<count>\d{1,3})\s*;\s*plural\s*=\s*(?P<plural>[^;]+)")
_TIGHT_FLAGS = re.compile(rb"(^|[\r\n])#,(?=[^\s])")
MO_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}  # order of bytes by the first number of an MO file


def _read_catalogue(file: InputFile, parser: str) -> Iterator[Record]:
    """Entries that are neither obsolete nor fuzzy; of an MO file with their numbers instead of line numbers."""
    require_package("polib")
    import polib

    names = ("msgid", "msgstr")
    columns = file.resolve(names, dict(zip(file.required, names, strict=False)))
    # The parser lets errors of many kinds through for a damaged file.
    with read_errors((Exception,)), _plain(file.paths[0]) as path:
        catalogue = getattr(polib, parser)(path)
    header = {name.lower(): value for name, value in catalogue.metadata.items()}
    plurals = _plural_forms(header.get("plural-forms", GERMANIC))

    for position, entry in enumerate(catalogue, 1):
        number = getattr(entry, "linenum", position)
        if entry.obsolete or "fuzzy" in getattr(entry, "flags", ()):
            continue
        try:
            pairs = list(_pairs(entry, plurals))
        except BadLine as fault:
            file.reject(number, fault, "\t".join([entry.msgid_plural, *entry.msgstr_plural.values()]))
            continue

        for pair in pairs:
            texts = dict(zip(names, pair, strict=True))
            row = {name: texts[column] for name, column in columns.items()}
            yield number, row, "\t".join(pair)


read_po = partial(_read_catalogue, parser="pofile")
read_mo = partial(_read_catalogue, parser="mofile")


@contextmanager
def _plain(path: Path) -> Iterator[str]:
    """The path of a decompressed copy, since the parser only accepts paths."""
    with open_binary(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise BrokenFile(f"it is larger than {LARGEST:,} bytes, the most for a catalogue")
    if content[:4] in MO_ORDERS:
        _check_texts(content)
    else:
        content = _TIGHT_FLAGS.sub(rb"\1#, ", content)

    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "catalogue"
        plain.write_bytes(content)
        yield str(plain)


def _check_texts(content: bytes) -> None:
    """Raises for an MO file whose entries share bytes: one text of a megabyte may stand in a million entries."""
    order = MO_ORDERS[content[:4]]
    count, originals, translations = struct.unpack_from(f"{order}3I", content, 8)
    total = 0
    for table in (originals, translations):
        entries = np.frombuffer(content[table : table + 8 * count], f"{order}u4")  # a length and a place each
        total += int(entries[::2].sum(dtype=np.int64))
    if total > len(content):
        raise BrokenFile("its texts are longer than the file")


class _PluralForms(NamedTuple):
    """How many forms an entry has, the form of the number 1, and that of most other numbers; of one form, the same."""

    num_forms: int
    singular: int
    plural: int


def _plural_forms(header: str) -> _PluralForms | None:
    """What `Plural-Forms` says, evaluated for many numbers; None where it cannot be evaluated."""
    if "INTEGER" in header:  # the template that nobody has filled in
        header = GERMANIC
    expression = _PLURAL_FORMS.search(header)
    if expression is None:
        return None
    try:
        form_of = c2py(expression["plural"])
        numbers_of_form = Counter(map(form_of, NUMBERS))
        singular = form_of(1)
    except (ArithmeticError, ValueError):
        return None

    count = int(expression["count"])
    if not all(0 <= form < count for form in numbers_of_form):
        return None
    del numbers_of_form[singular]
    plural = max(numbers_of_form, key=numbers_of_form.__getitem__, default=singular)
    return _PluralForms(count, singular, plural)


def _pairs(entry: Any, plurals: _PluralForms | None) -> Iterator[tuple[str, str]]:
    """The singular with the form of 1, the plural with that of most numbers; one form for all belongs to the plural."""
    if not entry.msgid_plural:
        yield entry.msgid, entry.msgstr
        return

    translations: dict[int, str] = entry.msgstr_plural
    if plurals is None:
        raise BadLine("plural without valid Plural-Forms")
    if len(translations) != plurals.num_forms:
        raise BadLine("other number of plural forms than in Plural-Forms")
    if plurals.singular != plurals.plural:
        yield entry.msgid, translations.get(plurals.singular, "")
    yield entry.msgid_plural, translations.get(plurals.plural, "")
