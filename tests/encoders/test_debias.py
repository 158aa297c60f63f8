"""Fit and removal, compared with a singular value decomposition of the whole matrix."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.encoders.debias import Debias, DebiasedEncoder, DebiasFitter, fit_debias
from hf_xlsr.encoders.encoding import embed, unit_length
from hf_xlsr.utils.errors import XlsrError


def vectors_of(count: int = 40, width: int = 8, seed: int = 0, offset: float = 2.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, width)) * np.linspace(1, 3, width) + offset * rng.normal(size=width)


def fitted(components: int = 1, method: str = "components", **languages: np.ndarray) -> Debias:
    fitter = DebiasFitter()
    for language, vectors in (languages or {"fr": vectors_of(), "de": vectors_of(seed=1)}).items():
        fitter.partial_fit(language, vectors)
    return fitter.finish(components, method)


@settings(max_examples=40, deadline=None)
@given(st.integers(6, 60), st.integers(3, 12), st.integers(1, 30), st.integers(0, 10_000), st.data())
def test_streamed_fit_equals_svd(count: int, width: int, batch: int, seed: int, data: st.DataObject) -> None:
    components = data.draw(st.integers(1, min(count, width) - 1))
    matrix = vectors_of(count, width, seed)
    fitter = DebiasFitter()
    for start in range(0, count, batch):
        fitter.partial_fit("fr", matrix[start : start + batch])
    debias = fitter.finish(components)
    assert debias.counts == {"fr": count}
    assert debias.removed == components
    assert debias.dimension == width

    _, values, right = np.linalg.svd(matrix)
    squares = values**2
    assert debias.shares["fr"] == pytest.approx(squares[:components].sum() / squares.sum())
    # The space is the same, whatever the signs.
    directions = debias.fitted["fr"]
    np.testing.assert_allclose(np.abs((directions * right[:components].T).sum(0)), 1, atol=1e-6)
    largest = np.abs(directions).argmax(0)
    assert (directions[largest, np.arange(components)] > 0).all()


def test_matrix_is_not_centred() -> None:
    matrix = np.array([[10.0, 1.0], [10.0, -1.0], [10.0, 0.0]])
    debias = fitted(fr=matrix)
    np.testing.assert_allclose(debias.fitted["fr"], [[1.0], [0.0]], atol=1e-12)
    assert debias.shares["fr"] == pytest.approx(300 / 302)
    assert debias.variant == "pcr1"

    mean = fitted(method="mean", fr=matrix)
    assert mean.fitted["fr"].tolist() == [10.0, 0.0]
    assert mean.shares["fr"] == pytest.approx(300 / 302)
    np.testing.assert_allclose(mean.apply(matrix, "fr"), [[0, 1], [0, -1], [0, 0]])
    assert (mean.variant, mean.method, mean.removed) == ("mean", "mean", 0)


@settings(max_examples=40, deadline=None)
@given(st.integers(20, 60), st.integers(2, 9), st.integers(0, 10_000))
def test_whitened_embeddings_have_no_mean_and_no_correlation(count: int, width: int, seed: int) -> None:
    matrix = vectors_of(count, width, seed)
    debias = fitted(method="whitening", fr=matrix)
    white = debias.apply(matrix, "fr")
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-7)
    np.testing.assert_allclose(np.cov(white.T, bias=True), np.eye(width), atol=1e-5)

    # Algorithm 1 of Su et al. gives the same cosines.
    u, values, _ = np.linalg.svd(np.cov(matrix.T, bias=True))
    by_algorithm = (matrix - matrix.mean(0)) @ u / np.sqrt(values)
    np.testing.assert_allclose(white @ white.T, by_algorithm @ by_algorithm.T, atol=1e-5)
    assert (debias.variant, debias.method, debias.removed, debias.dimension) == ("whitening", "whitening", 0, width)


@settings(max_examples=40, deadline=None)
@given(st.integers(10, 50), st.integers(3, 12), st.integers(0, 10_000), st.data())
def test_removal_equals_one_component_at_a_time(count: int, width: int, seed: int, data: st.DataObject) -> None:
    components = data.draw(st.integers(1, min(count, width) - 1))
    matrix = vectors_of(count, width, seed)
    debias = fitted(components, fr=matrix)
    vectors = vectors_of(count, width, seed + 1)
    expected = vectors
    for direction in np.linalg.svd(matrix)[2][:components]:
        expected = expected - np.outer(vectors @ direction, direction)
    np.testing.assert_allclose(debias.apply(vectors, "fr"), expected, atol=1e-5)


def test_saved_debias_is_loaded_bit_equal(tmp_path: Path) -> None:
    vectors = vectors_of(5)
    for debias in (fitted(2), fitted(method="mean"), fitted(method="whitening")):
        loaded = Debias.load(debias.save(tmp_path / debias.method / "new"))
        assert np.array_equal(loaded.apply(vectors, "de"), debias.apply(vectors, "de"))
        assert loaded.facts() == debias.facts()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("debias.safetensors", None),
        ("debias.json", b"{"),
        ("debias.safetensors", b"no"),
        ("debias.json", {"languages": ["fr"]}),
    ],
)
def test_damaged_folder(name: str, content: Any, tmp_path: Path) -> None:
    file = fitted().save(tmp_path / "fit") / name
    if isinstance(content, dict):
        content = json.dumps({**json.loads(file.read_text()), **content}).encode()
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    with pytest.raises(XlsrError, match="debias.json"):
        Debias.load(tmp_path / "fit")


class Letters:
    """Counts letters."""

    def __init__(self) -> None:
        self.tasks: list[str | None] = []
        self.routes: tuple[str, ...] = ()

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        self.tasks.append(kwargs.get("task"))
        rows = [list(map(text.count, "abcdef")) for text in texts]
        vectors = np.array(rows, np.float32) + 0.5
        return unit_length(vectors) if kwargs["normalize_embeddings"] else vectors


def words(count: int, seed: int) -> list[str]:
    letters = np.random.default_rng(seed).choice(list("abcdef"), (count, 9))
    return ["".join(word) for word in letters]


def test_variants_of_a_language_keep_their_own() -> None:
    debias = fitted(en=vectors_of(), **{"zh-Hans": vectors_of(seed=1), "zh-Hant": vectors_of(seed=2)})
    assert [debias.language_of(tag) for tag in ("zho_Hant", "zh-Hans", "eng")] == ["zh-Hant", "zh-Hans", "en"]


def test_encoder_with_routes() -> None:
    encoder = Letters()
    encoder.routes = ("source", "target")
    routes = {"en": "source", "fr": "target"}
    texts = {"en": words(20, 1), "fr": words(20, 2)}
    debias = fit_debias(encoder, texts, routes=routes)
    assert encoder.tasks == ["source", "target"]

    wrapped = DebiasedEncoder(encoder, debias, routes=routes)
    assert wrapped.routes == ("en", "fr")
    vectors = embed(wrapped, texts["fr"], language="fra")
    assert encoder.tasks[-1] == "target"
    # Removed before normalising.
    plain = embed(encoder, texts["fr"], language="fr", routes=routes, normalize=False)
    np.testing.assert_allclose(vectors, unit_length(debias.apply(plain, "fr")), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda: fitted().apply(np.ones((2, 5)), "fr"), r"\(2, 5\)"),
        (lambda: fitted().apply(np.ones(8), "sw"), "'sw'"),
        (lambda: fitted(2, fr=np.ones((5, 4))), "components"),
        (lambda: fitted(fr=np.where(np.arange(4)[:, None] == 2, np.nan, vectors_of(4))), "2"),
        (lambda: fit_debias(Letters(), {"fr": "one string"}), "'fr'"),
        (lambda: DebiasedEncoder(Letters(), fitted()).encode(["a"]), "language"),
    ],
)
def test_invalid_input(call: Callable[[], Any], key: str) -> None:
    with pytest.raises(XlsrError, match=key):
        call()
