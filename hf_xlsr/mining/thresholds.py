"""Precision and recall of mined pairs by threshold, estimated from hidden known translations, gold pairs or labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy.stats import binomtest

from hf_xlsr.mining.search.extraction import MinedBitext
from hf_xlsr.mining.texts import BREAKS
from hf_xlsr.utils.errors import XlsrError

BANDS = 40  # of the scores, each with as many mined pairs
POINTS = 200  # of a curve
RESAMPLES = 200
FEWEST = 20  # known pairs, gold pairs or labels


@dataclass(frozen=True)
class PrecisionCurve:
    """Precision and recall (None if unknown) with 95 % intervals, of the `pairs` at or above each threshold.

    Arrays are `(points,)`, thresholds ascend, and `basis` says what the estimate rests on.
    """

    threshold: np.ndarray
    pairs: np.ndarray
    basis: str
    precision: np.ndarray
    low: np.ndarray
    high: np.ndarray
    recall: np.ndarray | None = None
    recall_low: np.ndarray | None = None
    recall_high: np.ndarray | None = None

    @property
    def f1(self) -> np.ndarray:
        assert self.recall is not None, "labels give no recall"
        return 2 * self.precision * self.recall / np.maximum(self.precision + self.recall, 1e-12)

    def choose(self, precision: float | None = None) -> int:
        """Index of the threshold with the best F1 or, given a precision, of the lowest threshold that reaches it."""
        if precision is None:
            if self.recall is None:
                raise XlsrError("Labels give no recall, so no best F1. Set the `precision` you want (--precision).")
            return int(self.f1.argmax())
        reached = np.flatnonzero(self.precision >= precision)
        if not len(reached):
            best = self.precision.max()
            raise XlsrError(f"`precision` {precision:g} is above the best estimate, {best:.3f}. Set a lower one.")
        return int(reached[0])

    def index(self, threshold: float) -> int:
        """Index of the lowest score that is at least the threshold."""
        return min(int(np.searchsorted(self.threshold, threshold)), len(self.threshold) - 1)

    def chosen(self, threshold: float | None, precision: float | None = None) -> tuple[float, dict[str, Any]]:
        """The threshold, or the one that `choose` finds if it is None, and the figures there."""
        index = self.choose(precision) if threshold is None else self.index(threshold)
        estimate = {**self.at(index), "basis": self.basis}
        return float(self.threshold[index]) if threshold is None else threshold, estimate

    def at(self, index: int) -> dict[str, float]:
        """All figures at one threshold."""
        return {name: float(values[index]) for name, values in vars(self).items() if isinstance(values, np.ndarray)}

    def values(self) -> dict[str, Any]:
        """The curve as plain values, for JSON."""
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in asdict(self).items()}


@dataclass(frozen=True)
class HiddenPairs:
    """Known translations that are hidden among the candidates, the first `complete` of them with both sides.

    The share of complete pairs that is found estimates the recall. Of the others only one side is hidden, so every pair
    that contains one is false: these estimate the scores of false pairs.
    """

    source: list[str] = field(default_factory=list)
    target: list[str] = field(default_factory=list)
    complete: int = 0

    @classmethod
    def sample(cls, pairs: Iterable[tuple[str, str]], count: int = 4000, seed: int = 0) -> HiddenPairs:
        """A random sample of known pairs, without repeated sentences, half of them complete."""
        found: dict[str, tuple[str, str]] = {}
        targets = set[str]()
        for source, target in pairs:
            source, target = " ".join(source.split()), " ".join(target.split())
            if source and target and source not in found and target not in targets:
                found[source] = (source, target)
                targets.add(target)
        known = list(found.values())
        require_enough("known", "different pairs", len(known), 4 * FEWEST)
        order = np.random.default_rng(seed).permutation(len(known))[:count].tolist()
        both, single = order[: len(order) // 2], order[len(order) // 2 :]
        half = len(single) // 2
        return cls(
            [known[place][0] for place in (*both, *single[:half])],
            [known[place][1] for place in (*both, *single[half:])],
            len(both),
        )


def hidden_curve(
    hidden: HiddenPairs,
    mined: MinedBitext,
    lines: Sequence[int],
    sentences: Sequence[int],
    present: Sequence[set[int]],
    kept: np.ndarray,
    seed: int = 0,
) -> PrecisionCurve:
    r"""The curve from hidden pairs.

    Of the pairs mined from the given texts with a score of at least `t`,

    ```math
    N(t) = M \, (F_1(t) + F_2(t)) + \frac{S - 2M}{2} F_0(t)
    ```

    where `M` is the unknown number of true pairs and `S` the number of sentences of both sides. `F_1` is the share of
    complete hidden pairs that are found. `F_2` and `F_0` are the numbers of false pairs per sentence: `F_2` of sentences
    with a translation, `F_0` of those that were hidden alone. Least squares on a histogram of the scores give `M`. The
    precision is `M F_1 / N`, the recall `F_1`. The interval of the precision comes from resampling the hidden pairs.

    Args:
        hidden: What was hidden.
        mined: All mined pairs by line, with hidden sentences, whose numbers follow the lines of each text.
        lines: Number of lines of each text.
        sentences: Number of their distinct sentences.
        present: Hidden sentences of each side, by number, that do not also occur in its text.
        kept: Scores of the pairs mined without hidden sentences, to which the curve applies.
        seed: Of the resampling.
    """
    source, target = mined.source - lines[0], mined.target - lines[1]
    complete = [n for n in range(hidden.complete) if n in present[0] and n in present[1]]
    alone = sum(number >= hidden.complete for side in present for number in side)
    scores = mined.score[(source < 0) & (target < 0)]
    found = min(len(complete), alone) if len(scores) and len(kept) else 0
    require_enough("known", "mined pairs that are not in the texts themselves", found)
    usable = np.zeros(max(map(len, (hidden.source, hidden.target))), bool)
    usable[complete] = True
    with_translation = [(side >= 0) & usable[np.maximum(side, 0)] for side in (source, target)]
    hit = with_translation[0] & (source == target)
    false = (source >= hidden.complete) | (target >= hidden.complete)
    wrong_ends = np.where(hit, 0, sum(side.astype(int) for side in with_translation))
    kinds = [mined.score[hit], np.repeat(mined.score, wrong_ends), mined.score[false]]
    sizes = [len(complete), 2 * len(complete), alone]
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, min(BANDS, len(scores)) + 1)))
    grid = _grid(kept)
    observed = _histogram(scores, edges)
    weight = 1 / np.sqrt(observed + 1)  # of a count that varies as Poisson's
    half = sum(sentences) / 2

    def fit(kinds: Sequence[np.ndarray]) -> np.ndarray:
        true, wrong, noise = (_histogram(one, edges) / size for one, size in zip(kinds, sizes, strict=True))
        step, rest = (true + wrong - noise) * weight, (observed - half * noise) * weight
        pairs = float(np.clip(step @ rest / max(step @ step, 1e-12), 0, min(sentences)))  # M
        true, wrong, noise = (_at_least(one, grid) / size for one, size in zip(kinds, sizes, strict=True))
        total = pairs * (true + wrong) + (half - pairs) * noise
        last = np.maximum.accumulate(np.where(total > 0, np.arange(len(grid)), 0))  # point with hidden pairs
        return (pairs * true / np.maximum(total, 1e-12))[last]

    rng = np.random.default_rng(seed)

    def redraw(found: np.ndarray) -> np.ndarray:
        """Another sample: as many scores as Poisson's law gives. Half a pseudo-score keeps a kind not seen possible."""
        count = rng.poisson(len(found) + 0.5)
        pseudo = rng.random(count) < 0.5 / (len(found) + 0.5)
        return np.where(pseudo, rng.choice(scores, count), rng.choice(found if len(found) else scores, count))

    low, high = np.quantile([fit(list(map(redraw, kinds))) for _ in range(RESAMPLES)], [0.025, 0.975], axis=0)
    basis = f"{len(complete):,} hidden pairs and {alone:,} hidden sentences without translation"
    recall = _share(_at_least(kinds[0], grid), np.full(len(grid), len(complete)))
    return PrecisionCurve(grid, _at_least(kept, grid), basis, fit(kinds), low, high, *recall)


def require_enough(name: str, what: str, count: int, fewest: int = FEWEST) -> None:
    if count < fewest:
        raise XlsrError(f"`{name}` must have at least {fewest} {what}, got {count}.")


def gold_curve(right: np.ndarray, first: np.ndarray, total: int, scores: np.ndarray) -> PrecisionCurve:
    """The curve from gold pairs that are in the texts, `total` in all; every other mined pair counts as false.

    A gold pair that was mined several times is `right` each time, and found the `first` time.
    """
    require_enough("gold", "pairs that are in the texts", total)
    grid = _grid(scores)
    pairs = _at_least(scores, grid)
    precision = _share(_at_least(scores[right], grid), pairs)
    recall = _share(_at_least(scores[first], grid), np.full(len(grid), total))
    return PrecisionCurve(grid, pairs, f"{total:,} gold pairs", *precision, *recall)


def _share(found: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares, and both ends of their 95 % intervals (Wilson)."""
    pairs = zip(np.minimum(found, counts).astype(int).tolist(), counts.astype(int).tolist(), strict=True)
    low, high = np.array([binomtest(*pair).proportion_ci(method="wilson") for pair in pairs]).T
    return found / counts, low, high


def label_curve(
    labels: Mapping[tuple[str, str], bool], rows: Iterable[Mapping[str, Any]], seed: int = 0
) -> PrecisionCurve:
    """The curve from scored pairs of which a person accepted or rejected some; it has no recall.

    A logistic curve through the labels gives each pair its chance to be true; the precision at a threshold is the mean
    of those above. The interval comes from resampling the labels.
    """
    from sklearn.linear_model import LogisticRegression

    found = [(row["score"], (BREAKS.sub(" ", row["source"]), BREAKS.sub(" ", row["target"]))) for row in rows]
    known = [(score, labels[pair]) for score, pair in found if pair in labels]
    # Labels of other pairs would count only those that both have, which are mostly right.
    if (lost := len(labels) - len(known)) > len(labels) // 10:
        raise XlsrError(f"{lost} of {len(labels)} labels are of other pairs. Save the labels from this run's report.")
    require_enough("labels", "pairs that are accepted or rejected", len(known))
    scores, (at, accepted) = np.array([score for score, _ in found]), np.array(known, float).T
    grid, scale = _grid(scores), max(float(at.std()), 1e-9)
    pairs, order = _at_least(scores, grid), np.sort(scores)[::-1]

    def fit(rows: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        yes = int(accepted[rows].sum())
        if yes in (0, len(rows)):  # labels of one kind; a resample of them draws from the posterior of Jeffreys' prior
            share = rng.beta(yes + 0.5, len(rows) - yes + 0.5) if rng else (yes + 1) / (len(rows) + 2)
            chance = np.full(len(order), share)
        else:
            model = LogisticRegression(C=10.0).fit((at[rows, None] - at.mean()) / scale, accepted[rows])
            chance = model.predict_proba((order[:, None] - at.mean()) / scale)[:, 1]
        return (np.cumsum(chance) / np.arange(1, len(order) + 1))[pairs.astype(int) - 1]

    rng = np.random.default_rng(seed)
    drawn = [fit(rng.integers(0, len(at), len(at)), rng) for _ in range(RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    basis = f"{len(at):,} labels, {int(accepted.sum()):,} of them accepted"
    return PrecisionCurve(grid, pairs, basis, fit(np.arange(len(at))), low, high)


def _grid(scores: np.ndarray) -> np.ndarray:
    """The thresholds of a curve: scores with about as many pairs between them."""
    return np.unique(np.quantile(scores, np.linspace(0, 1, POINTS), method="higher"))


def _histogram(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Counts between the edges; what lies outside goes to the ends."""
    places = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, max(len(edges) - 2, 0))
    return np.bincount(places, minlength=max(len(edges) - 1, 1)).astype(np.float64)


def _at_least(scores: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Number of scores of at least each point, float64."""
    return (len(scores) - np.searchsorted(np.sort(scores), grid, side="left")).astype(np.float64)
