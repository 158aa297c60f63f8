"""Time and memory of the queue loss, forward and backward, beside cross-entropy on a concatenated bank.

Both take the same queries, keys and queue, under the same precision of the matrix products:

- `ours`: `queue_info_nce`, the queue stored in float32, bfloat16 or 8-bit numbers.
- `naive`: `torch.nn.functional.cross_entropy` of the logits of the positive and of a float32 queue, concatenated; in
  float32, and under autocast to bfloat16. It is left out where it would need more memory than is free.

Times are medians in one process, where all take turns, and ratios are taken round by round; without a naive one, each
is timed alone. Extra memory is the peak above the state in which queue and inputs are allocated, in a process of its
own: of resident memory, or of what torch allocated on a GPU. On a GPU the rate of the matrix products (four times
batch x width x rows operations) is set beside the card's own for a product of two large bfloat16 matrices.

Threads wait asleep (`OMP_WAIT_POLICY=passive`), so that another job on the machine slows both alike. Needs Linux. On a
GPU the defaults are batch 1,024, width 768, 409,600 and 10 million rows.

usage: python benchmarks/queue_info_nce.py [--sizes 4096 204800 4194304] [--batch 256] [--width 384] [--threads 2]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from process_memory import status_bytes
from turns import Job, check_device, run_job

from hf_xlsr.losses import STORAGES, QuantizedRows, quantize_rows, queue_info_nce
from hf_xlsr.utils.memory import readable_size

TEMPERATURE = 0.04
SIZES = {"cpu": (4_096, 16_384, 65_536, 204_800, 409_600, 1_048_576, 4_194_304), "cuda": (409_600, 10_000_000)}
SHAPES = {"cpu": (256, 384), "cuda": (1024, 768)}
PRODUCTS = ("float32", "bfloat16")
ROW_BYTES = {"float32": 4, "bfloat16": 2, "int8": 1}
# Float32 matrices of batch x rows that the naive loss holds at its peak, measured, and some room.
NAIVE_COPIES = 5
AIM_ROWS, AIM_SHARE = 204_800, 0.05
LARGE_ROWS, LARGE_BYTES = 4_194_304, 8 << 30
CHUNK = 65_536


def make_inputs(job: Job) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor | QuantizedRows]]:
    """Unit vectors: queries, keys some way off, and one queue in the storages that are asked for."""
    device, width = job["device"], job["width"]
    generator = torch.Generator(device).manual_seed(0)

    def unit_rows(count: int) -> torch.Tensor:
        return F.normalize(torch.randn(count, width, generator=generator, device=device), dim=1)

    queries = unit_rows(job["batch"])
    keys = F.normalize(queries + 3 * unit_rows(job["batch"]), dim=1)
    queues: dict[str, torch.Tensor | QuantizedRows] = {}
    for storage in {storage for _, storage, _ in job["configurations"]}:
        dtype = getattr(torch, storage)
        values = torch.empty(job["rows"], width, dtype=dtype, device=device)
        queues[storage] = (
            values if dtype != torch.int8 else QuantizedRows(values, values.new_empty(len(values)).float())
        )
    for start in range(0, job["rows"], CHUNK):
        rows = unit_rows(min(CHUNK, job["rows"] - start))
        for queue in queues.values():
            part = queue[start : start + len(rows)]
            if isinstance(part, QuantizedRows):
                quantized = quantize_rows(rows)
                part.values.copy_(quantized.values)
                part.scales.copy_(quantized.scales)
            else:
                part.copy_(rows)
    return queries.requires_grad_(), keys, queues


def naive_loss(queries: torch.Tensor, keys: torch.Tensor, queue: torch.Tensor, products: str) -> torch.Tensor:
    """Cross-entropy on the concatenated bank; scaling the queries instead of the logits saves it a pass."""
    with torch.autocast(queries.device.type, torch.bfloat16, enabled=products == "bfloat16"):
        scaled = queries / TEMPERATURE
        logits = torch.cat([(scaled * keys).sum(1, keepdim=True), scaled @ queue.T], 1)
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def memory_of(step: Callable[[], None], device: str) -> dict[str, int]:
    """Peak of memory during the step above what is held before it, and the peak of all since the process started."""
    if device == "cuda":
        earlier, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated()
    else:
        earlier = status_bytes("VmHWM")
        ctypes.CDLL(None).malloc_trim(0)  # or the step would be lent what making the queue left behind
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        held = status_bytes("VmRSS")
        step()
        peak = status_bytes("VmHWM")
    return {"extra_bytes": peak - held, "peak_bytes": max(peak, earlier)}


def run_worker(job: Job) -> dict[str, Any]:
    """One size: the configurations in turns, or one alone with its memory."""
    torch.set_num_threads(job["threads"])
    queries, keys, queues = make_inputs(job)
    gradients: dict[str, torch.Tensor] = {}

    def step(configuration: list[str], rows: int | None = None) -> None:
        name, storage, products = configuration
        queries.grad = None
        queue = queues[storage][:rows]
        if name == "naive":
            loss = naive_loss(queries, keys, queue, products)  # type: ignore[arg-type]
        else:
            loss = queue_info_nce(queries, keys, queue, temperature=TEMPERATURE, precision=products)
        loss.backward()
        if job["device"] == "cuda":
            torch.cuda.synchronize()

    report: dict[str, Any] = {"seconds": {}}
    for configuration in job["configurations"]:
        step(configuration, rows=64)  # loads the libraries, which is not the loss's own memory or time
    queries.grad = None
    if job["memory"]:
        (configuration,) = job["configurations"]
        report |= memory_of(lambda: step(configuration), job["device"])
    else:
        for configuration in job["configurations"]:
            step(configuration)
            assert queries.grad is not None
            gradients[" ".join(configuration)] = queries.grad
        exact = gradients["ours float32 float32"]
        report["differences"] = {
            name: float((gradient - exact).norm() / exact.norm()) for name, gradient in gradients.items()
        }
    for _ in range(job["rounds"]):
        for configuration in job["configurations"]:
            started = time.perf_counter()
            step(configuration)
            report["seconds"].setdefault(" ".join(configuration), []).append(time.perf_counter() - started)
    return report


def free_bytes(device: str) -> int:
    """What the machine or the card could still give."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[0]
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


def measure(rows: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All configurations at one size: in turns for time, alone for memory."""
    job: Job = {name: getattr(options, name) for name in ("device", "batch", "width", "threads")} | {"rows": rows}
    ours = [["ours", storage, products] for storage in STORAGES for products in PRODUCTS]
    naive = [["naive", "float32", products] for products in PRODUCTS]
    free = free_bytes(options.device)
    queue_bytes = {storage: rows * options.width * size for storage, size in ROW_BYTES.items()}
    in_turns = sum(queue_bytes.values()) + NAIVE_COPIES * 4 * options.batch * rows < free
    turns: dict[str, Any] = {}
    if in_turns:
        turns = run_job(__file__, job | {"configurations": naive + ours, "memory": False, "rounds": options.rounds})
    results: list[dict[str, Any]] = []
    naive_bytes: dict[str, int] = {}
    for configuration in naive + ours:
        (name, storage, products), label = configuration, " ".join(configuration)
        result: dict[str, Any] = {"rows": rows, "name": name, "storage": storage, "products": products}
        if (name == "naive" and not in_turns) or queue_bytes[storage] > free:
            results.append(result | {"left_out": f"needs more than the {readable_size(free)} that are free"})
            continue
        alone = run_job(
            __file__,
            job | {"configurations": [configuration], "memory": True, "rounds": 0 if in_turns else options.rounds},
        )
        result["seconds"] = (turns or alone)["seconds"][label]
        result |= {key: alone[key] for key in ("extra_bytes", "peak_bytes")}
        if name == "naive":
            naive_bytes[products] = result["extra_bytes"]
        elif in_turns:
            pairs = zip(result["seconds"], turns["seconds"][f"naive float32 {products}"], strict=True)
            result["time_ratios"] = [one / other for one, other in pairs]
            result["share_of_memory"] = result["extra_bytes"] / naive_bytes[products]
        if in_turns:
            result["gradient_difference"] = turns["differences"][label]
        if options.device == "cuda":
            operations = 4 * options.batch * options.width * rows
            result["operations_per_second"] = operations / statistics.median(result["seconds"])
        results.append(result)
    return results


def matmul_rate(size: int = 8192, rounds: int = 20) -> float:
    """Operations a second of the product of two large bfloat16 matrices on the card."""
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(10):
            torch.mm(left, right)
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - started) / 10)
    return 2 * size**3 / statistics.median(seconds)


def print_table(console: Any, report: dict[str, Any]) -> None:
    """One line for each size and configuration, then the aims."""
    from rich.table import Table

    setting = f"batch {report['batch']:,}, width {report['width']:,}, {report['device']}, {report['threads']} threads"
    table = Table(title=f"Queue loss, forward and backward, {setting}")
    names = [
        "rows",
        "loss",
        "storage",
        "products",
        "ms",
        "time / naive",
        "extra memory",
        "memory / naive",
        "peak of all",
    ]
    rate = report.get("matmul_rate")
    for name in [*names, "gradient off by", *(["of the card's rate"] if rate else [])]:
        table.add_column(name, justify="left" if name in ("loss", "storage", "products") else "right")
    for row in report["results"]:
        cells = [f"{row['rows']:,}", row["name"], row["storage"], row["products"]]
        if "left_out" in row:
            table.add_row(*cells, row["left_out"])
            continue
        cells.append(f"{1000 * statistics.median(row['seconds']):,.1f}")
        ratios = row.get("time_ratios")
        cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})" if ratios else "")
        cells.append(readable_size(row["extra_bytes"]))
        cells.append(f"{row['share_of_memory']:.1%}" if "share_of_memory" in row else "")
        cells.append(readable_size(row["peak_bytes"]))
        cells.append(f"{row['gradient_difference']:.1e}" if "gradient_difference" in row else "")
        if rate:
            cells.append(f"{row['operations_per_second'] / rate:.0%}")
        table.add_row(*cells)
    console.print(table)
    if rate:
        console.print(f"Two large bfloat16 matrices: {rate / 1e12:,.0f} million million operations a second.")
    for row in report["results"]:
        if row["name"] == "ours" and row["rows"] == AIM_ROWS and "share_of_memory" in row:
            time_ratio = statistics.median(row["time_ratios"])
            met = time_ratio <= 1 and row["share_of_memory"] <= AIM_SHARE
            console.print(
                f"{AIM_ROWS:,} rows, {row['storage']} storage, {row['products']} products: {time_ratio:.2f} of the time "
                f"(aim 1), {row['share_of_memory']:.1%} of the extra memory (aim {AIM_SHARE:.0%}): "
                f"{'met' if met else 'missed'}."
            )
        if row["name"] == "ours" and row["rows"] == LARGE_ROWS and "peak_bytes" in row:
            console.print(
                f"{LARGE_ROWS:,} rows, {row['storage']} storage, {row['products']} products: "
                f"{row['peak_bytes'] / 2**30:.2f} GiB in all (aim {LARGE_BYTES >> 30}): "
                f"{'met' if row['peak_bytes'] <= LARGE_BYTES else 'missed'}."
            )


def main() -> None:
    """Measures all sizes, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", help="rows of the queue")
    parser.add_argument("--batch", type=int, help="queries; 256 by default")
    parser.add_argument("--width", type=int, help="384 by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=list(SIZES), default="cpu")
    parser.add_argument("--output", default="outputs/benchmarks/queue_info_nce.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run_worker(json.loads(options.worker))))
        return
    from rich.console import Console

    check_device(parser, options.device)
    options.sizes = options.sizes or SIZES[options.device]
    options.batch, options.width = (
        options.batch or SHAPES[options.device][0],
        options.width or SHAPES[options.device][1],
    )
    on_gpu = options.device == "cuda"
    report: dict[str, Any] = {
        name: getattr(options, name) for name in ("batch", "width", "rounds", "threads", "device")
    }
    from hf_xlsr.runs.train import hardware_name  # here: it would add 190 MB to the memory of each worker

    report["processor"] = hardware_name(torch.device(options.device))
    report["torch"] = torch.__version__
    report["load_before"] = os.getloadavg()[0]
    if on_gpu:
        report["matmul_rate"] = matmul_rate()
    report["results"] = [result for rows in options.sizes for result in measure(rows, options)]
    report["load_after"] = os.getloadavg()[0]
    console = Console(width=180)
    print_table(console, report)
    console.print(f"Load before {report['load_before']:.1f} and after {report['load_after']:.1f}.")
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
