"""Metrics of the `evaluate` library that need no network."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.evaluation.pairs import both_ways, right_both_ways
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.extras import require_package

METRICS = ("retrieval_accuracy", "mining_f1")


def load_metric(name: str) -> Any:
    """A metric as `evaluate.load` gives it, without a download.

    - `retrieval_accuracy`: predictions are vectors of sentences, references those of their translations, row by row.
      Gives `source_to_target_accuracy`, `target_to_source_accuracy` and `accuracy`, as protocol `tatoeba` does.
    - `mining_f1`: predictions are the mined pairs of ids, references the gold ones; their numbers may differ.
      Pairs of all batches count together, each once. Gives `precision`, `recall` and `f1`.

    Examples:
        >>> metric = load_metric("mining_f1")
        >>> metric.compute(predictions=[("s1", "t1"), ("s2", "t9")], references=[("s1", "t1")])["precision"]
        0.5
    """
    require_choice("name", name, METRICS)
    # The library creates its folder even for a metric in memory, by default in the user's home.
    with tempfile.TemporaryDirectory(prefix="hf-xlsr-metric-") as folder:
        return _metric_classes()[name](cache_dir=folder, keep_in_memory=True)


@lru_cache(maxsize=1)
def _metric_classes() -> dict[str, Any]:
    """The subclasses of `evaluate.Metric`, created on first use: the library is an extra."""
    require_package("evaluate")
    import evaluate
    from datasets import Features, Sequence, Value

    if TYPE_CHECKING:

        class Metric:
            """The library has no types."""
    else:
        Metric = evaluate.Metric

    class PairMetric(Metric):
        about: str
        feature: Any

        def _info(self) -> evaluate.MetricInfo:
            features = Features({"predictions": self.feature, "references": self.feature})
            return evaluate.MetricInfo(
                self.about,
                citation="",
                features=features,
                inputs_description=self.about,
            )

    class RetrievalAccuracy(PairMetric):
        about = "Share of sentences whose nearest neighbour by cosine is their translation; see `load_metric`."
        feature = Sequence(Value("float32"))

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            sides = [unit_length(np.asarray(vectors, dtype=np.float32)) for vectors in (predictions, references)]
            for side in sides:
                if not (len(side) and side.any(axis=1).all()):
                    raise XlsrError("predictions and references must be vectors other than zero.")

            values, _ = both_ways("accuracy", *right_both_ways(*sides))
            del values["pairs"]
            return values

    class MiningF1(PairMetric):
        about = "Precision, recall and F1 of mined pairs of sentences; see `load_metric`."
        feature = Sequence(Sequence(Value("string")))

        def add_batch(self, *, predictions: Any = None, references: Any = None) -> None:
            """Adds mined and gold pairs."""  # the library appends to it
            mined = [tuple(map(str, pair)) for pair in predictions]
            gold = [tuple(map(str, pair)) for pair in references]
            # The library's columns are of one length, so a batch is one row that holds both lists.
            evaluate.Metric.add_batch(self, predictions=[mined], references=[gold])

        def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
            mined = set(map(tuple, chain.from_iterable(predictions)))
            gold = set(map(tuple, chain.from_iterable(references)))
            right = len(mined & gold)
            return {
                "precision": right / max(len(mined), 1),
                "recall": right / max(len(gold), 1),
                "f1": 2 * right / max(len(mined) + len(gold), 1),
            }

    return {"retrieval_accuracy": RetrievalAccuracy, "mining_f1": MiningF1}
