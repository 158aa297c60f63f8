"""Precision of scored pairs by threshold, estimated from labels of a sample that is spread over bands of scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np

from hf_xlsr.mining.texts import on_one_line
from hf_xlsr.mining.thresholds import PrecisionCurve, pairs_at_least, score_grid
from hf_xlsr.utils.errors import XlsrError

BANDS = 20  # of the scores, each with as many pairs
CELL = 6  # labels that bands share until the variance within them can be estimated
NEAR = 0.2  # share of the pairs that may lie between a threshold and the next label
Z = 1.959964  # of a 95 % interval

Labels = Mapping[tuple[str, str], bool]


@dataclass(frozen=True)
class RowLabels:
    """What a person said of each scored pair.

    Attributes:
        scores: Of all pairs, `(pairs,)`.
        accepted: Whether each was accepted, `(pairs,)`, bool.
        rejected: Whether each was rejected, `(pairs,)`, bool.
    """

    scores: np.ndarray
    accepted: np.ndarray
    rejected: np.ndarray

    @property
    def is_labelled(self) -> np.ndarray:
        """Whether each pair was accepted or rejected, `(pairs,)`, bool."""
        either: np.ndarray = self.accepted | self.rejected
        return either

    def keeps(self, is_chosen: np.ndarray) -> np.ndarray:
        """The chosen pairs, `(pairs,)`, bool, without rejected ones and with accepted ones."""
        is_kept: np.ndarray = (is_chosen & ~self.rejected) | self.accepted
        return is_kept

    def counts(self, is_chosen: np.ndarray) -> dict[str, int]:
        """What the labels do to the chosen pairs, for a report."""
        return {
            "accepted": int(self.accepted.sum()),
            "rejected": int(self.rejected.sum()),
            "rejected pairs left out": int((self.rejected & is_chosen).sum()),
            "accepted pairs kept below the threshold": int((self.accepted & ~is_chosen).sum()),
        }


def find_labelled(labels: Labels, rows: Iterable[Mapping[str, Any]]) -> RowLabels:
    """Finds the labelled pairs among scored ones, whose rows have `score`, `source` and `target`.

    Raises:
        XlsrError: More than a tenth of the labels are of other pairs. They would count only the pairs that both minings
            found, which are mostly right.
    """
    scores = []
    verdicts = []
    seen = set()
    for row in rows:
        pair = (on_one_line(row["source"]), on_one_line(row["target"]))
        scores.append(row["score"])
        verdicts.append(labels.get(pair))
        if pair in labels:
            seen.add(pair)

    missing = len(labels) - len(seen)
    if missing > len(labels) // 10:
        raise XlsrError(f"{missing} labels are of other pairs. Save the labels from this run's report.")
    accepted = np.array([verdict is True for verdict in verdicts], dtype=bool)
    rejected = np.array([verdict is False for verdict in verdicts], dtype=bool)
    return RowLabels(np.array(scores, dtype=np.float64), accepted, rejected)


def band_floors(scores: np.ndarray, bands: int = BANDS) -> np.ndarray:
    """The lowest score of each band, best band first; equal scores are in one band.

    Examples:
        >>> band_floors(np.array([1.0, 2.0, 3.0, 4.0]), bands=2)
        array([3., 1.])
    """
    best_first = np.sort(scores)[::-1]
    last_pairs = np.linspace(0, len(best_first), min(bands, len(best_first)) + 1).astype(int)[1:] - 1
    floors: np.ndarray = np.unique(best_first[last_pairs])[::-1]
    return floors


def bands_of(scores: np.ndarray, floors: np.ndarray) -> np.ndarray:
    """Number of the band of each score, `(scores,)`, from 0 for the best one."""
    bands: np.ndarray = np.searchsorted(-floors, -scores)
    return bands


@dataclass
class _Cell:
    """Neighbouring bands whose labels are counted together; each label stands for `pairs / labels` pairs of its band."""

    pairs: float = 0.0
    labels: int = 0
    labelled_mass: float = 0.0
    accepted_mass: float = 0.0
    squares: float = 0.0

    def add(self, pairs: float, labels: int, accepted: int) -> None:
        """Counts the pairs of a band, and its labels."""
        self.pairs += pairs
        self.labels += labels
        if labels:
            weight = pairs / labels
            self.labelled_mass += pairs
            self.accepted_mass += weight * accepted
            self.squares += weight * pairs

    def merge(self, other: _Cell) -> None:
        """Takes the counts of another cell."""
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)

    @property
    def size(self) -> float:
        """Number of labels that would tell as much if all had one weight."""
        return self.labelled_mass**2 / self.squares

    @property
    def share(self) -> float:
        """Share of accepted pairs."""
        return self.accepted_mass / self.labelled_mass


@dataclass(frozen=True)
class LabelEstimate:
    """Precision with its 95 % interval, and the number of labels of a simple sample that would tell as much."""

    precision: float
    low: float
    high: float
    labels: float


def estimate_precision(pairs: Sequence[float], labels: Sequence[int], accepted: Sequence[int]) -> LabelEstimate:
    r"""The precision of pairs in bands of scores, of which some are labelled.

    Bands are joined, from the best on, to cells with at least six labels. A cell `c` holds a share `W_c` of the pairs,
    and a share `p_c` of its labels, each weighted by the pairs that it stands for, is accepted:

    ```math
    \hat p = \sum_c W_c \, p_c, \qquad v = \sum_c \frac{W_c^2 \, \tilde p_c (1 - \tilde p_c)}{n_c}, \qquad
    n = \frac{\tilde p (1 - \tilde p)}{v}
    ```

    The interval is that of [Wilson](https://doi.org/10.1080/01621459.1927.10502953) for `n` labels of which a share
    `p` is accepted. `n_c` is the effective number of labels of a cell (Kish), and `\tilde p_c` the share with `W_c / 2`
    labels of each kind added, so that a cell of one kind is not held to be certain.

    Args:
        pairs: Number of pairs of each band, best band first.
        labels: Number of these that are labelled.
        accepted: Number of these that are accepted.

    Examples:
        >>> estimate = estimate_precision([100, 100], [10, 10], [10, 5])
        >>> estimate.precision, round(estimate.low, 2), round(estimate.high, 2)
        (0.75, 0.57, 0.87)
    """
    cells = [_Cell()]
    for band_pairs, band_labels, band_accepted in zip(pairs, labels, accepted, strict=True):
        if cells[-1].labels >= CELL:
            cells.append(_Cell())
        cells[-1].add(band_pairs, band_labels, band_accepted)
    if len(cells) > 1 and cells[-1].labels < CELL:
        rest = cells.pop()
        cells[-1].merge(rest)

    total = sum(pairs)
    precision = 0.0
    smooth = 0.0
    variance = 0.0
    for cell in cells:
        weight = cell.pairs / total
        share = (cell.share * cell.size + weight / 2) / (cell.size + weight)
        precision += weight * cell.share
        smooth += weight * share
        variance += weight**2 * share * (1 - share) / cell.size
    size = smooth * (1 - smooth) / variance
    low, high = wilson_interval(precision, size)
    return LabelEstimate(precision, low, high, size)


def wilson_interval(share: float, size: float) -> tuple[float, float]:
    """The 95 % interval of Wilson for a share of `size` labels, which need not be whole."""
    center = share + Z**2 / (2 * size)
    spread = Z * sqrt(share * (1 - share) / size + Z**2 / (4 * size**2))
    scale = 1 + Z**2 / size
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)


def label_curve(labels: Labels | RowLabels, rows: Iterable[Mapping[str, Any]] = ()) -> PrecisionCurve:
    """The curve from scored pairs of which a person accepted or rejected some; it has no recall.

    See `estimate_precision`. A threshold needs a label above it and one below it, each with at most a fifth of the pairs
    in between; where less than a fifth of the pairs is below it, none is needed there. The precision of other thresholds
    is NaN.

    Args:
        labels: Pair -> whether it was accepted, as `read_labels` gives them; or what `find_labelled` found.
        rows: All scored pairs.

    Raises:
        XlsrError: No threshold has labels on both sides.
    """
    verdicts = labels if isinstance(labels, RowLabels) else find_labelled(labels, rows)
    scores = verdicts.scores
    is_labelled = verdicts.is_labelled
    if not is_labelled.any():
        raise XlsrError("No pair is accepted or rejected. Label some in the report, and save the labels.")

    grid = score_grid(scores)
    is_near = _has_labels_near(grid, scores, scores[is_labelled])
    if not is_near.any():
        raise XlsrError(f"{int(is_labelled.sum())} labels are too few. Label pairs of more bands in the report.")

    floors = band_floors(scores)
    estimates = np.full((3, len(grid)), np.nan)
    pairs = _counts_by_band(scores, grid, floors)
    labelled_pairs = _counts_by_band(scores[is_labelled], grid, floors)
    accepted_pairs = _counts_by_band(scores[verdicts.accepted], grid, floors)
    for point in np.flatnonzero(is_near):
        estimate = estimate_precision(pairs[point], labelled_pairs[point], accepted_pairs[point])
        estimates[:, point] = (estimate.precision, estimate.low, estimate.high)

    basis = f"{int(is_labelled.sum()):,} labels, {int(verdicts.accepted.sum()):,} of them accepted"
    return PrecisionCurve(grid, pairs_at_least(scores, grid), basis, *estimates)


def _counts_by_band(scores: np.ndarray, grid: np.ndarray, floors: np.ndarray) -> list[list[int]]:
    """For each point of the grid, how many scores of each band reach it."""
    totals = np.bincount(bands_of(scores, floors), minlength=len(floors))
    better = np.cumsum(totals) - totals
    reached = pairs_at_least(scores, grid)[:, None] - better  # bands fill from the best one on
    counts: list[list[int]] = np.clip(reached, 0, totals).astype(int).tolist()
    return counts


def _has_labels_near(grid: np.ndarray, scores: np.ndarray, labelled_scores: np.ndarray) -> np.ndarray:
    """Whether each threshold has a label on both sides that at most a share `NEAR` of the pairs separate from it."""
    ordered = np.sort(scores)
    ranks = np.searchsorted(ordered, grid)
    label_ranks = np.sort(np.searchsorted(ordered, labelled_scores))
    next_label = np.searchsorted(label_ranks, ranks)

    most = NEAR * len(scores)
    ends = np.concatenate([[0], label_ranks])
    pairs_below = ranks - ends[next_label]
    starts = np.concatenate([label_ranks, [len(scores)]])
    pairs_above = starts[next_label] - ranks
    is_near: np.ndarray = (pairs_below <= most) & (pairs_above <= most) & (next_label < len(label_ranks))
    return is_near
