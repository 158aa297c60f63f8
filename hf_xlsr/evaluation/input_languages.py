"""Which languages the rows of a file are in: told by the user, by names of columns and files, or by the rows."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from langcodes import Language, LanguageTagError, standardize_tag, tag_is_valid

from hf_xlsr.data.languages import language_code
from hf_xlsr.utils.errors import XlsrError

PLACEHOLDER = "{lang}"
UNKNOWN = "und"  # the tag of BCP 47 for a language that is not known

# `en`, `pt_BR` and `eng_Latn` are languages; three letters alone may be any word (`src` is Sardinian).
_TAG = re.compile(r"[a-z]{2}([-_][A-Za-z]{2,4})?|[a-z]{3}_[A-Z][a-z]{3}")

_TWO = re.compile(r"[a-z]{2,3}-[a-z]{2,3}")

# The languages of one reading (one, or source and target), and what `{lang}` stands for in it.
View = tuple[tuple[str, ...], "str | None"]


def language_of_name(label: str, languages: Collection[str] = ()) -> str | None:
    """The language that a column or a file's suffix is named after, if it is.

    Example:
        >>> [language_of_name(name) for name in ("fr", "translation.en", "deu_Latn", "src", "xx")]
        ['fr', 'en', 'deu_Latn', None, None]
    """
    name = label.rpartition(".")[2]
    return name if name in languages or (_TAG.fullmatch(name) and tag_is_valid(name)) else None


def text_views(languages: Sequence[str], *, each: bool) -> list[View]:
    """The readings of a file of texts in one language: one for each language, or one for all of them."""
    if each:
        return [((language,), language) for language in languages]
    return [((languages[0] if len(languages) == 1 else UNKNOWN,), None)]


def pair_views(languages: Sequence[str], sides: tuple[str, str], *, each: bool, told: Collection[str]) -> list[View]:
    """The readings of a file of pairs: one for each language beside the fixed one, or one.

    Args:
        languages: As the user gave them; where the fixed side is not named after a language it is in the first one.
        sides: What the source and the target are called in the file; one may hold `{lang}`.
        each: Read once for each language.
        told: Which of `source_lang` and `target_lang` the user mapped to a column.

    Raises:
        XlsrError: both sides hold `{lang}`, or there is no second language.

    Example:
        >>> pair_views(["en", "de", "fr"], ("en", "{lang}"), each=True, told=())
        [(('en', 'de'), 'de'), (('en', 'fr'), 'fr')]
        >>> pair_views([], ("fr", "en"), each=False, told=())
        [(('fr', 'en'), None)]
    """
    known = [language_of_name(side, languages) for side in sides]
    if each:
        wild = [PLACEHOLDER in side for side in sides]
        if all(wild):
            raise XlsrError(f"both sides hold {PLACEHOLDER}; give one a column or file of its own, e.g. source=en.")
        # Where neither holds the placeholder (a path does), the side named after a language is the fixed one.
        swapped = wild[0] or (not wild[1] and known[0] is None and known[1] is not None)
        fixed = known[1 if swapped else 0] or languages[0]
        others = [other for other in languages if language_code(other) != language_code(fixed)]
        if not others:
            raise XlsrError(
                f"--languages is {','.join(languages)}; name a second language beside '{fixed}', e.g. en,de."
            )
        return [((other, fixed) if swapped else (fixed, other), other) for other in others]
    if len(languages) == 2:
        # Columns named fr and en are French and English, in whatever order --languages has the two.
        named = [language_code(name or "") for name in known]
        reverse = named == [language_code(language) for language in reversed(languages)]
        return [(tuple(reversed(languages)) if reverse else tuple(languages), None)]
    found = [name or UNKNOWN for name in known]
    for place, column in enumerate(("source_lang", "target_lang")):
        if languages and found[place] == UNKNOWN and column not in told:
            found[place] = languages[0]
            break
    return [(tuple(found), None)]


def matching_languages(language: str, present: Collection[str]) -> set[str]:
    """Which of the tags that a file has are meant: the very same one, or else all of the same language.

    Example:
        >>> sorted(matching_languages("zh", {"zho_Hans", "zho_Hant", "deu_Latn"}))
        ['zho_Hans', 'zho_Hant']
        >>> matching_languages("zho_Hans", {"zho_Hans", "zho_Hant"})
        {'zho_Hans'}
    """
    if language in present:
        return {language}
    return {tag for tag in present if language_code(tag) == language_code(language)}


def sentence_languages(tag: str) -> str:
    """The languages of a pair of sentences: `fr-en`, as STS17 calls such subsets, is French and English, `fr+en`.

    Regions are told from languages by their capitals, as everywhere in tags.

    Example:
        >>> [sentence_languages(tag) for tag in ("fr-en", "es-es", "pt-BR", "zho_Hans", "fr+en")]
        ['fr+en', 'es', 'pt-BR', 'zho_Hans', 'fr+en']
    """
    first, _, second = tag.partition("-")
    if not (_TWO.fullmatch(tag) and tag_is_valid(first) and tag_is_valid(second)):
        return tag
    return first if language_code(first) == language_code(second) else f"{first}+{second}"


def key_languages(tags: Collection[str]) -> dict[str, str]:
    """How metric keys name languages: by code, or by the whole tag where other texts would have the same code.

    Texts in two languages, such as the sentences of a pair, have both with a plus sign between.

    Example:
        >>> key_languages(["eng", "zho_Hans", "zho_Hant", "eng+deu"])
        {'eng': 'en', 'zho_Hans': 'zho-Hans', 'zho_Hant': 'zho-Hant', 'eng+deu': 'en+de'}
        >>> key_languages(["eng", "en", "eng_Latn"])
        {'eng': 'en', 'en': 'en', 'eng_Latn': 'en'}
    """
    variants: dict[str, dict[str, list[str]]] = {}
    for tag in sorted(tags, key=lambda tag: (-len(tag), tag)):
        code = "+".join(map(language_code, tag.split("+")))
        variants.setdefault(code, {}).setdefault(_whole(tag), []).append(tag)
    names = {
        tag: code if len(same) == 1 else alike[0].replace("_", "-").replace("/", "-")
        for code, same in variants.items()
        for alike in same.values()
        for tag in alike
    }
    return {tag: names[tag] for tag in tags}


def _whole(tag: str) -> str:
    """One name for all tags of the same language, script and region, said or not."""
    try:
        parts = [Language.get(standardize_tag(part, macro=True)).maximize().to_tag() for part in tag.split("+")]
    except LanguageTagError:
        return tag
    return "+".join(parts)
