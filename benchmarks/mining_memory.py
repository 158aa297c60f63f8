"""Memory of each stage of mining against the number of sentences, and its slope in bytes a sentence.

Each stage of each size runs in a process of its own, within `--memory`, on data that another process makes:

- reading: two text files, of which every tenth line is a repeated one, are read and deduplicated;
- encoding: by an encoder that makes vectors from the lengths of texts;
- search: by cells, between made vectors of width `--width` in float16 files;
- extraction: one to one, from made neighbourhoods in files, as search leaves them;
- writing: the pairs with their texts, to a TSV file;
- negatives: `hf-xlsr negatives` with all its stages, on as many pairs, by cells;
- known: the index of as many vectors in a folder that commands share (`--vectors`).

A size is the number of sentences of each side. `allocated_bytes` is the peak of the memory that a process allocates above
what it has before the stage; `mapped_bytes` that of the pages of files, which the system takes back when it needs them. A
slope is the difference of two sizes' peaks, divided by that of the sizes.

usage: python -m benchmarks mining_memory [--sizes 1000000 3000000] [--stages reading extraction] [--memory 256MB]
           [--folder FOLDER]
Needs about 300 bytes of disk a sentence, in `--folder` or a temporary one.
"""

from __future__ import annotations

import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import Job, Step
from hf_xlsr.encoders.cache import VectorStore
from hf_xlsr.mining.negatives import run_negatives
from hf_xlsr.mining.options import MiningOptions, NegativeOptions
from hf_xlsr.mining.outputs import write_pairs
from hf_xlsr.mining.pipeline import MiningRun
from hf_xlsr.mining.search.block_search import RESULTS
from hf_xlsr.mining.search.block_search import SIDES as TEXT_SIDES
from hf_xlsr.mining.search.extraction import MinedBitext, extract_pairs
from hf_xlsr.mining.search.neighbours import BothWays, neighbours_both_ways
from hf_xlsr.mining.search.sorted_pairs import pairs_of
from hf_xlsr.mining.stages import Job as MiningJob
from hf_xlsr.mining.texts import TextStore
from hf_xlsr.mining.work_folder import save_rows
from hf_xlsr.utils.devices import parse_size
from hf_xlsr.utils.markdown import markdown_table

K = 4
ROWS_AT_ONCE = 1 << 16
REPEATED = 10  # one line of so many is a repeated one
PAGE = resource.getpagesize()
SMALL = 2000  # sentences of the warm-up, which loads what is loaded once


class Lengths:
    """Encodes a text as a direction that depends on its length."""

    def __init__(self, width: int) -> None:
        self.width = width

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        lengths = np.array([len(text) for text in texts], np.float32)
        return np.cos(lengths[:, None] * np.arange(1, self.width + 1, dtype=np.float32))


class Numbers:
    """Encodes a text as a direction that depends on the number in it, so that translations have one direction."""

    def __init__(self, width: int) -> None:
        self.frequencies = np.sqrt(np.arange(2, width + 2))  # irrational, most of them

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        numbers = np.array([int("0" + "".join(filter(str.isdigit, text))) for text in texts], np.float64)
        return np.cos(numbers[:, None] * self.frequencies).astype(np.float32)


def blocks_of(rows: int) -> Iterator[np.ndarray]:
    """Row numbers, block by block."""
    for start in range(0, rows, ROWS_AT_ONCE):
        yield np.arange(start, min(start + ROWS_AT_ONCE, rows))


def make_texts(folder: Path, job: Job) -> None:
    for side in TEXT_SIDES:
        with (folder / f"{side}.txt").open("w", encoding="utf-8") as file:
            for numbers in blocks_of(job["rows"]):
                numbers = np.where(numbers % REPEATED, numbers, numbers // REPEATED)
                file.writelines(f"{side} sentence with the number {number}, made\n" for number in numbers.tolist())


def make_vectors(folder: Path, job: Job) -> None:
    """Translations lie near each other, in clusters."""
    width = job["width"]

    def blocks(seed: int) -> Iterator[np.ndarray]:
        shared = np.random.default_rng(job["seed"])
        centres = shared.standard_normal((2000, width), np.float32)
        own = np.random.default_rng([job["seed"], seed])
        for numbers in blocks_of(job["rows"]):
            shape = (len(numbers), width)
            vectors = centres[shared.integers(0, len(centres), len(numbers))]
            vectors += shared.standard_normal(shape, np.float32)
            vectors += 0.3 * own.standard_normal(shape, np.float32)
            yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    for number, side in enumerate(TEXT_SIDES):
        save_rows(folder / f"{side}.npy", blocks(number), (job["rows"], width), np.float16)


def make_neighbours(folder: Path, job: Job) -> None:
    """Each row's neighbours are its translation, which is the row of the same number, and rows at random."""
    rows = job["rows"]

    def indices(seed: int) -> Iterator[np.ndarray]:
        rng = np.random.default_rng([job["seed"], seed])
        for numbers in blocks_of(rows):
            block = rng.integers(0, rows, (len(numbers), K))
            block[:, 0] = numbers
            yield block

    def similarities(seed: int) -> Iterator[np.ndarray]:
        rng = np.random.default_rng([job["seed"], seed])
        for numbers in blocks_of(rows):
            yield -np.sort(-rng.uniform(0.2, 0.9, (len(numbers), K)), axis=1)

    for number, name in enumerate(RESULTS):
        is_index = name.endswith("indices")
        make = indices if is_index else similarities
        save_rows(folder / f"{name}.npy", make(number), (rows, K), np.int64 if is_index else np.float32)


def mining_job(folder: Path, job: Job) -> MiningJob:
    texts = {side: str(folder / f"{side}.txt") for side in TEXT_SIDES}
    options = MiningOptions(memory=job["memory"])
    return MiningJob(folder / "work", options, texts, Lengths(job["width"]))


def stores_in(folder: Path) -> tuple[TextStore, TextStore]:
    source, target = (TextStore(folder / "work" / f"{side}.text", side) for side in TEXT_SIDES)
    return source, target


def read(folder: Path, job: Job) -> None:
    mining = mining_job(folder, job)
    with mining.claimed("mine", mining.plan):
        mining.read()


def encode(folder: Path, job: Job) -> None:
    mining = mining_job(folder, job)
    with mining.claimed("mine", mining.plan):
        stores, _ = mining.read()  # they are there
        mining.encode(stores)


def search(folder: Path, job: Job) -> None:
    source, target = (np.load(folder / f"{side}.npy", mmap_mode="r") for side in TEXT_SIDES)
    neighbours_both_ways(
        source,
        target,
        K,
        method="ivf",
        probes=job["probes"],
        memory=parse_size(job["memory"]),
        device="cpu",
        folder=folder / "search",
    )


def extract(folder: Path, job: Job) -> None:
    arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in RESULTS]
    neighbours = BothWays(*arrays, method="exact", recall=1.0)
    extract_pairs(neighbours, memory=parse_size(job["memory"]), file=folder / "pairs.npy")


def write(folder: Path, job: Job) -> None:
    run = MiningRun(MinedBitext.load(folder / "made-pairs.npy"), stores_in(folder), {})
    write_pairs(folder / "pairs.tsv", run.sentences())


def choose_negatives(folder: Path, job: Job) -> None:
    mining = MiningOptions(memory=job["memory"], method="ivf", device="cpu")
    source, target = (str(folder / f"{side}.txt") for side in TEXT_SIDES)
    run_negatives(source, target, folder / "negatives", mining, NegativeOptions(), encoder=Numbers(job["width"]))


def make_pairs(folder: Path, job: Job) -> None:
    """A pair for each sentence that was read, in a random order."""
    rows = min(map(len, stores_in(folder)))
    order = np.random.default_rng(job["seed"]).permutation(rows)
    np.save(folder / "made-pairs.npy", pairs_of(order, order, np.linspace(2, 0.5, rows)))


def make_known(folder: Path, job: Job) -> None:
    store = VectorStore(folder / "vectors", {"model": "made"})
    for numbers in blocks_of(job["rows"]):
        keys = [(None, "", f"sentence {number}") for number in numbers.tolist()]
        store.add(keys, np.zeros((len(keys), 1), np.float16))


def find_known(folder: Path, job: Job) -> None:
    known, unknown = (None, "", "sentence 7"), (None, "", "another sentence")
    vector, nothing = VectorStore(folder / "vectors", {"model": "made"}).find([known, unknown])
    assert vector is not None
    assert nothing is None


def read_if_missing(folder: Path, job: Job) -> None:
    if not (folder / "work" / "target.text").is_dir():
        make_texts(folder, job)
        read(folder, job)


def prepare_writing(folder: Path, job: Job) -> None:
    read_if_missing(folder, job)
    make_pairs(folder, job)


# What makes the input of each stage, and the stage.
STAGES: dict[str, tuple[Callable[[Path, Job], None], Callable[[Path, Job], None]]] = {
    "reading": (make_texts, read),
    "encoding": (read_if_missing, encode),
    "search": (make_vectors, search),
    "extraction": (make_neighbours, extract),
    "writing": (prepare_writing, write),
    "negatives": (make_texts, choose_negatives),
    "known": (make_known, find_known),
}


DEFAULTS: Job = {"stages": list(STAGES), "sizes": [1_000_000, 3_000_000], "memory": "256MB", "width": 32}
DEFAULTS |= {"probes": 4, "seed": 1, "folder": ""}
GRID = {"rows": "sizes"}
QUICK: Job = {"sizes": [3000, 6000], "width": 8, "probes": 2}
ALONE = FREES = True
MEMORY = False  # the stage measures its own
ROUNDS = 1


def sides(job: Job) -> list[str]:
    return list(job["stages"])


def prepare(job: Job, sides: list[str]) -> Step:
    scratch = tempfile.TemporaryDirectory(dir=job["folder"] or None)
    folder = Path(scratch.name)
    for stage in sides:
        make, _ = STAGES[stage]
        with ProcessPoolExecutor(1, get_context("spawn")) as other_process:  # this one's memory is measured
            other_process.submit(make, folder, job).result()

    def step(side: str, warm_up: bool) -> dict[str, Any] | None:
        _ = scratch  # lives as long as the step
        make, work = STAGES[side]
        if not warm_up:
            return measured(lambda: work(folder, job))

        small = {**job, "rows": SMALL}
        with tempfile.TemporaryDirectory() as name:
            make(Path(name), small)
            work(Path(name), small)
        return None

    return step


def memory_in_use() -> tuple[int, int]:
    """Bytes that this process has allocated, and bytes of files that are mapped."""
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return PAGE * (resident - shared), PAGE * shared


def measured(work: Callable[[], None]) -> dict[str, Any]:
    """Peaks of the memory during some work, above what was in use before, and its seconds."""
    before = memory_in_use()
    peaks = list(before)
    done = threading.Event()

    def sample() -> None:
        while not done.wait(0.002):
            for number, size in enumerate(memory_in_use()):
                peaks[number] = max(peaks[number], size)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    done.set()
    sampler.join()
    allocated, mapped = (peak - start for peak, start in zip(peaks, before, strict=True))
    return {"allocated_bytes": allocated, "mapped_bytes": mapped, "seconds": seconds}


def page(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The peaks of each stage and size in MiB, and the slopes between the smallest and the largest size."""
    sizes = sorted({row["rows"] for row in rows})
    smallest, largest = sizes[0], sizes[-1]
    by_stage: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        by_stage.setdefault(row["side"], {})[row["rows"]] = row

    peak_columns = [f"{size:,}" for size in sizes]
    header = ["stage", *peak_columns, "allocated, bytes a sentence", "mapped", "seconds of the largest"]
    cells = []
    for stage, by_size in by_stage.items():
        slopes = []
        for kind in ("allocated_bytes", "mapped_bytes"):
            difference = by_size[largest][kind] - by_size[smallest][kind]
            slopes.append(f"{difference / max(1, largest - smallest):.1f}")
        peaks = [f"{by_size[size]['allocated_bytes'] / 2**20:,.0f} MiB" for size in sizes]
        cells.append([stage, *peaks, *slopes, f"{by_size[largest]['seconds']:,.0f}"])
    return markdown_table(header, cells)
