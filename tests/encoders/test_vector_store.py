"""Embeddings on disk: shared by runs, whole after a kill."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_xlsr.encoders.cache import KEYS, CachedEncoder, VectorStore


class Numbers:
    """Encodes a text as its number, and counts the texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, texts: list[str], **_: object) -> np.ndarray:
        self.texts += texts
        return np.array([[float(text.split()[-1]), 1.0] for text in texts])


def test_runs_share_vectors(tmp_path: Path) -> None:
    first, second = Numbers(), Numbers()
    one = CachedEncoder(first, VectorStore(tmp_path, {"model": "a"}))
    other = CachedEncoder(second, VectorStore(tmp_path, {"model": "a"}))
    one.encode(["text 1", "text 2", "text 1"])
    assert other.encode(["text 2", "text 3", "text 1"]).tolist() == [[2, 1], [3, 1], [1, 1]]
    assert first.texts == ["text 1", "text 2"] and second.texts == ["text 3"] and other.encoded == 1
    assert one.encode(["text 3"]).tolist() == [[3, 1]] and first.texts == ["text 1", "text 2"]


@pytest.mark.parametrize("option", [{"prompt": "query: "}, {"task": "de"}])
def test_keys_have_prompt_and_route(option: dict[str, Any], tmp_path: Path) -> None:
    numbers = Numbers()
    encoder = CachedEncoder(numbers, VectorStore(tmp_path, {"model": "a"}))
    encoder.encode(["text 1"])
    encoder.encode(["text 1"], **option)
    assert numbers.texts == ["text 1", "text 1"]


def test_another_encoder_has_its_own_vectors(tmp_path: Path) -> None:
    VectorStore(tmp_path, {"model": "a"}).add(["x"], np.ones((1, 2), np.float32))
    assert VectorStore(tmp_path, {"model": "b"}).find(["x"]) == [None]


def test_vectors_without_keys_are_as_good_as_none(tmp_path: Path) -> None:
    store = VectorStore(tmp_path, {})
    store.add(["x"], np.ones((1, 2), np.float32))
    next(store.folder.glob(f"*{KEYS}")).unlink()  # the process was killed between both
    assert VectorStore(tmp_path, {}).find(["x"]) == [None]
    store.add(["x"], np.zeros((1, 2), np.float32))
    assert VectorStore(tmp_path, {}).find(["x"])[0] is not None


def test_concurrent_writers(tmp_path: Path) -> None:
    def run(start: int) -> list[list[float]]:
        encoder = CachedEncoder(Numbers(), VectorStore(tmp_path, {}))
        rows = [encoder.encode([f"text {number}" for number in range(n, n + 20)]) for n in range(start, start + 50, 5)]
        return [row.tolist() for row in np.concatenate(rows)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, [0, 0, 3, 7]))
    for start, rows in zip([0, 0, 3, 7], found, strict=True):
        assert [row[0] for row in rows] == [m for n in range(start, start + 50, 5) for m in range(n, n + 20)]


@pytest.mark.parametrize("part", ["vectors", "keys"])
def test_torn_files_are_encoded_again(part: str, tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(8)]
    for texts_of_call in (texts[:4], texts[4:]):
        CachedEncoder(Numbers(), VectorStore(tmp_path, {"model": "a"})).encode(texts_of_call)
    torn = min(tmp_path.rglob(f"*.{part}.npy"))
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    encoder = Numbers()
    found = CachedEncoder(encoder, VectorStore(tmp_path, {"model": "a"})).encode(texts)
    assert len(encoder.texts) == 4 and np.asarray(found)[:, 0].tolist() == [float(number) for number in range(8)]
