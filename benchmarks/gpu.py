"""Every number that needs a GPU, in slices of at most 8 minutes; a slice that is in the JSON is skipped.

- limits: rate of bfloat16 and float32 matrix products and bandwidth of memory, measured on the spot
- train: pairs per second and peak memory of the four methods and of sentence-transformers' MultipleNegativesRankingLoss
  on the same pairs and encoder, in bfloat16 and float32
- step: a step of dual momentum contrast with an encoder of the size of multilingual-e5-small, by what takes its time
- rows: such a step with the rows of the data trained (`trainable_rows`), and with the whole table
- queue: the queue loss, forward and backward, from 1 to 10 million keys, against these limits and against cross-entropy
- cache: contrastive batches of 512, 4,096 and 32,768 pairs with the gradient cache, against sentence-transformers'
- encode: sentences per second from text to embeddings, in bfloat16 and float32
- mine: exact search of the nearest neighbours in both directions, against the limit of float32 products

Encoders are random and data synthetic. Without CUDA, or with `--quick`, sizes are small: a minute or two on a CPU.

usage: python -m benchmarks.gpu [--quick] [--minutes 8] [--only train queue] [--output outputs/benchmarks/gpu.json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks import gradient_cache, queue_info_nce, trainable_rows, training_step
from benchmarks.harness import DEVICE, hardware, in_worker, peak_bytes, print_table, synchronize
from benchmarks.mining import make_sides
from benchmarks.training import METHODS, PEER, made_pairs, make_material, train
from hf_xlsr.mining import neighbours_both_ways
from hf_xlsr.utils.files import write_json

SLICE_SECONDS = 480
ROW_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}  # of a number, by storage
MODEL = {"width": 768, "layers": 12, "vocabulary": 100_000}
FULL: dict[str, Any] = {
    "train": {**MODEL, "words": 16, "batch": 256, "steps": 40, "queue": 204_800},
    "queue": {"rows": [1_000_000, 4_000_000, 10_000_000], "batch": 1024, "width": 768, "rounds": 10},
    "cache": {**MODEL, "batches": [512, 4096, 32_768], "length": 32, "chunk": 256, "rounds": 3},
    "step": {**training_step.DEFAULTS, "words": 16, "steps": 40},
    "rows": {**trainable_rows.DEFAULTS, "size": "e5-small", "words": 16, "steps": 40},
    "limits": {"size": 8192, "floats": 1 << 30, "rounds": 10},
    "encode": {**MODEL, "words": 16, "sentences": 50_000},
    "mine": {"rows": [200_000, 1_000_000], "width": 768},
}
QUICK: dict[str, Any] = {
    "train": {"width": 64, "layers": 1, "vocabulary": 1000, "words": 8, "batch": 8, "steps": 2, "queue": 64},
    "queue": {"rows": [2000], "batch": 16, "width": 64, "rounds": 2},
    "cache": {"batches": [16], "layers": 1, "width": 64, "length": 8, "chunk": 4, "vocabulary": 100, "rounds": 1},
    "step": {**training_step.DEFAULTS, **training_step.QUICK},
    "rows": {**trainable_rows.DEFAULTS, **trainable_rows.QUICK, "size": "tiny"},
    "limits": {"size": 256, "floats": 1 << 18, "rounds": 2},
    "encode": {"width": 64, "layers": 1, "vocabulary": 1000, "words": 8, "sentences": 64},
    "mine": {"rows": [1000], "width": 32},
}


# Slice -> figure -> share of the limit that it should reach.
GOALS = {"queue 10000000 bfloat16 bfloat16": {"of_matrix_limit": 0.6}}


def median_seconds(step: Callable[[], Any], rounds: int) -> float:
    """Median of the seconds of a step, after one that warms up."""

    def whole() -> None:
        step()
        synchronize()

    return statistics.median(timeit.repeat(whole, number=1, repeat=rounds + 1)[1:])


def limits(sizes: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        left, right = (torch.randn(sizes["size"], sizes["size"], device=DEVICE, dtype=dtype) for _ in range(2))
        seconds = median_seconds(lambda left=left, right=right: left @ right, sizes["rounds"])
        found[f"{str(dtype).removeprefix('torch.')}_flops"] = 2 * sizes["size"] ** 3 / seconds
    source = torch.randn(sizes["floats"], device=DEVICE)
    target = torch.empty_like(source)
    return found | {"bandwidth": 8 * sizes["floats"] / median_seconds(lambda: target.copy_(source), sizes["rounds"])}


def measured(step: Callable[..., Any], side: str, rounds: int) -> tuple[float, int]:
    """Median of the seconds, and extra memory, of a step of a speed case."""
    step(side, True)
    extra, _ = peak_bytes(lambda: step(side, False))
    return median_seconds(lambda: step(side, False), rounds), extra


def queue(sizes: dict[str, Any], rows: str, storage: str, products: str) -> dict[str, Any]:
    """The queue loss at one size: time, extra memory, operations and bytes per second; `naive` is cross-entropy."""
    job = {"rows": int(rows), "batch": sizes["batch"], "width": sizes["width"], "products": products}
    seconds, extra = measured(queue_info_nce.prepare(job, [storage]), storage, sizes["rounds"])
    # Two matrix products, each of a product and a sum for each number; the queue is read at least once.
    operations = 4 * job["batch"] * job["width"] * job["rows"]
    stored = job["rows"] * job["width"] * ROW_BYTES.get(storage, 4)
    rates = {"flops": operations / seconds, "bytes_per_second": stored / seconds}
    return {"seconds": seconds, "extra_bytes": extra, "queue_bytes": stored, **rates}


def cache(sizes: dict[str, Any], batch: str, side: str, precision: str) -> dict[str, Any]:
    """A contrastive batch, encoded in chunks."""
    step = gradient_cache.prepare({**sizes, "batch": int(batch), "precision": precision}, [])
    seconds, extra = measured(step, side, sizes["rounds"])
    return {"seconds": seconds, "pairs_per_second": int(batch) / seconds, "extra_bytes": extra}


def momentum_step(sizes: dict[str, Any]) -> dict[str, Any]:
    """A step of `DualMomentumTrainer`, and the shares of its time in percent."""
    with tempfile.TemporaryDirectory() as scratch:
        return training_step.train(Path(scratch), sizes)


def table_rows(sizes: dict[str, Any], trained: str) -> dict[str, Any]:
    """A step with `data` rows of the table of token embeddings trained, or the `whole` table."""
    with tempfile.TemporaryDirectory() as scratch:
        return trainable_rows.train(Path(scratch), sizes, trainable_rows=trained == "data")


def training(sizes: dict[str, Any], side: str, precision: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        make_material(Path(scratch), sizes)
        return dict(train(side, Path(scratch), sizes, precision))


def encode(sizes: dict[str, Any], precision: str) -> dict[str, Any]:
    """Sentences per second of a random encoder, from text to embeddings."""
    texts = [source for source, _ in made_pairs(sizes["sentences"], sizes["words"])]
    with tempfile.TemporaryDirectory() as scratch:
        make_material(Path(scratch), {**sizes, "batch": 64, "steps": 4})
        encoder = SentenceTransformer(f"{scratch}/encoder", device=DEVICE, model_kwargs={"dtype": precision})
    encoder.encode(texts[:64], batch_size=64)
    seconds = median_seconds(lambda: encoder.encode(texts, batch_size=256), 1)
    return {"seconds": seconds, "sentences_per_second": len(texts) / seconds}


def mine(sizes: dict[str, Any], rows: str) -> dict[str, Any]:
    """Exact search of 4 neighbours in both directions, and the share of rows whose translation is the first."""
    source, target, order = make_sides(int(rows), sizes["width"])
    started = time.perf_counter()
    both = neighbours_both_ways(source, target, 4, method="exact", device=DEVICE)
    seconds = time.perf_counter() - started
    operations = 2 * int(rows) ** 2 * sizes["width"]  # one product serves both directions
    found = float((order[both.forward_indices[:, 0]] == np.arange(int(rows))).mean())
    rates = {"rows_per_second": int(rows) / seconds, "flops": operations / seconds}
    return {"seconds": seconds, **rates, "accuracy": found}


KINDS = {
    "limits": limits,
    "train": training,
    "step": momentum_step,
    "rows": table_rows,
    "queue": queue,
    "cache": cache,
    "encode": encode,
    "mine": mine,
}


def slices(sizes: dict[str, Any]) -> Iterator[str]:
    """Names of all slices: kind and arguments with spaces."""
    yield "limits"
    yield "step"
    yield "rows data"
    yield "rows whole"
    for precision in ("bfloat16", "float32"):
        for side in (*METHODS, PEER):
            yield f"train {side} {precision}"
        for batch in sizes["cache"]["batches"]:
            for side in (gradient_cache.OURS, gradient_cache.CACHED):
                yield f"cache {batch} {side} {precision}"
        yield f"encode {precision}"
    for number, rows in enumerate(sizes["queue"]["rows"]):
        for products in ("bfloat16", "float32"):
            # All logits of cross-entropy fit at the smallest size alone.
            for storage in (*ROW_BYTES, *(["naive"] if number == 0 else [])):
                yield f"queue {rows} {storage} {products}"
    for rows in sizes["mine"]["rows"]:
        yield f"mine {rows}"


def run_slice(name: str, quick: bool) -> dict[str, Any]:
    kind, *arguments = name.split()
    return KINDS[kind]((QUICK if quick else FULL)[kind], *arguments)


def with_shares(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The slices with ratios: to the machine's limits, to sentence-transformers, and of bfloat16 to float32."""
    shown = {name: dict(figures) for name, figures in found.items()}
    for name, figures in shown.items():
        kind, *arguments = name.split()
        if kind == "queue" and "limits" in found:
            figures["of_matrix_limit"] = figures["flops"] / found["limits"][f"{arguments[2]}_flops"]
            figures["of_bandwidth"] = figures["bytes_per_second"] / found["limits"]["bandwidth"]
        if kind == "mine" and "limits" in found:
            figures["of_matrix_limit"] = figures["flops"] / found["limits"]["float32_flops"]
        if kind == "cache" and (peer := found.get(name.replace(gradient_cache.OURS, gradient_cache.CACHED))):
            figures["speed_to_peer"] = peer["seconds"] / figures["seconds"]
        if kind == "rows" and (whole := found.get("rows whole")):
            figures["speed_to_whole"] = whole["seconds"] / figures["seconds"]
        if kind == "train" and (peer := found.get(f"train {PEER} {arguments[-1]}")):
            figures["speed_to_peer"] = figures["pairs_per_second"] / peer["pairs_per_second"]
            figures["memory_to_peer"] = figures["peak_bytes"] / peer["peak_bytes"]
        exact = found.get(name.replace("bfloat16", "float32"))
        if kind in ("train", "encode") and exact and name.endswith("bfloat16"):
            figures["speed_to_float32"] = exact["seconds"] / figures["seconds"]
        for figure, goal in GOALS.get(name, {}).items():
            figures[f"goal_{figure}"] = goal
    return shown


def main() -> int:
    """Measures the missing slices, writes the JSON after each, and prints the tables; returns 1 when a slice failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", default=not torch.cuda.is_available())
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no slice after this time")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks/gpu.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run_slice(options.worker, quick=False)))
        return 0
    report: dict[str, Any] = {"quick": options.quick, **hardware(), "slices": {}}
    if options.output.is_file():
        before = json.loads(options.output.read_text("utf-8"))
        if any(before[key] != report[key] for key in ("quick", "hardware")):
            parser.error(f"{options.output} is of other sizes or another device; give another --output")
        report["slices"] = before["slices"]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    started, failed = time.monotonic(), 0
    for name in slices(QUICK if options.quick else FULL):
        if name in report["slices"] or name.split()[0] not in options.only:
            continue
        if time.monotonic() - started > 60 * options.minutes:
            print("time is up; call again for the other slices")
            break
        words = ["benchmarks.gpu", "--worker", name]
        try:
            # Small slices share this process: most of their time is the import of the libraries.
            report["slices"][name] = run_slice(name, True) if options.quick else in_worker(words, SLICE_SECONDS)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"{name} failed: {error}", file=sys.stderr)
            failed += 1
            continue
        write_json(options.output, report)
        print(name, report["slices"][name], flush=True)
    shown = with_shares(report["slices"])
    for kind in options.only:
        rows = [{"side": name, **figures} for name, figures in shown.items() if name.split()[0] == kind]
        if rows:
            print_table(f"{kind}, {report['hardware']}", rows)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
