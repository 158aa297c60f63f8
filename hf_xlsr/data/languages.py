"""Languages: their codes and scripts, letters that are foreign to them, and identification of a text's language."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from string import ascii_lowercase
from typing import Any

import langcodes
import regex
from langcodes.data_dicts import LIKELY_SUBTAGS
from langcodes.tag_parser import LanguageTagError

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

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
# Labels of py3langid for one language.
_SAME_LANGUAGE = (frozenset({"no", "nb", "nn"}), frozenset({"zh", "yue", "wuu"}), frozenset({"ar", "ary", "arz"}))
# Latin names occur in texts of every script, other letters hardly ever in a Latin one: these count more.
_WEIGHT = 4


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


def foreign_letters(
    text: str,
    side: tuple[str, ...],
    row: tuple[str, ...] | None = None,
) -> int:
    """How many letters of a text are outside the scripts of its languages `side`; letters of many scripts never are.

    The `ALPHABETS` of the languages `row` have the Latin letters that are not foreign; None checks scripts only.
    """
    return len(_not_foreign(side, row).sub("", text if row is None else text.lower()))


@cache
def _not_foreign(side: tuple[str, ...], row: tuple[str, ...] | None) -> regex.Pattern[str]:
    scripts = scripts_of(side)
    letters: frozenset[str] = frozenset()
    if row is not None:
        latin_letters = _latin_letters(row)
        if "Latn" in scripts:
            letters = latin_letters
            scripts -= {"Latn"}

    classes = "".join(rf"\p{{Script={script}}}" for script in ("Common", "Inherited", *sorted(scripts)))
    return regex.compile(rf"[\P{{L}}{classes}{''.join(sorted(letters))}]+")


def _latin_letters(languages: Iterable[str]) -> frozenset[str]:
    """The letters of those languages that are written in Latin script."""
    letters: frozenset[str] = frozenset()
    for code in map(language_code, languages):
        if "Latn" not in scripts_of([code]):
            continue
        if code not in ALPHABETS:
            raise XlsrError(
                f"the alphabet of language '{code}' is unknown; use `method: script`, or one of {', '.join(ALPHABETS)}."
            )
        letters |= ALPHABETS[code]
    return letters


@cache
def language_identifier() -> Any:
    """The language identifier of py3langid, with probabilities."""
    require_package("py3langid")
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def identifier_labels(languages: tuple[str, ...]) -> frozenset[str]:
    """The labels of `language_identifier` for any of the languages; an error if it does not support one."""
    for language in languages:
        if not _supported_labels(language):
            raise XlsrError(f"py3langid does not support the language '{language}'.")
    return frozenset().union(*map(_same_language, languages))


def _supported_labels(language: str) -> frozenset[str]:
    return _same_language(language).intersection(language_identifier().nb_classes)


def _same_language(language: str) -> frozenset[str]:
    code = language_code(language)
    for group in _SAME_LANGUAGE:
        if code in group:
            return group
    return frozenset({code})


def share_of_first(
    languages: tuple[str, str],
    *,
    place: str,
    advice: str,
) -> Callable[[str], float | None]:
    """A function from a text to the share of it in the first of two languages; to None for one without their letters.

    Letters decide between languages without a common script, where one in another script counts as much as four Latin
    ones; else py3langid. A language that it does not support gets what the other one leaves. Languages that it cannot
    tell apart are an error that names `place`.

    Examples:
        >>> share = share_of_first(("en", "ru"), place="a text", advice="name its language")
        >>> share("да, ok"), share("Hello!"), share("42")
        (0.2, 1.0, None)
    """
    codes = [language_code(language) for language in languages]
    labels = None if _differ_in_script(*codes) else _labels(codes, place, advice)

    def share(text: str) -> float | None:
        num_letters = sum(map(str.isalpha, text))
        if not num_letters:
            return None
        if labels is None:
            weights: list[float] = [_weighted_letters(text, num_letters, code) for code in codes]
        else:
            weights = _probabilities(text, labels)
        return weights[0] / sum(weights) if any(weights) else None

    return share


def _differ_in_script(first: str, second: str) -> bool:
    try:
        return not scripts_of([first]) & scripts_of([second])
    except XlsrError:  # one whose scripts are unknown may share those of any other
        return False


def _labels(codes: Sequence[str], place: str, advice: str) -> list[frozenset[str]]:
    """The labels of py3langid for each language; an empty set where it does not support the language."""
    labels = list(map(_supported_labels, codes))
    if labels[0] == labels[1]:
        raise XlsrError(f"{place} is in {' or '.join(codes)}, which py3langid cannot tell apart; {advice}.")
    return labels


def _probabilities(text: str, labels: Sequence[frozenset[str]]) -> list[float]:
    """The probability of each language; one that py3langid does not support gets what the other one leaves."""
    probability_of = dict(language_identifier().rank(text))
    probabilities = [sum(map(probability_of.__getitem__, labels_of_language)) for labels_of_language in labels]
    rest = max(0.0, 1.0 - sum(probabilities))
    return [value if supported else rest for value, supported in zip(probabilities, labels, strict=True)]


def _weighted_letters(text: str, num_letters: int, language: str) -> int:
    """How many letters of a text are in the language's scripts, weighted."""
    count = max(0, num_letters - foreign_letters(text, (language,)))  # their Unicode versions may differ
    return count if "Latn" in scripts_of([language]) else _WEIGHT * count
