"""The translations that the corpus `bible` holds, and what is cleaned from their verses."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Translation:
    """One translation of the Bible.

    Attributes:
        code: Its name in the database, one character.
        language: ISO 639-1.
        title: What the package calls it.
        year: The year that the package states; None where it states none.
        status: Copyright as generally known, not legal advice.
        default: Read when the language is asked for and no version is named.
    """

    code: str
    language: str
    title: str
    year: int | None
    status: str
    default: bool = False


PUBLIC_DOMAIN = "public domain"
_REPORTED = "reported public domain, check"
_OWNED = "copyrighted, check"
_CC = "free licence (CC BY-SA 4.0), check"

# Titles and years are those of the package's own menu. The status is general knowledge, not from the package, and is
# stated with caution: what the package marks with (c), and revisions of old texts, count as copyrighted until checked.
TRANSLATIONS: tuple[Translation, ...] = (
    Translation("y", "ar", "Smith & Van Dyke", 1865, PUBLIC_DOMAIN, default=True),
    Translation("b", "bn", "Bengali C.L.", 2016, _OWNED, default=True),
    Translation("e", "de", "Elberfelder", 1932, _REPORTED, default=True),
    Translation("s", "de", "Schlachter", 1951, _OWNED),
    Translation("4", "en", "World English Bible", 2000, PUBLIC_DOMAIN, default=True),
    Translation("k", "en", "King James Version", 1611, "public domain (Crown rights in the United Kingdom)"),
    Translation("3", "en", "Bible in Basic English", 1949, _REPORTED),
    Translation("2", "en", "King James 2000", 2000, _OWNED),
    Translation("v", "es", "Reina Valera", 1909, PUBLIC_DOMAIN, default=True),
    Translation("9", "es", "Reina Valera Actualizada", 1989, _OWNED),
    Translation("p", "fa", "Persian Old Version", 1895, PUBLIC_DOMAIN, default=True),
    Translation("l", "fr", "Louis Segond", 1910, PUBLIC_DOMAIN, default=True),
    Translation("5", "fr", "Darby", None, "public domain text, edition unidentified, check"),
    Translation("o", "fr", "Ostervald", 1996, _OWNED),
    Translation("i", "hi", "Hindi Indian Revised Version", 2017, _CC, default=True),
    Translation("6", "id", "Terjemahan Baru", 1974, _OWNED, default=True),
    Translation("d", "it", "Diodati", 1649, PUBLIC_DOMAIN, default=True),
    Translation("1", "it", "Nuova Diodati", 1991, _OWNED),
    Translation("j", "ja", "New Japanese Bible", 1973, _OWNED, default=True),
    Translation("n", "ko", "Korean Revised Version", 1961, _REPORTED, default=True),
    Translation("z", "pl", "Biblia Warszawska", 1975, _OWNED, default=True),
    Translation("a", "pt", "Almeida Corrigida Fiel", 1995, _OWNED, default=True),
    Translation("u", "ro", "Romanian Cornilescu", 1928, _OWNED, default=True),
    Translation("r", "ru", "Russian Synodal Translation", 1876, PUBLIC_DOMAIN, default=True),
    Translation("h", "sw", "Swahili Union Version", 1997, _OWNED, default=True),
    Translation("f", "tl", "Ang Dating Biblia", 1905, PUBLIC_DOMAIN, default=True),
    Translation("g", "tl", "Tagalog Unlocked Literal Bible", 2018, _CC),
    Translation("t", "tr", "New Turkish Bible", 2001, _OWNED, default=True),
    Translation("8", "uk", "Ohienko", 1962, _OWNED, default=True),
    Translation("7", "vi", "Tiếng Việt", 1934, _REPORTED, default=True),
    Translation("c", "zh", "New Chinese Version Simplified", None, _OWNED, default=True),
)
LANGUAGES: tuple[str, ...] = tuple(sorted({translation.language for translation in TRANSLATIONS}))
BY_CODE = {translation.code: translation for translation in TRANSLATIONS}

# Controls and marks of direction. The joiners U+200C and U+200D stay: Persian, Hindi and Bengali spell with them.
_INVISIBLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u200b\u200e\u200f\u202a-\u202e\u2060\ufeff]")
_PLACEHOLDERS = frozenset(
    {
        "(aynı)",
        "(앞절과 동일)",
        "(없음)",
        "12절과 상동",
        "8절과 같음",
        "Verszeile ohne Text",
        "dummy verses inserted by amos",
        "empty verses content detected by amos",
        "상동",
        "［本節欠如］",
    }
)
_NOTE = re.compile(
    r"\(\d+[-.:]+\d+[a-z]?\)"  # the verse's number in another numbering: (22:10), (22-11)
    r"|\(ADDED[^()]*\)"  # the package's own insertions, in English
    r"|[(（\[][^()（）\[\]]*\d:\d[^()（）\[\]]*[)）\]]"  # references: (Heb. 1:10), [Genesis 2:24]
    r"|（[^（）]*(?:原文|或译|抄本|译本|古卷)[^（）]*）"  # translators' notes in the Chinese text
)
# Words that translators supplied stand in square brackets: the brackets go, the words stay. Asterisks call footnotes.
_MARK = re.compile(r"\*[a-z]+\*|(?<!\*)\*(?!\*)|[\[\]#<>]")
_GAP = re.compile(r"\*{2,}")
_SPACE_BEFORE_STOP = re.compile(r"\s+(?=[,.](?![.,])|[，。；：、])")
_REPAIRS: dict[str, tuple[tuple[re.Pattern[str], str], ...]] = {
    # The heading of the next psalm at the end of a psalm; a grave accent for every apostrophe.
    "4": ((re.compile(r"\s*(?:BOOK [IVX]+ )?Psalm \d+.*$"), ""), (re.compile("`"), "'")),
    "8": ((re.compile(r"\s\d+"), ""),),  # numbers of a concordance; the text itself writes numbers in words
    "v": ((re.compile(r"\xad(?=\w)"), "¡"),),  # the mark's code in an old character set
}


def clean_verse(text: str, version: str) -> str:
    """A verse without the markup of this file, with single spaces; "" where no text is left.

    Dropped: numbers of other numberings, cross-references, footnote calls, the brackets around supplied words, control
    characters, placeholders for verses that a translation leaves out or has merged, and for some versions what is
    listed in this module. The words of the text are never changed; spaces before commas and full stops go.

    Args:
        text: The verse as stored.
        version: The translation's code; some repairs belong to one translation only.

    Example:
        >>> clean_verse("(22:9) Be the [LORD`s] own,  he said*.", "4")
        "Be the LORD's own, he said."
        >>> clean_verse("(aynı)", "t")
        ''
    """
    for pattern, replacement in _REPAIRS.get(version, ()):
        text = pattern.sub(replacement, text)
    text = _INVISIBLE.sub("", text)
    if text.strip() in _PLACEHOLDERS:
        return ""
    text = _MARK.sub("", _GAP.sub(" ", _NOTE.sub(" ", text)))
    text = _SPACE_BEFORE_STOP.sub("", " ".join(text.split()))
    return text if any(character.isalnum() for character in text) else ""
