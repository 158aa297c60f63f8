"""Which letters a language is written with: scripts, and alphabets of some languages in Latin script."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from hf_xlsr.data.languages import language_code
from hf_xlsr.utils.errors import XlsrError, did_you_mean

_WRITTEN_IN = {
    ("latin",): (
        "aa af an ay br ca co cs cy da de ee en eo es et eu fi fj fo fr fy ga gd gl gn gv ha hr ht hu ia id ie ig io is "
        "it jv ki kl kw la lb lg li ln lt lu lv mg mh mi ms mt na nb nd ng nl nn no nr ny oc om pl pt qu rm rn ro rw "
        "sc se sg sk sl sm sn so sq ss st su sv sw tl tn to tr ts tw ty ve vi vo wa wo xh yo zu"
    ),
    ("cyrillic",): "ab ba be bg ce cv kv ky mk os ru tg tt uk",
    ("arabic",): "ar fa ps ug ur",
    ("latin", "cyrillic"): "az bs sr tk uz",
    ("cyrillic", "latin", "arabic"): "kk",
    ("latin", "arabic"): "ku",
    ("cyrillic", "mongolian"): "mn",
    ("arabic", "devanagari"): "ks sd",
    ("devanagari",): "hi mr ne sa",
    ("bengali",): "as bn",
    ("hebrew",): "he yi",
    ("tibetan",): "bo dz",
    ("ethiopic",): "am ti",
    ("canadian", "latin"): "cr iu",
    ("han", "bopomofo"): "zh",
    ("han", "hiragana", "katakana"): "ja",
    ("hangul", "han"): "ko",
    ("armenian",): "hy",
    ("georgian",): "ka",
    ("greek",): "el",
    ("gujarati",): "gu",
    ("gurmukhi",): "pa",
    ("kannada",): "kn",
    ("khmer",): "km",
    ("lao",): "lo",
    ("malayalam",): "ml",
    ("myanmar",): "my",
    ("oriya",): "or",
    ("sinhala",): "si",
    ("tamil",): "ta",
    ("telugu",): "te",
    ("thaana",): "dv",
    ("thai",): "th",
    ("yi",): "ii",
}

SCRIPTS: Mapping[str, frozenset[str]] = {
    language: frozenset(scripts) for scripts, languages in _WRITTEN_IN.items() for language in languages.split()
}
"""ISO 639-1 code -> the scripts that the language is written in today."""

ALPHABETS: Mapping[str, frozenset[str]] = {
    language: frozenset(string.ascii_lowercase + extra)
    for language, extra in {
        "de": "äöüß",
        "en": "",
        "es": "áéíñóúü",
        "fr": "àâæçèéêëîïôùûüÿœ",
        "it": "àèéìíîòóùú",
        "nl": "áäçèéêëíïóöúüĳ",
        "pt": "àáâãçéêíóôõúü",
    }.items()
}
"""ISO 639-1 code -> the lower-case letters of languages in Latin script, as far as they are listed."""

# First words of the Unicode names of letters that do not name their script.
_FIRST_WORDS = {
    "CJK": "han",
    "IDEOGRAPHIC": "han",
    "HENTAIGANA": "hiragana",
    "FEMININE": "latin",
    "MASCULINE": "latin",
    "ROMAN": "latin",
    "TURNED": "latin",
    "CARON": "common",
    "KATAKANA-HIRAGANA": "common",
    "MASU": "common",
    "MICRO": "common",
    "MODIFIER": "common",
    "VEDIC": "common",
    "VERTICAL": "common",
    **{script.upper(): script for scripts in SCRIPTS.values() for script in scripts},
}


def script_of(letter: str) -> str:
    """The script of a letter, from its Unicode name; `common` for letters that serve many scripts.

    Letters of scripts that no language of `SCRIPTS` uses get the first word of their name.

    Example:
        >>> [script_of(letter) for letter in "aжあ漢ｱʼ"]
        ['latin', 'cyrillic', 'hiragana', 'han', 'katakana', 'common']
    """
    # The compatibility form stands for the wide, the mathematical and other variants of a letter.
    names = [unicodedata.name(form, "") for form in (letter, unicodedata.normalize("NFKC", letter)[0])]
    words = [name.split(" ", 1)[0] for name in names]
    return next((_FIRST_WORDS[word] for word in words if word in _FIRST_WORDS), words[-1].lower())


def scripts_of(languages: Iterable[str]) -> frozenset[str]:
    """The scripts of any of the languages.

    Raises:
        XlsrError: `SCRIPTS` lists no such language.

    Example:
        >>> sorted(scripts_of(["ja", "en"]))
        ['han', 'hiragana', 'katakana', 'latin']
    """
    found: frozenset[str] = frozenset()
    for language in languages:
        if language_code(language) not in SCRIPTS:
            raise XlsrError(
                f"the scripts of language '{language}' are not known to the language filter; "
                f"use ISO 639-1 codes: {did_you_mean(language, SCRIPTS)}"
            )
        found |= SCRIPTS[language_code(language)]
    return found


def alphabet_of(languages: Iterable[str]) -> frozenset[str]:
    """The lower-case Latin letters of any of the languages; languages in other scripts add none.

    Raises:
        XlsrError: a language is written in Latin script and `ALPHABETS` does not list it.

    Example:
        >>> "ñ" in alphabet_of(["en", "es"]), "ñ" in alphabet_of(["en", "fr"])
        (True, False)
    """
    found: frozenset[str] = frozenset()
    for language in languages:
        if "latin" in scripts_of([language]):
            if language_code(language) not in ALPHABETS:
                raise XlsrError(
                    f"the language filter has no alphabet for language '{language}' (known are "
                    f"{', '.join(ALPHABETS)}); use method: script."
                )
            found |= ALPHABETS[language_code(language)]
    return found


class ForeignLetters(dict[int, int | None]):
    """A table for `str.translate` that keeps only the letters outside given scripts, filled as characters occur.

    Args:
        scripts: Letters of these scripts (and of `common`) are not foreign.
        alphabet: Unless it is None, Latin letters are foreign when they are not among these lower-case ones.

    Example:
        >>> "Это test".translate(ForeignLetters({"latin"}))
        'Это'
        >>> "Señor".translate(ForeignLetters({"latin"}, frozenset("enors")))
        'ñ'
    """

    def __init__(self, scripts: Iterable[str], alphabet: frozenset[str] | None = None) -> None:
        super().__init__()
        self._scripts = {"common", *scripts}
        self._alphabet = alphabet

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        self[code] = code if character.isalpha() and self._is_foreign(character) else None
        return self[code]

    def _is_foreign(self, letter: str) -> bool:
        script = script_of(letter)
        if script == "latin" and self._alphabet is not None and "latin" in self._scripts:
            return letter.lower()[0] not in self._alphabet
        return script not in self._scripts


@cache
def foreign_letters(side: tuple[str, ...], row: tuple[str, ...] | None = None) -> ForeignLetters:
    """The table of letters that are foreign to a side of a row.

    Args:
        side: The languages that the side may be in.
        row: The languages of all sides, to check Latin letters by their alphabets too; None checks scripts only.

    Returns:
        The one table for these arguments.

    Raises:
        XlsrError: a language is not known.
    """
    return ForeignLetters(scripts_of(side), None if row is None else alphabet_of(row))


# What the identifier tells apart and ISO 639-1 data does not.
_SAME_LANGUAGE = (frozenset({"no", "nb", "nn"}), frozenset({"zh", "yue", "wuu"}), frozenset({"ar", "ary", "arz"}))


@cache
def language_identifier() -> Any:
    """The identifier of the optional package py3langid, with probabilities.

    Raises:
        XlsrError: the package is not installed.
    """
    try:
        from py3langid.langid import MODEL_FILE, LanguageIdentifier
    except ImportError as error:
        raise XlsrError(
            "the language filter needs the package py3langid for its method py3langid; "
            "install it with `pip install 'hf-xlsr[langid]'`."
        ) from error
    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def identifier_labels(languages: tuple[str, ...]) -> frozenset[str]:
    """The labels of the identifier that stand for any of the languages.

    Raises:
        XlsrError: it does not know one of them.
    """
    known = frozenset(language_identifier().nb_classes)
    labels: frozenset[str] = frozenset()
    for language in languages:
        code = language_code(language)
        group = next((group for group in _SAME_LANGUAGE if code in group), frozenset({code}))
        if not group & known:
            raise XlsrError(f"py3langid does not know the language '{language}'; {did_you_mean(language, known)}")
        labels |= group
    return labels
