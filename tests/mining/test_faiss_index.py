"""Indexes of FAISS: the kind by the number of vectors, and that plain FAISS finds what exact search finds."""

from __future__ import annotations

import typing
from pathlib import Path

import numpy as np
import pytest

from hf_xlsr.cli import main
from hf_xlsr.mining.faiss_index import IndexKind, build_index, index_kind, store_index
from hf_xlsr.mining.search.neighbours import nearest_neighbours
from hf_xlsr.utils.errors import XlsrError

faiss = pytest.importorskip("faiss")

KINDS = typing.get_args(IndexKind)


def unit_vectors(count: int, width: int = 16) -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_faiss_finds_the_nearest_vectors(kind: IndexKind, tmp_path: Path) -> None:
    vectors = unit_vectors(1500)
    store_index(build_index(vectors, kind), tmp_path / "en.faiss")

    similarities, rows = faiss.read_index(str(tmp_path / "en.faiss")).search(vectors[:200], 5)
    exact_similarities, exact_rows = nearest_neighbours(vectors[:200], vectors, 5)
    np.testing.assert_array_equal(rows[:, 0], np.arange(200))
    np.testing.assert_allclose(similarities[:, 0], exact_similarities[:, 0], atol=1e-5)

    recall = np.mean([len(set(one) & set(other)) / 5 for one, other in zip(rows, exact_rows, strict=True)])
    assert recall == 1 if kind == "flat" else recall > 0.5


@pytest.mark.parametrize(("count", "kind"), [(1, "flat"), (10_001, "hnsw"), (2_000_000, "ivf")])
def test_kind_follows_the_number_of_vectors(count: int, kind: str) -> None:
    assert index_kind(count) == kind


@pytest.mark.parametrize("kind", KINDS)
def test_one_vector_is_found(kind: IndexKind) -> None:
    _, rows = build_index(unit_vectors(1), kind).search(unit_vectors(1), 1)
    assert rows.tolist() == [[0]]


def test_no_vectors_are_refused() -> None:
    with pytest.raises(XlsrError, match="at least one vector, got 0"):
        build_index(unit_vectors(0))


def test_command_writes_an_index_of_the_embeddings(tiny_export: str, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("red house\nblue tree\nstone bird\n", "utf-8")
    output = tmp_path / "out"
    words = ["encode", tiny_export, "--texts", f"en={texts}", "--output", str(output), "--index", "faiss"]
    assert main(words) == 0

    vectors = np.load(output / "en.npy")
    _, rows = faiss.read_index(str(output / "en.faiss")).search(vectors, 1)
    assert rows.ravel().tolist() == [0, 1, 2]


def test_index_needs_a_folder_and_the_package(
    tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["encode", tiny_export, "--texts", "en=a.txt", "--vectors", str(tmp_path), "--index", "faiss"]
    assert main(words) == 1
    assert "--index faiss needs --output" in capsys.readouterr().err

    monkeypatch.setattr("hf_xlsr.utils.extras.find_spec", lambda _: None)
    assert main([*words, "--output", str(tmp_path / "out")]) == 1
    assert "hf-xlsr[faiss]" in capsys.readouterr().err
