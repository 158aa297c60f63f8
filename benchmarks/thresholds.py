"""Mining thresholds that hidden known pairs choose, against the best ones.

`--pairs` is a source as in recipes. `--size` pairs are hidden in two texts, as many sentences of each side have no
translation, and as many pairs are known. Sides are `--encoders`; F1 and precision are counted on the hidden gold pairs.
"""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import yaml

from benchmarks.harness import Job, Step
from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.pipeline import run_mining
from hf_xlsr.mining.stages import job_folder

MEMORY = WARM_UP = False
DEFAULTS: Job = {"pairs": "", "encoders": ["made"], "prompt": "", "languages": ["en", "de"], "size": 2000, "seed": 1}
QUICK: Job = {"size": 120}


def sides(job: Job) -> list[str]:
    return list(job["encoders"])


def texts(job: Job) -> list[list[tuple[str, str]]]:
    """Gold pairs, sources and targets of other pairs, and known pairs; no sentence occurs twice."""
    if job["pairs"]:
        options = yaml.safe_load(os.path.expandvars(job["pairs"]))
        rows = open_source(Source.parse(options), languages=job["languages"])
        pairs = [(" ".join(row["source"].split()), " ".join(row["target"].split())) for row in rows]
    else:
        pairs = [(f"en {n}", f"de {n}") for n in range(4 * job["size"])]
    pairs = sorted({source: (source, target) for source, target in {t: (s, t) for s, t in pairs}.values()}.values())
    random.Random(job["seed"]).shuffle(pairs)
    return [pairs[part * job["size"] : (part + 1) * job["size"]] for part in range(4)]


class Made:
    """Vectors of the numbers in sentences."""

    def encode(self, sentences: list[str], **options: Any) -> Any:
        seeds = [(int("".join(filter(str.isdigit, text)) or 0), text.startswith("en")) for text in sentences]
        draws = [(np.random.default_rng(seed[0]), np.random.default_rng(seed)) for seed in seeds]
        return np.stack([same.normal(size=32) + own.normal(size=32) / 2 for same, own in draws])


def prepare(job: Job, sides: list[str]) -> Step:
    gold, sources, targets, known = texts(job)
    source, target = [pair[0] for pair in (*gold, *sources)], [pair[1] for pair in (*gold, *targets)]
    for text in (source, target):
        random.Random(job["seed"]).shuffle(text)
    options = MiningOptions(languages=job["languages"], prompt=job["prompt"] or None)

    def step(side: str, warm_up: bool) -> dict[str, Any]:
        encoder: Any = Made() if side == "made" else os.path.expandvars(side)
        with job_folder(None) as folder:
            run = run_mining(source, target, folder, options, encoder=encoder, known=known)
            truth, curve = run.gold_curve(gold), run.curve
        chosen, best = curve.choose(), int(np.argmax(truth.f1))
        figures = {"threshold": curve.threshold[chosen], "F1": truth.f1[chosen]}
        figures |= {"best threshold": truth.threshold[best], "best F1": truth.f1[best]}
        for wanted in (0.9, 0.95):
            figures[f"precision for {wanted:g}"] = truth.precision[curve.choose(wanted)]
        return {name: float(value) for name, value in figures.items()}

    return step
