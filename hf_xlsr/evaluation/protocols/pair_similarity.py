"""Protocols `sts` and `pair-classification`: similarities of sentence pairs against scores or labels."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.containers import row_list
from hf_xlsr.evaluation.outcomes import STATISTICS, Outcomes, Thresholds, average_precision
from hf_xlsr.evaluation.pairs import Languages, distinct_languages, embed_pairs, pair_cosines, row_products
from hf_xlsr.evaluation.protocol import Options, option
from hf_xlsr.evaluation.protocol_kinds import row_protocol
from hf_xlsr.evaluation.reading import TaskInputs, TunedInputs, read_tasks, read_tuned
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import LabelledTexts, Row, by_language, read_columns, read_score
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

COEFFICIENTS = ("spearman", "pearson")
LABELS = {
    "0": 0,
    "0.0": 0,
    "False": 0,
    "1": 1,
    "1.0": 1,
    "True": 1,
}


def sts(
    encoder: Encoder,
    tasks: Mapping[str, Iterable[Row]] | Iterable[Row],
    *,
    language: Languages = "en",
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """Correlation of cosines with gold scores, for each task and over the tasks.

    A task may consist of subsets (STS12 has five). Its correlation is then one of three:
    - `all`: of the pairs of all subsets together. This is what SimCSE and most papers since report.
    - `mean`: the mean of the subsets' correlations.
    - `wmean`: the mean weighted by the subsets' numbers of pairs (SentEval's main number before SimCSE).

    Rows without a gold score are dropped and counted. White space in sentences is reduced to single spaces; case is
    kept. An undefined correlation (one pair, or all scores equal) counts as 0, with a warning.

    Args:
        tasks: Rows `{"sentence1": ..., "sentence2": ..., "score": ..., "subset": ...}` by the task's name. The score
            may be on any scale. Without a column `subset` the task is one subset. Rows alone are the task `sts`.
        language: Of the sentences; `"en-es"` or `("en", "es")` for pairs across languages, where each side takes its
            own route.

    Returns:
        - For each task `spearman_all`, `spearman_mean`, `spearman_wmean` and the same of `pearson`; `pairs`, those
          with a score, and `dropped`: under `STS12-sts/en/test/`.
        - Of two tasks or more, the unweighted means of the six correlations, under a name with their number:
          `sts-average-of-7/en/test/spearman_all`.

    Examples:
        >>> class Letters:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[text.count("a"), text.count("b")] for text in texts], np.float32)
        >>> rows = [("a", "a", 5), ("aab", "ab", 3), ("aab", "bb", "1.5"), ("b", "a", 0), ("b", "b", "")]
        >>> rows = [dict(zip(("sentence1", "sentence2", "score"), row)) for row in rows]
        >>> metrics = sts(Letters(), {"letters": rows})
        >>> metrics["letters-sts/en/test/spearman_all"], metrics["letters-sts/en/test/dropped"]
        (1.0, 1)
    """
    languages = distinct_languages(language)
    named_tasks: Any = {"sts": tasks}
    if isinstance(tasks, Mapping) and "sentence1" not in tasks:
        named_tasks = tasks
    scored = {name: _read_scored(rows, name) for name, rows in named_tasks.items()}

    results = Results()
    values_by_metric: dict[str, list[float]] = defaultdict(list)
    for name, task in scored.items():
        cosines = pair_cosines(*embed_pairs(encoder, task.sides, language, **encoding))
        correlations = _correlations(cosines, task, name)
        for metric, value in correlations.items():
            values_by_metric[metric].append(value)

        values = {**correlations, "pairs": len(cosines), "dropped": task.dropped}
        outcomes = {f"{kind}_all": Outcomes(kind, (cosines, task.scores)) for kind in COEFFICIENTS}
        results |= measured(name, "sts", languages, split, values, outcomes)

    if len(scored) > 1:
        means = {metric: np.mean(values_of_tasks) for metric, values_of_tasks in values_by_metric.items()}
        results |= measured(f"average-of-{len(scored)}", "sts", languages, split, means)
    return results


class _Task(NamedTuple):
    """Sentence pairs with their gold scores and the names of their subsets, `(pairs,)`; how many had no score."""

    sides: tuple[list[str], list[str]]
    scores: np.ndarray
    subsets: np.ndarray
    dropped: int


def _read_scored(rows: Iterable[Row], name: str) -> _Task:
    table = f"tasks['{name}']"
    rows = row_list(rows, table)
    first, second, gold = read_columns(rows, texts=["sentence1", "sentence2"], values=["score"], name=table)

    sides: tuple[list[str], list[str]] = ([], [])
    scores = []
    subsets = []
    for number, row in enumerate(rows):
        score = read_score(gold[number], f"row {number} of {table}", math.nan)
        if math.isnan(score):
            continue

        scores.append(score)
        subsets.append(str(row.get("subset")))
        for side, texts in zip(sides, (first, second), strict=True):
            side.append(" ".join(texts[number].split()))

    if not scores:
        raise XlsrError(
            f"task '{name}' has no row with a score: all {len(rows):,} are empty. Name the column of the scores "
            "(--columns score=NAME)."
        )
    return _Task(sides, np.array(scores), np.array(subsets), dropped=len(rows) - len(scores))


def _correlations(cosines: np.ndarray, task: _Task, name: str) -> dict[str, float]:
    """Both coefficients of all pairs together, and their means over the subsets."""
    subsets = []
    sizes = []
    for subset in dict.fromkeys(task.subsets.tolist()):
        in_subset = task.subsets == subset
        subset_cosines = cosines[in_subset]
        subset_scores = task.scores[in_subset]
        if not (np.ptp(subset_cosines) > 0 and np.ptp(subset_scores) > 0):
            logger.warning("%s: scores or cosines of a subset are all equal; its correlation counts as 0", name)
        subsets.append((subset_cosines, subset_scores))
        sizes.append(len(subset_scores))

    correlations = {}
    for kind in COEFFICIENTS:
        correlation = STATISTICS[kind]
        by_subset = [correlation(*columns) for columns in subsets]
        correlations[f"{kind}_all"] = float(correlation(cosines, task.scores))
        correlations[f"{kind}_mean"] = float(np.mean(by_subset))
        correlations[f"{kind}_wmean"] = float(np.average(by_subset, weights=sizes))
    return correlations


def pair_classification(
    encoder: Encoder,
    rows: Iterable[Row],
    *,
    tune: Iterable[Row] | None = None,
    name: str,
    language: Languages = "en",
    tune_language: Languages | None = None,
    split: str = "test",
    **encoding: Unpack[EncodingOptions],
) -> Results:
    """How well one number, the similarity of two sentences, separates positive pairs from negative ones.

    mteb's pair classification gives the same average precision. Like sentence-transformers'
    `BinaryClassificationEvaluator`, the tuning may also put all pairs on one side.

    Args:
        rows: `{"sentence1": ..., "sentence2": ..., "label": ...}`; label 1 is a paraphrase (PAWS-X) or an entailed
            sentence (XNLI, RTE), 0 any other pair. For XNLI mteb leaves out the neutral pairs.
        tune: Rows of another split, on which the threshold is chosen.
        language: Of the sentences; `"en-de"` or `("en", "de")` for pairs across languages.
        tune_language: Of the sentences of `tune`; by default `language`.

    Returns:
        Under `{name}-pair-classification/{language}/{split}/`:
        - `cosine_ap`, `dot_ap`, `euclidean_ap`, `manhattan_ap`: average precision, without normalising the embeddings,
          and `max_ap`, the best of the four (mteb's main score).
        - With `tune`: `cosine_accuracy` and `cosine_f1` at the thresholds `cosine_accuracy_threshold` and
          `cosine_f1_threshold` that were best on `tune`; a cosine at or above the threshold means label 1.
        - `pairs`, and `positives` among them.
    """
    tested = _read_labelled(rows, "rows")
    tuned = None if tune is None else _read_labelled(tune, "tune")
    similarities = _similarities(*embed_pairs(encoder, tested.sides, language, normalize=False, **encoding))
    positive = tested.labels == 1

    values: dict[str, float] = {}
    for measure, similarity in similarities.items():
        values[f"{measure}_ap"] = float(average_precision(similarity, tested.labels))
    values["max_ap"] = max(values.values())
    cosines = similarities["cosine"]

    columns = (*similarities.values(), tested.labels)
    outcomes = {"max_ap": Outcomes("max_average_precision", columns)}
    for measure, similarity in similarities.items():
        outcomes[f"{measure}_ap"] = Outcomes("average_precision", (similarity, tested.labels))

    if tuned is not None:
        tune_cosines = pair_cosines(*embed_pairs(encoder, tuned.sides, tune_language or language, **encoding))
        accuracy_threshold, f1_threshold = _tuned_thresholds(tune_cosines, tuned.labels)
        values["cosine_accuracy_threshold"] = accuracy_threshold
        values["cosine_f1_threshold"] = f1_threshold

        is_right = (cosines >= accuracy_threshold) == positive
        outcomes["cosine_accuracy"] = Outcomes("mean", (is_right,))
        outcomes["cosine_f1"] = Outcomes("f1", (cosines >= f1_threshold, positive))
        for metric in ("cosine_accuracy", "cosine_f1"):
            values[metric] = outcomes[metric].value()

    values["pairs"] = len(positive)
    values["positives"] = int(positive.sum())
    return measured(name, "pair-classification", distinct_languages(language), split, values, outcomes)


def _read_labelled(rows: Iterable[Row], name: str) -> LabelledTexts:
    *sides, labels = read_columns(rows, texts=["sentence1", "sentence2"], values=["label"], name=name)
    numbers = [LABELS.get(str(label).strip()) for label in labels]
    if set(numbers) != {0, 1}:
        distinct = sorted(set(map(str, labels)))
        raise XlsrError(f"{name} must have pairs with label 1 and pairs with label 0 only, got {distinct!r:.80}.")
    return LabelledTexts(sides, np.array(numbers))


def _similarities(first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    u = first.astype(np.float64)
    v = second.astype(np.float64)
    return {
        "cosine": pair_cosines(u, v),
        "dot": row_products(u, v),
        "euclidean": -np.linalg.norm(u - v, axis=1),
        "manhattan": -np.abs(u - v).sum(axis=1),
    }


def _tuned_thresholds(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The highest of the best thresholds for accuracy and F1; they may leave all pairs on one side."""
    thresholds = Thresholds.of(scores, labels)
    positives = int(labels.sum())
    best_f1 = thresholds.f1(positives).argmax()
    f1_threshold = thresholds.values[best_f1]

    accuracies = thresholds.accuracy(positives)
    accuracy_threshold = thresholds.values[accuracies.argmax()]
    if accuracies.max() <= 1 - positives / len(labels):  # as good as label 0 for all pairs
        accuracy_threshold = np.nextafter(scores.max(), np.inf)
    return float(accuracy_threshold), float(f1_threshold)


@dataclass(frozen=True)
class PairClassificationOptions(Options):
    tune: tuple[str, ...] = option((), "data to tune on: the threshold, the head", data=True, files=True)


def _run_sts(encoder: Encoder, inputs: TaskInputs, options: Options) -> Results:
    results = Results()
    for language, tasks in inputs.tasks_by_language.items():
        results |= sts(
            encoder,
            tasks,
            language=language,
            split=inputs.split,
            **inputs.encoding,
        )
    return results


def _run_classification(encoder: Encoder, inputs: TunedInputs, options: PairClassificationOptions) -> Results:
    """Tunes each language on its own rows, or all on the only language of `tune`."""
    tune = by_language(inputs.tune)
    results = Results()
    for language, rows in by_language(inputs.rows).items():
        tune_language = language
        if len(tune) == 1:
            (tune_language,) = tune
        if tune and tune_language not in tune:
            raise XlsrError(f"--tune must have rows in {language} or in one language only, got {', '.join(tune)}.")

        results |= pair_classification(
            encoder,
            rows,
            tune=tune.get(tune_language),
            language=language,
            tune_language=tune_language,
            **inputs.common,
        )
    return results


PROTOCOLS = (
    row_protocol(
        "sts",
        "correlation of cosines with gold scores: all, mean and wmean",
        ("sentence1", "sentence2", "score"),
        read_tasks,
        _run_sts,
        headline="spearman_all",
        nullable=("score",),
        optional=("subset",),
    ),
    row_protocol(
        "pair-classification",
        "average precision of similarities; accuracy and F1 at a tuned threshold",
        ("sentence1", "sentence2", "label"),
        read_tuned,
        _run_classification,
        PairClassificationOptions,
        headline="max_ap",
    ),
)
