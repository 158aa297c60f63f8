"""Embeddings stored in one, two and four bytes a number: disk, seconds and neighbours found, beside FAISS's 8 bits.

ours: `neighbours_both_ways` on files of int8 (`int8_rows`), float16 and float32. faiss SQ8: `IndexScalarQuantizer` with
`QT_8bit` in each direction, built in the time that is measured. `recall` is the share of the `k` nearest of an exact
float32 search that are found, in both directions. Seconds are those of the processor, so that other work on the machine
counts little. Vectors are files of `hf-xlsr encode --output`, or made.

usage: python -m benchmarks stored_vectors [--source en.npy --target fr.npy] [--sizes 20000] [--method exact]
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Job, Step
from benchmarks.mining import make_sides
from hf_xlsr.mining import neighbours_both_ways
from hf_xlsr.mining.search.int8_rows import VECTOR_BYTES, stored_as

DEFAULTS: Job = {"source": "", "target": "", "sizes": [20_000], "width": 384, "method": "exact"}
GRID = {"rows": "sizes"}
QUICK: Job = {"sizes": [500], "width": 32}
MEMORY = WARM_UP = False
FAISS = "faiss SQ8"
SIDES = ("int8", "float32", FAISS, "float16")
K = 4

Sides = tuple[np.ndarray, np.ndarray]


def faiss_neighbours(sides: Sides, threads: int) -> Sides:
    """The indices that FAISS's scalar quantizer finds in both directions."""
    import faiss

    faiss.omp_set_num_threads(threads)
    found = []
    for queries, corpus in (sides, sides[::-1]):
        quantizer = faiss.ScalarQuantizer.QT_8bit
        index = faiss.IndexScalarQuantizer(corpus.shape[1], quantizer, faiss.METRIC_INNER_PRODUCT)
        index.train(corpus)
        index.add(corpus)
        found.append(index.search(queries, K)[1])
    return found[0], found[1]


def recall_of(found: Sides, truth: Sides) -> float:
    """The share of true neighbours, `(rows, K)` a direction, that were found."""
    hits = []
    for indices, true_indices in zip(found, truth, strict=True):
        hits.append((indices[:, :, None] == true_indices[:, None]).any(axis=1).ravel())
    return float(np.concatenate(hits).mean())


def prepare(job: Job, sides: list[str]) -> Step:
    if job["source"]:
        vectors = tuple(np.load(job[side])[: job["rows"]].astype(np.float32) for side in ("source", "target"))
    else:
        vectors = make_sides(job["rows"], job["width"])[:2]
    exact = neighbours_both_ways(*vectors, K, method="exact")
    truth = (exact.forward_indices, exact.backward_indices)

    folder = tempfile.TemporaryDirectory()
    files: dict[str, list[Path]] = {}
    for dtype in VECTOR_BYTES:
        files[dtype] = []
        for number, matrix in enumerate(vectors):
            file = Path(folder.name) / f"{dtype}-{number}.npy"
            np.save(file, stored_as(matrix, dtype))
            files[dtype].append(file)

    def step(side: str, warm_up: bool) -> dict[str, Any]:
        _ = folder  # lives as long as the step
        figures: dict[str, Any] = {}
        before = time.process_time()
        if side == FAISS:
            found = faiss_neighbours(vectors, job["threads"])
        else:
            stored = [np.load(file, mmap_mode="r") for file in files[side]]
            neighbours = neighbours_both_ways(*stored, K, method=job["method"])
            found = (neighbours.forward_indices, neighbours.backward_indices)
            figures["file_bytes"] = sum(file.stat().st_size for file in files[side])
        return {**figures, "seconds": time.process_time() - before, "recall": recall_of(found, truth)}

    return step
