"""Sentences in many languages, which measure what quantisation changes."""

from __future__ import annotations

from typing import Any

from hf_xlsr.data.languages import is_language_code, nearest_tag
from hf_xlsr.data.sample_sentences import SENTENCES

UNKNOWN_SHARE = 0.1


def sample_texts(tokenizer: Any, route: str = "") -> dict[str, tuple[str, ...]]:
    """The sentences for an encoder, by language: of the language of its route, or of all that its tokenizer knows.

    A tokenizer knows a language if at most a tenth of its tokens are unknown; all count for one that knows none.
    """
    language = nearest_tag(route, SENTENCES) if is_language_code(route) else None
    if language is not None:
        return {language: SENTENCES[language]}

    known = {}
    for name, texts in SENTENCES.items():
        ids = tokenizer(" ".join(texts), add_special_tokens=False, verbose=False)["input_ids"]
        if ids.count(tokenizer.unk_token_id) <= UNKNOWN_SHARE * len(ids):
            known[name] = texts
    return known or SENTENCES
