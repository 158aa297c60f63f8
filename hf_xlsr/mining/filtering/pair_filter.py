"""The probability of each of some pairs to be good, by a classifier that learns from known and damaged pairs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import HistGradientBoostingClassifier, VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hf_xlsr.data.columns import Row
from hf_xlsr.data.normalization import match_key
from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.mining.filtering.damage import GOOD, damaged_mixture
from hf_xlsr.mining.filtering.features import FEATURES, MORE_IS_BETTER, TextFeatures, feature_matrix
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.scoring import PairScores, ScoringRun, run_scoring
from hf_xlsr.mining.stages import job_folder
from hf_xlsr.mining.thresholds import PrecisionCurve, gold_curve, require_enough, wilson_shares
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.tasks import Runner

MOST_KNOWN = 9000
FEWEST_KNOWN = 200
BINS = 10
FIGURES = ("probability", "score", "cosine")  # columns of the output
# Columns of a file of training pairs: how each was damaged, and what it is for.
KIND = "kind"
PART = "part"
TRAINING_COLUMNS = {KIND, PART}
TRAIN = "train"
TEST = "test"


@dataclass(frozen=True)
class Reliability:
    """One bin of a reliability curve: pairs with about one probability, and the share of them that is good.

    Attributes:
        pairs: Their number.
        probability: The mean of their probabilities.
        good: The share of good ones.
        low: Lower end of its 95 % interval (Wilson).
        high: Upper end.
    """

    pairs: int
    probability: float
    good: float
    low: float
    high: float


@dataclass(frozen=True)
class HeldOut:
    """Known and damaged pairs that the classifier was not trained on.

    Attributes:
        probability: Of each to be good, `(pairs,)`.
        kinds: `good`, or the kind of damage.
    """

    probability: np.ndarray
    kinds: Sequence[str]

    @property
    def is_good(self) -> np.ndarray:
        """Whether each is good, `(pairs,)`, bool."""
        return np.array([kind == GOOD for kind in self.kinds], dtype=bool)

    def curve(self) -> PrecisionCurve:
        """Precision and recall by threshold of the probability, with Wilson's intervals."""
        is_good = self.is_good
        curve = gold_curve(is_good, is_good, int(is_good.sum()), self.probability)
        damaged = len(self.kinds) - int(is_good.sum())
        return replace(curve, basis=f"{int(is_good.sum()):,} known pairs and {damaged:,} damaged ones, held out")

    def reliability(self) -> list[Reliability]:
        """Ten bins with as many pairs each, from the least to the most probable."""
        is_good = self.is_good
        bins = []
        for members in np.array_split(np.argsort(self.probability, kind="stable"), BINS):
            share, low, high = wilson_shares(is_good[members].sum(keepdims=True), len(members))
            probability = float(self.probability[members].mean())
            bins.append(Reliability(len(members), probability, float(share[0]), float(low[0]), float(high[0])))
        return bins

    def kept_by_kind(self, threshold: float) -> dict[str, tuple[int, int]]:
        """For good pairs and each kind of damage, how many reach a threshold, and of how many."""
        counts = {}
        for kind in dict.fromkeys([GOOD, *sorted(self.kinds)]):
            is_kind = np.array([one == kind for one in self.kinds])
            counts[kind] = (int((self.probability[is_kind] >= threshold).sum()), int(is_kind.sum()))
        return counts


@dataclass
class FilteredPairs:
    """Result of `filter_bitext`.

    Attributes:
        probability: Of each pair to be good, `(pairs,)`.
        scores: Margin and cosine of each pair.
        held_out: What the probabilities are worth.
        features: Names of what the classifier looks at.
        report: Counts of known pairs, and facts of the encoding.
        facts: Encoder and settings, for `hf_xlsr.mining.facts.new_step`.
    """

    probability: np.ndarray
    scores: PairScores
    held_out: HeldOut
    features: list[str]
    report: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FilterOptions:
    """Options of `filter_bitext`.

    Attributes:
        languages: Source and target.
        identifier: How languages are told apart: `py3langid`, `heliport`, `fasttext:FILE`, or `script` for letters alone.
        columns: Columns of numbers that all pairs and all training pairs have, such as scores of COMET or BLASER.
        seed: Of the damage, the split and the classifier.
    """

    languages: tuple[str, str]
    identifier: str = "py3langid"
    columns: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        taken = sorted({*FEATURES, *FIGURES, *TRAINING_COLUMNS}.intersection(self.columns))
        if taken:
            raise XlsrError(f"`columns` must have names of their own, got '{taken[0]}'. Rename the column.")


def filter_bitext(
    pairs: Sequence[Row],
    known: Iterable[Row],
    filtering: FilterOptions,
    options: MiningOptions | None = None,
    *,
    encoder: Encoder | str,
    folder: str | os.PathLike[str] | None = None,
    runner: Runner | None = None,
) -> FilteredPairs:
    """The probability of each pair to be good, by a classifier that is trained on known pairs and damaged copies.

    Half of the known pairs are damaged: shifted by one, truncated, untranslated, in another language, with another
    number, without a negation, with a target that repeats, or with some words of another pair
    (`hf_xlsr.mining.filtering.damage`). All are scored among the pairs, as `score_bitext` does. Boosted trees and
    logistic regression learn from two thirds of them, with probabilities that are calibrated on held-out folds. The last
    third says what the probabilities are worth, in equal parts of good and damaged pairs: where most pairs are good, more
    of those above a threshold are, and where pairs are bad in other ways than these, fewer.

    Args:
        pairs: Rows with `source`, `target` and the columns of `filtering`.
        known: Pairs that are good, as rows: 200 or more that are not among the pairs; of more than 9,000, as many are
            drawn. Rows with the columns `kind` and `part` are those of `training_pairs`, with scores added.
        filtering: Languages, and what is looked at.
        options: Of encoding and search; the defaults if None.
        encoder: Anything with a sentence-transformers style `encode`, or the folder or Hub id of a model.
        folder: Work folder of the stages, from which a stopped call resumes; a temporary one if None.
        runner: What encodes and searches, see `mine_bitext`.

    Raises:
        XlsrError: Too few known pairs, or a column that is missing.
    """
    options = options or MiningOptions(languages=filtering.languages)
    texts = TextFeatures(filtering.languages, filtering.identifier)
    known_rows = list(known)
    report: dict[str, Any] = {}
    if not known_rows or not known_rows[0].keys() >= TRAINING_COLUMNS:
        known_rows, report = training_pairs(pairs, known_rows, filtering)
    for column in filtering.columns:
        for name, rows in (("pairs", pairs), ("known", known_rows)):
            if not any(column in row for row in rows):
                raise XlsrError(
                    f"`{name}` has no column '{column}'. Save the training pairs (--save-training), score them, too, "
                    "and give them as known pairs."
                )

    rows = [*pairs, *known_rows]
    with job_folder(folder) as work:
        sources = [row["source"] for row in rows]
        targets = [row["target"] for row in rows]
        run = run_scoring(sources, targets, {}, work, options, encoder=encoder, runner=runner)
        scores = PairScores(run.scores.score[: len(pairs)], run.scores.cosine[: len(pairs)])
        report = run.report | {"pairs": len(pairs), "known": report}
        return _classified(rows, len(pairs), texts, run, scores, filtering, report, options.show_progress_bar)


def _classified(
    rows: Sequence[Row],
    num_pairs: int,
    texts: TextFeatures,
    run: ScoringRun,
    scores: PairScores,
    filtering: FilterOptions,
    report: Mapping[str, Any],
    progress: bool,
) -> FilteredPairs:
    """Trains the classifier on the rows behind the pairs, and applies it to the pairs."""
    names, features = feature_matrix(rows, texts, run, filtering.columns, progress=progress)
    kinds = np.array([row[KIND] for row in rows[num_pairs:]])
    is_held_out = np.array([row[PART] == TEST for row in rows[num_pairs:]])
    training = features[num_pairs:][~is_held_out]
    is_good = kinds[~is_held_out] == GOOD
    require_enough("known", "good and damaged pairs each", min(is_good.sum(), (~is_good).sum()), 20)

    classifier = _new_classifier(names, filtering.seed).fit(training, is_good)
    held_out_features = features[num_pairs:][is_held_out]
    held_out = HeldOut(classifier.predict_proba(held_out_features)[:, 1], kinds[is_held_out].tolist())
    probability = np.empty(0)
    if num_pairs:
        probability = classifier.predict_proba(features[:num_pairs])[:, 1]
    return FilteredPairs(probability, scores, held_out, names, dict(report), run.facts)


def _new_classifier(features: Sequence[str], seed: int) -> CalibratedClassifierCV:
    """The mean of shallow trees and of logistic regression, calibrated on held-out folds.

    Trees learn the exact marks of the damage that they see. Logistic regression grades what lies between, so that the
    scores still count for a mistake of another kind.
    """
    trees = HistGradientBoostingClassifier(
        max_depth=2,
        learning_rate=0.05,
        monotonic_cst=[int(name in MORE_IS_BETTER) for name in features],
        random_state=seed,
    )
    logistic = make_pipeline(
        SimpleImputer(keep_empty_features=True), StandardScaler(), LogisticRegression(C=0.3, max_iter=300)
    )
    both = VotingClassifier([("trees", trees), ("logistic", logistic)], voting="soft")
    return CalibratedClassifierCV(both, method="sigmoid", cv=5)


def training_pairs(
    pairs: Iterable[Row], known: Iterable[Row], filtering: FilterOptions
) -> tuple[list[Row], dict[str, Any]]:
    """Good and damaged pairs with their `kind`, to train a filter on, and the counts of known pairs.

    Known pairs are left out that are among the pairs, or of which a side occurred before.
    """
    seen = {side: {match_key(row[side]) for row in pairs} for side in ("source", "target")}
    usable = []
    in_pairs = []
    repeated = 0
    own = {side: set[str]() for side in seen}
    for row in known:
        keys = {side: match_key(row[side]) for side in seen}
        if any(keys[side] in seen[side] for side in seen):
            in_pairs.append(row["source"])
            continue
        if any(not keys[side] or keys[side] in own[side] for side in seen):
            repeated += 1
            continue
        for side, key in keys.items():
            own[side].add(key)
        source_language, target_language = filtering.languages
        languages = {"source_lang": source_language, "target_lang": target_language}
        usable.append({"source": row["source"], "target": row["target"], **languages})

    require_enough("known", "pairs of which no side is among the pairs", len(usable), FEWEST_KNOWN)
    rng = np.random.default_rng(filtering.seed)
    drawn = sorted(rng.permutation(len(usable))[:MOST_KNOWN].tolist())
    # Damaged pairs take sentences from each other: those of held-out rows come from held-out rows.
    rows: list[Row] = []
    for part, offset in ((TEST, 0), (TRAIN, 1), (TRAIN, 2)):
        part_rows = [usable[number] for number in drawn[offset::3]]
        for row, kind in damaged_mixture(part_rows, filtering.seed + offset):
            rows.append({**row, KIND: kind, PART: part})
    report = {"used": len(drawn), "also in the pairs": len(in_pairs), "repeated": repeated, "first": in_pairs[:3]}
    return rows, report
