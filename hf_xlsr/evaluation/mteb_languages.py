"""Which language a text column is in that mteb hands to a model: by the subset's name, or by how it reads."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import langcodes

from hf_xlsr.data.languages import language_code
from hf_xlsr.data.scripts import SCRIPTS, foreign_letters, identifier_labels, language_identifier
from hf_xlsr.errors import XlsrError

SAMPLE = 2000  # texts of a column that vote
CLEAR = 2 / 3  # share of the votes that settles a column's language
# Latin names stand in texts of every script, other letters hardly ever in a Latin one: a fifth of them settles a text.
BESIDE_LATIN = 4


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
    share = _first_share(candidates, place)
    votes = [vote for text in texts[:: max(1, len(texts) // SAMPLE)] if (vote := share(text)) is not None]
    won = sum(0.5 if vote == 0.5 else vote > 0.5 for vote in votes) / max(len(votes), 1)
    if votes and won >= CLEAR:
        return first
    if votes and won <= 1 - CLEAR:
        return second
    raise XlsrError(
        f"{place} cannot be told to be in {first} or {second}: {won:.0%} of its {len(votes)} texts with letters look "
        f"like {first}; evaluate this subset with a protocol of hf-xlsr, which takes the languages of both sides."
    )


def _first_share(candidates: tuple[str, str], place: str) -> Callable[[str], float | None]:
    """A function: how much a text is of the first language rather than of the second, 0 to 1; None: nothing says it."""
    first, second = candidates
    if first in SCRIPTS and second in SCRIPTS and not SCRIPTS[first] & SCRIPTS[second]:
        return lambda text: _share(*(_own_letters(text, language) for language in candidates))
    if importlib.util.find_spec("py3langid") is None:
        raise XlsrError(
            f"to tell whether {place} is in {first} or {second}, the package py3langid is needed; install it with "
            "`pip install 'hf-xlsr[langid]'`."
        )
    labels = [_labels(language) for language in candidates]
    if labels[0] & labels[1] or not (labels[0] or labels[1]):
        raise XlsrError(
            f"{place} is in {first} or {second}, which py3langid cannot tell apart; evaluate this subset with a "
            "protocol of hf-xlsr, which takes the languages of both sides."
        )

    def share(text: str) -> float | None:
        if not any(map(str.isalpha, text)):
            return None
        probability = dict(language_identifier().rank(text))
        of_first, of_second = (sum(probability[label] for label in known) for known in labels)
        if not labels[0] or not labels[1]:
            return of_first if labels[0] else 1 - of_second
        return _share(of_first, of_second)

    return share


def _labels(language: str) -> frozenset[str]:
    try:
        return identifier_labels((language,))
    except XlsrError:
        return frozenset()


def _own_letters(text: str, language: str) -> int:
    """How many letters of a text are of the language's scripts, weighted."""
    own = sum(map(str.isalpha, text)) - len(text.translate(foreign_letters((language,))))
    return own if "latin" in SCRIPTS[language] else BESIDE_LATIN * own


def _share(first: float, second: float) -> float | None:
    return first / (first + second) if first + second else None
