"""Translation memories (TMX), read as a stream of parser events; a fault costs one unit, not the file."""

from __future__ import annotations

import codecs
import io
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from html.entities import html5
from itertools import product
from typing import Any
from xml.etree.ElementTree import ParseError
from xml.sax.saxutils import escape

from hf_xlsr.data.formats.input_file import InputFile, Record
from hf_xlsr.data.formats.lines import BLOCK, MAX_LINE, READ_ERRORS, BrokenFile, cause, open_binary, read_errors
from hf_xlsr.data.languages import tags_meant
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

# Elements of a segment with codes of the native format, such as "<b>" or "{\b", and no words.
CODES = frozenset({"bpt", "ept", "ph", "it", "ut"})
DEEPEST = 64
MOST_VARIANTS = 1000  # of a unit, and pairs of them; and languages of a file
LONGEST_TAG = 1 << 22  # bytes between two events; the parser keeps a tag or a comment whole
MALFORMED = "malformed XML"
TOO_LONG = "over-long unit"
XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
XML_NAMES = frozenset({"amp", "apos", "gt", "lt", "quot"})

_UTF16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", b"<\0": "utf-16-le", b"\0<": "utf-16-be"}
_DECLARED = re.compile(rb"""<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]+)""")
# Declarations of these are kept by tools that write UTF-8.
_NOT_DECLARED = re.compile("utf-?16.*|ucs-?2|(us-)?ascii", re.IGNORECASE)
_LANGUAGE = re.compile(rb"""<tuv\s(?:[^>]{0,500}?\s)?(?:xml:)?lang\s*=\s*["']([^"'<>]{1,100})""")
_LONGEST_MATCH = 700
# What the parser gets before the rest of a file in which it met a fault, and where this rest begins.
_OPENING = b"<tmx><body>"
_NEXT = re.compile(rb"(?P<end></tu\s*>)|</body\s*>|(?<=.)<tu(?=[\s>/])", re.DOTALL)
_LONGEST_NEXT = 20
# References, and where `&` is none.
_REFERENCE = re.compile(r"(?P<literal><!\[CDATA\[.*?\]\]>|<!--.*?-->)|&(?:(?P<name>#?\w+);)?", re.DOTALL)
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass
class _Unit:
    line: int
    start: int = 0  # in the bytes that the parser took
    variants: list[tuple[str, str]] = field(default_factory=list)  # (language, text)
    size: int = 0  # characters of all segments
    fault: str = ""
    raw: str = ""  # of a malformed unit

    def texts(self, tags: Collection[str]) -> list[str]:
        """The texts of the variants with some tags."""
        return [text for tag, text in self.variants if tag in tags]


class _Collector:
    """Target of the parser: keeps the units that have ended until they are taken."""

    def __init__(self, encoding: str, lines_before: int = 0) -> None:
        from defusedxml.ElementTree import DefusedXMLParser

        self.ended: list[_Unit] = []
        self.parser = DefusedXMLParser(target=self, encoding=encoding)
        self.parser.parser.StartDoctypeDeclHandler = _refuse_declarations
        self.lines_before = lines_before
        self.unit: _Unit | None = None
        self.depth = 0
        self.events = 0
        self._language = ""
        self._text: list[str] | None = None
        self._codes = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.events += 1
        self.depth += 1
        if self.depth > DEEPEST:
            raise BrokenFile(f"its elements are nested more than {DEEPEST} deep")

        tag = tag.rpartition("}")[2]
        if tag == "tu":
            if self.unit is not None:  # its end is missing
                self._end_unit(MALFORMED)
            expat = self.parser.parser
            self.unit = _Unit(self.lines_before + expat.CurrentLineNumber, expat.CurrentByteIndex)
        elif tag == "tuv":
            self._language = attributes.get(XML_LANG) or attributes.get("lang", "")
        elif tag == "seg":
            self._text = []
        elif tag in CODES:
            self._codes += 1

    def data(self, text: str) -> None:
        self.events += 1
        if self._text is not None and self.unit is not None and not self._codes:
            self.unit.size += len(text)
            if self.unit.size <= MAX_LINE:
                self._text.append(text)

    def end(self, tag: str) -> None:
        self.events += 1
        self.depth -= 1
        tag = tag.rpartition("}")[2]
        if tag in CODES:
            self._codes -= 1
        elif tag == "seg" and self.unit is not None and self._text is not None:
            self.unit.variants.append((self._language, "".join(self._text)))
            if len(self.unit.variants) > MOST_VARIANTS:  # as an over-long unit
                self.unit.size = MAX_LINE + 1
                self.unit.variants.clear()
            self._text = None
        elif tag == "tu" and self.unit is not None:
            self._end_unit(TOO_LONG if self.unit.size > MAX_LINE else "")

    def _end_unit(self, fault: str) -> None:
        if self.unit is not None:
            self.unit.fault = fault
            self.ended.append(self.unit)
            self.unit = None

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


class _UnitReader:
    """Units of a file that comes block by block.

    The parser cannot go on after a fault. The unit with the fault is then repaired or given as malformed, and another
    parser reads what follows it.
    """

    def __init__(self, file: InputFile, encoding: str) -> None:
        self.file = file
        self.encoding = encoding
        self.collector = _Collector(encoding)
        self.fault: ParseError | None = None
        # What the parser took since the start of the open unit, or what follows a fault, and the line of its start.
        self.held = bytearray()
        self.held_start = 0  # in the bytes that the parser took
        self.line = 1
        self.bytes_without_event = 0

    def read(self, block: bytes) -> Iterator[_Unit]:
        """The units that end in a block; an empty block is the end of the file."""
        is_last = not block
        self._parse(block)
        yield from self.collector.take()

        while self.fault is not None:
            found = _NEXT.search(self.held)
            if found is None:
                yield from self._without_next(is_last)
                return

            end = found.end() if found["end"] else found.start()
            raw = bytes(self.held[:end])
            rest = bytes(self.held[end:])
            yield from self._mended_units(raw)
            self._restart(self.line + raw.count(b"\n"))

            if rest:
                self._parse(rest)
            if is_last and self.fault is None:
                self._parse(b"")
            yield from self.collector.take()

    def _parse(self, data: bytes) -> None:
        """Gives bytes to the parser, or holds them after a fault; none are the end of the file."""
        self.held += data
        if self.fault is not None:
            return

        collector = self.collector
        events = collector.events
        expat = collector.parser.parser
        try:
            if data:
                collector.parser.feed(data)
            else:
                collector.parser.close()
        except ParseError as fault:
            self.fault = fault
            self.line = collector.lines_before + fault.position[0]
            position = expat.ErrorByteIndex - len("</")  # of an end tag, the index of its name
        else:
            position = expat.CurrentByteIndex if data else 0
        if collector.unit is not None:
            position = collector.unit.start
            self.line = collector.unit.line

        # Only the open unit may need a repair, and only if it is short enough to be held.
        size = min(max(position - self.held_start, 0), len(self.held))
        if size < len(self.held) - MAX_LINE and self.fault is None:
            size = len(self.held)
        del self.held[:size]
        self.held_start += size

        self.bytes_without_event = 0 if collector.events > events else self.bytes_without_event + len(data)
        if self.bytes_without_event > LONGEST_TAG:
            raise BrokenFile(f"it has a tag or a comment of more than {LONGEST_TAG:,} bytes")

    def _restart(self, line: int) -> None:
        """Begins with another parser, on a line of the file."""
        self.collector = _Collector(self.encoding, line - 1)
        self.collector.parser.feed(_OPENING)
        self.fault = None
        self.held.clear()
        self.held_start = len(_OPENING)
        self.bytes_without_event = 0

    def _without_next(self, is_last: bool) -> Iterator[_Unit]:
        """What follows a fault, as far as no further unit is in sight: an error at the end of an incomplete file."""
        if is_last:
            is_complete = self.collector.depth == 0 and self.collector.events
            if not is_complete:
                raise BrokenFile(cause(self.fault or EOFError())) from self.fault
            yield from self._mended_units(bytes(self.held))
        elif len(self.held) > MAX_LINE:
            size = len(self.held) - _LONGEST_NEXT
            self.line += self.held[:size].count(b"\n")
            del self.held[:size]

    def _mended_units(self, raw: bytes) -> list[_Unit]:
        """The units in a piece of a file, without the faults that can be repaired; else one that says why not."""
        if not raw.strip():
            return []
        broken = _Unit(self.line, fault=MALFORMED, raw=raw.decode(self.encoding, "backslashreplace"))
        try:
            text = raw.decode(self.encoding)
        except UnicodeDecodeError:
            broken.fault = "invalid UTF-8"
            return [broken]

        collector = _Collector("utf-8")
        try:
            mended, repairs = _mended(text)
            collector.parser.feed(f"<tmx><body>{mended}</body></tmx>")
        except (ParseError, UnicodeError):
            return [broken]

        units = collector.take()
        for unit in units:
            unit.line = self.line
        for fault, count in repairs.items():
            self.file.quarantine.repair(fault, count)
        return units or [broken]


def _mended(text: str) -> tuple[str, Counter[str]]:
    """XML as its author meant it, and how often each fault was repaired; `UnicodeError` for half a surrogate pair."""
    repairs = Counter[str]()

    def character(reference: re.Match[str]) -> str:
        name = reference["name"]
        if reference["literal"] or name in XML_NAMES:
            return reference[0]
        if name is None:
            repairs["bare &"] += 1
            return "&amp;"
        if not name.startswith("#"):
            repairs["entities of HTML" if f"{name};" in html5 else "bare &"] += 1
            return escape(html5.get(f"{name};", reference[0]))

        try:
            text = chr(int(name[2:], 16) if name[1] in "xX" else int(name[1:]))
        except (IndexError, OverflowError, ValueError):
            repairs["bare &"] += 1
            return escape(reference[0])
        if "\ud800" <= text <= "\udfff":
            repairs["references to surrogates"] += 1
        return text if _NOT_XML.match(text) else reference[0].replace("&#X", "&#x")

    text = _REFERENCE.sub(character, text)
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")  # which joins pairs
    text, count = _NOT_XML.subn("", text)
    if count:
        repairs["control characters"] = count
    return text, repairs


def read_tmx(file: InputFile) -> Iterator[Record]:
    """Pairs every variant of one language with every variant of the other, unit by unit."""
    languages = dict(zip(file.required, file.languages, strict=False)) | dict(file.columns)
    for name in file.required:
        if name not in languages:
            raise XlsrError(f"{file.name} needs a language for '{name}'; set `languages`.")
    languages |= {f"_{name}": name for name in file.selecting if name not in languages}

    known_tags = _languages_of(file)
    wanted = [tags_meant(language, known_tags) for language in languages.values()]

    num_units = 0  # less those that are too long, whatever their languages
    num_pairs = 0
    for unit in _units(file):
        num_units += unit.fault != TOO_LONG
        raw = unit.raw or "\t".join(text for _, text in unit.variants)
        texts = [unit.texts(tags) for tags in wanted]
        if unit.fault:
            file.reject(unit.line, unit.fault, raw)
        elif [] in texts:
            missing = list(languages.values())[texts.index([])]
            file.reject(unit.line, f"no variant in '{missing}'", raw)
        elif math.prod(map(len, texts)) > MOST_VARIANTS:
            file.reject(unit.line, TOO_LONG, raw)
        else:
            for variants in product(*texts):
                num_pairs += 1
                yield unit.line, dict(zip(languages, variants, strict=True)), raw

    if num_units and not num_pairs:
        asked = ", ".join(dict.fromkeys(languages.values()))
        known = ", ".join(sorted(known_tags)) or "none"
        message = f"{file.name} has no unit in {asked}; the languages of the file are {known}. Set `languages`."
        raise XlsrError(f"{message} {file.quarantine.report()}".rstrip())


def _languages_of(file: InputFile) -> set[str]:
    """The languages of the variants of a file, as they are written there; read without a parser."""
    tags: set[str] = set()
    with open_binary(file.paths[0]) as stream:
        end = b""
        try:
            encoding = _encoding(stream)
            for block in _blocks(stream):
                data = end + block
                end = data[-_LONGEST_MATCH:]
                for tag in _LANGUAGE.findall(data):
                    if len(tags) < MOST_VARIANTS:
                        tags.add(tag.decode(encoding, "replace"))
        except (BrokenFile, LookupError, ValueError, *READ_ERRORS):
            pass  # reading the units says it, after those before the fault
    return tags


def _units(file: InputFile) -> Iterator[_Unit]:
    require_package("defusedxml")
    from defusedxml.common import DefusedXmlException

    with open_binary(file.paths[0]) as stream:
        reader = _UnitReader(file, _encoding(stream))
        try:
            for block in _blocks(stream):
                yield from reader.read(block)
            yield from reader.read(b"")
        except (DefusedXmlException, LookupError, ValueError, *READ_ERRORS) as error:
            yield from reader.collector.take()  # those before the failure
            raise BrokenFile(cause(error)) from error


def _encoding(stream: io.BufferedReader) -> str:
    """The encoding of the blocks of a file: UTF-8 unless the file declares another one with letters of one byte."""
    with read_errors():
        start = stream.peek(BLOCK)[:1000]
    declared: Any = _DECLARED.search(start)
    name = declared[1].decode() if declared else ""
    return "utf-8" if not name or _NOT_DECLARED.fullmatch(name) else name


def _blocks(stream: io.BufferedReader) -> Iterator[bytes]:
    """The file in blocks; UTF-16 becomes UTF-8."""
    encoding = _UTF16.get(stream.peek(2)[:2])
    if encoding is None:
        yield from iter(lambda: stream.read1(BLOCK), b"")
        return

    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    while block := stream.read1(BLOCK):
        text = decoder.decode(block)
        if text:
            yield text.encode("utf-8", "surrogatepass")
    decoder.decode(b"", final=True)
