"""Words that negate a sentence, in the languages that the small models know."""

from __future__ import annotations

import re
from functools import cache

from hf_xlsr.data.languages import language_code

NEGATIONS: dict[str, str] = {
    "ar": "لا لم لن ليس ليست",
    "bg": "не няма никога",
    "cs": "ne není nejsou nikdy",
    "de": "nicht kein keine keinen keinem keiner nie niemals",
    "el": "δεν δε μην όχι ποτέ",
    "en": "not no never cannot don't doesn't didn't isn't aren't wasn't won't can't",
    "es": "no nunca ningún ninguna",
    "fr": "ne n' pas jamais aucun aucune",
    "hi": "नहीं न मत",
    "it": "non mai nessun nessuna",
    "ja": "ない ません なかった ず",
    "ko": "않 없 못",
    "nl": "niet geen nooit",
    "pl": "nie nigdy",
    "pt": "não nunca nenhum nenhuma",
    "ru": "не нет никогда",
    "sv": "inte ingen inget aldrig",
    "sw": "si hapana kamwe",
    "th": "ไม่ มิ",
    "tr": "değil yok hiç",
    "ur": "نہیں نہ مت",
    "vi": "không chưa chẳng",
    "zh": "不 没 無 沒 无",
}
"""Language -> its negations. Chinese, Japanese, Korean and Thai ones are parts of words."""
UNSPACED = ("ja", "ko", "th", "zh")


def without_negation(text: str, language: str) -> str | None:
    """The text without its negations; None for one without any, or in another language than those of `NEGATIONS`.

    Examples:
        >>> without_negation("Das ist nicht gut.", "de")
        'Das ist gut.'
    """
    pattern = _pattern(language_code(language))
    if pattern is None or not pattern.search(text):
        return None
    shortened = " ".join(pattern.sub(" " if " " in text else "", text).split())
    return shortened or None


def num_negations(text: str, language: str) -> int | None:
    """Number of negations in a text; None for another language than those of `NEGATIONS`."""
    pattern = _pattern(language_code(language))
    return None if pattern is None else len(pattern.findall(text))


@cache
def _pattern(code: str) -> re.Pattern[str] | None:
    if code not in NEGATIONS:
        return None
    words = "|".join(map(re.escape, NEGATIONS[code].split()))
    if code in UNSPACED:
        return re.compile(words)
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)|\bn'(?=\w)" if code == "fr" else rf"(?<!\w)(?:{words})(?!\w)", re.I)
