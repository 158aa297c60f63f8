"""Precision and recall of mined pairs by threshold, estimated from hidden known translations, gold pairs or labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from scipy.stats import binomtest

from hf_xlsr.mining.search.extraction import MinedBitext
from hf_xlsr.mining.texts import on_one_line
from hf_xlsr.utils.errors import XlsrError

BANDS = 40  # of the scores, each with as many mined pairs
POINTS = 200  # of a curve
RESAMPLES = 200
FEWEST = 20  # known pairs, gold pairs or labels
Counts = Callable[[np.ndarray, np.ndarray], np.ndarray]


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
        f1: np.ndarray = 2 * self.precision * self.recall / np.maximum(self.precision + self.recall, 1e-12)
        return f1

    def choose(self, precision: float | None = None) -> int:
        """Index of the threshold with the best F1 or, given a precision, of the lowest threshold that reaches it."""
        if precision is None:
            if self.recall is None:
                raise XlsrError("Labels give no recall, so no best F1. Set the `precision` you want (--precision).")
            return int(self.f1.argmax())

        if not 0 < precision <= 1:
            raise XlsrError(f"`precision` must be above 0 and at most 1, got {precision:g}.")
        reached = np.flatnonzero(self.precision >= precision)
        if not len(reached):
            best = self.precision.max()
            raise XlsrError(f"`precision` {precision:g} is above the best estimate, {best:.3f}. Set a lower one.")
        return int(reached[0])

    def chosen(self, threshold: float | None, precision: float | None = None) -> tuple[float, dict[str, Any]]:
        """The threshold, or the one that `choose` finds if it is None, and the figures there."""
        if threshold is None:
            index = self.choose(precision)
            threshold = float(self.threshold[index])
        else:
            # The lowest score of at least the threshold.
            index = int(np.searchsorted(self.threshold[:-1], threshold))
        return threshold, self.at(index) | {"basis": self.basis}

    def at(self, index: int) -> dict[str, Any]:
        """All figures at one threshold."""
        return {name: values[index] for name, values in self.values().items() if isinstance(values, list)}

    def values(self) -> dict[str, Any]:
        """The curve as plain values, for JSON."""
        values = dict(vars(self))
        for name, array in values.items():
            if isinstance(array, np.ndarray):
                values[name] = array.tolist()
        return values


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
    def sample(
        cls,
        pairs: Iterable[tuple[str, str]],
        count: int = 4000,
        seed: int = 0,
    ) -> HiddenPairs:
        """A random sample of known pairs, without repeated sentences, half of them complete."""
        target_of: dict[str, str] = {}
        known_targets = set[str]()
        for source, target in pairs:
            source = " ".join(source.split())
            target = " ".join(target.split())
            if source and target and source not in target_of and target not in known_targets:
                target_of[source] = target
                known_targets.add(target)

        require_enough("known", "different pairs", len(target_of), 4 * FEWEST)

        # Of one half both sides are hidden; of the first half of the others the source alone, of the rest the target.
        pairs = list(target_of.items())
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(pairs))[:count].tolist()
        complete = len(order) // 2
        middle = complete + (len(order) - complete) // 2
        sources = [pairs[number][0] for number in order[:middle]]
        targets = [pairs[number][1] for number in order[:complete] + order[middle:]]
        return cls(sources, targets, complete)


def hidden_curve(
    hidden: HiddenPairs,
    mined: MinedBitext,
    lines: Sequence[int],
    sentences: Sequence[int],
    present: Sequence[set[int]],
    kept_scores: np.ndarray,
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
        kept_scores: Scores of the pairs mined without hidden sentences, to which the curve applies.
        seed: Of the resampling.
    """
    # Numbers of hidden sentences; below 0 for a sentence of the texts.
    source = mined.source - lines[0]
    target = mined.target - lines[1]
    scores = mined.score[(source < 0) & (target < 0)]

    complete = [number for number in present[0] & present[1] if number < hidden.complete]
    alone = sum(number >= hidden.complete for number in chain(*present))
    usable = 0
    if len(scores) and len(kept_scores):
        usable = min(len(complete), alone)
    require_enough("known", "mined pairs that are not in the texts themselves", usable)

    kinds = _scores_by_kind(source, target, mined.score, complete, hidden.complete)
    sizes = [len(complete), 2 * len(complete), alone]  # hidden pairs or sentences that each kind comes from
    grid = _grid(kept_scores)
    mixture = _Mixture(scores, grid, sizes, sentences)
    rng = np.random.default_rng(seed)
    resampled = []
    for _ in range(RESAMPLES):
        redrawn = [_redrawn(kind_scores, scores, rng) for kind_scores in kinds]
        resampled.append(mixture.precision(redrawn))
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)

    basis = f"{len(complete):,} hidden pairs and {alone:,} hidden sentences without translation"
    recall = _share(_at_least(kinds[0], grid), len(complete))
    return PrecisionCurve(
        grid,
        _at_least(kept_scores, grid),
        basis,
        mixture.precision(kinds),
        low,
        high,
        *recall,
    )


def _scores_by_kind(
    source: np.ndarray, target: np.ndarray, scores: np.ndarray, complete: Sequence[int], first_alone: int
) -> list[np.ndarray]:
    """Scores of the mined pairs that tell of `F_1`, `F_2` and `F_0`, see `hidden_curve`.

    `source` and `target` are numbers of hidden sentences; those in `complete` have their translation on the other side,
    those from `first_alone` on have none.
    """
    source_translated = np.isin(source, complete)
    target_translated = np.isin(target, complete)
    is_hit = source_translated & (source == target)
    # A false pair of two sentences with translations counts for both.
    wrong_ends = np.where(is_hit, 0, np.add(source_translated, target_translated, dtype=int))
    is_alone = (source >= first_alone) | (target >= first_alone)
    return [scores[is_hit], np.repeat(scores, wrong_ends), scores[is_alone]]


class _Mixture:
    """Counts of mined pairs by score, as a mixture of true and false pairs in the proportion that explains them best.

    The symbols are those of `hidden_curve`. `scores` are those of pairs of the texts, `sizes` the numbers of hidden
    pairs or sentences behind `F_1`, `F_2` and `F_0`.
    """

    def __init__(
        self,
        scores: np.ndarray,
        grid: np.ndarray,
        sizes: Sequence[int],
        sentences: Sequence[int],
    ) -> None:
        self.grid = grid
        self.sizes = sizes
        bands = min(BANDS, len(scores))
        self.edges = np.unique(np.quantile(scores, np.linspace(0, 1, bands + 1)))
        self.observed = _histogram(scores, self.edges)
        self.weight = 1 / np.sqrt(self.observed + 1)  # of a count that varies as Poisson's
        self.most_pairs = min(sentences)
        self.half = sum(sentences) / 2

    def precision(self, kinds: Sequence[np.ndarray]) -> np.ndarray:
        """Precision at each point of the grid, from the scores behind `F_1`, `F_2` and `F_0`."""
        # In each band `observed = M (F_1 + F_2) + (half - M) F_0 = M (F_1 + F_2 - F_0) + half F_0`.
        true, wrong, noise = self._rates(_histogram, kinds, self.edges)
        slope = (true + wrong - noise) * self.weight
        rest = (self.observed - self.half * noise) * self.weight
        best_fit = slope @ rest / max(slope @ slope, 1e-12)
        pairs = float(np.clip(best_fit, 0, self.most_pairs))  # M

        true, wrong, noise = self._rates(_at_least, kinds, self.grid)
        total = pairs * (true + wrong) + (self.half - pairs) * noise
        precision = pairs * true / np.maximum(total, 1e-12)
        # Above the best hidden score, the precision of the last point below it.
        points = np.where(total > 0, np.arange(len(total)), 0)
        return np.take(precision, np.maximum.accumulate(points))

    def _rates(
        self,
        count: Counts,
        kinds: Sequence[np.ndarray],
        points: np.ndarray,
    ) -> list[np.ndarray]:
        """Scores of each kind at the points, for one hidden pair or sentence."""
        return [count(scores, points) / size for scores, size in zip(kinds, self.sizes, strict=True)]


def _redrawn(kind_scores: np.ndarray, scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another sample of the scores of one kind: as many as Poisson's law gives.

    Half a pseudo-score, drawn from all `scores`, keeps a kind that was not seen possible.
    """
    expected = len(kind_scores) + 0.5
    count = rng.poisson(expected)
    is_pseudo = rng.random(count) < 0.5 / expected
    pseudo_scores = rng.choice(scores, count)
    real_scores = rng.choice(kind_scores if len(kind_scores) else scores, count)
    return np.where(is_pseudo, pseudo_scores, real_scores)


def require_enough(name: str, what: str, count: int, fewest: int = FEWEST) -> None:
    if count < fewest:
        raise XlsrError(f"`{name}` must have at least {fewest} {what}, got {count}.")


def gold_curve(
    right: np.ndarray,
    first: np.ndarray,
    total: int,
    scores: np.ndarray,
) -> PrecisionCurve:
    """The curve from gold pairs that are in the texts, `total` in all; every other mined pair counts as false.

    A gold pair that was mined several times is `right` each time, and found the `first` time.
    """
    require_enough("gold", "pairs that are in the texts", total)
    grid = _grid(scores)
    pairs = _at_least(scores, grid)
    precision = _share(_at_least(scores[right], grid), pairs)
    recall = _share(_at_least(scores[first], grid), total)
    return PrecisionCurve(grid, pairs, f"{total:,} gold pairs", *precision, *recall)


def _share(counts: np.ndarray, totals: np.ndarray | int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares, and both ends of their 95 % intervals (Wilson)."""
    intervals = []
    for count, total in np.broadcast(counts, totals):
        intervals.append(binomtest(int(count), int(total)).proportion_ci(method="wilson"))
    low, high = np.array(intervals).T
    return counts / totals, low, high


def label_curve(
    labels: Mapping[tuple[str, str], bool],
    rows: Iterable[Mapping[str, Any]],
    seed: int = 0,
) -> PrecisionCurve:
    """The curve from scored pairs of which a person accepted or rejected some; it has no recall.

    A logistic curve through the labels gives each pair its chance to be true; the precision at a threshold is the mean
    of those above. The interval comes from resampling the labels.
    """
    all_scores = []
    labelled_pairs = []
    for row in rows:
        pair = (on_one_line(row["source"]), on_one_line(row["target"]))
        all_scores.append(row["score"])
        if pair in labels:
            labelled_pairs.append((row["score"], labels[pair]))

    # Labels of other pairs would count only those that both have, which are mostly right.
    missing = len(labels) - len(labelled_pairs)
    if missing > len(labels) // 10:
        raise XlsrError(f"{missing} labels are of other pairs. Save the labels from this run's report.")
    require_enough("labels", "pairs that are accepted or rejected", len(labelled_pairs))

    scores = np.array(all_scores)
    grid = _grid(scores)
    pairs = _at_least(scores, grid)
    labelled_scores, accepted = np.array(labelled_pairs, float).T
    center = labelled_scores.mean()
    scale = max(labelled_scores.std(), 1e-9)
    best_first = np.sort(scores)[::-1]
    features = (best_first[:, None] - center) / scale
    labelled_features = (labelled_scores[:, None] - center) / scale

    last_pair = pairs.astype(int) - 1  # at or above each threshold
    count = len(accepted)
    rng = np.random.default_rng(seed)
    resampled = []
    for _ in range(RESAMPLES):
        drawn = rng.integers(0, count, count)
        chances = _mean_chances(features, labelled_features[drawn], accepted[drawn], rng)
        resampled.append(chances[last_pair])
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)

    precision = _mean_chances(features, labelled_features, accepted)[last_pair]
    basis = f"{count:,} labels, {int(accepted.sum()):,} of them accepted"
    return PrecisionCurve(grid, pairs, basis, precision, low, high)


def _mean_chances(
    features: np.ndarray,
    labelled_features: np.ndarray,
    accepted: np.ndarray,
    rng: np.random.Generator | None = None,
) -> np.ndarray:
    """Mean chance to be true of the first pair, of the first two, and so on, as labels predict it.

    Labels of one kind give all pairs one chance; with `rng`, a draw from the posterior of Jeffreys' prior.
    """
    from sklearn.linear_model import LogisticRegression

    count = len(accepted)
    positive = int(accepted.sum())
    if 0 < positive < count:
        model = LogisticRegression(C=10.0).fit(labelled_features, accepted)
        chances = model.predict_proba(features)[:, 1]
    elif rng is not None:
        chances = np.full(len(features), rng.beta(positive + 0.5, count - positive + 0.5))
    else:
        chances = np.full(len(features), (positive + 1) / (count + 2))
    return np.cumsum(chances) / np.arange(1, len(chances) + 1)


def _grid(scores: np.ndarray) -> np.ndarray:
    """The thresholds of a curve: scores with about as many pairs between them."""
    return np.unique(np.quantile(scores, np.linspace(0, 1, POINTS), method="higher"))


def _histogram(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Counts between the edges; what lies outside goes to the ends."""
    inner_edges = edges[1:-1]
    bands = np.searchsorted(inner_edges, scores, side="right")
    return np.bincount(bands, minlength=len(inner_edges) + 1).astype(np.float64)


def _at_least(scores: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Number of scores of at least each point, float64."""
    below = np.searchsorted(np.sort(scores), grid)
    return (len(scores) - below).astype(np.float64)
