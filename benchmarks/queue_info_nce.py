"""The queue loss against cross-entropy on the concatenated bank, forward and backward.

ours: `queue_info_nce` with the queue stored in float32, bfloat16 or int8, and products in float32 or bfloat16. naive:
`cross_entropy` of all logits, in float32 or under autocast; left out where it needs more memory than is free. `python -m
benchmarks.gpu` compares with the limits of a card.
"""

from __future__ import annotations

import psutil
import torch
import torch.nn.functional as F

from benchmarks.harness import DEVICE, Job, Step, loss_step
from hf_xlsr.losses import STORAGES, QuantizedRows, quantize_rows, queue_info_nce

DEFAULTS: Job = {"sizes": [4_096, 65_536, 204_800, 1_048_576, 4_194_304], "batch": 256, "width": 384}
DEFAULTS |= {"precisions": ["float32", "bfloat16"]}
GRID = {"rows": "sizes", "products": "precisions"}
QUICK: Job = {"sizes": [256], "batch": 8, "width": 32}
TEMPERATURE = 0.04
COPIES = 5  # float32 matrices of (batch, rows) that the naive loss holds at its peak
CHUNK = 65_536


def sides(job: Job) -> list[str]:
    """The storages, then the naive loss where it fits."""
    needed = (7 * job["width"] + COPIES * 4 * job["batch"]) * job["rows"]
    free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else psutil.virtual_memory().available
    return [*STORAGES, *(["naive"] if needed < free else [])]


def queue_of(rows: int, width: int, storage: str) -> torch.Tensor | QuantizedRows:
    generator = torch.Generator(DEVICE).manual_seed(0)
    values = torch.empty(rows, width, dtype=getattr(torch, storage), device=DEVICE)
    scales = torch.empty(rows, device=DEVICE)
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        chunk = F.normalize(torch.randn(count, width, generator=generator, device=DEVICE), dim=1)
        if storage == "int8":
            quantized = quantize_rows(chunk)
            values[start : start + count], scales[start : start + count] = quantized.values, quantized.scales
        else:
            values[start : start + count] = chunk
    return QuantizedRows(values, scales) if storage == "int8" else values


def naive_loss(queries: torch.Tensor, keys: torch.Tensor, queue: torch.Tensor) -> torch.Tensor:
    scaled = queries / TEMPERATURE
    logits = torch.cat([(scaled * keys).sum(1, keepdim=True), scaled @ queue.T], 1)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))


def prepare(job: Job, sides: list[str]) -> Step:
    generator = torch.Generator(DEVICE).manual_seed(1)
    shape = job["batch"], job["width"]
    queries, noise = (F.normalize(torch.randn(shape, generator=generator, device=DEVICE), dim=1) for _ in range(2))
    keys = F.normalize(queries + 3 * noise, dim=1)
    queries.requires_grad_()
    storages = {side: "float32" if side == "naive" else side for side in sides}
    queues = {s: queue_of(job["rows"], job["width"], s) for s in dict.fromkeys(storages.values())}

    def losses_of(side: str, warm_up: bool) -> dict[str, torch.Tensor]:
        queue = queues[storages[side]][: 64 if warm_up else None]
        if side == "naive":
            return {"loss": naive_loss(queries, keys, queue)}
        return {"loss": queue_info_nce(queries, keys, queue, temperature=TEMPERATURE)}

    return loss_step(losses_of, [queries], job["products"] == "bfloat16", keep=True)
