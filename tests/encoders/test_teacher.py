"""A teacher's embeddings: centred, computed once, in the store of evaluations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hf_xlsr.encoders import teacher as module
from hf_xlsr.encoders.teacher import Teacher


class Angles:
    """Encodes a number as a direction, and counts the texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, texts: list[str], **_: object) -> np.ndarray:
        self.texts += texts
        angles = np.array([len(text) / 10 for text in texts])
        return np.stack([np.cos(angles), np.sin(angles), np.ones(len(texts))], axis=1)


def test_centre_is_the_mean_of_the_texts(tmp_path: Path) -> None:
    teacher, texts = Teacher(Angles(), vectors=tmp_path), ["a", "bb", "cccc"]
    teacher.prepare(iter(texts))
    unit = Angles().encode(texts) / np.linalg.norm(Angles().encode(texts), axis=1, keepdims=True)
    centred = unit - unit.mean(0)
    expected = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(teacher(texts).numpy(), expected, atol=1e-6)
    plain = Teacher(Angles(), center=False, vectors=tmp_path)
    plain.prepare(texts)
    np.testing.assert_allclose(plain(texts).numpy(), unit, atol=1e-6)


def test_encoders_that_nothing_identifies_do_not_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_XLSR_CACHE", str(tmp_path))
    first, second = Angles(), Angles()
    for encoder in (first, second):
        Teacher(encoder).prepare(["bb"])
    assert first.texts == second.texts == ["a", "bb"]


def test_second_run_computes_nothing(tmp_path: Path) -> None:
    first, second, texts = Angles(), Angles(), [f"{'x' * number}" for number in range(1, 30)]
    one, other = Teacher(first, prompt="q: ", vectors=tmp_path), Teacher(second, prompt="q: ", vectors=tmp_path)
    one.prepare(texts)
    assert sorted(first.texts) == sorted({f"q: {text}" for text in ["a", *texts]})
    other.prepare(texts)
    assert second.texts == [] and torch.equal(one(texts), other(texts))


def test_killed_preparation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TEXTS_AT_ONCE", 4)
    texts = ["x" * number for number in range(1, 13)]

    encoder = Angles()
    encode = encoder.encode

    def stop(texts: list[str], **options: object) -> np.ndarray:
        if len(encoder.texts) > 6:
            raise KeyboardInterrupt
        return encode(texts, **options)

    monkeypatch.setattr(encoder, "encode", stop)
    with pytest.raises(KeyboardInterrupt):
        Teacher(encoder, vectors=tmp_path).prepare(texts)
    rest = Angles()
    Teacher(rest, vectors=tmp_path).prepare(texts)
    assert rest.texts == texts[8:]
