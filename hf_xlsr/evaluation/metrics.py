"""Metrics of the `evaluate` library that need no network: retrieval accuracy, mining F1, Spearman of similarities."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from hf_xlsr.evaluation.protocols.sts import spearman
from hf_xlsr.evaluation.protocols.tatoeba import right_both_ways
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.vectors import as_vectors

NOTHING = "has nothing to count; give predictions and references, or add them before."
METRICS = ("retrieval_accuracy", "mining_f1", "sts_spearman")


def load_metric(name: str, **options: Any) -> Any:
    """A metric as `evaluate.load` gives it, made here instead of fetched.

    Batches given to `add_batch` are kept in memory and nothing is written, unless `options` say otherwise.

    - `retrieval_accuracy`: predictions are vectors of sentences, references those of their translations, row by row.
      Gives `source_to_target_accuracy`, `target_to_source_accuracy` and `accuracy`, as protocol `tatoeba` does.
    - `mining_f1`: predictions are the mined pairs of ids, references the gold ones; as many as there are of each.
      Pairs of all batches count together, each once. Gives `precision`, `recall` and `f1`.
    - `sts_spearman`: predictions are similarities, references gold scores. Gives `spearman`, 0 where either is
      constant.

    Args:
        name: `retrieval_accuracy`, `mining_f1` or `sts_spearman`.
        options: Of `evaluate.Metric`, e.g. `cache_dir`, `num_process` and `process_id` for several processes.

    Returns:
        An `evaluate.Metric`.

    Raises:
        XlsrError: the name is unknown, or `evaluate` is not installed.

    Example:
        >>> metric = load_metric("mining_f1")
        >>> metric.compute(predictions=[("s1", "t1"), ("s2", "t9")], references=[("s1", "t1")])["precision"]
        0.5
    """
    if name not in METRICS:
        raise XlsrError(f"metric is '{name}'; {did_you_mean(name, METRICS)}")
    metric = _metric_classes()[name]
    if options:
        return metric(**options)
    # The library makes its folder even for a metric in memory; left to itself, in the user's home.
    with tempfile.TemporaryDirectory(prefix="hf-xlsr-metric-") as folder:
        return metric(cache_dir=folder, keep_in_memory=True)


def retrieval_accuracy(source_vectors: np.ndarray, target_vectors: np.ndarray) -> dict[str, float]:
    """Share of rows whose nearest row on the other side, by cosine, has their own number.

    Args:
        source_vectors: `(n, width)`, of any length.
        target_vectors: `(n, width)`.

    Returns:
        `source_to_target_accuracy`, `target_to_source_accuracy` and `accuracy`, their mean.

    Raises:
        XlsrError: there are no rows, the sides differ in number or width, or a vector is zero or not finite.
    """
    sides = []
    for name, vectors in (("predictions", source_vectors), ("references", target_vectors)):
        matrix = as_vectors(vectors, name)
        lengths = np.linalg.norm(matrix, axis=1, keepdims=True)
        if not lengths.all():
            raise XlsrError(f"row {int(lengths.argmin())} of {name} is a zero vector; it has no direction.")
        sides.append(matrix / lengths)
    if len(sides[0]) != len(sides[1]) or not len(sides[0]):
        raise XlsrError(f"there are {len(sides[0])} predictions and {len(sides[1])} references; give rows in pairs.")
    forward, backward = (float(right.mean()) for right in right_both_ways(*sides))
    return {
        "source_to_target_accuracy": forward,
        "target_to_source_accuracy": backward,
        "accuracy": (forward + backward) / 2,
    }


def mining_f1(predicted: Iterable[tuple[Any, Any]], gold: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    """Precision, recall and F1 of a set of pairs.

    Args:
        predicted: Mined pairs; one that is given twice counts once.
        gold: Known pairs.

    Returns:
        `precision`, `recall` and `f1`, 0 where they have no denominator.

    Example:
        >>> mining_f1([("a", "A"), ("b", "C")], [("a", "A"), ("c", "C"), ("d", "D")])["f1"]
        0.4
    """
    mined, known = set(predicted), set(gold)
    right = len(mined & known)
    return {
        "precision": right / max(len(mined), 1),
        "recall": right / max(len(known), 1),
        "f1": 2 * right / max(len(mined) + len(known), 1),
    }


def _as_pairs(pairs: Iterable[Any], name: str) -> list[list[str]]:
    rows = [[str(id_) for id_ in pair] for pair in pairs]
    for number, row in enumerate(rows):
        if len(row) != 2:
            raise XlsrError(f"row {number} of {name} has {len(row)} ids; give a source id and a target id.")
    return rows


@lru_cache(maxsize=1)
def _metric_classes() -> dict[str, Any]:
    """The subclasses of `evaluate.Metric`, which are made when first asked for: the library is an extra."""
    try:
        import evaluate
    except ModuleNotFoundError as error:
        raise XlsrError("metrics need the evaluate library; install hf-xlsr[evaluate].") from error
    from datasets import Features, Sequence, Value

    def info(description: str, inputs: str, feature: Any) -> evaluate.MetricInfo:
        features = Features({"predictions": feature, "references": feature})
        return evaluate.MetricInfo(description, citation="", features=features, inputs_description=inputs)

    class LocalMetric(evaluate.Metric):
        def compute(
            self, *, predictions: Any = None, references: Any = None, **options: Any
        ) -> dict[str, float] | None:
            """Counts what is given here and what was added before."""
            if (predictions is None) != (references is None):
                raise XlsrError(f"{self.name} got predictions or references alone; give both.")
            if predictions is None and not len(self):
                raise XlsrError(f"{self.name} {NOTHING}")
            return super().compute(predictions=predictions, references=references, **options)

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            if not len(predictions):
                raise XlsrError(f"{self.name} {NOTHING}")
            return self._count(predictions, references)

        def _count(self, predictions: Any, references: Any) -> dict[str, float]:
            raise NotImplementedError

    class RetrievalAccuracy(LocalMetric):
        def _info(self) -> evaluate.MetricInfo:
            return info(
                "Share of sentences whose nearest neighbour by cosine is their translation.",
                "\npredictions: vectors of sentences; references: vectors of their translations, in the same order.",
                Sequence(Value("float32")),
            )

        def _count(self, predictions: Any, references: Any) -> dict[str, float]:
            return retrieval_accuracy(predictions, references)

    class MiningF1(LocalMetric):
        def _info(self) -> evaluate.MetricInfo:
            return info(
                "Precision, recall and F1 of mined pairs of sentences.",
                "\npredictions: mined pairs of ids; references: gold pairs of ids; their numbers may differ.",
                Sequence(Sequence(Value("string"))),
            )

        def add_batch(self, *, predictions: Any = None, references: Any = None) -> None:
            """Adds mined and gold pairs."""
            # The library's columns are of one length, so a batch is one row that holds both lists.
            batch = {"predictions": predictions, "references": references}
            super().add_batch(**{name: [_as_pairs(pairs, name)] for name, pairs in batch.items()})

        def _count(self, predictions: Any, references: Any) -> dict[str, float]:
            mined, gold = ([tuple(pair) for row in rows for pair in row] for rows in (predictions, references))
            return mining_f1(mined, gold)

    class StsSpearman(LocalMetric):
        def _info(self) -> evaluate.MetricInfo:
            return info(
                "Spearman's rank correlation of similarities with gold scores.",
                "\npredictions: similarities; references: gold scores.",
                Value("float64"),
            )

        def _count(self, predictions: Any, references: Any) -> dict[str, float]:
            for name, values in (("predictions", predictions), ("references", references)):
                bad = np.flatnonzero(~np.isfinite(np.array(values, np.float64)))
                if bad.size:
                    raise XlsrError(f"row {bad[0]} of {name} is {values[bad[0]]}; give finite numbers.")
            return {"spearman": spearman(np.array(predictions), np.array(references))}

    return dict(zip(METRICS, (RetrievalAccuracy, MiningF1, StsSpearman), strict=True))
