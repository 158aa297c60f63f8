"""Bitext mining against bare FAISS and sentence-transformers' example, on the same vectors, with as many threads.

exact: ours (`neighbours_both_ways`, then `extract_pairs`), faiss (`IndexFlatIP` in each direction, no mining),
semantic_search (`util.semantic_search` both ways, as in the parallel-sentence-mining example), the script of the
checkout that LASER names, and the code of the one that STOPES names on FAISS's neighbours. `of limit` is the processor
time of the bare matrix products of our tiles, as a share of that of our search, measured one after the other. memory:
ours within `--memory`, on float16 matrices in files.

usage: python -m benchmarks mining [--sizes 50000] [--peers faiss semantic_search]; `--peers` alone measures only ours
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import time
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import psutil
import torch

from benchmarks.harness import Job, Step, peak_bytes
from hf_xlsr.mining import BothWays, extract_pairs, neighbours_both_ways
from hf_xlsr.mining.search.block_search import SIZES
from hf_xlsr.mining.search.tiles import Filter
from hf_xlsr.utils.devices import parse_size, product_precision

DEFAULTS: Job = {
    "kind": "exact",
    "sizes": [50_000, 100_000, 200_000],
    "width": 384,
    "memory": "512MB",
    "peers": ["semantic_search", "faiss"],
}
GRID = {"rows": "sizes"}
QUICK: Job = {"sizes": [500], "width": 32, "memory": "4GB"}
MEMORY = False  # not compared; sides take turns in one process
K = 4
TILE = SIZES["exact"][0][1]  # rows and columns


def sides(job: Job) -> list[str]:
    if job["kind"] != "exact" or not job["peers"]:
        return ["ours"]
    checkouts = [name for name in ("laser", "stopes") if os.environ.get(name.upper())]
    return ["ours", *checkouts, *job["peers"]]


def make_sides(rows: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors in clusters, their translations in another order, and that order."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((2000, width), np.float32)
    source, target = (np.empty((rows, width), np.float32) for _ in range(2))
    for start in range(0, rows, 20_000):
        count = min(20_000, rows - start)
        shared = centres[random.integers(0, len(centres), count)] + random.standard_normal((count, width), np.float32)
        for side in (source, target):
            vectors = shared + 0.6 * random.standard_normal((count, width), np.float32) + 1
            side[start : start + count] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    order = random.permutation(rows)
    return source, target[order], order


def product_seconds(source: np.ndarray, target: np.ndarray) -> float:
    """Seconds of the processor for the products of all tiles, as large as those of our search, and nothing else."""
    rows = torch.from_numpy(source).split(TILE)
    columns = torch.from_numpy(target).split(TILE)
    products = torch.empty(TILE * TILE)
    before = time.process_time()
    with product_precision(Filter().precision):
        for queries in rows:
            for candidates in columns:
                tile = products[: len(queries) * len(candidates)].view(len(queries), len(candidates))
                torch.mm(queries, candidates.T, out=tile)
    return time.process_time() - before


def faiss_search(queries: np.ndarray, corpus: np.ndarray, threads: int) -> tuple[np.ndarray, np.ndarray]:
    import faiss

    faiss.omp_set_num_threads(threads)
    index = faiss.IndexFlatIP(corpus.shape[1])
    index.add(corpus)
    return index.search(queries, K)


def laser(folder: Path, sides: tuple[np.ndarray, np.ndarray]) -> set[tuple[int, ...]]:
    """Pairs of LASER's own script, on files, with numpy's reader of embeddings."""
    sys.argv = ["mine_bitexts", "--mode", "mine", "--src-lang=a", "--trg-lang=b", f"--output={folder}/pairs"]
    for name, side in zip(("src", "trg"), sides, strict=True):
        np.save(folder / f"{name}.npy", side)
        (folder / name).write_text("".join(f"{row}\n" for row in range(len(side))))
        sys.argv += [str(folder / name), f"--{name}-embeddings={folder / name}.npy"]
    unused = MagicMock(EmbedLoad=lambda path, *_, **__: np.load(path))
    sys.modules |= {"embed": unused, "lib.text_processing": unused}
    runpy.run_path(f"{os.environ['LASER']}/source/mine_bitexts.py", run_name="__main__")
    return {tuple(map(int, line.split("\t")[1:])) for line in (folder / "pairs").read_text().splitlines()}


def stopes(folder: Path, sides: tuple[np.ndarray, np.ndarray], threads: int) -> set[tuple[int, ...]]:
    """Pairs that stopes mines from neighbours in files, with squared distances instead of cosines."""
    for name in ("eval.auto_pcp.audio_comparator", "utils.embedding_utils"):
        sys.modules |= dict.fromkeys(accumulate(f"stopes.{name}".split("."), "{}.{}".format), MagicMock())
    np.lib.format._read_array_header = np.lib._format_impl._read_array_header  # numpy 2 has moved it
    mine = runpy.run_path(f"{os.environ['STOPES']}/stopes/modules/bitext/mining/mine_bitext_indexes_utils.py")["mine"]
    files = [[f"{folder}/{part}{way}.npy"] for part in ("distances", "indices") for way in range(2)]
    for way, (one, other) in enumerate((sides, sides[::-1])):
        cosines, indices = faiss_search(one, other, threads)
        np.save(files[way][0], 2 - 2 * cosines)
        np.save(files[way + 2][0], indices.astype(np.uint32))
    found = mine(*files, K, K, 1, 0.0, False, "ratio", "union", True, MagicMock())
    return set(zip(found.src_idx.tolist(), found.tgt_idx.tolist(), strict=True))


def semantic_search(queries: np.ndarray, corpus: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import torch
    from sentence_transformers import util

    hits = util.semantic_search(torch.from_numpy(queries), torch.from_numpy(corpus), top_k=K)
    scores = np.array([[hit["score"] for hit in row] for row in hits], np.float32)
    return scores, np.array([[hit["corpus_id"] for hit in row] for row in hits])


def prepare(job: Job, sides: list[str]) -> Step:
    source, target, order = make_sides(job["rows"], job["width"])
    truth = set(zip(order.tolist(), range(job["rows"]), strict=True))
    scratch = tempfile.TemporaryDirectory()
    options: dict[str, Any] = {"method": "exact"}
    if job["kind"] == "memory":
        options = {"memory": parse_size(job["memory"])}
        names = [Path(scratch.name) / f"{side}.npy" for side in ("source", "target")]
        for name, vectors in zip(names, (source, target), strict=True):
            np.save(name, vectors.astype(np.float16))
        source, target = (np.load(name, mmap_mode="r") for name in names)

    def figures(pairs: set[tuple[int, ...]], recall: float = 1.0) -> dict[str, Any]:
        _ = scratch  # lives as long as the step
        return {"pairs": len(pairs), "true_pairs": len(pairs & truth) / len(pairs), "recall": recall}

    def mined(both: BothWays) -> dict[str, Any]:
        found = extract_pairs(both)
        return figures(set(zip(found.source.tolist(), found.target.tolist(), strict=True)), both.recall)

    def step(side: str, warm_up: bool) -> dict[str, Any]:
        if warm_up:
            return {}
        if side == "faiss":
            for one, other in ((source, target), (target, source)):
                faiss_search(one, other, job["threads"])
            return {}
        if side in ("laser", "stopes"):
            mine = laser if side == "laser" else partial(stopes, threads=job["threads"])
            return figures(mine(Path(scratch.name), (source, target)))
        if side == "semantic_search":
            both = *semantic_search(source, target), *semantic_search(target, source)
            return mined(BothWays(*both, method="exact", recall=1.0))
        if job["kind"] == "exact":
            clock = time.perf_counter()
            processor = time.process_time()
            both = neighbours_both_ways(source, target, K, **options)
            search_seconds = time.process_time() - processor
            found = mined(both)
            seconds = time.perf_counter() - clock
            return {**found, "of_limit": product_seconds(source, target) / search_seconds, "seconds": seconds}
        before = psutil.Process().memory_info().rss
        extra, found = peak_bytes(lambda: mined(neighbours_both_ways(source, target, K, **options)))
        return {**found, "peak_bytes": before + extra}

    return step
