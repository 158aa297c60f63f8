"""Which language a text column is in that mteb hands to a model: by the subset's name, or by how it reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import langcodes

from hf_xlsr.data.languages import language_code, language_shares
from hf_xlsr.utils.errors import XlsrError

SAMPLE = 2000  # texts of a column that vote
CLEAR = 2 / 3  # share of the votes that settles a column's language


def langscript(language: str) -> str | None:
    """A language as mteb writes it, `deu-Latn`: ISO 639-3 and ISO 15924; None if mteb does not know it."""
    from mteb.languages import check_language_code

    if not langcodes.tag_is_valid(language):
        return None
    full = langcodes.Language.get(language).maximize()
    tag = f"{full.to_alpha3()}-{full.script}"
    try:
        check_language_code(tag)
    except ValueError:
        return None
    return tag


def subset_languages(metadata: Any, subset: str) -> tuple[str, ...]:
    """The codes of a subset's languages, in the order that mteb lists them; none when nothing says them.

    Args:
        metadata: `TaskMetadata` of a task.
        subset: One of its subsets; or a language, which is how mteb calls each column of tasks that keep all their
            languages in one table.
    """
    tags = metadata.hf_subsets_to_langscripts.get(subset)
    if tags is None:
        tags = [subset] if langcodes.tag_is_valid(subset) else []
    return tuple(dict.fromkeys(map(language_code, tags)))


def column_language(texts: Sequence[str], candidates: tuple[str, str], *, place: str) -> str:
    """Which of two languages a whole column is in.

    Each text votes, up to 2,000 of them at even distances. Where the two languages share no script the letters decide;
    else py3langid does, among the two. Of a language that py3langid does not know, texts count that it does not take
    for the other one.

    Args:
        texts: The column.
        candidates: Codes of the two languages.
        place: What error sentences call the column.

    Returns:
        One of the candidates.

    Raises:
        XlsrError: neither has two thirds of the votes, py3langid is needed and missing, or it cannot tell the two
            languages apart.

    Example:
        >>> column_language(["Hello!", "Привет, мир!", "Как дела?", "Всё хорошо."], ("en", "ru"), place="a column")
        'ru'
    """
    first, second = candidates
    mend = "evaluate this subset with a protocol of hf-xlsr, which takes the languages of both sides"
    shares = language_shares(candidates, place=place, advice=mend)
    votes = [found[0] for text in texts[:: max(1, len(texts) // SAMPLE)] if (found := shares(text)) is not None]
    won = sum(0.5 if vote == 0.5 else vote > 0.5 for vote in votes) / max(len(votes), 1)
    if votes and won >= CLEAR:
        return first
    if votes and won <= 1 - CLEAR:
        return second
    raise XlsrError(
        f"{place} cannot be told to be in {first} or {second}: {won:.0%} of its {len(votes)} texts with letters look "
        f"like {first}; {mend}."
    )
