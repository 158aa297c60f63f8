"""Training of each method against sentence-transformers, and against the number of layers.

All train on the same synthetic pairs with the same encoder, batch, length and precision, sentence-transformers by
`MultipleNegativesRankingLoss`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.harness import Job, Step
from benchmarks.training import METHODS, PEER, make_material, train

SIDES = (*METHODS, PEER)
DEFAULTS: Job = {"widths": [256, 512], "depths": [2], "batch": 128, "words": 24, "vocabulary": 16_000, "steps": 16}
DEFAULTS |= {"queue": 4096}
GRID = {"width": "widths", "layers": "depths"}
QUICK: Job = {"widths": [64], "depths": [1], "batch": 8, "words": 8, "vocabulary": 1000, "steps": 2, "queue": 64}
ALONE = True


def prepare(job: Job, sides: list[str]) -> Step:
    scratch = tempfile.TemporaryDirectory()
    make_material(Path(scratch.name), job)

    def step(side: str, warm_up: bool) -> dict[str, float]:
        return {} if warm_up else train(side, Path(scratch.name), job)

    return step
