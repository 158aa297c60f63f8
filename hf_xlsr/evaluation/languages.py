"""Languages of the rows of a file: from the user, from names of columns and files, or from the rows."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from langcodes import tag_is_valid

from hf_xlsr.data.columns import PLACEHOLDER
from hf_xlsr.data.file_languages import UNKNOWN
from hf_xlsr.data.languages import (
    language_code,
    language_of_name,
    nearest_tag,
    standard_tag,
    states_variant,
    tags_meant,
    whole_tag,
)
from hf_xlsr.utils.errors import XlsrError

_TWO = re.compile(r"[a-z]{2,3}-[a-z]{2,3}")

# The languages of one reading (one, or source and target), and what `{lang}` stands for in it.
View = tuple[tuple[str, ...], "str | None"]


def pair_views(languages: Sequence[str], sides: tuple[str, str], *, each: bool, mapped: Collection[str]) -> list[View]:
    """The languages in which a file of pairs is read: once, or with `each` once for each language but the fixed one.

    The fixed side is in the first of `languages` unless its name in the file, in `sides`, is a language; `mapped` has the
    columns that the user mapped.

    Examples:
        >>> pair_views(["en", "de", "fr"], ("en", "{lang}"), each=True, mapped=())
        [(('en', 'de'), 'de'), (('en', 'fr'), 'fr')]
        >>> pair_views([], ("fr", "en"), each=False, mapped=())
        [(('fr', 'en'), None)]
    """
    named = [language_of_name(side, languages) for side in sides]
    if each:
        return _views_of_each(languages, sides, named)
    if len(languages) == 2:
        # Columns named fr and en are French and English, in whatever order --languages has the two.
        nearest = [nearest_tag(name, languages) for name in named]
        swapped = [languages[1], languages[0]]
        return [(tuple(swapped if nearest == swapped else languages), None)]

    tags = [name or UNKNOWN for name in named]
    if languages:
        for side, column in enumerate(("source_lang", "target_lang")):
            if tags[side] == UNKNOWN and column not in mapped:
                tags[side] = languages[0]
                break
    return [(tuple(tags), None)]


def _views_of_each(languages: Sequence[str], sides: tuple[str, str], named: Sequence[str | None]) -> list[View]:
    """A view for each language but the fixed one, which keeps its side."""
    source, target = sides
    source_is_wild = PLACEHOLDER in source
    if source_is_wild and PLACEHOLDER in target:
        raise XlsrError(f"only one side can contain {PLACEHOLDER}; name the other's column or file, e.g. source=en.")

    # With the placeholder in the path, the side named after a language is the fixed one.
    source_name, target_name = named
    target_is_fixed = source_is_wild or (source_name is None and target_name is not None)
    fixed = (target_name if target_is_fixed else source_name) or languages[0]

    views: list[View] = []
    fixed_tag = nearest_tag(fixed, languages)
    for language in languages:
        if language == fixed_tag:
            continue
        pair = (fixed, language)
        if target_is_fixed:
            pair = (language, fixed)
        views.append((pair, language))
    return views


def sentence_languages(tag: str) -> str:
    """The languages of a pair of sentences: `fr-en`, as STS17 calls such subsets, is French and English, `fr+en`.

    Capitals distinguish regions from languages, as in all tags: `pt-BR` stays.
    """
    first, _, second = tag.partition("-")
    if not (_TWO.fullmatch(tag) and tag_is_valid(first) and tag_is_valid(second)):
        return tag
    if language_code(first) == language_code(second):
        return first
    return f"{first}+{second}"


def metric_languages(*tables: Collection[str], asked: Sequence[str] = ()) -> dict[str, str]:
    """Names of languages in metric keys, for the tags of tables that belong together.

    It is the code, or the tag where several variants share a code: tags that differ in one table are variants. Tags of
    different tables are one variant if they are of the same script and region, whether explicit or implied. A variant
    that the user asked for has the user's tag.

    Examples:
        >>> metric_languages(["eng", "zho_Hans", "zho_Hant", "eng+deu"])
        {'eng': 'en', 'zho_Hans': 'zho-Hans', 'zho_Hant': 'zho-Hant', 'eng+deu': 'en+de'}
        >>> metric_languages(["pt", "pt_BR"]), metric_languages(["eng"], ["eng_Latn"])
        ({'pt': 'pt', 'pt_BR': 'pt-BR'}, {'eng': 'en', 'eng_Latn': 'en'})
        >>> metric_languages(["pt_BR"]), metric_languages(["pt_BR"], asked=["pt-BR"])
        ({'pt_BR': 'pt'}, {'pt_BR': 'pt-BR'})
    """
    tags = sorted({tag for table in tables for tag in table}, key=lambda tag: (-len(tag), tag))
    variants: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for tag in tags:
        tags_by_variant = variants[_parts(tag, language_code)]
        tags_by_variant[_variant(tag, tables)].append(tag)

    names: dict[str, str] = {}
    for code, tags_by_variant in variants.items():
        for same_tags in tags_by_variant.values():
            name = code
            if len(tags_by_variant) > 1 and _parts(same_tags[0], standard_tag) != code:
                name = _written(same_tags[0])
            names |= dict.fromkeys(same_tags, name)

    for language in asked:
        meant = tags_meant(language, tags)
        if states_variant(language) and len(meant) == 1:
            names |= dict.fromkeys(meant, _written(language))
    return {tag: names[tag] for table in tables for tag in table}


def _parts(tag: str, name: Callable[[str], str]) -> str:
    """The names of the languages of a tag, of which a pair of sentences has two."""
    return "+".join(map(name, tag.split("+")))


def _variant(tag: str, tables: Iterable[Collection[str]]) -> str:
    """A name of the variant: script and region, whether explicit or implied, unless a table has two tags of these."""
    whole = whole_tag(tag)
    for table in tables:
        standard_tags = {_parts(other, standard_tag) for other in table if whole_tag(other) == whole}
        if len(standard_tags) > 1:
            return _parts(tag, standard_tag)
    return whole


def _written(tag: str) -> str:
    return tag.replace("_", "-").replace("/", "-")
