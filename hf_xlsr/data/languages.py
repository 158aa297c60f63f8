"""Languages: their codes and scripts, letters that are foreign to them, and identification of a text's language."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from string import ascii_lowercase
from typing import Any

import langcodes
import regex
from langcodes.data_dicts import LIKELY_SUBTAGS

from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.extras import require_package

# CLDR files Tagalog under Filipino, which has no ISO 639-1 code.
_OURS = {"fil": "tl"}
# Languages with other scripts than their most likely one, and a code that CLDR lacks.
_SCRIPTS = {
    **dict.fromkeys(("az", "bs", "sr", "tk", "uz"), ("Latn", "Cyrl")),
    **dict.fromkeys(("cr", "iu"), ("Cans", "Latn")),
    **dict.fromkeys(("ks", "sd"), ("Arab", "Deva")),
    **{"kk": ("Cyrl", "Latn", "Arab"), "ku": ("Latn", "Arab"), "mn": ("Cyrl", "Mong"), "ie": ("Latn",)},
}
# ISO 15924 codes that stand for several scripts of Unicode.
_PARTS = {
    **dict.fromkeys(("Hans", "Hant"), ("Hani", "Bopo")),
    **{"Jpan": ("Hani", "Hira", "Kana"), "Kore": ("Hang", "Hani")},
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
        code = langcodes.Language.get(langcodes.standardize_tag(language, macro=True)).language
    except langcodes.LanguageTagError:
        code = None
    return _OURS.get(code, code) if code else language.replace("_", "-").split("-", 1)[0].lower()


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
    return _PARTS.get(script, (script,))


def foreign_letters(text: str, side: tuple[str, ...], row: tuple[str, ...] | None = None) -> int:
    """How many letters of a text are outside the scripts of its languages `side`; letters of many scripts never are.

    The `ALPHABETS` of the languages `row` have the Latin letters that are not foreign; None checks scripts only.
    """
    return len(_not_foreign(side, row).sub("", text if row is None else text.lower()))


@cache
def _not_foreign(side: tuple[str, ...], row: tuple[str, ...] | None) -> regex.Pattern[str]:
    scripts, letters = scripts_of(side), ""
    if row is not None:
        latin = [code for code in map(language_code, row) if "Latn" in scripts_of([code])]
        if unknown := [code for code in latin if code not in ALPHABETS]:
            raise XlsrError(
                f"the alphabet of language '{unknown[0]}' is unknown; use `method: script`, or one of "
                f"{', '.join(ALPHABETS)}."
            )
        if "Latn" in scripts:
            letters = "".join(sorted(frozenset().union(*(ALPHABETS[code] for code in latin))))
            scripts -= {"Latn"}
    listed = "".join(rf"\p{{Script={script}}}" for script in ("Common", "Inherited", *sorted(scripts)))
    return regex.compile(rf"[\P{{L}}{listed}{letters}]+")


@cache
def language_identifier() -> Any:
    """The language identifier of py3langid, with probabilities."""
    require_package("py3langid")
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


@cache
def identifier_labels(languages: tuple[str, ...]) -> frozenset[str]:
    """The labels of `language_identifier` for any of the languages; an error if it does not support one."""
    known = frozenset(language_identifier().nb_classes)
    for language in languages:
        if not _same_language(language) & known:
            raise XlsrError(f"py3langid does not support the language '{language}'; {did_you_mean(language, known)}")
    return frozenset().union(*map(_same_language, languages))


def _same_language(language: str) -> frozenset[str]:
    code = language_code(language)
    return next((group for group in _SAME_LANGUAGE if code in group), frozenset({code}))


def language_shares(languages: Sequence[str], *, place: str, advice: str) -> Callable[[str], tuple[float, ...] | None]:
    """A function from a text to how much of it is in each of the languages; to None for a text without their letters.

    Languages that share a script, directly or through a third one, form a group. Letters determine the share of each
    group, where a letter in another script counts as much as four Latin ones; within a group py3langid decides. A
    language that it does not support gets what is left by the others; two of these are an error that names `place`.

    Examples:
        >>> shares = language_shares(["en", "ru"], place="a text", advice="name its language")
        >>> shares("да, ok"), shares("Hello!"), shares("42")
        ((0.2, 0.8), (1.0, 0.0), None)
    """
    codes = tuple(map(language_code, languages))
    groups = _groups(codes)
    labels = {code: found for group in groups for code, found in _labels(group, place, advice).items()}

    def shares(text: str) -> tuple[float, ...] | None:
        letters = sum(map(str.isalpha, text))
        weights = [letters if len(groups) == 1 else _own_letters(text, letters, group) for group in groups]
        if not any(weights):
            return None
        found: dict[str, float] = {}
        for group, weight in zip(groups, weights, strict=True):
            within = _probabilities(text, [labels[code] for code in group]) if weight and len(group) > 1 else None
            within = within or [1.0] * len(group)
            if not sum(within):
                return None
            share = weight / sum(weights)
            found.update((code, share * part / sum(within)) for code, part in zip(group, within, strict=True))
        return tuple(found[code] for code in codes)

    return shares


def _groups(languages: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Languages that letters do not tell apart; one whose scripts are unknown may share those of any other."""
    try:
        scripts = {language: scripts_of([language]) for language in languages}
    except XlsrError:
        return [languages]
    groups: list[tuple[str, ...]] = []
    for language in languages:
        sharing = [group for group in groups if any(scripts[member] & scripts[language] for member in group)]
        joined = (*(member for group in sharing for member in group), language)
        groups = [*(group for group in groups if group not in sharing), joined]
    return groups


def _labels(group: tuple[str, ...], place: str, advice: str) -> dict[str, frozenset[str]]:
    """The labels of py3langid for each language of a group; an empty set where it does not support the language."""
    if len(group) == 1:
        return {}
    known = frozenset(language_identifier().nb_classes)
    labels = {code: _same_language(code) if _same_language(code) & known else frozenset[str]() for code in group}
    shared = sum(map(len, labels.values())) > len(frozenset().union(*labels.values()))
    if shared or sum(not found for found in labels.values()) > 1:
        named = f"{', '.join(group[:-1])} or {group[-1]}"
        raise XlsrError(f"{place} is in {named}, which py3langid cannot tell apart; {advice}.")
    return labels


def _probabilities(text: str, labels: Sequence[frozenset[str]]) -> list[float]:
    ranked = dict(language_identifier().rank(text))
    found = [sum(ranked.get(label, 0.0) for label in known) for known in labels]
    rest = max(0.0, 1.0 - sum(found))
    return [part if known else rest for part, known in zip(found, labels, strict=True)]


def _own_letters(text: str, letters: int, languages: tuple[str, ...]) -> int:
    """How many letters of a text are in the languages' scripts, weighted."""
    own = max(0, letters - foreign_letters(text, languages))  # their Unicode versions may differ
    return own if "Latn" in scripts_of(languages) else _WEIGHT * own
