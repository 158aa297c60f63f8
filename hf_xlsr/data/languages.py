"""Languages: their codes and scripts, and letters that are foreign to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache, lru_cache
from string import ascii_lowercase

import langcodes
import regex
from langcodes.data_dicts import LIKELY_SUBTAGS
from langcodes.tag_parser import LanguageTagError

from hf_xlsr.utils.errors import XlsrError

# CLDR files Tagalog under Filipino, which has no ISO 639-1 code.
_CODES = {"fil": "tl"}
# Languages with other scripts than their most likely one, and a code that CLDR lacks.
_SCRIPTS = {
    **dict.fromkeys(("az", "bs", "sr", "tk", "uz"), ("Latn", "Cyrl")),
    **dict.fromkeys(("cr", "iu"), ("Cans", "Latn")),
    **dict.fromkeys(("ks", "sd"), ("Arab", "Deva")),
    "kk": ("Cyrl", "Latn", "Arab"),
    "ku": ("Latn", "Arab"),
    "mn": ("Cyrl", "Mong"),
    "ie": ("Latn",),
}
# ISO 15924 codes that stand for several scripts of Unicode.
_UNICODE_SCRIPTS = {
    **dict.fromkeys(("Hans", "Hant"), ("Hani", "Bopo")),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
}
ALPHABETS: Mapping[str, frozenset[str]] = {
    language: frozenset(ascii_lowercase + extra)
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
"""ISO 639-1 code -> lower-case letters of some languages in Latin script."""
# `en`, `pt_BR` and `eng_Latn` are languages; three letters alone may be any word (`src` is Sardinian).
_TAG = regex.compile(r"[a-z]{2}([-_][A-Za-z]{2,4})?|[a-z]{3}_[A-Z][a-z]{3}")
_LONGEST_CODE = len("eng_Latn")
_NOT_LATIN_WEIGHT = 4
"""Of a letter outside the Latin script, see `own_weight`."""
_FOREIGN = 16
"""Times the weight of an own letter, see `script_share`."""
_NOT_LATIN = regex.compile(r"[^\p{Script=Latin}]+|[^\p{L}]+")
_WORD = regex.compile(r"[\p{L}\p{M}]+")
_LONGEST_UNIT = 3  # letters


@lru_cache(maxsize=4096)
def language_code(language: str) -> str:
    """The ISO 639-1 code of a language tag; three letters where the standard has none.

    Accepts ISO 639-2 and 639-3 codes, FLORES codes and regions. Members of a macro-language (Mandarin, coastal Swahili)
    become it. Anything that is not a language tag is lower-cased and truncated at its first hyphen.

    Examples:
        >>> [language_code(code) for code in ("deu", "cmn", "arb_Arab", "pt_BR", "swh", "zh-Hant", "kab")]
        ['de', 'zh', 'ar', 'pt', 'sw', 'zh', 'kab']
    """
    try:
        code = _standard(language).language
    except LanguageTagError:
        code = None
    if code:
        return _CODES.get(code, code)
    return language.replace("_", "-").partition("-")[0].lower()


def standard_tag(tag: str) -> str:
    """One name for all ways to write a tag; a script or region that it does not say is not added."""
    try:
        return _standard(tag).to_tag()
    except LanguageTagError:
        return tag.replace("_", "-").lower()


def whole_tag(tag: str) -> str:
    """One name for all tags of the same language, script and region, whether explicit or implied."""
    try:
        return "+".join(map(_maximal_tag, tag.split("+")))
    except LanguageTagError:
        return tag


def _maximal_tag(tag: str) -> str:
    return _standard(tag).maximize().to_tag()


def contradict(first: str, second: str, *, regions: bool = True) -> bool:
    """Whether two tags of a language say different scripts, which regions imply, or different regions.

    Examples:
        >>> contradict("en-GB", "en-US"), contradict("en-GB", "eng_Latn"), contradict("zh-TW", "zh-Hans")
        (True, False, True)
    """
    scripts = {_stated_script(first), _stated_script(second)} - {None}
    territories = {_territory(first), _territory(second)} - {None}
    return len(scripts) > 1 or (regions and len(territories) > 1)


def _stated_script(tag: str) -> str | None:
    """The script that a tag says, or that its region implies; None where it says neither."""
    try:
        language = _standard(tag)
    except LanguageTagError:
        return None
    return language.maximize().script if language.territory or language.script else None


def _territory(tag: str) -> str | None:
    try:
        return _standard(tag).territory
    except LanguageTagError:
        return None


def _standard(tag: str) -> langcodes.Language:
    return langcodes.Language.get(langcodes.standardize_tag(tag, macro=True))


def nearest_tag(language: str | None, tags: Collection[str]) -> str | None:
    """The first tag that equals a language, however written; else of its script and region; else of its language.

    Examples:
        >>> [nearest_tag(language, ["zh-Hans", "zh-Hant"]) for language in ("zh-Hant", "zh_TW", "cmn", "de")]
        ['zh-Hant', 'zh-Hant', 'zh-Hans', None]
    """
    if not language:
        return None
    for key in (str, standard_tag, whole_tag, language_code):
        for tag in tags:
            if key(tag) == key(language):
                return tag
    return None


def tags_meant(language: str, tags: Collection[str]) -> frozenset[str]:
    """The tags of a file that a language means.

    These are, where there are some: the tags of the same language, script and region, however they are written; of a
    language alone all tags of it; those that imply the same script and region; those that do not say another script or
    region; those that do not say another script.

    Examples:
        >>> [sorted(tags_meant(language, ["pt", "pt_BR", "DEU-de"])) for language in ("pt", "pt-BR", "ger", "pt-PT")]
        [['pt'], ['pt_BR'], ['DEU-de'], ['pt']]
        >>> [sorted(tags_meant(language, ["zh-CN", "zh-TW"])) for language in ("zho", "zh-Hant")]
        [['zh-CN', 'zh-TW'], ['zh-TW']]
    """
    of_language = frozenset(tag for tag in tags if language_code(tag) == language_code(language))
    for key in (standard_tag, whole_tag):
        equal_tags = frozenset(tag for tag in of_language if key(tag) == key(language))
        if equal_tags:
            return equal_tags
        if standard_tag(language) == language_code(language):
            return of_language

    agreeing = frozenset(tag for tag in of_language if not contradict(language, tag))
    return agreeing or frozenset(tag for tag in of_language if not contradict(language, tag, regions=False))


def states_variant(tag: str) -> bool:
    """Whether a tag says more than its language: a region, or a script that is not the language's usual one.

    Examples:
        >>> [states_variant(tag) for tag in ("pt", "deu_Latn", "pt-BR", "zh-Hant", "zho_Hans")]
        [False, False, True, True, False]
    """
    try:
        stated = _standard(tag)
    except LanguageTagError:
        return False
    usual = langcodes.Language.get(str(stated.language)).maximize()
    return stated.territory is not None or stated.script not in (None, usual.script)


def language_of_name(label: str, languages: Collection[str] = ()) -> str | None:
    """The language that a column or a file's suffix is named after, or None.

    Examples:
        >>> [language_of_name(name) for name in ("fr", "translation.en", "deu_Latn", "src", "xx")]
        ['fr', 'en', 'deu_Latn', None, None]
    """
    name = label.rpartition(".")[2]
    is_language = name in languages or (_TAG.fullmatch(name) and langcodes.tag_is_valid(name))
    return name if is_language else None


def is_language_code(name: str) -> bool:
    """Whether a name is a language code, with its script at most, as `eng_Latn`: longer tags may be words."""
    return len(name) <= _LONGEST_CODE and langcodes.tag_is_valid(name)


def scripts_of(languages: Iterable[str]) -> frozenset[str]:
    """The scripts in which any of the languages is written today, as ISO 15924 codes."""
    return frozenset(script for language in languages for script in _scripts(language_code(language)))


@cache
def _scripts(code: str) -> tuple[str, ...]:
    if code in _SCRIPTS:
        return _SCRIPTS[code]
    if code not in LIKELY_SUBTAGS:
        raise XlsrError(f"the scripts of language '{code}' are unknown; use an ISO 639 code.")
    script = langcodes.Language.get(code).maximize().script or ""
    return _UNICODE_SCRIPTS.get(script, (script,))


def foreign_letters(text: str, languages: tuple[str, ...]) -> int:
    """How many letters of a text are outside the scripts of its languages; letters of many scripts never are."""
    return len(_not_foreign(languages).sub("", text))


def own_weight(text: str, languages: tuple[str, ...]) -> int:
    """The letters of a text in the scripts of its languages; outside the Latin script each counts four times.

    A word of Chinese has two letters where one of English has five or more.
    """
    num_letters = max(sum(map(str.isalpha, text)), _num_latin(text))  # the two Unicode versions may differ
    num_own = max(0, num_letters - foreign_letters(text, languages))
    return num_own * _weight_of_letter(languages)


def script_share(text: str, languages: tuple[str, ...]) -> float:
    """The share of a text in the scripts of its languages: 1 for a text without letters, 0 for one without own letters.

    It is `own_weight`, divided by the sum of it and of the weight of foreign letters. Latin ones weigh 1: names, code and
    units are Latin in texts of every script. Others weigh 16 times as much as an own one, for they hardly ever occur in a
    text of another script. One that stands alone weighs nothing: it may be a symbol, as in `10 kΩ`.

    Examples:
        >>> [script_share(text, ("zh",)) for text in ("打开 LibreOffice", "Open a file", "漢字とカナ", "42")]
        [0.42105263157894735, 0.0, 0.04, 1.0]
    """
    own = own_weight(text, languages)
    if not own:
        return 0.0 if foreign_letters(text, languages) else 1.0
    foreign = 0
    if "Latn" not in scripts_of(languages):
        foreign = _num_latin(text)
    for word in _foreign_words(languages).findall(text):
        num_letters = sum(map(str.isalpha, word))
        foreign += num_letters * _FOREIGN * _weight_of_letter(languages)
    return own / (own + foreign)


def _weight_of_letter(languages: tuple[str, ...]) -> int:
    return 1 if "Latn" in scripts_of(languages) else _NOT_LATIN_WEIGHT


def _num_latin(text: str) -> int:
    return len(_NOT_LATIN.sub("", text))


def alphabet_share(text: str, row_languages: tuple[str, ...]) -> float:
    """The share of a text's words in the letters of the languages of its row; 1 for a text without words.

    These are the letters of their scripts, but of Latin ones only those of their `ALPHABETS`. Capitalised words, which
    may be names, and words of up to three letters, which may be units, always count.

    Examples:
        >>> alphabet_share("tea, jalapeños", ("en", "fr")), alphabet_share("by Muñoz", ("en", "fr"))
        (0.5, 1.0)
    """
    words = _WORD.findall(text)
    foreign_letter = _foreign_letter(row_languages)
    num_foreign = 0
    for word in words:
        may_be_name = len(word) <= _LONGEST_UNIT or word[0].isupper()
        if not may_be_name and foreign_letter.search(word):
            num_foreign += 1
    return 1 - num_foreign / max(len(words), 1)


@cache
def _not_foreign(languages: tuple[str, ...]) -> regex.Pattern[str]:
    return regex.compile(rf"[\P{{L}}{_script_classes(scripts_of(languages))}]+")


@cache
def _foreign_words(languages: tuple[str, ...]) -> regex.Pattern[str]:
    classes = _script_classes(scripts_of(languages) | {"Latn"})
    # Marks are part of a word. Otherwise a vowel sign of Hindi or Thai would end it.
    return regex.compile(rf"(?:[^\P{{L}}{classes}]\p{{M}}*){{2,}}")


@cache
def _foreign_letter(row_languages: tuple[str, ...]) -> regex.Pattern[str]:
    classes = _script_classes(scripts_of(row_languages) - {"Latn"})
    latin_letters = "".join(sorted(_latin_letters(row_languages)))
    return regex.compile(rf"(?i)[^\P{{L}}{classes}{latin_letters}]")


def _script_classes(scripts: Iterable[str]) -> str:
    """Scripts as a part of a class of characters, with letters of many scripts."""
    return "".join(rf"\p{{Script={script}}}" for script in ("Common", "Inherited", *sorted(scripts)))


def _latin_letters(languages: Iterable[str]) -> frozenset[str]:
    """The letters of those languages that are written in Latin script, and those without accents."""
    letters = frozenset(ascii_lowercase)
    for code in map(language_code, languages):
        if "Latn" not in scripts_of([code]):
            continue
        if code not in ALPHABETS:
            raise XlsrError(
                f"the alphabet of language '{code}' is unknown; use `method: script`, or one of {', '.join(ALPHABETS)}."
            )
        letters |= ALPHABETS[code]
    return letters
