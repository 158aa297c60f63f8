"""Speed and memory of bitext mining, beside bare FAISS and beside sentence-transformers' example.

All take the same vectors, in one process, with the same number of threads, and take turns; ratios are taken round by
round. What they find is compared pair by pair.

- `ours`: `neighbours_both_ways`, then `extract_pairs`.
- `faiss`: two searches of `IndexFlatIP`, one for each direction, without any mining.
- `semantic_search`: sentence-transformers' parallel-sentence-mining example: `util.semantic_search` both ways, then its
  loops over candidates.

`--ivf ROWS` compares large sides by cells, ours beside FAISS' `IVF..,PQ..`, with the share of true neighbours found.
`--memory-proof ROWS` mines float16 matrices on disk within `--memory` and prints the peak of resident memory.

usage: python benchmarks/mining.py [--sizes 50000 100000 200000] [--ivf 1000000] [--memory-proof 1000000]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from process_memory import status_bytes

K = 4
CHUNK = 20_000
EXTRAPOLATED = (500_000, 1_000_000)
Neighbours = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Pairs = set[tuple[int, int]]


def make_chunks(rows: int, width: int, side: str) -> Iterator[np.ndarray]:
    """Unit vectors in clusters around one direction; row `i` of one side translates row `i` of the other."""
    centres = np.random.default_rng(0).standard_normal((2000, width), np.float32)
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        shared = np.random.default_rng((1, start))
        own = np.random.default_rng((2, start, len(side)))
        vectors = centres[shared.integers(0, len(centres), count)] + shared.standard_normal((count, width), np.float32)
        vectors += 0.6 * own.standard_normal((count, width), np.float32) + 1
        yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def make_sides(rows: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Both sides in memory, float32; the targets in an order of their own."""
    source, target = (np.concatenate(list(make_chunks(rows, width, side))) for side in ("source", "targets"))
    return source, target[np.random.default_rng(3).permutation(rows)]


def faiss_neighbours(source: np.ndarray, target: np.ndarray) -> Neighbours:
    """Two flat searches."""
    import faiss

    found: list[np.ndarray] = []
    for queries, candidates in ((source, target), (target, source)):
        index = faiss.IndexFlatIP(candidates.shape[1])
        index.add(candidates)
        found += index.search(queries, K)
    return found[0], found[1], found[2], found[3]


def example_pairs(source: np.ndarray, target: np.ndarray) -> Pairs:
    """The example of sentence-transformers, its neighbours by `util.semantic_search`."""
    import torch
    from sentence_transformers import util

    def search(queries: np.ndarray, corpus: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        hits = util.semantic_search(torch.from_numpy(queries), torch.from_numpy(corpus), top_k=K)
        similarities = np.array([[hit["score"] for hit in row] for row in hits])
        return similarities, np.array([[hit["corpus_id"] for hit in row] for row in hits])

    def scores_of(
        x: np.ndarray, y: np.ndarray, candidates: np.ndarray, forward_mean: np.ndarray, backward_mean: np.ndarray
    ) -> np.ndarray:
        scores = np.zeros(candidates.shape)
        for i in range(scores.shape[0]):
            for j in range(scores.shape[1]):
                place = candidates[i, j]
                scores[i, j] = x[i].dot(y[place]) / ((forward_mean[i] + backward_mean[place]) / 2)
        return scores

    forward_similarities, forward = search(source, target)
    backward_similarities, backward = search(target, source)
    forward_mean, backward_mean = forward_similarities.mean(axis=1), backward_similarities.mean(axis=1)
    forward_scores = scores_of(source, target, forward, forward_mean, backward_mean)
    backward_scores = scores_of(target, source, backward, backward_mean, forward_mean)
    forward_best = forward[np.arange(len(source)), forward_scores.argmax(axis=1)]
    backward_best = backward[np.arange(len(target)), backward_scores.argmax(axis=1)]
    indices = np.stack(
        [
            np.concatenate([np.arange(len(source)), backward_best]),
            np.concatenate([forward_best, np.arange(len(target))]),
        ],
        axis=1,
    )
    scores = np.concatenate([forward_scores.max(axis=1), backward_scores.max(axis=1)])
    seen_sources: set[int] = set()
    seen_targets: set[int] = set()
    pairs: Pairs = set()
    for place in np.argsort(-scores):
        i, j = int(indices[place][0]), int(indices[place][1])
        if i not in seen_sources and j not in seen_targets:
            seen_sources.add(i)
            seen_targets.add(j)
            pairs.add((i, j))
    return pairs


def pairs_of(neighbours: Neighbours) -> Pairs:
    """What our extraction makes of anyone's neighbours."""
    from hf_xlsr.mining import BothWays, extract_pairs

    mined = extract_pairs(BothWays(*neighbours, "exact", 1.0))
    return set(zip(mined.source.tolist(), mined.target.tolist(), strict=True))


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds, and what the job gave."""
    started = time.perf_counter()
    result = job()
    return time.perf_counter() - started, result


def compare_exact(source: np.ndarray, target: np.ndarray, rounds: int, example: bool) -> dict[str, Any]:
    """Medians of each, ratios of each round, and how far the pairs agree."""
    from hf_xlsr.mining import extract_pairs, neighbours_both_ways

    seconds: dict[str, list[float]] = {"search": [], "pairs": [], "faiss": [], "semantic_search": []}
    agreement: dict[str, float] = {}
    for number in range(rounds):
        took, both = timed(lambda: neighbours_both_ways(source, target, K, method="exact"))
        seconds["search"].append(took)
        took, mined = timed(lambda both=both: extract_pairs(both))
        seconds["pairs"].append(took)
        ours = set(zip(mined.source.tolist(), mined.target.tolist(), strict=True))
        took, found = timed(lambda: faiss_neighbours(source, target))
        seconds["faiss"].append(took)
        agreement["faiss"] = len(ours & pairs_of(found)) / len(ours)
        if example and number == 0:
            took, theirs = timed(lambda: example_pairs(source, target))
            seconds["semantic_search"].append(took)
            agreement["semantic_search"] = len(ours & theirs) / len(ours)
    mining = [search + pairs for search, pairs in zip(seconds["search"], seconds["pairs"], strict=True)]
    report: dict[str, Any] = {
        "rows": len(source),
        "seconds": {name: statistics.median(values) for name, values in seconds.items() if values},
        "search_to_faiss": [one / other for one, other in zip(seconds["search"], seconds["faiss"], strict=True)],
        "mining_to_faiss": [one / other for one, other in zip(mining, seconds["faiss"], strict=True)],
        "identical_pairs": agreement,
    }
    if seconds["semantic_search"]:
        report["semantic_search_to_mining"] = seconds["semantic_search"][0] / mining[0]
    return report


def extrapolate(measured: dict[str, Any], rows: int) -> dict[str, Any]:
    """Seconds at another size: the pairs' share grows with the rows, everything else with their square."""
    factor = rows / measured["rows"]
    seconds = {name: value * (factor if name == "pairs" else factor**2) for name, value in measured["seconds"].items()}
    return {"rows": rows, "seconds": seconds, "extrapolated": True}


def compare_cells(rows: int, width: int, probes: int) -> dict[str, Any]:
    """Ours by cells beside FAISS' IVF with product quantisation, of as many cells and probes; with recall."""
    import faiss

    from hf_xlsr.mining import nearest_neighbours, neighbours_both_ways

    source, target = make_sides(rows, width)
    cells = 2 ** round(np.log2(max(1, rows / 1000)))
    took, both = timed(lambda: neighbours_both_ways(source, target, K, method="ivf", cells=cells, probes=probes))
    report: dict[str, Any] = {
        "rows": rows,
        "cells": cells,
        "probes": probes,
        "ours": {"seconds": took, "recall": both.recall},
    }
    sample = np.sort(np.random.default_rng(4).choice(rows, min(rows, 1000), replace=False))
    codes = width // 8
    hits: list[np.ndarray] = []
    took = 0.0
    for queries, candidates in ((source, target), (target, source)):

        def search(queries: np.ndarray = queries, candidates: np.ndarray = candidates) -> np.ndarray:
            index = faiss.index_factory(width, f"IVF{cells},PQ{codes}", faiss.METRIC_INNER_PRODUCT)
            training = np.random.default_rng(5).choice(rows, min(rows, 64 * max(cells, 256)), replace=False)
            index.train(candidates[training])
            index.add(candidates)
            index.nprobe = probes
            return index.search(queries, K)[1]

        seconds, found = timed(search)
        took += seconds
        true = nearest_neighbours(queries[sample], candidates, K)[1]
        hits.append((found[sample][:, :, None] == true[:, None]).any(1))
    report["faiss"] = {"index": f"IVF{cells},PQ{codes}", "seconds": took, "recall": float(np.concatenate(hits).mean())}
    return report


def prove_memory(rows: int, width: int, memory: str) -> dict[str, Any]:
    """Mines float16 matrices on disk in a process of its own; its peak of resident memory."""
    with tempfile.TemporaryDirectory() as scratch:
        for side in ("source", "targets"):
            path = Path(scratch) / f"{side}.npy"
            matrix = np.lib.format.open_memmap(path, "w+", np.float16, (rows, width))
            for number, chunk in enumerate(make_chunks(rows, width, side)):
                matrix[number * CHUNK : number * CHUNK + len(chunk)] = chunk
            matrix.flush()
            del matrix
        command = [sys.executable, __file__, "--worker", json.dumps({"folder": scratch, "memory": memory})]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {"rows": rows, "memory": memory, **json.loads(done.stdout.strip().splitlines()[-1])}


def run_worker(job: dict[str, str]) -> dict[str, Any]:
    """Mines within the memory, and measures."""
    from hf_xlsr.mining import extract_pairs, neighbours_both_ways
    from hf_xlsr.utils.memory import parse_size

    source, target = (np.load(Path(job["folder"]) / f"{side}.npy", mmap_mode="r") for side in ("source", "targets"))
    took, both = timed(
        lambda: neighbours_both_ways(source, target, K, memory=parse_size(job["memory"]), show_progress_bar=True)
    )
    more, mined = timed(lambda: extract_pairs(both))
    return {
        "method": both.method,
        "recall": both.recall,
        "seconds": took + more,
        "peak_bytes": status_bytes("VmHWM"),
        "input_bytes": source.nbytes + target.nbytes,
        "pairs": len(mined),
        "true_pairs": float((mined.source == mined.target).mean()),
    }


def print_exact(console: Any, rows: list[dict[str, Any]]) -> None:
    """The exact searches."""
    from rich.table import Table

    table = Table(title=f"Mining, exact, k {K}, seconds")
    names = ("rows a side", "our search", "our pairs", "FAISS", "search / FAISS", "mining / FAISS", "semantic_search")
    for name in (*names, "semantic_search / mining", "identical pairs"):
        table.add_column(name, justify="right")

    def spread(ratios: list[float]) -> str:
        return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"

    for row in rows:
        seconds = row["seconds"]
        cells = [f"{seconds['search']:.1f}", f"{seconds['pairs']:.2f}", f"{seconds['faiss']:.1f}"]
        example = f"{seconds['semantic_search']:.1f}" if "semantic_search" in seconds else ""
        if row.get("extrapolated"):
            table.add_row(f"{row['rows']:,} (extrapolated)", *cells, "", "", example, "", "")
            continue
        ratio = f"{row['semantic_search_to_mining']:.1f}" if "semantic_search_to_mining" in row else ""
        same = ", ".join(f"{share:.4%}" for share in row["identical_pairs"].values())
        ratios = (spread(row["search_to_faiss"]), spread(row["mining_to_faiss"]))
        table.add_row(f"{row['rows']:,}", *cells, *ratios, example, ratio, same)
    console.print(table)


def print_others(console: Any, report: dict[str, Any]) -> None:
    """Cells and memory."""
    from rich.table import Table

    if "cells" in report:
        found = report["cells"]
        table = Table(
            title=f"Mining by cells, {found['rows']:,} rows a side, {found['probes']} of {found['cells']} probed"
        )
        for name in ("search", "seconds", "recall of true neighbours"):
            table.add_column(name, justify="right")
        table.add_row("ours", f"{found['ours']['seconds']:.0f}", f"{found['ours']['recall']:.3f}")
        theirs = found["faiss"]
        table.add_row(f"FAISS {theirs['index']}", f"{theirs['seconds']:.0f}", f"{theirs['recall']:.3f}")
        console.print(table)
    if "memory" in report:
        proof = report["memory"]
        console.print(
            f"{proof['rows']:,} rows a side ({proof['input_bytes'] / 1e6:,.0f} MB) within {proof['memory']}: peak of "
            f"resident memory {proof['peak_bytes'] / 1e6:.1f} MB, {proof['seconds']:.0f} s, {proof['method']} with "
            f"recall {proof['recall']:.3f}, {proof['pairs']:,} pairs, {proof['true_pairs']:.2%} of them true."
        )


def main() -> None:
    """Measures, prints the tables and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[50_000, 100_000, 200_000], help="rows a side")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--vectors", nargs=2, metavar="NPY", help="source and target vectors instead of made ones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--example-up-to", type=int, default=100_000, help="the largest size at which semantic_search runs; once"
    )
    parser.add_argument("--ivf", type=int, metavar="ROWS", help="compare by cells at this size")
    parser.add_argument("--probes", type=int, default=32)
    parser.add_argument("--memory-proof", type=int, metavar="ROWS")
    parser.add_argument("--memory", default="512MB")
    parser.add_argument("--output", default="outputs/benchmarks/mining.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run_worker(json.loads(options.worker))))
        return
    import faiss
    import torch
    from rich.console import Console

    from hf_xlsr.utils.errors import XlsrError
    from hf_xlsr.utils.memory import parse_size

    try:
        parse_size(options.memory)
    except XlsrError as error:
        parser.error(str(error))

    torch.set_num_threads(options.threads)
    faiss.omp_set_num_threads(options.threads)
    report: dict[str, Any] = {
        "processor": platform.processor() or platform.machine(),
        "threads": options.threads,
        "width": options.width,
        "rounds": options.rounds,
        "exact": [],
    }
    for size in options.sizes:
        if options.vectors:
            source, target = (np.load(path)[:size].astype(np.float32) for path in options.vectors)
            report["width"] = source.shape[1]
        else:
            source, target = make_sides(size, options.width)
        report["exact"].append(compare_exact(source, target, options.rounds, size <= options.example_up_to))
    if report["exact"]:
        largest = report["exact"][-1]
        report["exact"] += [extrapolate(largest, rows) for rows in EXTRAPOLATED if rows > largest["rows"]]
    if options.ivf:
        report["cells"] = compare_cells(options.ivf, options.width, options.probes)
    if options.memory_proof:
        report["memory"] = prove_memory(options.memory_proof, options.width, options.memory)
    console = Console(width=160)
    if report["exact"]:
        print_exact(console, report["exact"])
    print_others(console, report)
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
