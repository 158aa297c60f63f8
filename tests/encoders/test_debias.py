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
    vectors = rng.normal(size=(count, width)) * np.linspace(1, 3, width)
    return vectors + offset * rng.normal(size=width)


def fitted(components: int = 1, method: str = "components", **languages: np.ndarray) -> Debias:
    languages = languages or {"fr": vectors_of(), "de": vectors_of(seed=1)}
    fitter = DebiasFitter()
    for language, vectors in languages.items():
        fitter.partial_fit(language, vectors)
    return fitter.finish(components, method)


@st.composite
def matrices(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Vectors, and a number of components to remove."""
    count = draw(st.integers(6, 60))
    width = draw(st.integers(3, 12))
    components = draw(st.integers(1, min(count, width) - 1))
    return vectors_of(count, width, draw(st.integers(0, 10_000))), components


@settings(max_examples=40)
@given(matrices(), st.integers(1, 30))
def test_streamed_fit_equals_svd(case: tuple[np.ndarray, int], batch: int) -> None:
    matrix, components = case
    fitter = DebiasFitter()
    for start in range(0, len(matrix), batch):
        fitter.partial_fit("fr", matrix[start : start + batch])
    debias = fitter.finish(components)
    assert debias.counts == {"fr": len(matrix)}
    assert debias.removed == components
    assert debias.dimension == matrix.shape[1]

    _, values, right = np.linalg.svd(matrix)
    squares = values**2
    assert debias.shares["fr"] == pytest.approx(squares[:components].sum() / squares.sum())
    # The space is the same, whatever the signs; the largest number of a direction is positive.
    for direction, expected in zip(debias.fitted["fr"].T, right[:components], strict=True):
        assert abs(direction @ expected) == pytest.approx(1, abs=1e-6)
        assert direction.max() == np.abs(direction).max()


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
    assert mean.variant == "mean"
    assert mean.method == "mean"
    assert mean.removed == 0


@settings(max_examples=40)
@given(st.integers(20, 60), st.integers(2, 9), st.integers(0, 10_000))
def test_whitened_embeddings_have_no_mean_and_no_correlation(count: int, width: int, seed: int) -> None:
    matrix = vectors_of(count, width, seed)
    debias = fitted(method="whitening", fr=matrix)
    assert debias.variant == "whitening"
    assert debias.method == "whitening"
    assert debias.removed == 0
    assert debias.dimension == width

    white = debias.apply(matrix, "fr")
    np.testing.assert_allclose(white.mean(0), 0, atol=1e-7)
    np.testing.assert_allclose(np.cov(white.T, bias=True), np.eye(width), atol=1e-5)

    # Algorithm 1 of Su et al. gives the same cosines.
    u, values, _ = np.linalg.svd(np.cov(matrix.T, bias=True))
    by_algorithm = (matrix - matrix.mean(0)) @ u / np.sqrt(values)
    np.testing.assert_allclose(white @ white.T, by_algorithm @ by_algorithm.T, atol=1e-5)


@settings(max_examples=40)
@given(matrices(), st.integers(0, 10_000))
def test_removal_equals_one_component_at_a_time(case: tuple[np.ndarray, int], seed: int) -> None:
    matrix, components = case
    debias = fitted(components, fr=matrix)
    vectors = vectors_of(50, matrix.shape[1], seed)

    _, _, right = np.linalg.svd(matrix)
    expected = vectors
    for direction in right[:components]:
        expected = expected - np.outer(vectors @ direction, direction)
    np.testing.assert_allclose(debias.apply(vectors, "fr"), expected, atol=1e-5)


@pytest.mark.parametrize("method", ["components", "mean", "whitening"])
def test_saved_debias_is_loaded_bit_equal(method: str, tmp_path: Path) -> None:
    debias = fitted(2, method)
    loaded = Debias.load(debias.save(tmp_path / "new" / "fit"))

    vectors = vectors_of(5)
    assert np.array_equal(loaded.apply(vectors, "de"), debias.apply(vectors, "de"))
    assert loaded.facts() == debias.facts()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("debias.json", "{"),
        ("debias.safetensors", "no"),
    ],
)
def test_damaged_folder(name: str, content: str, tmp_path: Path) -> None:
    folder = fitted().save(tmp_path / "fit")
    (folder / name).write_text(content)
    with pytest.raises(XlsrError, match="debias.json"):
        Debias.load(folder)


def test_missing_vectors(tmp_path: Path) -> None:
    folder = fitted().save(tmp_path / "fit")
    (folder / "debias.safetensors").unlink()
    with pytest.raises(XlsrError, match="debias.json"):
        Debias.load(folder)


def test_languages_that_are_not_those_of_the_vectors(tmp_path: Path) -> None:
    folder = fitted().save(tmp_path / "fit")
    file = folder / "debias.json"
    content = json.loads(file.read_text())
    content["languages"] = ["fr"]
    file.write_text(json.dumps(content))

    with pytest.raises(XlsrError, match="debias.json"):
        Debias.load(folder)


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
    assert debias.language_of("zho_Hant") == "zh-Hant"
    assert debias.language_of("zh-Hans") == "zh-Hans"
    assert debias.language_of("eng") == "en"


def test_encoder_with_routes() -> None:
    encoder = Letters()
    encoder.routes = ("source", "target")
    routes = {"en": "source", "fr": "target"}
    texts = {"en": words(20, 1), "fr": words(20, 2)}
    debias = fit_debias(encoder, texts, routes=routes)
    assert encoder.tasks == ["source", "target"]

    debiased = DebiasedEncoder(encoder, debias, routes=routes)
    assert debiased.routes == ("en", "fr")
    vectors = embed(debiased, texts["fr"], language="fra")
    assert encoder.tasks[-1] == "target"

    # Removed before normalising.
    plain = embed(encoder, texts["fr"], language="fr", routes=routes, normalize=False)
    expected = unit_length(debias.apply(plain, "fr"))
    np.testing.assert_allclose(vectors, expected, atol=1e-6)


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
