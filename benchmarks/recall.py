"""What approximate search misses, and what it does to margins: cells of rising `probes` against exact search.

A neighbour that is not found is replaced by a farther one, so the mean cosine of a neighbourhood can only fall and a
`ratio` margin only rise: `inflated` is the share of pairs whose margin is above the exact one, `by` the mean of
margin / exact - 1 among them. `pairs kept` is the share of the exact pairs that are mined again, each at its own number
of best pairs. Vectors are files of `hf-xlsr encode --output`, or made.

usage: python -m benchmarks recall --source en.npy --target fr.npy [--probes 8 16 32 64] [--rounds 1]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.harness import Job, Step
from benchmarks.mining import make_sides
from hf_xlsr.mining import extract_pairs, neighbours_both_ways

DEFAULTS: Job = {"source": "", "target": "", "probes": [4, 8, 16, 32, 64], "best": 0.25}
GRID = {"probe": "probes"}
QUICK: Job = {"probes": [1, 2]}
SIDES = ("cells",)
MEMORY = WARM_UP = False


def prepare(job: Job, sides: list[str]) -> Step:
    if job["source"]:
        source, target = (np.load(job[side], mmap_mode="r") for side in ("source", "target"))
    else:
        source, target, _ = make_sides(2000, 32)
    count = int(job["best"] * min(len(source), len(target)))

    def pairs(**options: Any) -> tuple[dict[tuple[int, int], float], float]:
        found = neighbours_both_ways(source, target, **options)
        mined = extract_pairs(found, max_pairs=count)
        places = zip(mined.source.tolist(), mined.target.tolist(), strict=True)
        return dict(zip(places, mined.score.tolist(), strict=True)), found.recall

    folder = "outputs/benchmarks/recall" if job["source"] else None  # one exact search for all probes
    exact, _ = pairs(method="exact", folder=folder)

    def step(side: str, warm_up: bool) -> dict[str, Any]:
        near, recall = pairs(method="ivf", probes=job["probe"], cells=None if job["source"] else 8)
        ratios = np.array([score / exact[pair] for pair, score in near.items() if pair in exact])
        above = ratios[ratios > 1 + 1e-6]
        return {
            "recall": recall,
            "inflated": len(above) / len(ratios),
            "by": float(above.mean() - 1) if len(above) else 0.0,
            "pairs kept": len(ratios) / len(exact),
        }

    return step
