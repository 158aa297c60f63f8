"""What mining of many sentences takes: stages, tasks, disk, memory and time, before anybody pays for machines."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_xlsr.encoders.encoding import BATCH_SIZE, embed, unit_length
from hf_xlsr.mining.search import block_search, cells
from hf_xlsr.mining.search.block_search import SIZES, SearchSize, choose_sizes, rows_of_span
from hf_xlsr.mining.search.extraction import BYTES_PER_ROW, extract_pairs
from hf_xlsr.mining.search.int8_rows import VECTOR_BYTES
from hf_xlsr.mining.search.neighbours import DEFAULT_PROBES, chosen_method, default_cells, neighbours_both_ways
from hf_xlsr.mining.search.tiles import Filter
from hf_xlsr.mining.stages import STORED_DTYPE, LazyEncoder, rows_of_shard
from hf_xlsr.mining.texts import BYTES_PER_HASH, read_texts
from hf_xlsr.utils.devices import hardware_name
from hf_xlsr.utils.errors import XlsrError, require_positive

WIDTH = 384
"""Numbers of an embedding where no encoder says."""

ENCODED_PER_SECOND = 100.0
"""Sentences a second and core where no encoder says; an assumption, not a measurement."""

TEXT_BYTES = 150
"""Bytes of a sentence in the work folder, with its place; an assumption."""

EXTRACTION_BYTES = float(BYTES_PER_ROW)
"""Bytes of a sentence a side while pairs are extracted, if nothing limits them."""

PROBE_ROWS = 8192
PROBE_TEXTS = 256
SENTENCE = "The committee will meet again on day {number} to discuss the report about item {number} of the list."


@dataclass(frozen=True)
class Rates:
    """What a worker of one thread does in a second on the machine that measured it, by `measured_rates`.

    Attributes:
        lines: Lines that are read and deduplicated.
        texts: Sentences that are encoded.
        products: Multiply-adds of the search, with all that belongs to them.
        bytes: Bytes of vectors that are copied from file to file.
        rows: Sources whose pairs are extracted.
        width: Numbers of an embedding.
        machine: The processor.
        encoder: What was encoded by; None if `texts` is assumed.
    """

    lines: float
    texts: float
    products: float
    bytes: float
    rows: float
    width: int
    machine: str
    encoder: str | None = None


@dataclass(frozen=True)
class StagePlan:
    """One stage of a plan.

    Attributes:
        name: What is done.
        tasks: Number of its tasks.
        work_hours: Hours of one worker.
        hours: Hours with all workers.
        disk: Bytes of files while it runs.
        memory: Bytes of a process, besides libraries and the encoder.
        is_shared: Whether the workers do it; if not, the process that was called does it alone.
    """

    name: str
    tasks: int
    work_hours: float
    hours: float
    disk: float
    memory: float
    is_shared: bool = True


def measured_rates(
    model: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    truncate_dim: int | None = None,
) -> Rates:
    """Measures the rates on this machine by a short probe, on one thread; a few seconds without a model.

    Seconds are those of the processor, so that other work on the machine counts little; a model on another device than
    the CPU is timed by the clock.
    """
    random = np.random.default_rng(0)
    texts = [SENTENCE.format(number=number) for number in range(PROBE_TEXTS)]
    width = WIDTH
    encoded = ENCODED_PER_SECOND

    with _one_thread(), tempfile.TemporaryDirectory() as folder:
        if model is not None:
            encoder = LazyEncoder(model, device, dtype, truncate_dim=truncate_dim).get()
            width = embed(encoder, texts[:BATCH_SIZE]).shape[1]  # the first call takes longer
            on_cpu = torch.device(encoder.device).type == "cpu"
            clock = time.process_time if on_cpu else time.perf_counter
            encoded = PROBE_TEXTS / _seconds(lambda: embed(encoder, texts), clock)

        source = unit_length(random.standard_normal((PROBE_ROWS, width), np.float32))
        target = unit_length(source + 0.05 * random.standard_normal((PROBE_ROWS, width), np.float32))
        neighbours_both_ways(source[:512], target[:512])
        neighbours = neighbours_both_ways(source, target, method="exact")
        search_seconds = _seconds(lambda: neighbours_both_ways(source, target, method="exact"))
        extraction_seconds = _seconds(lambda: extract_pairs(neighbours))

        lines = [SENTENCE.format(number=number) for number in range(8 * PROBE_ROWS)]
        reading_seconds = _seconds(lambda: read_texts(lines, Path(folder), "probe"))
        copied = Path(folder) / "copied.npy"
        rows = random.permutation(PROBE_ROWS)
        copy_seconds = _seconds(lambda: np.save(copied, source[rows]))

    return Rates(
        lines=len(lines) / reading_seconds,
        texts=encoded,
        products=PROBE_ROWS * PROBE_ROWS * width / search_seconds,
        bytes=source.nbytes / copy_seconds,
        rows=PROBE_ROWS / extraction_seconds,
        width=width,
        machine=hardware_name(torch.device(device or "cpu")),
        encoder=model,
    )


def plan_mining(
    rows: int,
    workers: int,
    rates: Rates,
    *,
    k: int = 4,
    method: str = "auto",
    probes: int = DEFAULT_PROBES,
    memory: int | None = None,
    vectors_dtype: str = STORED_DTYPE,
) -> list[StagePlan]:
    """The stages of mining `rows` sentences a side on workers of one thread each.

    Hours are computed from the rates: those of a small search, which a large one keeps only if disks and network are not
    slower than the processors. `memory` is the budget of a process, in bytes; it is an error if the search needs more.
    `vectors_dtype` is that of the stored embeddings.

    Examples:
        >>> rates = Rates(2e5, 100, 1e10, 5e8, 1e5, 384, "a processor")
        >>> [stage.name for stage in plan_mining(10_000_000, 64, rates)][:2]
        ['read and deduplicate', 'encode']
        >>> round(plan_mining(10_000_000, 64, rates)[1].work_hours)
        56
    """
    require_positive("rows", rows)
    require_positive("workers", workers)
    method = chosen_method(method, rows, rows, rates.width)
    number_of_cells = default_cells(rows)
    size = SearchSize(
        (rows, rows),
        rates.width,
        VECTOR_BYTES[vectors_dtype],
        k,
        k + Filter("cpu").spare,
        method,
        number_of_cells,
        probes,
    )
    vector_bytes = 2.0 * rows * rates.width * size.itemsize
    result_bytes = 24.0 * k * rows

    def shared(name: str, tasks: int, seconds: float, disk: float, memory: float) -> StagePlan:
        hours = seconds / 3600
        return StagePlan(name, tasks, hours, hours / min(workers, tasks), disk, memory)

    def alone(name: str, seconds: float, disk: float, memory: float) -> StagePlan:
        return StagePlan(name, 1, seconds / 3600, seconds / 3600, disk, memory, is_shared=False)

    shards = 2 * math.ceil(rows / rows_of_shard(rows))
    shard_bytes = 8.0 * rows_of_shard(rows) * rates.width
    reading_bytes = rows + min(float(BYTES_PER_HASH) * rows, memory or math.inf)
    stages = [
        alone("read and deduplicate", 2 * rows / rates.lines, 2.0 * rows * TEXT_BYTES, reading_bytes),
        shared("encode", shards, 2 * rows / rates.texts, vector_bytes, shard_bytes),
        alone("join embeddings", vector_bytes / rates.bytes, 2 * vector_bytes, shard_bytes),
        alone("check vectors", 2 * vector_bytes / rates.bytes, vector_bytes, float(size.fingerprint_bytes())),
    ]
    block, tile = SIZES[method][0] if memory is None else choose_sizes(size, memory, in_files=True)
    block_bytes = float(size.block_bytes(block, tile))
    search: Callable[..., Iterator[StagePlan]] = _exact_stages if method == "exact" else _cell_stages
    stages += search(size, rates, vector_bytes, block_bytes, shared, alone)
    stages += [
        alone(
            "extract pairs",
            rows / rates.rows,
            vector_bytes + result_bytes,
            min(EXTRACTION_BYTES * rows, memory or math.inf),
        ),
    ]
    return stages


def _exact_stages(
    size: SearchSize,
    rates: Rates,
    vector_bytes: float,
    block_bytes: float,
    shared: Callable[..., StagePlan],
    alone: Callable[..., StagePlan],
) -> Iterator[StagePlan]:
    """Stages of a comparison of all sources with all targets."""
    rows, _ = size.rows
    spans = math.ceil(rows / rows_of_span(rows))
    list_bytes = 8.0 * size.listed * rows * spans
    products = float(rows) * rows * size.width
    yield shared("compare", spans, products / rates.products, vector_bytes + list_bytes, block_bytes)
    merges = math.ceil(rows / block_search.ROWS_MERGED)
    yield shared("merge", merges, list_bytes / rates.bytes, vector_bytes + list_bytes, block_bytes)


def _cell_stages(
    size: SearchSize,
    rates: Rates,
    vector_bytes: float,
    block_bytes: float,
    shared: Callable[..., StagePlan],
    alone: Callable[..., StagePlan],
) -> Iterator[StagePlan]:
    """Stages of a search in cells."""
    rows, _ = size.rows
    compared = _centroids_compared(size.cells)
    sample = min(rows, cells.POINTS_PER_CELL * size.cells)
    per_round = 2 * math.ceil(sample / cells.ROWS_ASSIGNED)
    spans = 2 * math.ceil(rows / cells.ROWS_ASSIGNED)
    driver_bytes = float(size.bytes_before_blocks())

    training = 2.0 * cells.ROUNDS * sample * compared * size.width
    yield shared("train centroids", cells.ROUNDS * per_round, training / rates.products, vector_bytes, driver_bytes)
    assigning = 2.0 * rows * compared * size.width
    yield shared("assign cells", spans, assigning / rates.products, vector_bytes, block_bytes)
    copies = 2 * math.ceil(rows * size.width / cells.NUMBERS_COPIED)
    copied_bytes = 2.0 * cells.NUMBERS_COPIED * size.itemsize
    yield shared("sort by cell", copies, vector_bytes / rates.bytes, 2 * vector_bytes, copied_bytes)
    yield alone("join sorted embeddings", vector_bytes / rates.bytes, 3 * vector_bytes, copied_bytes)

    per_row = compared + size.probes * rows / size.cells
    probing = 2.0 * rows * per_row * size.width
    blocks = 2 * math.ceil(rows / block_search.ROWS_PROBED)
    yield shared(
        "search cells", blocks, probing / rates.products, 2 * vector_bytes + 24.0 * size.k * rows, block_bytes
    )
    measuring = 2.0 * block_search.RECALL_SAMPLE * rows * size.width
    parts = 2 * math.ceil(rows / block_search.ROWS_LISTED)
    yield shared("measure recall", parts, measuring / rates.products, 2 * vector_bytes, block_bytes)


def _centroids_compared(count: int) -> float:
    """Centroids that a vector is compared with: all, or those of the groups that it probes."""
    if count < cells.TWO_LEVELS:
        return count
    groups = isqrt(count)
    return groups + cells.GROUPS_PROBED * count / groups


def plan_table(stages: list[StagePlan]) -> list[list[str]]:
    """The plan in words and numbers: a header, a row for each stage, and a row of all."""
    table = [["stage", "tasks", "worker hours", "hours", "disk", "memory of a process"]]
    for stage in stages:
        table.append(
            [
                stage.name,
                f"{stage.tasks:,}" if stage.is_shared else "alone",
                f"{stage.work_hours:,.2f}",
                f"{stage.hours:,.2f}",
                _gigabytes(stage.disk),
                _gigabytes(stage.memory),
            ]
        )
    table.append(
        [
            "all",
            f"{sum(stage.tasks for stage in stages if stage.is_shared):,}",
            f"{sum(stage.work_hours for stage in stages):,.2f}",
            f"{sum(stage.hours for stage in stages):,.2f}",
            _gigabytes(max(stage.disk for stage in stages)),
            _gigabytes(max(stage.memory for stage in stages)),
        ]
    )
    return table


def parse_count(text: str) -> int:
    """A number of sentences, which may be written `1e9`.

    Examples:
        >>> parse_count("1e9"), parse_count("20000")
        (1000000000, 20000)
    """
    try:
        count = float(text)
    except ValueError:
        count = 0
    if not (1 <= count < 1e15):
        raise XlsrError(f"--rows must be a number of sentences, e.g. 1e9, got '{text}'.")
    return int(count)


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:,.2f} GB"


def _seconds(work: Callable[[], Any], clock: Callable[[], float] = time.process_time) -> float:
    start = clock()
    work()
    return clock() - start


@contextmanager
def _one_thread() -> Iterator[None]:
    """Computes on one thread, as a worker does."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
