"""Translation memories (TMX), read as a stream of parser events, and gettext catalogues (PO, MO), read whole."""

from __future__ import annotations

import codecs
import io
import math
import re
import struct
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from gettext import c2py
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError

import numpy as np

from hf_xlsr.data.formats.input_file import InputFile, Record
from hf_xlsr.data.formats.lines import (
    BLOCK,
    MAX_LINE,
    READ_ERRORS,
    BadLine,
    BrokenFile,
    cause,
    open_binary,
    read_errors,
)
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

# Elements of a segment with codes of the native format, such as "<b>" or "{\b", and no words.
CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
DEEPEST = 64
MOST_VARIANTS = 1000  # of a unit, and pairs of them
LONGEST_TAG = 1 << 22  # bytes between two events; the parser keeps a tag or a comment whole
# What XML forbids, as characters and as references to them.
_CONTROLS = re.compile(
    rb"[\0-\x08\x0b\x0c\x0e-\x1f]|&#(?:x0*(?:[0-8bcef]|1[\da-f])|0*(?:[0-8]|1[124-9]|2\d|3[01]));", re.IGNORECASE
)
_OPEN_REFERENCE = re.compile(rb"&[#\w]{0,20}\Z")
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
LARGEST = 1 << 26  # bytes; the parser takes 14 times as much memory
GERMANIC = "nplurals=2; plural=n != 1;"  # what gettext takes where a catalogue does not say it
NUMBERS = range(1000)  # for which plural forms are compared; rules of languages look at the last two digits
_PLURAL_FORMS = re.compile(r"nplurals\s*=\s*(?P<count>\d{1,3})\s*;\s*plural\s*=\s*(?P<plural>[^;]+)")
_TIGHT_FLAGS = re.compile(rb"(^|[\r\n])#,(?=[^\s])")
MO_ORDERS = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}  # order of bytes by the first number of an MO file


@dataclass
class _Unit:
    line: int
    variants: list[tuple[str, str]] = field(default_factory=list)  # (language, text)
    size: int = 0  # characters of all segments

    def texts(self, language: str) -> list[str]:
        """The texts in a language or in one of its regional forms."""
        prefix = _tag(language) + "-"
        return [text for tag, text in self.variants if f"{_tag(tag)}-".startswith(prefix)]


def _tag(language: str) -> str:
    return language.lower().replace("_", "-")


class _Collector:
    """Target of the parser: keeps the units that have ended until they are taken."""

    def __init__(self) -> None:
        require_package("defusedxml")
        from defusedxml.ElementTree import DefusedXMLParser

        self.ended: list[_Unit] = []
        self.parser = DefusedXMLParser(target=self)
        self.parser.parser.StartDoctypeDeclHandler = _refuse_declarations
        self._unit: _Unit | None = None
        self._language = ""
        self._text: list[str] | None = None
        self._codes = 0
        self._depth = 0
        self.events = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.events += 1
        self._depth += 1
        if self._depth > DEEPEST:
            raise BrokenFile(f"its elements are nested more than {DEEPEST} deep")

        tag = tag.rpartition("}")[2]
        if tag == "tu":
            self._unit = _Unit(self.parser.parser.CurrentLineNumber)
        elif tag == "tuv":
            self._language = attributes.get(XML_LANG) or attributes.get("lang", "")
        elif tag == "seg":
            self._text = []
        elif tag in CODES:
            self._codes += 1

    def data(self, text: str) -> None:
        self.events += 1
        if self._text is not None and self._unit is not None and not self._codes:
            self._unit.size += len(text)
            if self._unit.size <= MAX_LINE:
                self._text.append(text)

    def end(self, tag: str) -> None:
        self.events += 1
        self._depth -= 1
        tag = tag.rpartition("}")[2]
        if tag in CODES:
            self._codes -= 1
        elif tag == "seg" and self._unit is not None and self._text is not None:
            self._unit.variants.append((self._language, "".join(self._text)))
            if len(self._unit.variants) > MOST_VARIANTS:  # as an over-long unit
                self._unit.size = MAX_LINE + 1
                self._unit.variants.clear()
            self._text = None
        elif tag == "tu" and self._unit is not None:
            self.ended.append(self._unit)
            self._unit = None

    def close(self) -> None:
        """Called by the parser at the end of the document."""

    def take(self) -> list[_Unit]:
        """The units that have ended since the last call."""
        units = self.ended
        self.ended = []
        return units


def _refuse_declarations(
    name: str,
    system_id: str | None,
    public_id: str | None,
    has_subset: int,
) -> None:
    # A document type that only names the public DTD of TMX is not fetched and harmless; many tools write it.
    from defusedxml.common import DTDForbidden

    if has_subset:
        raise DTDForbidden(name, system_id, public_id)


def read_tmx(file: InputFile) -> Iterator[Record]:
    """Pairs every variant of one language with every variant of the other, unit by unit."""
    languages = dict(zip(file.required, file.languages, strict=False)) | dict(file.columns)
    for name in file.required:
        if name not in languages:
            raise XlsrError(f"{file.name} needs a language for '{name}'; set `languages`.")

    languages |= {f"_{name}": name for name in file.selecting if name not in languages}

    for unit in _units(file):
        raw = "\t".join(text for _, text in unit.variants)
        texts = list(map(unit.texts, languages.values()))
        if unit.size > MAX_LINE:
            file.reject(unit.line, "over-long unit", raw)
        elif [] in texts:
            missing = list(languages.values())[texts.index([])]
            file.reject(unit.line, f"no variant in '{missing}'", raw)
        elif math.prod(map(len, texts)) > MOST_VARIANTS:
            file.reject(unit.line, "over-long unit", raw)
        else:
            for variants in product(*texts):
                yield unit.line, dict(zip(languages, variants, strict=True)), raw


def _units(file: InputFile) -> Iterator[_Unit]:
    collector = _Collector()
    from defusedxml.common import DefusedXmlException

    with open_binary(file.paths[0]) as stream:
        try:
            bytes_without_event = 0
            for block in _blocks(file, stream):
                events = collector.events
                collector.parser.feed(block)
                yield from collector.take()

                bytes_without_event = 0 if collector.events > events else bytes_without_event + len(block)
                if bytes_without_event > LONGEST_TAG:
                    raise BrokenFile(f"it has a tag or a comment of more than {LONGEST_TAG:,} bytes")
            collector.parser.close()
        except (DefusedXmlException, ParseError, LookupError, ValueError, *READ_ERRORS) as error:
            yield from collector.take()  # those before the failure
            raise BrokenFile(cause(error)) from error
        yield from collector.take()


def _blocks(file: InputFile, stream: io.BufferedReader) -> Iterator[str | bytes]:
    """The file in blocks without control characters, each of which would end the document."""
    encoding = _UTF16.get(stream.peek(2)[:2])
    decoder = codecs.getincrementaldecoder(encoding)() if encoding else None
    open_end = b""
    is_last = False
    while not is_last:
        block = stream.read1(BLOCK)
        is_last = not block
        if decoder:
            block = decoder.decode(block, final=is_last).encode()

        data = open_end + block
        end = len(data)
        open_reference = _OPEN_REFERENCE.search(data)
        if open_reference and not is_last:
            end = open_reference.start()
        open_end = data[end:]

        text, count = _CONTROLS.subn(b"", data[:end])
        file.quarantine.repair("control characters", count)
        # The parser takes a str for text whatever encoding the document declares.
        yield text.decode() if decoder else text


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
    """How many forms an entry has, the form of the number 1, and that of most other numbers (the same if there is one)."""

    count: int
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
    if len(translations) != plurals.count:
        raise BadLine("other number of plural forms than in Plural-Forms")
    if plurals.singular != plurals.plural:
        yield entry.msgid, translations.get(plurals.singular, "")
    yield entry.msgid_plural, translations.get(plurals.plural, "")
