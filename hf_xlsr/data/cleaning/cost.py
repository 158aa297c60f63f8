"""What cleaning costs and catches: the steps run on pairs that are known to be good, and on bad ones made from them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

import numpy as np
from scipy.stats import binomtest

from hf_xlsr.data.cleaning.cleaner import Cleaner, drawn
from hf_xlsr.data.cleaning.steps import AnyStep, ComparingStep, known_language
from hf_xlsr.data.cleaning.verdicts import judge_rows
from hf_xlsr.data.columns import Row
from hf_xlsr.data.languages import language_code
from hf_xlsr.data.sample_sentences import SENTENCES
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown import markdown_table

SAMPLE = 5_000
"""Known pairs that are looked at, at most."""
EXAMPLES = 10
MOST_LOST = 0.01
"""Share of good pairs that a step may remove without a warning."""
GOOD = "good"
ALL_STEPS = "all steps"

_DIGIT = re.compile(r"\d")
_BOILERPLATES = 20  # pairs that are repeated as boilerplate, at most; each at least as often


@dataclass(frozen=True)
class Removed:
    """Pairs of one kind that a step removes, if it sees them as earlier steps rewrite them.

    Attributes:
        count: Their number.
        total: Number of pairs of this kind.
        examples: Up to ten of those that are removed, drawn by a hash of their texts.
    """

    count: int
    total: int
    examples: list[Row] = field(default_factory=list)

    @property
    def share(self) -> float:
        """The share that is removed."""
        return self.count / self.total if self.total else 0.0

    def interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the share, by Clopper and Pearson."""
        if not self.total:
            return 0.0, 1.0
        interval = binomtest(self.count, self.total).proportion_ci(method="exact")
        return float(interval.low), float(interval.high)


# Step -> kind of pair -> what is removed.
CleaningCost = dict[str, dict[str, Removed]]


def cleaning_cost(steps: Sequence[AnyStep], known: Iterable[Row], *, seed: int = 1) -> CleaningCost:
    """What each step alone, and all together, remove of known good pairs and of each kind of bad pair.

    Args:
        steps: In their order; a step that rewrites rows does so for the later ones.
        known: Pairs that are right, `source` and `target`, with their languages; of more than 5,000, as many are drawn.
        seed: Draws the bad pairs.

    Returns:
        Name of a step as in `Cleaner.counts`, and `all steps` -> `good` or a kind of `BAD_PAIRS` -> `Removed`.

    Examples:
        >>> from hf_xlsr.data.cleaning import DropIdentical
        >>> known = [{"source": f"house {number}", "target": f"Haus {number}"} for number in range(100)]
        >>> cost = cleaning_cost([DropIdentical()], known)["drop_identical"]
        >>> cost["good"].share, cost["untranslated"].share
        (0.0, 1.0)
    """
    good = drawn(known, SAMPLE)
    if not good:
        raise XlsrError("There are no known pairs to measure cleaning with.")
    generator = random.Random(seed)
    rows_by_kind = {GOOD: good}
    for kind, make_bad in BAD_PAIRS.items():
        rows_by_kind[kind] = make_bad(good, generator)

    cost: CleaningCost = {}
    for kind, rows in rows_by_kind.items():
        for name, is_removed in removed_by_step(steps, rows).items():
            removed_rows = list(compress(rows, is_removed))
            removed = Removed(len(removed_rows), len(rows), drawn(removed_rows, EXAMPLES))
            cost.setdefault(name, {})[kind] = removed
    return cost


def removed_by_step(steps: Sequence[AnyStep], rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """Whether each step would remove each row if no other step did, `(rows,)`, bool; and whether all together do."""
    current = list(rows)
    is_removed: dict[str, np.ndarray] = {}
    for name, step in zip(Cleaner(steps).counts, steps, strict=True):
        if isinstance(step, ComparingStep):
            hashes = step.hashes(current)
            is_new = SeenHashes().add_hashes(hashes.ravel()).reshape(hashes.shape)
            is_removed[name] = np.logical_not(is_new.all(axis=1))
            continue

        results = step.apply(current)
        is_removed[name] = np.array([result is None for result in results], dtype=bool)
        current = [row if result is None else result for row, result in zip(current, results, strict=True)]

    _, verdicts = judge_rows(steps, rows)
    is_removed[ALL_STEPS] = np.logical_not(Cleaner(steps).keeps(verdicts))
    return is_removed


def _shuffled(good: Sequence[Row], generator: random.Random) -> list[Row]:
    """Each source with the target of another row in its languages, unless that is the same."""
    rows_by_languages: dict[tuple[str | None, ...], list[Row]] = {}
    for row in good:
        rows_by_languages.setdefault(_languages_of(row), []).append(row)

    bad = []
    for rows in rows_by_languages.values():
        offset = generator.randrange(1, max(2, len(rows)))
        for number, row in enumerate(rows):
            target = rows[(number + offset) % len(rows)]["target"]
            if target != row["target"]:
                bad.append({**row, "target": target})
    return bad


def _languages_of(row: Row) -> tuple[str | None, ...]:
    return known_language(row, "source_lang"), known_language(row, "target_lang")


def _truncated(good: Sequence[Row], generator: random.Random) -> list[Row]:
    """The first 10 to 50 % of the characters of each target."""
    bad = []
    for row in good:
        length = int(len(row["target"]) * generator.uniform(0.1, 0.5))
        if length:
            bad.append({**row, "target": row["target"][:length]})
    return bad


def _untranslated(good: Sequence[Row], generator: random.Random) -> list[Row]:
    """The source on both sides."""
    return [{**row, "target": row["source"]} for row in good]


def _other_language(good: Sequence[Row], generator: random.Random) -> list[Row]:
    """A sentence in another language than both for each target, of rows that name their languages."""
    bad = []
    for row in good:
        codes = {language_code(language) for language in _languages_of(row) if language}
        if len(codes) == 2:
            other = generator.choice(sorted(SENTENCES.keys() - codes))
            bad.append({**row, "target": generator.choice(SENTENCES[other])})
    return bad


def _number_changed(good: Sequence[Row], generator: random.Random) -> list[Row]:
    """Another digit for one of the target's, in rows that have some."""
    bad = []
    for row in good:
        target = row["target"]
        digits = list(_DIGIT.finditer(target))
        if digits:
            digit = generator.choice(digits)
            other = (int(digit.group()) + generator.randrange(1, 10)) % 10
            changed = f"{target[: digit.start()]}{other}{target[digit.end() :]}"
            bad.append({**row, "target": changed})
    return bad


def _boilerplate(good: Sequence[Row], generator: random.Random) -> list[Row]:
    """A few pairs again and again, each time with another number, like the page numbers of a document."""
    num_boilerplates = min(_BOILERPLATES, max(1, len(good) // _BOILERPLATES))
    bad = []
    for number in range(len(good)):
        row = good[number % num_boilerplates]
        bad.append({**row, "source": f"{row['source']} {number}", "target": f"{row['target']} {number}"})
    return bad


BAD_PAIRS: dict[str, Callable[[Sequence[Row], random.Random], list[Row]]] = {
    "shuffled": _shuffled,
    "truncated": _truncated,
    "untranslated": _untranslated,
    "other language": _other_language,
    "number changed": _number_changed,
    "boilerplate": _boilerplate,
}
"""Kinds of bad pairs, made from good ones."""


def cost_counts(cost: CleaningCost) -> dict[str, dict[str, list[int]]]:
    """The numbers of a cost as JSON: step -> kind -> how many were removed, and of how many."""
    counts: dict[str, dict[str, list[int]]] = {}
    for step, removed_by_kind in cost.items():
        counts[step] = {kind: [removed.count, removed.total] for kind, removed in removed_by_kind.items()}
    return counts


def _counted(numbers: Sequence[int]) -> Removed:
    count, total = numbers
    return Removed(count, total)


def cost_table(counts: Mapping[str, Mapping[str, Sequence[int]]]) -> list[str]:
    """The lines of a Markdown table of `cost_counts`: shares that are removed, of good pairs with the 95 % interval."""
    rows = []
    for step, count_by_kind in counts.items():
        good = _counted(count_by_kind[GOOD])
        low, high = good.interval()
        cells = [step, f"{good.share:.2%} ({low:.2%}-{high:.2%})"]
        for kind in BAD_PAIRS:
            removed = _counted(count_by_kind[kind])
            cells.append(f"{removed.share:.1%}" if removed.total else "-")
        rows.append(cells)
    return markdown_table(["step", "good pairs removed", *BAD_PAIRS], rows)


def removal_table(counts: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The lines of a Markdown table of `Cleaner.counts`: what each step removed."""
    rows = []
    for step, count in counts.items():
        removed = Removed(count["in"] - count["out"], count["in"])
        rows.append(
            [step, f"{removed.total:,}", f"{removed.count:,}", f"{removed.share:.2%}", f"{count['changed']:,}"]
        )
    return markdown_table(["step", "rows", "removed", "share", "changed"], rows)


def cost_warnings(counts: Mapping[str, Mapping[str, Sequence[int]]]) -> list[str]:
    """A sentence for each step that removes more than 1 % of the good pairs."""
    warnings = []
    for step, count_by_kind in counts.items():
        good = _counted(count_by_kind[GOOD])
        if step != ALL_STEPS and good.share > MOST_LOST:
            warnings.append(
                f"Cleaning step '{step}' removes {good.share:.1%} of the known good pairs ({good.count} of {good.total})."
            )
    return warnings
