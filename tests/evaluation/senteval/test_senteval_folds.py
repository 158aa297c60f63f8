from __future__ import annotations

import numpy as np
import pytest
from senteval_helpers import noisy_classes

from hf_xlsr.evaluation.senteval.classifier import Schedule
from hf_xlsr.evaluation.senteval.folds import Classification, best_decay

SHORT = Schedule(batch_size=16, passes_per_check=2, tenacity=2, max_passes=30)


def test_order_of_rows():
    vectors, labels = noisy_classes(90, 12, 2, noise=0.3)
    rows = np.random.default_rng(1).permutation(90)
    reordered = Classification(vectors[rows], labels[rows], schedule=SHORT, folds=3).nested(np.arange(90))
    indexed = Classification(vectors, labels, schedule=SHORT, folds=3).nested(rows)
    np.testing.assert_array_equal(indexed.predicted, reordered.predicted)
    assert (indexed.dev, indexed.test) == (reordered.dev, reordered.test)


@pytest.mark.parametrize(
    ("accuracies", "decay", "dev"),
    [
        ([[0.8, 0.9, 0.7, 0.6], [0.8, 0.5, 0.7, 0.6]], 1e-5, 0.8),
        ([[0.7, 0.8, 0.8, 0.8]], 1e-4, 0.8),
        # 80.123 % and 80.124 % are equal when rounded: the smaller weight decay is taken, with its own accuracy.
        ([[0.80123, 0.80124, 0.7, 0.7]], 1e-5, 0.80123),
        ([[0.80124, 0.80126, 0.7, 0.7]], 1e-4, 0.80126),
    ],
)
def test_chosen_weight_decay(accuracies: list[list[float]], decay: float, dev: float):
    assert best_decay(np.array(accuracies)) == (decay, pytest.approx(dev))
