"""One name for each language: ISO 639-1 codes, whatever a benchmark calls them."""

from __future__ import annotations

from functools import lru_cache

import langcodes

# CLDR files Tagalog under Filipino, which has no ISO 639-1 code.
_OURS = {"fil": "tl"}


@lru_cache(maxsize=4096)
def language_code(language: str) -> str:
    """The ISO 639-1 code of a language tag; three letters where the standard has none.

    ISO 639-2 and 639-3 codes, FLORES codes and regions are understood; members of a macro-language (Mandarin, Swahili
    of the coast) become it. Anything that is no language tag comes back in lower case, cut at its first hyphen.

    Args:
        language: A code such as `de`, `deu`, `deu_Latn`, `pt_BR`, `cmn`.

    Example:
        >>> [language_code(code) for code in ("deu", "cmn", "arb_Arab", "pt_BR", "swh", "zh-Hant", "kab")]
        ['de', 'zh', 'ar', 'pt', 'sw', 'zh', 'kab']
    """
    try:
        code = langcodes.Language.get(langcodes.standardize_tag(language, macro=True)).language
    except langcodes.LanguageTagError:
        code = None
    return _OURS.get(code, code) if code else language.replace("_", "-").split("-", 1)[0].lower()
