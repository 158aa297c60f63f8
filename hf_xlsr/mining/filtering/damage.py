"""Damaged pairs, made from good ones, on which a filter is trained: each kind is a mistake that corpora have."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from hf_xlsr.data.cleaning.cost import BAD_PAIRS
from hf_xlsr.data.columns import Row
from hf_xlsr.data.languages import language_code
from hf_xlsr.mining.filtering.negation import without_negation

GOOD = "good"
REPEATS = 3  # pairs that share a target
UNSPACED = ("ja", "km", "lo", "my", "th", "zh")  # no spaces between words

_WORD = re.compile(r"\s+")


def _misaligned(rows: Sequence[Row], generator: random.Random) -> list[Row]:
    """Each source with the target of the next row, as if one line were lost."""
    damaged = []
    for row, following in zip(rows, [*rows[1:], *rows[:1]], strict=True):
        if following["target"] != row["target"]:
            damaged.append({**row, "target": following["target"]})
    return damaged


def _truncated(rows: Sequence[Row], generator: random.Random) -> list[Row]:
    """The first 20 to 70 % of the characters of one side."""
    damaged = []
    for row in rows:
        side = generator.choice(("source", "target"))
        shortened = row[side][: int(len(row[side]) * generator.uniform(0.2, 0.7))].strip()
        if shortened:
            damaged.append({**row, side: shortened})
    return damaged


def _untranslated(rows: Sequence[Row], generator: random.Random) -> list[Row]:
    """One side on both."""
    damaged = []
    for row in rows:
        text = row[generator.choice(("source", "target"))]
        damaged.append({**row, "source": text, "target": text})
    return damaged


def _negation_changed(rows: Sequence[Row], generator: random.Random) -> list[Row]:
    """One side without its negation, in rows of which both sides have one."""
    damaged = []
    for row in rows:
        changed = {side: without_negation(row[side], row[f"{side}_lang"]) for side in ("source", "target")}
        if all(changed.values()):
            side = generator.choice(("source", "target"))
            damaged.append({**row, side: changed[side]})
    return damaged


def _repeated(rows: Sequence[Row], generator: random.Random) -> list[Row]:
    """Three sources in a row with the target of the first: the other two are wrong."""
    damaged = []
    for number, row in enumerate(rows):
        first = rows[number - number % REPEATS]
        if first["target"] != row["target"]:
            damaged.append({**row, "target": first["target"]})
    return damaged


def _words_replaced(rows: Sequence[Row], generator: random.Random) -> list[Row]:
    """A tenth to a third of the words of one side replaced by words of the next row; where none are spaced, characters.

    The length stays much as it is, so that little but the scores tells a partly wrong pair from a good one.
    """
    damaged = []
    for row, following in zip(rows, [*rows[1:], *rows[:1]], strict=True):
        side = generator.choice(("source", "target"))
        is_spaced = language_code(row[f"{side}_lang"]) not in UNSPACED
        words = row[side].split() if is_spaced else list(row[side])
        other_words = following[side].split() if is_spaced else list(following[side])

        count = max(1, round(len(words) * generator.uniform(0.1, 0.33)))
        for place in generator.sample(range(len(words)), count):
            words[place] = generator.choice(other_words)
        text = (" " if is_spaced else "").join(words)
        if text != row[side]:
            damaged.append({**row, side: text})
    return damaged


Damage = Callable[[Sequence[Row], random.Random], list[Row]]
DAMAGE: dict[str, Damage] = {
    "negation changed": _negation_changed,
    "number changed": BAD_PAIRS["number changed"],
    "misaligned": _misaligned,
    "truncated": _truncated,
    "untranslated": _untranslated,
    "other language": BAD_PAIRS["other language"],
    "repeated target": _repeated,
    "words replaced": _words_replaced,
}
"""Kind of damage -> what makes it of some rows. The first kinds apply to few rows."""


def damaged_mixture(rows: Sequence[Row], seed: int) -> list[tuple[Row, str]]:
    """The rows, in random order, half of them damaged in equal parts, each with its kind; no row is used twice.

    Args:
        rows: Good pairs: `source`, `target`, `source_lang`, `target_lang`.
        seed: Of the order and of the damage.

    Returns:
        Rows and kinds: `good`, or one of `DAMAGE`. Rows that a kind does not apply to are good ones or of other kinds.
    """
    generator = random.Random(seed)
    remaining = list(rows)
    generator.shuffle(remaining)
    share = len(remaining) // (2 * len(DAMAGE))

    mixture: list[tuple[Row, str]] = []
    for kind, damage in DAMAGE.items():
        usable = remaining[:share]
        if kind in ("negation changed", "number changed"):
            usable = [row for row in remaining if damage([row], random.Random(0))][:share]
        mixture += [(row, kind) for row in damage(usable, generator)]
        used = {row["source"] for row in usable}
        remaining = [row for row in remaining if row["source"] not in used]
    mixture += [(row, GOOD) for row in remaining[: max(len(mixture), 1)]]
    generator.shuffle(mixture)
    return mixture
