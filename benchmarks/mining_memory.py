"""Memory of each stage of mining against the number of sentences, and its slope in bytes a sentence.

Each stage of each size runs in a process of its own, within `--memory`, on made data:

- reading: two text files, of which every tenth line is a repeated one, are read and deduplicated;
- encoding: by an encoder that makes vectors from the lengths of texts;
- search: by cells, between made vectors of width `--width` in float16 files;
- extraction: one to one, from made neighbourhoods in files, as search leaves them;
- writing: the pairs with their texts, to a TSV file;
- known: the index of as many vectors in a folder that commands share (`--vectors`).

A size is the number of sentences of each side. `allocated` is the peak of the memory that a process allocates above what
it has before the stage; `mapped` that of the pages of files, which the system takes back when it needs them. A slope is
the difference of two sizes' peaks, divided by that of the sizes.

usage: python -m benchmarks.mining_memory [--sizes 1000000 3000000] [--stages reading extraction] [--memory 256MB]
           [--folder FOLDER] [--output FILE]
Needs about 300 bytes of disk a sentence, in `--folder` or a temporary one. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import hardware, in_worker
from hf_xlsr.encoders.cache import VectorStore
from hf_xlsr.mining.options import MiningOptions
from hf_xlsr.mining.outputs import write_pairs
from hf_xlsr.mining.pipeline import MiningRun
from hf_xlsr.mining.search.block_search import RESULTS, SIDES
from hf_xlsr.mining.search.extraction import MinedBitext, extract_pairs
from hf_xlsr.mining.search.neighbours import BothWays, neighbours_both_ways
from hf_xlsr.mining.search.sorted_pairs import pairs_of
from hf_xlsr.mining.stages import Job
from hf_xlsr.mining.texts import TextStore
from hf_xlsr.mining.work_folder import save_rows
from hf_xlsr.utils.devices import parse_size
from hf_xlsr.utils.files import write_json
from hf_xlsr.utils.markdown import markdown_table

K = 4
ROWS_AT_ONCE = 1 << 16
REPEATED = 10  # one line of so many is a repeated one
PAGE = resource.getpagesize()
Settings = dict[str, Any]


class Lengths:
    """Encodes a text as a direction that depends on its length."""

    def __init__(self, width: int) -> None:
        self.width = width

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        lengths = np.array([len(text) for text in texts], np.float32)
        return np.cos(lengths[:, None] * np.arange(1, self.width + 1, dtype=np.float32))


def blocks_of(rows: int) -> Iterator[np.ndarray]:
    """Row numbers, block by block."""
    for start in range(0, rows, ROWS_AT_ONCE):
        yield np.arange(start, min(start + ROWS_AT_ONCE, rows))


def make_texts(folder: Path, settings: Settings) -> None:
    for side in SIDES:
        with (folder / f"{side}.txt").open("w", encoding="utf-8") as file:
            for numbers in blocks_of(settings["rows"]):
                numbers = np.where(numbers % REPEATED, numbers, numbers // REPEATED)
                file.writelines(f"{side} sentence with the number {number}, made\n" for number in numbers.tolist())


def make_vectors(folder: Path, settings: Settings) -> None:
    """Translations lie near each other, in clusters."""
    width = settings["width"]

    def blocks(seed: int) -> Iterator[np.ndarray]:
        shared = np.random.default_rng(settings["seed"])
        centres = shared.standard_normal((2000, width), np.float32)
        own = np.random.default_rng([settings["seed"], seed])
        for numbers in blocks_of(settings["rows"]):
            shape = (len(numbers), width)
            vectors = centres[shared.integers(0, len(centres), len(numbers))]
            vectors += shared.standard_normal(shape, np.float32)
            vectors += 0.3 * own.standard_normal(shape, np.float32)
            yield vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    for number, side in enumerate(SIDES):
        save_rows(folder / f"{side}.npy", blocks(number), (settings["rows"], width), np.float16)


def make_neighbours(folder: Path, settings: Settings) -> None:
    """Each row's neighbours are its translation, which is the row of the same number, and rows at random."""
    rows = settings["rows"]

    def indices(seed: int) -> Iterator[np.ndarray]:
        rng = np.random.default_rng([settings["seed"], seed])
        for numbers in blocks_of(rows):
            block = rng.integers(0, rows, (len(numbers), K))
            block[:, 0] = numbers
            yield block

    def similarities(seed: int) -> Iterator[np.ndarray]:
        rng = np.random.default_rng([settings["seed"], seed])
        for numbers in blocks_of(rows):
            yield -np.sort(-rng.uniform(0.2, 0.9, (len(numbers), K)), axis=1)

    for number, name in enumerate(RESULTS):
        is_index = name.endswith("indices")
        make = indices if is_index else similarities
        save_rows(folder / f"{name}.npy", make(number), (rows, K), np.int64 if is_index else np.float32)


def mining_job(folder: Path, settings: Settings) -> Job:
    texts = {side: str(folder / f"{side}.txt") for side in SIDES}
    options = MiningOptions(memory=settings["memory"])
    return Job(folder / "work", options, texts, Lengths(settings["width"]))


def stores_in(folder: Path) -> tuple[TextStore, TextStore]:
    source, target = (TextStore(folder / "work" / f"{side}.text", side) for side in SIDES)
    return source, target


def read(folder: Path, settings: Settings) -> None:
    job = mining_job(folder, settings)
    with job.claimed("mine", job.plan):
        job.read()


def encode(folder: Path, settings: Settings) -> None:
    job = mining_job(folder, settings)
    with job.claimed("mine", job.plan):
        stores, _ = job.read()  # they are there
        job.encode(stores)


def search(folder: Path, settings: Settings) -> None:
    source, target = (np.load(folder / f"{side}.npy", mmap_mode="r") for side in SIDES)
    limits = {"memory": settings["memory"], "probes": settings["probes"]}
    neighbours_both_ways(source, target, K, method="ivf", folder=folder / "search", **limits)


def extract(folder: Path, settings: Settings) -> None:
    arrays = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in RESULTS]
    neighbours = BothWays(*arrays, method="exact", recall=1.0)
    extract_pairs(neighbours, memory=settings["memory"], file=folder / "pairs.npy")


def write(folder: Path, settings: Settings) -> None:
    run = MiningRun(MinedBitext.load(folder / "made-pairs.npy"), stores_in(folder), {})
    write_pairs(folder / "pairs.tsv", run.sentences())


def make_pairs(folder: Path, settings: Settings) -> None:
    """A pair for each sentence that was read, in a random order."""
    rows = min(map(len, stores_in(folder)))
    order = np.random.default_rng(settings["seed"]).permutation(rows)
    np.save(folder / "made-pairs.npy", pairs_of(order, order, np.linspace(2, 0.5, rows)))


def make_known(folder: Path, settings: Settings) -> None:
    store = VectorStore(folder / "vectors", {"model": "made"})
    for numbers in blocks_of(settings["rows"]):
        keys = [(None, "", f"sentence {number}") for number in numbers.tolist()]
        store.add(keys, np.zeros((len(keys), 1), np.float16))


def find_known(folder: Path, settings: Settings) -> None:
    known, unknown = (None, "", "sentence 7"), (None, "", "another sentence")
    vector, nothing = VectorStore(folder / "vectors", {"model": "made"}).find([known, unknown])
    assert vector is not None
    assert nothing is None


def read_if_missing(folder: Path, settings: Settings) -> None:
    if not (folder / "work" / "target.text").is_dir():
        make_texts(folder, settings)
        read(folder, settings)


def prepare_writing(folder: Path, settings: Settings) -> None:
    read_if_missing(folder, settings)
    make_pairs(folder, settings)


# What makes the input of each stage, and the stage.
STAGES: dict[str, tuple[Callable[[Path, Settings], None], Callable[[Path, Settings], None]]] = {
    "reading": (make_texts, read),
    "encoding": (read_if_missing, encode),
    "search": (make_vectors, search),
    "extraction": (make_neighbours, extract),
    "writing": (prepare_writing, write),
    "known": (make_known, find_known),
}


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
    return {"allocated": allocated, "mapped": mapped, "seconds": seconds}


def run_stage(stage: str, folder: Path, settings: Settings) -> dict[str, Any]:
    """In a process of its own: a small run, which loads what is loaded once, then the stage itself."""
    _, work = STAGES[stage]
    with tempfile.TemporaryDirectory() as name:
        small = {**settings, "rows": 2000}
        make, _ = STAGES[stage]
        make(Path(name), small)
        work(Path(name), small)
    return measured(lambda: work(folder, settings))


def prepare(stage: str, folder: Path, settings: Settings) -> dict[str, Any]:
    """In a process of its own: the input of a stage."""
    make, _ = STAGES[stage]
    make(folder, settings)
    return {}


def table_of(results: dict[str, dict[int, dict[str, Any]]], sizes: Sequence[int]) -> list[str]:
    """The peaks of each stage and size in MiB, and the slopes between the smallest and the largest size."""
    peak_columns = [f"{size:,}" for size in sizes]
    header = ["stage", *peak_columns, "allocated, bytes a sentence", "mapped", "seconds of the largest"]
    rows = []
    for stage, by_size in results.items():
        measured_sizes = sorted(by_size)
        smallest, largest = measured_sizes[0], measured_sizes[-1]
        slopes = []
        for kind in ("allocated", "mapped"):
            difference = by_size[largest][kind] - by_size[smallest][kind]
            slopes.append(f"{difference / max(1, largest - smallest):.1f}")
        peaks = [f"{by_size[size]['allocated'] / 2**20:,.0f} MiB" if size in by_size else "" for size in sizes]
        rows.append([stage, *peaks, *slopes, f"{by_size[largest]['seconds']:,.0f}"])
    return markdown_table(header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", type=int, default=[1_000_000, 3_000_000])
    parser.add_argument("--stages", nargs="*", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--memory", default="256MB")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--probes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks/mining_memory.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        task, stage, folder, settings = json.loads(options.worker)
        run = run_stage if task == "run" else prepare
        print(json.dumps(run(stage, Path(folder), settings)))
        return

    shared = {"memory": parse_size(options.memory), "width": options.width, "probes": options.probes}
    results: dict[str, dict[int, dict[str, Any]]] = {stage: {} for stage in options.stages}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            settings = {**shared, "rows": size, "seed": options.seed}
            for stage in options.stages:
                for task in ("prepare", "run"):
                    work = json.dumps([task, stage, folder, settings])
                    # Freed memory goes back to the system, so that memory is what is in use.
                    result = in_worker(
                        ["benchmarks.mining_memory", "--worker", work],
                        MALLOC_MMAP_THRESHOLD_="65536",
                        CUDA_VISIBLE_DEVICES="",
                    )
                results[stage][size] = result
                write_json(options.output, {**hardware(), **settings, "sizes": options.sizes, "results": results})

    print(f"Sentences a side, memory {options.memory}, seed {options.seed}, {os.cpu_count()} cores:\n")
    print("\n".join(table_of(results, options.sizes)))


if __name__ == "__main__":
    main()
