"""Caches of embeddings in memory and on disk, and a teacher that uses one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hf_xlsr.encoders import cache as cache_module
from hf_xlsr.encoders import teacher as module
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.encoding import embed, unit_length
from hf_xlsr.encoders.teacher import Teacher


class Lengths:
    """Encodes a text as a direction that depends on its length and route, and records its calls."""

    routes: tuple[str, ...] = ()

    def __init__(self, *routes: str) -> None:
        self.routes = routes
        self.calls: list[tuple[list[str], dict[str, Any]]] = []

    @property
    def texts(self) -> list[str]:
        """The texts of all calls."""
        all_texts = []
        for texts, _ in self.calls:
            all_texts += texts
        return all_texts

    def encode(self, texts: list[str], **options: Any) -> np.ndarray:
        self.calls.append((texts, options))
        shift = {"en": 1.0, "fr": 2.0, None: 3.0}[options.get("task")]
        return np.array([[len(text), shift] for text in texts])


def stored(encoder: Any, folder: Path, **facts: str) -> CachedEncoder:
    return CachedEncoder(encoder, VectorStore(folder, facts))


def test_each_text_is_encoded_once_for_each_route_and_prompt() -> None:
    inner = Lengths("en", "fr")
    encoder = CachedEncoder(inner)
    vectors = embed(encoder, ["a", "bb"], language="en", normalize=False)
    again = embed(encoder, ["bb", "a"], language="en", normalize=False)
    np.testing.assert_array_equal(again, vectors[::-1])
    of_other_route = embed(encoder, ["bb"], language="fr", normalize=False, batch_size=3)
    assert of_other_route.tolist() == [[2.0, 2.0]]

    first_call, second_call = inner.calls
    texts, options = first_call
    assert texts == ["a", "bb"]
    assert options["task"] == "en"
    texts, options = second_call
    assert texts == ["bb"]
    assert options["task"] == "fr"
    assert options["batch_size"] == 3
    assert options["normalize_embeddings"] is False

    unit = encoder.encode(["bb"], task="fr", normalize_embeddings=True)
    np.testing.assert_allclose(unit, [[2**-0.5, 2**-0.5]], rtol=1e-6)
    assert len(inner.calls) == 2

    encoder.encode(["bb"], task="fr", prompt="query: ")
    assert len(inner.calls) == 3


def lengths_of(encoder: Any, texts: list[str]) -> list[float]:
    return encoder.encode(texts)[:, 0].tolist()


def test_runs_share_vectors(tmp_path: Path) -> None:
    first = Lengths()
    second = Lengths()
    first_cache = stored(first, tmp_path, model="a")
    second_cache = stored(second, tmp_path, model="a")
    assert lengths_of(first_cache, ["x", "xx", "x"]) == [1, 2, 1]
    assert lengths_of(second_cache, ["xx", "xxx", "x"]) == [2, 3, 1]
    assert second.texts == ["xxx"]
    assert second_cache.encoded == 1

    assert lengths_of(first_cache, ["xxx"]) == [3]
    assert first.texts == ["x", "xx"]
    assert VectorStore(tmp_path, {"model": "b"}).find([(None, None, "x")]) == [None]


def test_concurrent_writers(tmp_path: Path) -> None:
    def run(first_length: int) -> None:
        encoder = stored(Lengths(), tmp_path)
        for shortest in range(first_length, first_length + 50, 5):
            lengths = list(range(shortest, shortest + 20))
            assert lengths_of(encoder, ["x" * length for length in lengths]) == lengths

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, [1, 1, 3, 7]))  # raises what a run raises


def test_half_a_digest_in_common_is_no_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_heads", lambda digests: np.zeros(len(digests), np.uint64))
    texts = ["x", "xx", "xxx"]
    assert lengths_of(stored(Lengths(), tmp_path), texts) == [1, 2, 3]

    again = Lengths()
    assert lengths_of(stored(again, tmp_path), texts) == [1, 2, 3]
    assert len(again.texts) == 2  # one of the three is found


def test_more_files_than_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "FILES_OPEN", 2)
    texts = ["x" * number for number in range(1, 9)]
    for text in texts:
        stored(Lengths(), tmp_path).encode([text])

    encoder = Lengths()
    assert lengths_of(stored(encoder, tmp_path), texts[::-1]) == list(range(8, 0, -1))
    assert encoder.texts == []


@pytest.mark.parametrize("kind", ["vectors", "keys"])
def test_torn_files_are_encoded_again(kind: str, tmp_path: Path) -> None:
    texts = ["x" * number for number in range(1, 9)]
    stored(Lengths(), tmp_path).encode(texts[:4])
    stored(Lengths(), tmp_path).encode(texts[4:])

    torn = min(tmp_path.rglob(f"*.{kind}.npy"))
    content = torn.read_bytes()
    torn.write_bytes(content[: len(content) // 2])

    encoder = Lengths()
    assert lengths_of(stored(encoder, tmp_path), texts) == list(range(1, 9))
    assert len(encoder.texts) == 4


def test_centre_of_a_teacher_is_the_mean_of_the_texts(tmp_path: Path) -> None:
    texts = ["a", "bb", "cccc"]
    unit = unit_length(Lengths().encode(texts))
    centred = unit_length(unit - unit.mean(0))

    teacher = Teacher(Lengths(), vectors=tmp_path)
    teacher.prepare(iter(texts))
    np.testing.assert_allclose(teacher(texts), centred, atol=1e-6)

    without_centre = Teacher(Lengths(), center=False, vectors=tmp_path)
    without_centre.prepare(texts)
    np.testing.assert_allclose(without_centre(texts), unit, atol=1e-6)


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

    second_encoder = Lengths()
    resumed = Teacher(second_encoder, prompt="q: ", vectors=tmp_path)
    resumed.prepare(texts)
    assert second_encoder.texts == [f"q: {text}" for text in texts[8:]]

    third_encoder = Lengths()
    again = Teacher(third_encoder, prompt="q: ", vectors=tmp_path)
    again.prepare(texts)
    assert third_encoder.texts == []
    assert torch.equal(resumed(texts), again(texts))
