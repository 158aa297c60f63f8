"""Protocol `pair-classification`: similarity thresholds that separate paraphrases or entailed pairs from others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions
from hf_xlsr.evaluation.inputs import Inputs
from hf_xlsr.evaluation.outcomes import Outcomes, Thresholds, average_precision
from hf_xlsr.evaluation.pairs import Languages, distinct_languages, embed_pairs, pair_cosines
from hf_xlsr.evaluation.registry import Options, option, row_protocol
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.evaluation.rows import Row, by_language, read_columns
from hf_xlsr.utils.errors import XlsrError

LABELS = {"0": 0, "1": 1}


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

    mteb's pair classification gives the same numbers; like there, thresholds lie between two different scores of the
    rows. sentence-transformers' `BinaryClassificationEvaluator` may also put all pairs on one side; so does the tuning
    here.

    Args:
        rows: `{"sentence1": ..., "sentence2": ..., "label": ...}`; label 1 (or `"1"`) is a paraphrase (PAWS-X) or an
            entailed sentence (XNLI, RTE), 0 (or `"0"`) any other pair. For XNLI mteb leaves out the neutral pairs.
        tune: Rows of another split, on which the threshold is chosen.
        language: Of the sentences; `"en-de"` or `("en", "de")` for pairs across languages.
        tune_language: Of the sentences of `tune`; by default `language`.

    Returns:
        Under `{name}-pair-classification/{language}/{split}/`:
        - `cosine_ap`, `dot_ap`, `euclidean_ap`, `manhattan_ap`: average precision, without normalising the embeddings,
          and `max_ap`, the best of the four (mteb's main score).
        - `cosine_best_threshold_accuracy`, `cosine_best_threshold_f1`, and so on for the others and `max`: at the
          threshold that is best on the same rows, so too optimistic for a result; mteb calls them `cosine_accuracy`.
        - With `tune`: `cosine_accuracy` and `cosine_f1` at the thresholds `cosine_accuracy_threshold` and
          `cosine_f1_threshold` that were best on `tune`; a cosine at or above the threshold means label 1.
        - `pairs`, and `positives` among them.
    """
    judged = _read(rows, "rows")
    tuned_on = None if tune is None else _read(tune, "tune")
    similarities = _similarities(encoder, judged, language, encoding)
    positive = judged.labels == 1
    positives = int(positive.sum())
    ranked = {measure: Thresholds.of(scores, positive) for measure, scores in similarities.items()}
    kinds: dict[str, Callable[[str], float]] = {
        "ap": lambda measure: float(average_precision(similarities[measure], judged.labels)),
        # Not at the last threshold, which takes all pairs.
        "best_threshold_accuracy": lambda measure: ranked[measure].accuracy(positives)[:-1].max(initial=0),
        "best_threshold_f1": lambda measure: ranked[measure].f1(positives)[:-1].max(initial=0),
    }
    found: dict[str, float] = {}
    outcomes = {"cosine_ap": Outcomes("average_precision", (similarities["cosine"], judged.labels))}
    for metric, value in kinds.items():
        values = {measure: float(value(measure)) for measure in similarities}
        found |= {f"{measure}_{metric}": value for measure, value in {**values, "max": max(values.values())}.items()}
    if tuned_on is not None:
        tuned_in = language if tune_language is None else tune_language
        cosines = pair_cosines(*embed_pairs(encoder, tuned_on.first, tuned_on.second, tuned_in, **encoding))
        for metric, threshold in _tuned_thresholds(cosines, tuned_on.labels).items():
            predicted = similarities["cosine"] >= threshold
            outcome = (
                Outcomes("f1", (predicted, positive)) if metric == "f1" else Outcomes("mean", (predicted == positive,))
            )
            found |= {f"cosine_{metric}": outcome.value(), f"cosine_{metric}_threshold": threshold}
            outcomes[f"cosine_{metric}"] = outcome
    found |= {"pairs": len(positive), "positives": positives}
    return measured(name, "pair-classification", distinct_languages(language), split, found, outcomes)


class _Pairs(NamedTuple):
    first: list[str]
    second: list[str]
    labels: np.ndarray


def _tuned_thresholds(scores: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The highest of the best thresholds for accuracy and F1; they may leave all pairs on one side."""
    thresholds, positives = Thresholds.of(scores, labels), int(labels.sum())
    accuracy = thresholds.accuracy(positives)
    best = accuracy.argmax()
    takes_none = accuracy[best] <= 1 - positives / len(labels)
    return {
        "accuracy": float(np.nextafter(scores.max(), np.inf) if takes_none else thresholds.values[best]),
        "f1": float(thresholds.values[thresholds.f1(positives).argmax()]),
    }


def _similarities(
    encoder: Encoder, pairs: _Pairs, language: Languages, encoding: EncodingOptions
) -> dict[str, np.ndarray]:
    u, v = embed_pairs(encoder, pairs.first, pairs.second, language, normalize=False, **encoding)
    u, v = u.astype(np.float64), v.astype(np.float64)
    return {
        "cosine": pair_cosines(u, v),
        "dot": np.einsum("nd,nd->n", u, v),
        "euclidean": -np.linalg.norm(u - v, axis=1),
        "manhattan": -np.abs(u - v).sum(axis=1),
    }


def _read(rows: Iterable[Row], name: str) -> _Pairs:
    first, second, labels = read_columns(rows, texts=["sentence1", "sentence2"], values=["label"], name=name)
    numbers = np.array([_label(label, row, name) for row, label in enumerate(labels)])
    if len(set(numbers.tolist())) < 2:
        raise XlsrError(f"{name} must have pairs with label 1 and pairs with label 0, got only {numbers[0]}.")
    return _Pairs(first, second, numbers)


def _label(label: Any, row: int, name: str) -> int:
    key = str(int(label) if isinstance(label, (bool, np.bool_)) else label).strip().removesuffix(".0")
    if key not in LABELS:
        raise XlsrError(f"Row {row} of {name} must have label 0 or 1, got {label!r:.40}.")
    return LABELS[key]


@dataclass(frozen=True)
class PairClassificationOptions(Options):
    tune: tuple[str, ...] = option((), "data to tune on: the threshold, the head", data=True)


def _run(encoder: Encoder, inputs: Inputs, options: PairClassificationOptions) -> Results:
    tune, tune_languages = by_language(inputs.tune), inputs.tune_languages
    results = Results()
    for language, rows in by_language(inputs.only).items():
        tuning: dict[str, Any] = {}
        if tune:
            tuned_in = tune_languages[language]
            tuning = {"tune": tune[tuned_in], "tune_language": tuned_in}
        results |= pair_classification(encoder, rows, language=language, **tuning, **inputs.common)
    return results


PROTOCOL = row_protocol(
    "pair-classification",
    "average precision of similarities; accuracy and F1 at a tuned threshold",
    ("sentence1", "sentence2", "label"),
    _run,
    PairClassificationOptions,
)
