"""Caches of embeddings in memory and on disk, and a teacher that uses one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_xlsr.encoders import teacher as module
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.teacher import Teacher


class Lengths:
    """Encodes a text as a direction that depends on its length and route, and records its calls."""

    routes: tuple[str, ...] = ()

    def __init__(self, *routes: str) -> None:
        self.routes = routes
        self.calls: list[tuple[list[str], dict[str, Any]]] = []

    @property
    def texts(self) -> list[str]:
        return [text for texts, _ in self.calls for text in texts]

    def encode(self, texts: list[str], **options: Any) -> np.ndarray:
        self.calls.append((texts, options))
        shift = {"en": 1.0, "fr": 2.0, None: 3.0}[options.get("task")]
        return np.array([[len(text), shift] for text in texts])


def stored(encoder: Any, folder: Path, **facts: str) -> CachedEncoder:
    return CachedEncoder(encoder, VectorStore(folder, facts))


def test_each_text_is_encoded_once_for_each_route_and_prompt() -> None:
    inner = Lengths("en", "fr")
    encoder = CachedEncoder(inner)
    first = embed(encoder, ["a", "bb"], language="en", normalize=False)
    np.testing.assert_array_equal(embed(encoder, ["bb", "a"], language="en", normalize=False), first[::-1])
    assert embed(encoder, ["bb"], language="fr", normalize=False, batch_size=3).tolist() == [[2.0, 2.0]]
    assert [(texts, options["task"]) for texts, options in inner.calls] == [(["a", "bb"], "en"), (["bb"], "fr")]
    assert inner.calls[1][1]["batch_size"] == 3
    unit = encoder.encode(["bb"], task="fr", normalize_embeddings=True)
    np.testing.assert_allclose(unit, [[2**-0.5, 2**-0.5]], rtol=1e-6)
    assert len(inner.calls) == 2 and inner.calls[1][1]["normalize_embeddings"] is False
    encoder.encode(["bb"], task="fr", prompt="query: ")
    assert len(inner.calls) == 3


def test_runs_share_vectors(tmp_path: Path) -> None:
    first, second = Lengths(), Lengths()
    one, other = stored(first, tmp_path, model="a"), stored(second, tmp_path, model="a")
    one.encode(["x", "xx", "x"])
    assert other.encode(["xx", "xxx", "x"])[:, 0].tolist() == [2, 3, 1]
    assert first.texts == ["x", "xx"] and second.texts == ["xxx"] and other.encoded == 1
    assert one.encode(["xxx"])[:, 0].tolist() == [3] and first.texts == ["x", "xx"]
    assert VectorStore(tmp_path, {"model": "b"}).find([(None, None, "x")]) == [None]


def test_concurrent_writers(tmp_path: Path) -> None:
    def run(start: int) -> list[float]:
        encoder = stored(Lengths(), tmp_path)
        rows = [encoder.encode(["x" * number for number in range(n, n + 20)]) for n in range(start, start + 50, 5)]
        return np.concatenate(rows)[:, 0].tolist()

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, [1, 1, 3, 7]))
    for start, lengths in zip([1, 1, 3, 7], found, strict=True):
        assert lengths == [number for n in range(start, start + 50, 5) for number in range(n, n + 20)]


@pytest.mark.parametrize("part", ["vectors", "keys"])
def test_torn_files_are_encoded_again(part: str, tmp_path: Path) -> None:
    texts = ["x" * number for number in range(1, 9)]
    for texts_of_call in (texts[:4], texts[4:]):
        stored(Lengths(), tmp_path).encode(texts_of_call)
    torn = min(tmp_path.rglob(f"*.{part}.npy"))
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    encoder = Lengths()
    found = stored(encoder, tmp_path).encode(texts)
    assert len(encoder.texts) == 4 and found[:, 0].tolist() == list(range(1, 9))


def test_centre_of_a_teacher_is_the_mean_of_the_texts(tmp_path: Path) -> None:
    teacher, texts = Teacher(Lengths(), vectors=tmp_path), ["a", "bb", "cccc"]
    teacher.prepare(iter(texts))
    unit = Lengths().encode(texts) / np.linalg.norm(Lengths().encode(texts), axis=1, keepdims=True)
    centred = unit - unit.mean(0)
    expected = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(teacher(texts).numpy(), expected, atol=1e-6)
    plain = Teacher(Lengths(), center=False, vectors=tmp_path)
    plain.prepare(texts)
    np.testing.assert_allclose(plain(texts).numpy(), unit, atol=1e-6)


def test_killed_preparation_of_a_teacher_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TEXTS_AT_ONCE", 4)
    texts = ["x" * number for number in range(1, 13)]
    encoder = Lengths()
    encode = encoder.encode

    def stop(texts: list[str], **options: object) -> np.ndarray:
        if len(encoder.texts) > 6:
            raise KeyboardInterrupt
        return encode(texts, **options)

    monkeypatch.setattr(encoder, "encode", stop)
    with pytest.raises(KeyboardInterrupt):
        Teacher(encoder, prompt="q: ", vectors=tmp_path).prepare(texts)
    rest, last = Lengths(), Lengths()
    resumed, again = (Teacher(one, prompt="q: ", vectors=tmp_path) for one in (rest, last))
    resumed.prepare(texts)
    assert rest.texts == [f"q: {text}" for text in texts[8:]]
    again.prepare(texts)
    assert last.texts == [] and torch.equal(resumed(texts), again(texts))
