"""Random numbers that are a function of (seed, epoch, example, draw).

Masking drawn from a generator depends on how many worker processes run and where a run was stopped. Numbers that are
computed from the example's own coordinates do not: a resumed run masks exactly what the uninterrupted run masks.
"""

from __future__ import annotations

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of the SplitMix64 generator: every input bit reaches every output bit."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def counter_uniform(
    seed: int, epochs: np.ndarray | int, examples: np.ndarray, draw: np.ndarray | int = 0
) -> np.ndarray:
    """Uniform numbers in [0, 1), one per element of the broadcast arguments, float64.

    Args:
        seed: Seed of the run.
        epochs: Epoch of each example.
        examples: Index of each example in the data set.
        draw: Which of an example's numbers; arrays broadcast, e.g. one number per token position.

    Example:
        >>> first = counter_uniform(1, 0, np.arange(3))
        >>> bool((first == counter_uniform(1, 0, np.arange(3))).all()), bool((first[1:] == first[:-1]).any())
        (True, False)
    """
    with np.errstate(over="ignore"):
        state = _mix(np.uint64(seed & 0xFFFFFFFFFFFFFFFF) * _GOLDEN + np.uint64(1))
        for part in (epochs, examples, draw):
            state = _mix((state + np.asarray(part).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
    return (state >> np.uint64(11)).astype(np.float64) / float(1 << 53)
