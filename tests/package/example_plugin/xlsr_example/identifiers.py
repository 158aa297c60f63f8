"""An identifier that tells English from German by small words."""

from __future__ import annotations

from hf_xlsr.data.identification import register_identifier

ENGLISH = {"a", "and", "is", "of", "the", "to"}
GERMAN = {"das", "der", "die", "ein", "ist", "und"}


@register_identifier("small-words", labels=["en", "de"])
def small_words(text: str) -> dict[str, float]:
    """The share of each language among the small words; none without them."""
    words = text.lower().split()
    counts = {"en": sum(word in ENGLISH for word in words), "de": sum(word in GERMAN for word in words)}
    total = sum(counts.values())
    return {language: count / total for language, count in counts.items()} if total else {}
