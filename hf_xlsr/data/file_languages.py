"""Languages that files are named after: the one place that decides what a name says, and what contradicts it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from langcodes import tag_is_valid

from hf_xlsr.data.languages import language_code, nearest_tag, standard_tag, whole_tag
from hf_xlsr.utils.errors import XlsrError

UNKNOWN = "und"  # the tag of BCP 47 for a language that is not known
# Codes that are words or abbreviations too: they say nothing, unless they are all of a part of the name and a language
# that the user gave.
WORDS = frozenset("am an as be bi cr cv he hi ho id in io is it la lg lo ml mr mt my no or os si sl sm so st".split())
WORDS |= frozenset("ta te ti tl to tr ts vo cat fin her ice man may per run sin sun tel ton src tgt ref".split())
# `de`, `deu`, `pt_BR`, `zho-Hans-CN`, `DE`; not `en-de`, which are two.
_CODE = re.compile(r"(?<![^\W_])(?:[a-z]{2,3}(?:[-_](?:[A-Z][a-z]{3}|[A-Z]{2}))*|[A-Z]{2,3})(?![^\W_])")
_FORMATS = frozenset("gz bz2 xz zst lz4 txt tsv tab csv jsonl ndjson json parquet tmx po mo sgm sgml zip".split())


class _Part(NamedTuple):
    """Codes in a part of a path; `whole` if it is nothing but a code, `kind` is `suffix`, `name` or `folder`."""

    codes: tuple[str, ...]
    whole: bool
    kind: str


def language_of_file(
    path: str | Path, languages: Collection[str] = (), *, ignored: Collection[_Part] = (), folder: bool = True
) -> str | None:
    """The language that the name of a file or of its folder says, as it is written there; None if it says none.

    The last part that is nothing but a code counts (`ref.deu.txt`, `deu_Latn.devtest`, `de.txt`); then codes inside the
    other parts that are among the `languages` of the user (`train_de.txt`); then the folder (`de/test.txt`). Codes of
    three letters without one of two (`kab`) and words (`src`, `no`) must be among the languages too.

    Args:
        path: The file.
        languages: Those that the user gave.
        ignored: Parts that say nothing.
        folder: Whether the folder counts.

    Examples:
        >>> [language_of_file(name) for name in ("ref.deu.txt", "deu_Latn.devtest", "de/a.txt", "de-en.en", "src.txt")]
        ['deu', 'deu_Latn', 'de', 'en', None]
        >>> language_of_file("train_de.txt"), language_of_file("train_de.txt", ["en", "de"])
        (None, 'de')
    """
    wanted = set(map(language_code, languages))
    for part in _parts(Path(path)):
        if part in ignored or (part.kind == "folder" and not folder):
            continue
        tags = {}
        for code in part.codes:
            if _says_language(code, part, wanted):
                tags[language_code(code)] = code
        if len(tags) == 1:
            return next(iter(tags.values()))
    return None


def _parts(path: Path) -> Iterator[_Part]:
    """The parts of a path that have codes, the surest first."""
    names = path.name.split(".")
    while len(names) > 1 and names[-1].lower() in _FORMATS:
        names.pop()
    named_parts = [(name, "name") for name in reversed(names)]
    if len(names) > 1:
        named_parts[0] = (names[-1], "suffix")
    named_parts.append((path.parent.name, "folder"))

    inner = []
    for name, kind in named_parts:
        codes = tuple(filter(tag_is_valid, _CODE.findall(name)))
        part = _Part(codes, codes == (name,), kind)
        if part.whole and kind != "folder":
            yield part
        elif codes:
            inner.append(part)
    yield from inner


def _says_language(code: str, part: _Part, wanted: Collection[str]) -> bool:
    language = language_code(code)
    is_word = code.lower() in WORDS
    if language in wanted:
        return part.whole or not is_word
    is_sure = part.whole and not is_word and not code.isupper() and len(language) == 2
    return is_sure and (part.kind != "folder" or len(code) != 3)


def languages_of_files(paths: Sequence[str | Path], languages: Collection[str] = ()) -> list[str | None]:
    """`language_of_file` of files that belong together: what all their names have in common says nothing.

    A suffix always counts. Codes without script or region become those of `language_code`.

    Examples:
        >>> languages_of_files(["de/src.txt", "de/ref.txt"]), languages_of_files(["a.en", "b.en"])
        ([None, None], ['en', 'en'])
    """
    first, *others = (set(_parts(Path(path))) for path in paths)
    shared = first.intersection(*others) if others else ()
    ignored = [part for part in shared if part.kind != "suffix"]
    tags = []
    for path in paths:
        tag = language_of_file(path, languages, ignored=ignored)
        tags.append(language_code(tag) if tag and re.fullmatch("[A-Za-z]+", tag) else tag)
    return tags


def file_order(paths: Sequence[str | Path], languages: Sequence[str]) -> list[int]:
    """The number of the file of each language: by their names, else in their order.

    Raises:
        XlsrError: A file is named after another language than that in which it would be read.

    Examples:
        >>> file_order(["ref.deu.txt", "src.eng.txt"], ["en", "de"])
        [1, 0]
        >>> file_order(["a.pt_BR.txt", "a.pt.txt"], ["pt", "pt-BR"])
        [1, 0]
    """
    numbers = list(range(len(paths)))
    key = _distinguishing(languages)
    if key is None or len(languages) != len(numbers):
        return numbers
    wanted = list(map(key, languages))

    tags = languages_of_files(paths, languages)
    names = [key(tag) if tag else None for tag in tags]
    if set(names) == set(wanted):
        return list(map(names.index, wanted))
    for path, tag, name, language in zip(paths, tags, names, languages, strict=True):
        if name and language != UNKNOWN and name != key(language):
            raise _contradiction(path, tag, language, "source=0,target=1")
    return numbers


def _distinguishing(languages: Sequence[str]) -> Callable[[str], str] | None:
    """The coarsest name by which languages differ; None where two are the same."""
    for key in (language_code, whole_tag, standard_tag):
        if len(set(map(key, languages))) == len(languages):
            return key
    return None


def check_order(paths: Sequence[str | Path], languages: Sequence[str]) -> None:
    """Raises if the files, in this order, are named after other languages than these."""
    order = file_order(paths, languages)
    if order != sorted(order):
        tags = languages_of_files(paths, languages)
        raise _contradiction(paths[0], tags[0], languages[0])


def text_language(path: str | Path, languages: Sequence[str], *, folder: bool = True) -> str:
    """The language of a file of texts: the one of `languages` that it is named after, else the first.

    Raises:
        XlsrError: The file is named after another language.
    """
    tag = language_of_file(path, languages, folder=folder)
    if not tag or UNKNOWN in languages:
        return languages[0]
    language = nearest_tag(tag, languages)
    if language is None:
        raise _contradiction(path, tag, languages[0])
    return language


def _contradiction(path: str | Path, tag: str | None, language: str, columns: str = "text=0") -> XlsrError:
    return XlsrError(
        f"'{path}' is named after '{tag}' and would be read as '{language}'. Correct the languages, or, if the name says "
        f"something else, give `columns` ({columns})."
    )
