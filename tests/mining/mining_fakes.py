"""A fast encoder for the tests of mining, its texts and vectors, and child processes that are killed."""

from __future__ import annotations

import multiprocessing
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.encoders.encoding import embed
from hf_xlsr.mining import MinedBitext

WIDTH = 24


class NumberEncoder:
    """Encodes `en 17` and `fr 17` near each other: the number decides, the rest of the text adds noise."""

    def __init__(self, noise: float = 0.3, width: int = WIDTH) -> None:
        self.noise, self.width = noise, width
        self.calls: list[list[str]] = []

    def vector(self, text: str) -> np.ndarray:
        number = int("".join(filter(str.isdigit, text)) or 0)
        rng, own = np.random.default_rng(number), np.random.default_rng(zlib.crc32(text.encode()))
        return rng.normal(size=self.width) + 0.5 + self.noise * own.normal(size=self.width)

    def encode(self, texts: Sequence[str], **options: Any) -> np.ndarray:
        self.calls.append(list(texts))
        return np.stack([self.vector(text) for text in texts]).astype(np.float32)


def numbered(language: str, count: int, start: int = 0, seed: int = 0) -> list[str]:
    """Sentences of different lengths, in a random order."""
    order = np.random.default_rng(seed).permutation(np.arange(start, start + count))
    return [f"{language} {number} " + "word " * int(number % 7) + "." for number in order]


SOURCE, TARGET = numbered("en", 60), numbered("fr", 50, start=20, seed=1)


def half(sentences: list[str]) -> np.ndarray:
    """Vectors as mining stores them."""
    return embed(NumberEncoder(), sentences).astype(np.float16)


def assert_same_pairs(one: MinedBitext, other: MinedBitext) -> None:
    for name in ("source", "target", "score"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


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
