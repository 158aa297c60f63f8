"""Precision and recall of mined pairs by threshold, estimated from known translations that are hidden in the texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from hf_xlsr.mining.search.extraction import MinedBitext, extract_pairs
from hf_xlsr.mining.search.neighbours import BothWays
from hf_xlsr.mining.thresholds import FEWEST, PrecisionCurve, pairs_at_least, require_enough, score_grid, wilson_shares

BANDS = 10  # of the scores, at most; each adds to what `PRIOR` takes off the estimate
PER_BAND = 15  # hidden sentences for each band, at least
GROUP = 0.05  # hidden sentences that are mined together, as a share of the text
MOST_GROUPS = 50
CHAINS = 32
BURN_IN = 150  # steps of each chain that are left out
STEPS = 100  # of each chain
PRIOR = 0.2  # of each count, as docs/results/thresholds.md was simulated
COUNTS_TRIED = 128  # numbers of true pairs, in each draw


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


def mine_hidden(neighbours: BothWays, numbers: Sequence[np.ndarray], **extraction: Any) -> MinedBitext:
    """The pairs of hidden sentences that are mined if few are hidden at a time, so that they hardly meet each other.

    Args:
        neighbours: Of all rows, with the hidden ones.
        numbers: For both sides, the number of each row's hidden sentence, from 0; below 0 for a row of the text.
        **extraction: Options of `extract_pairs`.
    """
    most = max(1.0, GROUP * min((side < 0).sum() for side in numbers))
    groups = int(np.clip(np.ceil(max((side >= 0).sum() for side in numbers) / most), 1, MOST_GROUPS))

    mined = []
    for group in range(groups):
        # Both sides of a pair have one number, and are in one group.
        source_out, target_out = ((side >= 0) & (side % groups != group) for side in numbers)
        pairs = extract_pairs(neighbours, without=(source_out, target_out), **extraction)
        is_hidden = (numbers[0][pairs.source] >= 0) | (numbers[1][pairs.target] >= 0)
        mined.append([pairs.source[is_hidden], pairs.target[is_hidden], pairs.score[is_hidden]])
    source, target, score = (np.concatenate(column) for column in zip(*mined, strict=True))
    return MinedBitext(source, target, score)


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

    In a band of scores `b`, the number of pairs that are mined from the texts is expected to be

    ```math
    N_b = M \, (f_{1b} + f_{2b}) + \frac{S - 2M}{2} f_{0b}
    ```

    where `S` is the number of sentences of both sides and `M` the unknown number of true pairs: a share `2M / S` of the
    sentences have a partner. `f_1` is the share of complete hidden pairs that are found in the band. `f_2` and `f_0` are
    the numbers of false pairs with a sentence of the texts per hidden sentence: `f_2` of those with a translation, `f_0`
    of those that were hidden alone. The prior of `M` in the smaller text is that of Jeffreys; that of the rates adds
    `PRIOR` to each count (Dirichlet).

    Draws from the posterior of all of these (Gibbs sampling, approximately: the number of pairs is taken as Poisson) say
    how many pairs of each band are true. The precision is the mean over the draws, and its interval holds 95 % of them.
    The recall is the sum of `f_1`, with Wilson's interval.

    Args:
        hidden: What was hidden.
        mined: Pairs by line that have a hidden sentence, see `mine_hidden`; hidden numbers follow the lines of each text.
        lines: Number of lines of each text.
        sentences: Number of their distinct sentences.
        present: Hidden sentences of each side, by number, that do not also occur in its text.
        kept_scores: Scores of the pairs mined without hidden sentences, to which the curve applies.
        seed: Of the draws.
    """
    # Numbers of hidden sentences; below 0 for a sentence of the texts.
    source = mined.source - lines[0]
    target = mined.target - lines[1]
    complete = [number for number in present[0] & present[1] if number < hidden.complete]
    alone = sum(number >= hidden.complete for number in chain(*present))
    usable = 0
    if len(kept_scores):
        usable = min(len(complete), alone)
    require_enough("known", "mined pairs that are not in the texts themselves", usable)

    bands = int(np.clip(usable // PER_BAND, 3, BANDS))
    edges = np.unique(np.quantile(kept_scores, np.linspace(0, 1, bands + 1)[1:-1]))
    kinds = _scores_by_kind(source, target, mined.score, complete, hidden.complete)
    counts = []
    for scores in (kept_scores, *kinds):
        counts.append(np.bincount(np.searchsorted(edges, scores, side="right"), minlength=len(edges) + 1))
    posterior = _Posterior(counts, [len(complete), 2 * len(complete), alone], sentences)
    true = posterior.draws(np.random.default_rng(seed))

    grid = score_grid(kept_scores)
    pairs = pairs_at_least(kept_scores, grid)
    # Pairs of each band at or above each point; within a band, true ones are anywhere.
    better = counts[0][::-1].cumsum()[::-1] - counts[0]
    reached = np.clip(pairs[:, None] - better, 0, counts[0]) / np.maximum(counts[0], 1)
    found = reached @ true.T
    precisions = found / pairs[:, None]
    low, high = np.quantile(precisions, [0.025, 0.975], axis=1)
    recall = wilson_shares(pairs_at_least(kinds[0], grid), len(complete))
    basis = f"{len(complete):,} hidden pairs and {alone:,} hidden sentences without translation"
    return PrecisionCurve(grid, pairs, basis, precisions.mean(axis=1), low, high, *recall)


def _scores_by_kind(
    source: np.ndarray, target: np.ndarray, scores: np.ndarray, complete: Sequence[int], first_alone: int
) -> list[np.ndarray]:
    """Scores of the mined pairs that tell of `f_1`, `f_2` and `f_0`, see `hidden_curve`.

    `source` and `target` are numbers of hidden sentences; those in `complete` have their translation on the other side,
    those from `first_alone` on have none. Pairs of two hidden sentences that are no translations tell nothing.
    """
    source_translated = np.isin(source, complete)
    target_translated = np.isin(target, complete)
    is_hit = source_translated & (source == target)
    is_of_texts = (source < 0) ^ (target < 0)
    is_wrong = is_of_texts & (source_translated | target_translated)
    is_alone = is_of_texts & ((source >= first_alone) | (target >= first_alone))
    return [scores[is_hit], scores[is_wrong], scores[is_alone]]


class _Posterior:
    """The mixture of `hidden_curve`: numbers of pairs by band, of the texts and of each kind of hidden pair.

    `sizes` are the hidden pairs, and the hidden sentences with and without translation, behind `f_1`, `f_2` and `f_0`.
    Many chains of Gibbs sampling run at a time. Each begins with rates that are drawn from the hidden pairs alone, since
    a chain moves slowly: rates and the split of the texts' pairs depend on each other. In texts of a million sentences
    of which few have a partner, chains move too slowly, and the precision is too high.
    """

    def __init__(self, counts: Sequence[np.ndarray], sizes: Sequence[int], sentences: Sequence[int]) -> None:
        self.observed, *hidden = counts
        self.hidden = np.array(hidden)
        self.sizes = np.array(sizes)
        self.half = sum(sentences) / 2
        most = min(sentences)
        self.totals = np.unique(np.linspace(0, most, min(most + 1, COUNTS_TRIED)).astype(int))
        share = (self.totals + 0.5) / (most + 1)
        self.prior = -np.log(share * (1 - share)) / 2

    def draws(self, rng: np.random.Generator) -> np.ndarray:
        """Numbers of true pairs of the texts that are mined in each band, `(draws, bands)`."""
        # At first, only the hidden pairs count.
        split = np.zeros((CHAINS, *self.hidden.shape))
        weights = np.zeros((CHAINS, len(self.sizes)))
        true = []
        for step in range(BURN_IN + STEPS):
            rates = self._rates(split, weights, rng)
            total = self._totals(rates, rng)
            weights = np.stack([total, total, self.half - total], axis=1)
            split = self._split(rates * weights[:, :, None], rng)
            if step >= BURN_IN:
                true.append(split[:, 0])
        return np.concatenate(true)

    def _rates(self, split: np.ndarray, weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws of `f_1`, `f_2` and `f_0`, `(chains, 3, bands)`, given which pairs of the texts are of which kind."""
        hits = self.hidden + split
        misses = np.maximum(self.sizes + weights - hits.sum(axis=2), 0)
        counts = np.concatenate([hits + PRIOR, misses[:, :, None] + PRIOR], axis=2)
        draws = rng.standard_gamma(counts)  # a Dirichlet distribution, when divided by their sum
        rates: np.ndarray = draws[:, :, :-1] / draws.sum(axis=2, keepdims=True)
        return rates

    def _totals(self, rates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws of the number of true pairs, `(chains,)`, given the rates."""
        true, wrong, noise = rates[:, None].transpose(2, 0, 1, 3)
        expected = self.totals[:, None] * (true + wrong - noise) + self.half * noise + 1e-9
        fits = (self.observed * np.log(expected) - expected).sum(axis=2) + self.prior
        # The largest after Gumbel noise is a draw with chances exp(fits).
        totals: np.ndarray = self.totals[(fits + rng.gumbel(size=fits.shape)).argmax(axis=1)]
        return totals

    def _split(self, expected: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draws of how many pairs of the texts are of each kind, `(chains, 3, bands)`, given the expected numbers."""
        expected = expected.transpose(0, 2, 1) + 1e-12
        chances = expected / expected.sum(axis=2, keepdims=True)
        split: np.ndarray = rng.multinomial(self.observed, chances).transpose(0, 2, 1)
        return split
