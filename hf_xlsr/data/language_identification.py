"""Which of a few given languages a text is in: its letters say it where scripts differ, else py3langid does."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from hf_xlsr.data.languages import language_code
from hf_xlsr.data.scripts import SCRIPTS, foreign_letters, identifier_labels, language_identifier, scripts_of
from hf_xlsr.utils.errors import XlsrError

# Latin names stand in texts of every script, other letters hardly ever in a Latin one: a fifth of them settles a text.
BESIDE_LATIN = 4


def language_shares(languages: Sequence[str], *, place: str, mend: str) -> Callable[[str], tuple[float, ...] | None]:
    """A function that says how much a text is of each of the given languages, and of no others.

    Languages that share a script, directly or through a third one, form a group. Letters say how much a text is of
    each group, one in another script counting four times beside a Latin one; within a group py3langid says the rest.
    Where it does not know one language of a group, that one gets what the identifier does not give to the others.

    Args:
        languages: Two or more tags of different languages.
        place: What error sentences call the text.
        mend: How error sentences about languages that cannot be told apart go on.

    Returns:
        A function from a text to one share for each language, which sum to 1; or to None where nothing says it: the
        text has no letters, or none that any of the languages is written with.

    Raises:
        XlsrError: py3langid is needed and missing, or it cannot tell two of the languages apart.

    Example:
        >>> shares = language_shares(["en", "ru"], place="a text", mend="name its language")
        >>> shares("да, ok"), shares("Hello!"), shares("42")
        ((0.2, 0.8), (1.0, 0.0), None)
    """
    codes = tuple(map(language_code, languages))
    groups = _groups(codes)
    labels: dict[str, frozenset[str]] = {}
    for group in groups:
        if len(group) > 1:
            labels.update(_labels_apart(group, place, mend))

    def shares(text: str) -> tuple[float, ...] | None:
        if len(groups) == 1:
            weights = [sum(map(str.isalpha, text))]
        else:
            weights = [_own_letters(text, group) for group in groups]
        found = dict.fromkeys(codes, 0.0)
        for group, weight in zip(groups, weights, strict=True):
            if weight:
                within = [1.0] if len(group) == 1 else _probabilities(text, [labels[code] for code in group])
                if not sum(within):
                    return None
                of_group = weight / sum(weights)
                found.update((code, of_group * part / sum(within)) for code, part in zip(group, within, strict=True))
        return tuple(found[code] for code in codes) if any(weights) else None

    return shares


def _groups(languages: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Languages that letters do not tell apart; a language of unknown scripts may share any other's."""
    if not all(language in SCRIPTS for language in languages):
        return [languages]
    groups: list[tuple[str, ...]] = []
    for language in languages:
        sharing = [group for group in groups if scripts_of(group) & SCRIPTS[language]]
        joined = (*(member for group in sharing for member in group), language)
        groups = [*(group for group in groups if group not in sharing), joined]
    return groups


def _labels_apart(group: tuple[str, ...], place: str, mend: str) -> dict[str, frozenset[str]]:
    """The identifier's labels of each language, none for one that it does not know."""
    named = f"{', '.join(group[:-1])} or {group[-1]}"
    if importlib.util.find_spec("py3langid") is None:
        raise XlsrError(
            f"to tell whether {place} is in {named}, the package py3langid is needed; install it with "
            "`pip install 'hf-xlsr[langid]'`."
        )
    labels = {language: _labels(language) for language in group}
    shared = sum(map(len, labels.values())) > len(frozenset().union(*labels.values()))
    if shared or sum(not known for known in labels.values()) > 1:
        raise XlsrError(f"{place} is in {named}, which py3langid cannot tell apart; {mend}.")
    return labels


def _labels(language: str) -> frozenset[str]:
    try:
        return identifier_labels((language,))
    except XlsrError:
        return frozenset()


def _probabilities(text: str, labels: Sequence[frozenset[str]]) -> list[float]:
    ranked = dict(language_identifier().rank(text))
    found = [sum(ranked.get(label, 0.0) for label in known) for known in labels]
    rest = max(0.0, 1.0 - sum(found))
    return [part if known else rest for part, known in zip(found, labels, strict=True)]


def _own_letters(text: str, languages: tuple[str, ...]) -> int:
    """How many letters of a text are of the languages' scripts, weighted."""
    own = sum(map(str.isalpha, text)) - len(text.translate(foreign_letters(languages)))
    return own if "latin" in scripts_of(languages) else BESIDE_LATIN * own
