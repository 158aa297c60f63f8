"""What tests of mining share: a fast encoder and its texts, vectors, plain searches, and children that are killed."""

from __future__ import annotations

import multiprocessing
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining import BothWays, MinedBitext
from hf_xlsr.mining.search import block_search, cells, tiles, vectors
from hf_xlsr.utils.tasks import Task, Work, complete

WIDTH = 24


class NumberEncoder:
    """Encodes `en 17` and `fr 17` near each other: the number decides, the rest of the text adds noise."""

    def __init__(self, noise: float = 0.3, width: int = WIDTH) -> None:
        self.noise = noise
        self.width = width
        self.calls: list[list[str]] = []

    def vector(self, text: str) -> np.ndarray:
        digits = "".join(filter(str.isdigit, text))
        meaning = np.random.default_rng(int(digits or 0)).normal(size=self.width)
        noise = np.random.default_rng(zlib.crc32(text.encode())).normal(size=self.width)
        return meaning + 0.5 + self.noise * noise

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        self.calls.append(list(texts))
        return np.stack([self.vector(text) for text in texts]).astype(np.float32)


def numbered(language: str, count: int, start: int = 0, seed: int = 0) -> list[str]:
    """Sentences of different lengths, in a random order."""
    order = np.random.default_rng(seed).permutation(np.arange(start, start + count))
    return [f"{language} {number} " + "word " * int(number % 7) + "." for number in order]


SOURCE = numbered("en", 60)
TARGET = numbered("fr", 50, start=20, seed=1)


def half(sentences: list[str]) -> np.ndarray:
    """Vectors as mining stores them."""
    return embed(NumberEncoder(), sentences).astype(np.float16)


def assert_same_pairs(mined: MinedBitext, expected: MinedBitext) -> None:
    np.testing.assert_array_equal(mined.source, expected.source)
    np.testing.assert_array_equal(mined.target, expected.target)
    np.testing.assert_array_equal(mined.score, expected.score)


def write_lines(path: Path, lines: Sequence[str]) -> Path:
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def in_child(work: Callable[[], Any]) -> tuple[int, str]:
    """Runs a function in a forked process; returns its exit code, negative for a signal, and its error."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        try:
            work()
        except Exception as error:
            sender.send(f"{type(error).__name__}: {error}")
            raise SystemExit(1) from None

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        message = receiver.recv()
    except EOFError:
        message = ""
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode, message


ARRAYS = ("forward_similarities", "forward_indices", "backward_similarities", "backward_indices")


def normalized(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def unit(seed: int, count: int, width: int, offset: float = 0.0) -> np.ndarray:
    return normalized(np.random.default_rng(seed).normal(size=(count, width)) + offset)


def naive(queries: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """All inner products in float64, rounded to float32; ties by index."""
    exact = candidates.astype(np.float64, order="C")
    products = np.empty((len(queries), len(candidates)), np.float32)
    for row, query in zip(products, queries.astype(np.float64), strict=True):
        row[:] = (query * exact).sum(axis=1)

    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(products, order, axis=1), order


def arrays_of(neighbours: BothWays) -> list[np.ndarray]:
    return [getattr(neighbours, name) for name in ARRAYS]


def assert_same(got: BothWays, expected: BothWays | list[np.ndarray]) -> None:
    if isinstance(expected, BothWays):
        expected = arrays_of(expected)
    for array, expected_array in zip(arrays_of(got), expected, strict=True):
        assert array.dtype == expected_array.dtype
        assert array.shape == expected_array.shape
        np.testing.assert_array_equal(array, expected_array)


def two_searches(source: np.ndarray, target: np.ndarray, k: int) -> list[np.ndarray]:
    source = np.asarray(source, np.float32)
    target = np.asarray(target, np.float32)
    return [*naive(source, target, k), *naive(target, source, k)]


def mapped(path: Path, vectors: np.ndarray) -> np.memmap:
    np.save(path, vectors)
    return np.load(path, mmap_mode="r")


def clustered(seed: int, count: int) -> np.ndarray:
    centres = unit(100, 30, 24)
    numbers = np.random.default_rng(seed).integers(0, 30, count)
    return normalized(centres[numbers] + 0.8 * unit(seed, count, 24))


class Copies:
    """Runs tasks as other processes would, on copies of the work, and in another order."""

    device: str | None = "cpu"

    def __init__(self) -> None:
        self.finished: list[str] = []

    def run(self, work: Work, tasks: Iterable[Task], *, description: str = "") -> Iterator[Task]:
        tasks = list(tasks)
        for task in reversed(tasks):
            if not task.output.exists():
                complete(pickle.loads(pickle.dumps(work)), task)
                self.finished.append(task.output.stem)
        yield from tasks


def use_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks and tiles in few vectors."""
    monkeypatch.setattr(block_search, "SIZES", dict.fromkeys(block_search.SIZES, ((96, 64),)))
    monkeypatch.setattr(block_search, "ROWS_SETTLED", 40)
    for name, rows in (("SPAN_STEP", 32), ("SMALLEST_SPAN", 192), ("ROWS_MERGED", 128), ("ROWS_PROBED", 192)):
        monkeypatch.setattr(block_search, name, rows)
    monkeypatch.setattr(block_search, "ROWS_LISTED", 150)
    monkeypatch.setattr(cells, "ROWS_ASSIGNED", 130)
    monkeypatch.setattr(cells, "ROWS_ORDERED", 70)
    monkeypatch.setattr(vectors, "ROWS_OF_CLASS", 110)
    monkeypatch.setattr(cells, "NUMBERS_COPIED", 24 * 90)
    monkeypatch.setattr(tiles, "GROUPS_AT_ONCE", 50)
