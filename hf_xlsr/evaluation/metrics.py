"""Metrics of the `evaluate` library that need no network: retrieval accuracy, mining F1, Spearman of similarities."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.evaluation.outcomes import spearman
from hf_xlsr.evaluation.protocols.tatoeba import right_both_ways
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.vectors import as_vectors

METRICS = ("retrieval_accuracy", "mining_f1", "sts_spearman")


def load_metric(name: str, **options: Any) -> Any:
    """A metric as `evaluate.load` gives it, without a download; batches stay in memory unless `options` say otherwise.

    - `retrieval_accuracy`: predictions are vectors of sentences, references those of their translations, row by row.
      Gives `source_to_target_accuracy`, `target_to_source_accuracy` and `accuracy`, as protocol `tatoeba` does.
    - `mining_f1`: predictions are the mined pairs of ids, references the gold ones; their numbers may differ.
      Pairs of all batches count together, each once. Gives `precision`, `recall` and `f1`.
    - `sts_spearman`: predictions are similarities, references gold scores. Gives `spearman`, 0 where either is
      constant.

    `options` are those of `evaluate.Metric`, e.g. `cache_dir`, `num_process` and `process_id` for several processes.

    Examples:
        >>> metric = load_metric("mining_f1")
        >>> metric.compute(predictions=[("s1", "t1"), ("s2", "t9")], references=[("s1", "t1")])["precision"]
        0.5
    """
    require_choice("name", name, METRICS)
    metric = _metric_classes()[name]
    if options:
        return metric(**options)
    # The library creates its folder even for a metric in memory, by default in the user's home.
    with tempfile.TemporaryDirectory(prefix="hf-xlsr-metric-") as folder:
        return metric(cache_dir=folder, keep_in_memory=True)


def retrieval_accuracy(source_vectors: np.ndarray, target_vectors: np.ndarray) -> dict[str, float]:
    """Share of rows whose nearest row on the other side, by cosine, has their own number: both ways, and their mean."""
    given = {"predictions": source_vectors, "references": target_vectors}
    sides = [unit_length(as_vectors(vectors, name)) for name, vectors in given.items()]
    if len(sides[0]) != len(sides[1]) or not all(len(side) and side.any(axis=1).all() for side in sides):
        raise XlsrError("predictions and references must be equally many vectors other than zero.")
    forward, backward = (float(right.mean()) for right in right_both_ways(*sides))
    return {
        "source_to_target_accuracy": forward,
        "target_to_source_accuracy": backward,
        "accuracy": (forward + backward) / 2,
    }


def mining_f1(predicted: Iterable[tuple[Any, Any]], gold: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    """`precision`, `recall` and `f1` of a set of pairs, 0 where they have no denominator."""
    mined, known = set(predicted), set(gold)
    right = len(mined & known)
    return {
        "precision": right / max(len(mined), 1),
        "recall": right / max(len(known), 1),
        "f1": 2 * right / max(len(mined) + len(known), 1),
    }


@lru_cache(maxsize=1)
def _metric_classes() -> dict[str, Any]:
    """The subclasses of `evaluate.Metric`, created on first use: the library is an extra."""
    require_package("evaluate")
    import evaluate
    from datasets import Features, Sequence, Value

    class PairMetric(evaluate.Metric):
        about: str
        inputs: str
        feature: Any

        def _info(self) -> evaluate.MetricInfo:
            features = Features({"predictions": self.feature, "references": self.feature})
            return evaluate.MetricInfo(self.about, citation="", features=features, inputs_description=self.inputs)

    class RetrievalAccuracy(PairMetric):
        about = "Share of sentences whose nearest neighbour by cosine is their translation."
        inputs = "\npredictions: vectors of sentences; references: vectors of their translations, in the same order."
        feature = Sequence(Value("float32"))

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            return retrieval_accuracy(predictions, references)

    class MiningF1(PairMetric):
        about = "Precision, recall and F1 of mined pairs of sentences."
        inputs = "\npredictions: mined pairs of ids; references: gold pairs of ids; their numbers may differ."
        feature = Sequence(Sequence(Value("string")))

        def add_batch(self, *, predictions: Any = None, references: Any = None) -> None:
            """Adds mined and gold pairs."""  # the library appends to it
            # The library's columns are of one length, so a batch is one row that holds both lists.
            batch = {"predictions": predictions, "references": references}
            super().add_batch(**{name: [[[*map(str, pair)] for pair in pairs]] for name, pairs in batch.items()})

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            mined, gold = ([tuple(pair) for row in rows for pair in row] for rows in (predictions, references))
            return mining_f1(mined, gold)

    class StsSpearman(PairMetric):
        about = "Spearman's rank correlation of similarities with gold scores."
        inputs = "\npredictions: similarities; references: gold scores."
        feature = Value("float64")

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            if not np.isfinite([*predictions, *references]).all():
                raise XlsrError("predictions and references of sts_spearman must be finite.")
            return {"spearman": float(spearman(np.array(predictions), np.array(references)))}

    return dict(zip(METRICS, (RetrievalAccuracy, MiningF1, StsSpearman), strict=True))
