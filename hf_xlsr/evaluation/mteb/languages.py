"""The language of a text column of mteb: by the name of its subset, or identified from its texts."""

from __future__ import annotations

from collections.abc import Sequence

import langcodes
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.languages import check_language_code

from hf_xlsr.data.languages import language_code, language_shares
from hf_xlsr.utils.errors import XlsrError

SAMPLE = 2000  # texts of a column that vote
CLEAR = 2 / 3  # share of the votes that settles a column's language


def langscript(language: str) -> str | None:
    """A language as mteb writes it, `deu-Latn`: ISO 639-3 and ISO 15924; None if mteb does not know it."""
    if not langcodes.tag_is_valid(language):
        return None
    full = langcodes.Language.get(language).maximize()
    tag = f"{full.to_alpha3()}-{full.script}"
    try:
        check_language_code(tag)
    except ValueError:
        return None
    return tag


def subset_languages(metadata: TaskMetadata, subset: str) -> tuple[str, ...]:
    """The codes of the languages of a subset, or of a column that mteb names by its language; none where unknown."""
    tags = metadata.hf_subsets_to_langscripts.get(subset)
    if tags is None:
        tags = [subset] if langcodes.tag_is_valid(subset) else []
    return tuple(dict.fromkeys(map(language_code, tags)))


def column_language(texts: Sequence[str], candidates: tuple[str, str], *, place: str) -> str:
    """Identifies which of two languages a whole column is in.

    Each of up to 2,000 evenly spaced texts votes. Where the two languages share no script the letters decide, else
    py3langid among the two. A text votes for a language unknown to py3langid unless it is identified as the other one.
    """
    first, second = candidates
    advice = "evaluate this subset with a protocol of hf-xlsr, which takes the languages of both sides"
    shares = language_shares(candidates, place=place, advice=advice)
    votes = [found[0] for text in texts[:: max(1, len(texts) // SAMPLE)] if (found := shares(text)) is not None]
    won = sum(0.5 if vote == 0.5 else vote > 0.5 for vote in votes) / max(len(votes), 1)
    if votes and won >= CLEAR:
        return first
    if votes and won <= 1 - CLEAR:
        return second
    raise XlsrError(
        f"{place} may be in {first} or {second}: {won:.0%} of its {len(votes)} texts with letters look like {first}; "
        f"{advice}."
    )
