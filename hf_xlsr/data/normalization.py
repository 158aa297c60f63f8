"""Normalisation of text, keys to compare texts, and their width."""

from __future__ import annotations

import re
import unicodedata
from functools import cache, lru_cache
from typing import Literal

import regex

# Control characters that are not white space, surrogates, and format characters without a width. None is printable, and
# `str.isprintable` is several times as fast as a search.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0001]+"
)
_WIDE = re.compile("[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\uff00-\uff60\U00020000-\U0003fffd]")
# Latin and Armenian ligatures, Arabic presentation forms A and B, half-width and full-width forms.
_VARIANT_BLOCKS = ((0xFB00, 0xFB17), (0xFB50, 0xFDFF), (0xFE70, 0xFEFF), (0xFF00, 0xFFEF))
_VARIANT_KINDS = ("<compat>", "<wide>", "<narrow>", "<isolated>", "<initial>", "<medial>", "<final>")
_VIRAMA = 9  # canonical combining class
_BEFORE_EMOJI_JOINER = regex.compile(r"[\p{Extended_Pictographic}\p{Emoji_Modifier}\ufe0f]")
_AFTER_EMOJI_JOINER = regex.compile(r"\p{Extended_Pictographic}")

Form = Literal["letters", "NFKC", "NFC"]


def normalize_text(
    text: str,
    form: Form = "letters",
    lowercase: bool = False,
) -> str:
    """Normalises Unicode, removes invisible characters and collapses white space; idempotent.

    Joiners between letters stay: Persian, Hindi and other languages spell with them. Joiners of emoji stay, too.

    `letters` is NFC, and also replaces variants of letters and digits that mean the same: full-width and half-width ones,
    the positional forms and ligatures of Arabic, and the ligatures `ﬁ` and `ﬅ` with their relatives. What carries a
    value, or is a sign of its own, stays as in NFC: `10⁶`, `1½`, `µ`, `™`, full-width punctuation. `NFKC` replaces these.

    Examples:
        >>> normalize_text("ＡＢＣ１２３ ﬁne 10⁶ 1½"), normalize_text("10⁶ 1½", "NFKC")
        ('ABC123 fine 10⁶ 1½', '106 11⁄2')
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


def _compose(text: str, form: Form) -> str:
    if text.isascii():
        return text
    if form == "letters":
        return unicodedata.normalize("NFC", text.translate(_letter_variants()))
    return unicodedata.normalize(form, text)


@cache
def _letter_variants() -> dict[int, str]:
    """Letters and digits of the compatibility blocks -> what they are variants of."""
    variants: dict[int, str] = {}
    for start, end in _VARIANT_BLOCKS:
        for code in range(start, end + 1):
            character = chr(code)
            kind, *codes = unicodedata.decomposition(character).split() or [""]
            # A decomposition that starts with a space is that of a mark without its letter.
            if kind in _VARIANT_KINDS and unicodedata.category(character)[0] in "LN" and codes[0] != "0020":
                variants[code] = unicodedata.normalize("NFKC", character)
    return variants


def _keep_joiner(match: re.Match[str]) -> str:
    """The joiner among invisible characters if letters need it, else nothing."""
    start, end = match.span()
    before = match.string[max(start - 1, 0) : start]
    after = match.string[end : end + 1]
    if _BEFORE_EMOJI_JOINER.match(before) and _AFTER_EMOJI_JOINER.match(after):
        return "\u200d" if "\u200d" in match.group() else ""
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
