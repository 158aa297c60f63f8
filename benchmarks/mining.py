"""Bitext mining against bare FAISS and sentence-transformers' example, on the same vectors, with as many threads.

exact: ours (`neighbours_both_ways`, then `extract_pairs`), faiss (`IndexFlatIP` in each direction, no mining) and
semantic_search (`util.semantic_search` both ways, as in the parallel-sentence-mining example). cells: ours and
FAISS' `IVF..,PQ..` with as many cells and probes, and the share of the true neighbours that each finds. memory: ours
within `--memory`, on float16 matrices in files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.harness import Job, Step, peak_bytes

DEFAULTS: Job = {"kind": "exact", "sizes": [50_000, 100_000, 200_000], "width": 384, "probes": 32, "memory": "512MB"}
GRID = {"rows": "sizes"}
QUICK: Job = {"sizes": [500], "width": 32, "probes": 4, "memory": "4GB"}
MEMORY = False  # not compared; sides take turns in one process
K = 4
CHUNK = 20_000


def sides(job: Job) -> list[str]:
    return {"exact": ["ours", "semantic_search", "faiss"], "cells": ["ours", "faiss"], "memory": ["ours"]}[job["kind"]]


def make_sides(rows: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors in clusters, their translations in another order, and that order."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((2000, width), np.float32)
    source, target = (np.empty((rows, width), np.float32) for _ in range(2))
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        shared = centres[random.integers(0, len(centres), count)] + random.standard_normal((count, width), np.float32)
        for side in (source, target):
            vectors = shared + 0.6 * random.standard_normal((count, width), np.float32) + 1
            side[start : start + count] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = random.permutation(rows)
    return source, target[order], order


def extracted(neighbours: tuple[np.ndarray, ...]) -> set[tuple[int, int]]:
    """Pairs that our extraction makes of anyone's neighbours."""
    from hf_xlsr.mining import BothWays, extract_pairs

    forward, forward_indices, backward, backward_indices = neighbours
    mined = extract_pairs(BothWays(forward, forward_indices, backward, backward_indices, "exact", 1.0))
    return set(zip(mined.source.tolist(), mined.target.tolist(), strict=True))


def faiss_search(queries: np.ndarray, candidates: np.ndarray, job: Job, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Similarities and indices of the neighbours; by cells when `cells` is above 0."""
    import faiss

    faiss.omp_set_num_threads(job["threads"])
    index = faiss.IndexFlatIP(job["width"])
    if cells:
        index = faiss.index_factory(job["width"], f"IVF{cells},PQ{job['width'] // 8}", faiss.METRIC_INNER_PRODUCT)
        count = min(len(candidates), 64 * max(cells, 256))
        index.train(candidates[np.random.default_rng(5).choice(len(candidates), count, replace=False)])
        index.nprobe = job["probes"]
    index.add(candidates)
    found: tuple[np.ndarray, np.ndarray] = index.search(queries, K)
    return found


def semantic_search(queries: np.ndarray, corpus: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch
    from sentence_transformers import util

    hits = util.semantic_search(torch.from_numpy(queries), torch.from_numpy(corpus), top_k=K)
    scores = np.array([[hit["score"] for hit in row] for row in hits], np.float32)
    return scores, np.array([[hit["corpus_id"] for hit in row] for row in hits])


def prepare(job: Job, sides: list[str]) -> Step:
    from hf_xlsr.mining import extract_pairs, nearest_neighbours, neighbours_both_ways
    from hf_xlsr.utils.devices import parse_size

    rows = job["rows"]
    source, target, order = make_sides(rows, job["width"])
    truth = set(zip(order.tolist(), range(rows), strict=True))
    cells = 2 ** round(np.log2(max(1, rows / 1000))) if job["kind"] == "cells" else 0
    scratch = tempfile.TemporaryDirectory()
    if job["kind"] == "memory":
        names = [Path(scratch.name) / f"{side}.npy" for side in ("source", "target")]
        for name, vectors in zip(names, (source, target), strict=True):
            np.save(name, vectors.astype(np.float16))
        source, target = (np.load(name, mmap_mode="r") for name in names)

    def recall(indices: np.ndarray, sample: np.ndarray) -> float:
        true = nearest_neighbours(source[sample], target, K)[1]
        return float((indices[sample][:, :, None] == true[:, None]).any(1).mean())

    def ours() -> dict[str, Any]:
        options: dict[str, Any] = {"method": "ivf", "cells": cells, "probes": job["probes"]} if cells else {}
        if job["kind"] == "memory":
            _ = scratch  # lives as long as the step
            options["memory"] = parse_size(job["memory"])
        both = neighbours_both_ways(source, target, K, **{"method": "exact" if not options else "auto", **options})
        mined = extract_pairs(both)
        pairs = set(zip(mined.source.tolist(), mined.target.tolist(), strict=True))
        return {"pairs": len(pairs), "true_pairs": len(pairs & truth) / len(pairs), "recall": both.recall}

    def theirs(side: str) -> dict[str, Any]:
        if side == "semantic_search":
            pairs = extracted((*semantic_search(source, target), *semantic_search(target, source)))
            return {"pairs": len(pairs), "true_pairs": len(pairs & truth) / len(pairs)}
        found = [faiss_search(*both, job, cells) for both in ((source, target), (target, source))]
        sample = np.sort(np.random.default_rng(4).choice(rows, min(rows, 1000), replace=False))
        return {"recall": recall(found[0][1], sample)} if cells else {}

    def step(side: str, warm_up: bool) -> dict[str, Any]:
        if warm_up:
            return {}
        if job["kind"] == "memory":
            before = psutil.Process().memory_info().rss
            extra, found = peak_bytes(ours)
            return {**found, "peak_bytes": before + extra}
        return ours() if side == "ours" else theirs(side)

    return step
