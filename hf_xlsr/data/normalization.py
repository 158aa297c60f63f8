"""Normalisation of text, keys to compare texts, and their width."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Literal

# Control characters that are not white space, surrogates, and format characters without a width. None is printable, and
# `str.isprintable` is several times as fast as a search.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0001]+"
)
_WIDE = re.compile("[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60\U00020000-\U0003fffd]")
_VIRAMA = 9  # canonical combining class


def normalize_text(
    text: str,
    form: Literal["NFKC", "NFC"] = "NFKC",
    lowercase: bool = False,
) -> str:
    """Normalises Unicode, removes invisible characters and collapses white space; idempotent.

    Joiners between letters stay: Persian, Hindi and other languages spell with them. `NFKC` also replaces ligatures,
    full-width letters and other variants; `NFC` does not.
    """
    text = _compose(text, form)
    before = ""
    # Characters that become adjacent can compose or change places, so that a joiner loses its neighbours.
    while text != before and not text.isprintable():
        before = text
        text = _compose(_INVISIBLE.sub(_keep_joiner, text), form)

    if lowercase:
        text = _compose(text.lower(), form)
    return " ".join(text.split())


def _compose(text: str, form: Literal["NFKC", "NFC"]) -> str:
    return text if text.isascii() else unicodedata.normalize(form, text)


def _keep_joiner(match: re.Match[str]) -> str:
    """The joiner among invisible characters if letters need it, else nothing."""
    start, end = match.span()
    before = match.string[max(start - 1, 0) : start]
    after = match.string[end : end + 1]
    if not _is_letter_or_mark(before):
        return ""
    # After a virama a joiner selects the half form of the consonant, also at the end of a word.
    if not _is_letter_or_mark(after) and unicodedata.combining(before) != _VIRAMA:
        return ""
    return next((character for character in match.group() if character in "\u200c\u200d"), "")


def _is_letter_or_mark(character: str) -> bool:
    return character != "" and unicodedata.category(character)[0] in "LM"


class _KeyCharacters(dict[int, int | str | None]):
    """Table for `str.translate`: keeps letters, marks and digits, drops format characters, replaces others by a space."""

    def __missing__(self, code: int) -> int | str | None:
        character = chr(code)
        category = unicodedata.category(character)
        if category == "Cf" or "VARIATION SELECTOR" in unicodedata.name(character, ""):
            self[code] = None
        else:
            self[code] = code if category[0] in "LMN" else " "
        return self[code]


_KEY_CHARACTERS = _KeyCharacters()


# Consecutive steps need the keys of the same batch.
@lru_cache(maxsize=8192)
def match_key(text: str) -> str:
    """A key that is equal for texts that differ only in case, punctuation, spacing or Unicode form.

    It has the letters, marks and digits in NFKC, case-folded, with single spaces between; for a text without letters and
    digits it is the folded text itself. It is empty only for a text without visible characters.

    Examples:
        >>> match_key(" Don't  PANIC！"), match_key("?!")
        ('don t panic', '?!')
    """
    visible = text if text.isprintable() else _INVISIBLE.sub("", text)
    folded = _compose(_compose(visible, "NFKC").casefold(), "NFKC")
    key = _compose(" ".join(folded.translate(_KEY_CHARACTERS).split()), "NFKC")
    return key if any(map(str.isalnum, key)) else " ".join(folded.split())


def width(text: str) -> int:
    """The length in characters, where Chinese, Japanese and Korean ones count two."""
    return len(text) if text.isascii() else len(text) + len(_WIDE.findall(text))
