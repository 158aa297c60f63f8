"""Protocols `sts` and `pair-classification`: similarities of sentence pairs against scores or labels."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.outcomes import STATISTICS, Outcomes, Thresholds, average_precision
from hf_xlsr.evaluation.pairs import Languages, distinct_languages, embed_pairs, pair_cosines
from hf_xlsr.evaluation.protocol import Inputs, Options, option
from hf_xlsr.evaluation.protocol_kinds import row_protocol
from hf_xlsr.evaluation.reading import read_tasks
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import LabelledTexts, Row, by_language, read_columns, read_score
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

COEFFICIENTS = ("spearman", "pearson")
LABELS = {"0": 0, "0.0": 0, "False": 0, "1": 1, "1.0": 1, "True": 1}


def sts(
    encoder: Encoder,
    tasks: Mapping[str, Iterable[Row]],
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
            may be on any scale. Without a column `subset` the task is one subset.
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
    read = {name: _scored(rows, name) for name, rows in tasks.items()}
    results = Results()
    by_task: dict[str, dict[str, float]] = {}
    for name, task in read.items():
        cosines = pair_cosines(*embed_pairs(encoder, task.sides, language, **encoding))
        parts = [task.subsets == subset for subset in dict.fromkeys(task.subsets.tolist())]
        by_task[name] = _correlations(cosines, task.scores, parts, name)
        counts = {"pairs": len(cosines), "dropped": task.dropped}
        outcomes = {f"{kind}_all": Outcomes(kind, (cosines, task.scores)) for kind in COEFFICIENTS}
        results |= measured(name, "sts", languages, split, {**by_task[name], **counts}, outcomes)
    if len(by_task) > 1:
        metrics = next(iter(by_task.values()))
        means = {metric: float(np.mean([values[metric] for values in by_task.values()])) for metric in metrics}
        results |= measured(f"average-of-{len(by_task)}", "sts", languages, split, means)
    return results


class _Task(NamedTuple):
    sides: list[list[str]]
    scores: np.ndarray
    subsets: np.ndarray
    dropped: int


def _scored(rows: Iterable[Row], name: str) -> _Task:
    rows, place = list(rows), f"tasks['{name}']"
    values = ["score", "subset"] if rows and "subset" in rows[0] else ["score"]
    first, second, gold, *subsets = read_columns(rows, texts=["sentence1", "sentence2"], values=values, name=place)
    scores = np.array([read_score(score, f"row {row} of {place}", np.nan) for row, score in enumerate(gold)])
    kept = np.flatnonzero(~np.isnan(scores))
    groups = np.array([str(subset) for subset in subsets[0]] if subsets else [""] * len(gold))
    sides = [[" ".join(side[row].split()) for row in kept] for side in (first, second)]
    return _Task(sides, scores[kept], groups[kept], dropped=len(gold) - len(kept))


def _correlations(cosines: np.ndarray, scores: np.ndarray, parts: Sequence[np.ndarray], name: str) -> dict[str, float]:
    sizes = np.array([part.sum() for part in parts])
    undefined = sum(not (np.ptp(values[part]) > 0) for part in parts for values in (cosines, scores))
    if undefined:
        logger.warning("%s: scores or cosines of a subset are all equal %d time(s); counted as 0", name, undefined)
    result = {}
    for kind in COEFFICIENTS:
        correlation = STATISTICS[kind]
        each = [correlation(cosines[part], scores[part]) for part in parts]
        result[f"{kind}_all"] = float(correlation(cosines, scores))
        result[f"{kind}_mean"] = float(np.mean(each))
        result[f"{kind}_wmean"] = float(np.average(each, weights=sizes))
    return result


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
    judged = _labelled(rows, "rows")
    tuned_on = None if tune is None else _labelled(tune, "tune")
    similarities = _similarities(*embed_pairs(encoder, judged.sides, language, normalize=False, **encoding))
    positive = judged.labels == 1
    found = {f"{measure}_ap": float(average_precision(each, judged.labels)) for measure, each in similarities.items()}
    found["max_ap"] = max(found.values())
    outcomes = {"cosine_ap": Outcomes("average_precision", (similarities["cosine"], judged.labels))}
    if tuned_on is not None:
        cosines = pair_cosines(*embed_pairs(encoder, tuned_on.sides, tune_language or language, **encoding))
        accuracy_at, f1_at = _tuned_thresholds(cosines, tuned_on.labels)
        found |= {"cosine_accuracy_threshold": accuracy_at, "cosine_f1_threshold": f1_at}
        right = (similarities["cosine"] >= accuracy_at) == positive
        outcomes["cosine_accuracy"] = Outcomes("mean", (right,))
        outcomes["cosine_f1"] = Outcomes("f1", (similarities["cosine"] >= f1_at, positive))
        found |= {metric: outcomes[metric].value() for metric in ("cosine_accuracy", "cosine_f1")}
    found |= {"pairs": len(positive), "positives": int(positive.sum())}
    return measured(name, "pair-classification", distinct_languages(language), split, found, outcomes)


def _labelled(rows: Iterable[Row], name: str) -> LabelledTexts:
    *sides, labels = read_columns(rows, texts=["sentence1", "sentence2"], values=["label"], name=name)
    found = [str(label).strip() for label in labels]
    if {LABELS.get(label) for label in found} != {0, 1}:
        distinct = ", ".join(sorted(set(found)))
        raise XlsrError(f"{name} must have pairs with label 1 and pairs with label 0 only, got {distinct:.80}.")
    return LabelledTexts(tuple(sides), np.array([LABELS[label] for label in found]))


def _similarities(first: np.ndarray, second: np.ndarray) -> dict[str, np.ndarray]:
    u, v = first.astype(np.float64), second.astype(np.float64)
    return {
        "cosine": pair_cosines(u, v),
        "dot": np.einsum("nd,nd->n", u, v),
        "euclidean": -np.linalg.norm(u - v, axis=1),
        "manhattan": -np.abs(u - v).sum(axis=1),
    }


def _tuned_thresholds(scores: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The highest of the best thresholds for accuracy and F1; they may leave all pairs on one side."""
    thresholds, positives = Thresholds.of(scores, labels), int(labels.sum())
    accuracy = thresholds.accuracy(positives)
    best = accuracy.argmax()
    takes_none = accuracy[best] <= 1 - positives / len(labels)
    by_accuracy = np.nextafter(scores.max(), np.inf) if takes_none else thresholds.values[best]
    return float(by_accuracy), float(thresholds.values[thresholds.f1(positives).argmax()])


@dataclass(frozen=True)
class PairClassificationOptions(Options):
    tune: tuple[str, ...] = option((), "data to tune on: the threshold, the head", data=True)


def _run_sts(encoder: Encoder, inputs: Inputs, options: Options) -> Results:
    results = Results()
    for language, tasks in inputs.tasks.items():
        results |= sts(encoder, tasks, language=language, split=inputs.split, **inputs.encoding)
    return results


def _run_classification(encoder: Encoder, inputs: Inputs, options: PairClassificationOptions) -> Results:
    """Tunes each language on its own rows, or all on the only language of `tune`."""
    tune, results = by_language(inputs.tune), Results()
    for language, rows in by_language(inputs.only).items():
        other = next(iter(tune)) if len(tune) == 1 else language
        if tune and other not in tune:
            raise XlsrError(f"--tune must have rows in {language} or in one language only, got {', '.join(tune)}.")
        tuning: dict[str, Any] = {"tune": tune[other], "tune_language": other} if tune else {}
        results |= pair_classification(encoder, rows, language=language, **tuning, **inputs.common)
    return results


PROTOCOLS = (
    row_protocol(
        "sts",
        "correlation of cosines with gold scores: all, mean and wmean",
        ("sentence1", "sentence2", "score"),
        _run_sts,
        Options,
        read=read_tasks,
        nullable=("score",),
        optional=("subset",),
    ),
    row_protocol(
        "pair-classification",
        "average precision of similarities; accuracy and F1 at a tuned threshold",
        ("sentence1", "sentence2", "label"),
        _run_classification,
        PairClassificationOptions,
    ),
)
