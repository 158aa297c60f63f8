"""Language bias of sentence embeddings: fitted on a stream of texts, removed from embeddings or an encoder."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from tqdm.auto import tqdm

from hf_xlsr.data.languages import nearest_tag
from hf_xlsr.data.prompts import Prompts
from hf_xlsr.encoders.arguments import WrappedEncoder
from hf_xlsr.encoders.encoding import BATCH_SIZE, Encoder, embed, route_of, unit_length
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive
from hf_xlsr.utils.files import atomic_write, path_name, read_json, write_json
from hf_xlsr.utils.vectors import check_finite

TENSORS = "debias.safetensors"
FACTS = "debias.json"
FORMAT = 1
BATCHES_AT_ONCE = 16  # encoders sort texts by length: more than one batch at a time saves padding


def remove_components(vectors: np.ndarray, components: np.ndarray) -> np.ndarray:
    """Orthogonal projection onto the complement of some directions: `e - (e C) C^T`, `C` with orthonormal columns.

    The paper prints `v - (v^T c) / ||v||`, which subtracts a number from a vector. The notebook of the method's authors
    (LIR) projects as here. The result is not normalised.

    Examples:
        >>> remove_components(np.array([[3.0, 4.0]]), np.array([[1.0], [0.0]]))
        array([[0., 4.]])
    """
    unbiased: np.ndarray = vectors - (vectors @ components) @ components.T
    return unbiased


def whiten(vectors: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """Subtracts a mean and multiplies by the inverse square root of a covariance: `(e - m) W`.

    `affine` is `m`, then `W`, `(1 + width, width)`.

    Examples:
        >>> whiten(np.array([[3.0, 4.0]]), np.array([[1.0, 4.0], [0.5, 0.0], [0.0, 0.1]]))
        array([[1., 0.]])
    """
    white: np.ndarray = (vectors - affine[0]) @ affine[1:]
    return white


# By method: the name of what is fitted in the file, and its removal.
METHODS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "components": ("components", remove_components),
    "mean": ("means", operator.sub),
    "whitening": ("whitenings", whiten),
}


@dataclass(frozen=True, eq=False)
class Debias:
    """What is removed from the embeddings of each language: its first principal components, mean, or covariance.

    Attributes:
        fitted: Language -> by method, float64. `components`: its first r principal components, `(width, r)`, orthonormal
            columns: right singular vectors of the uncentred matrix of its embeddings. `mean`: their mean, `(width,)`.
            `whitening`: their mean and whitening matrix, `(1 + width, width)`, see `whiten`.
        method: `components`, `mean` or `whitening`.
        counts: Language -> number of texts it was fitted on.
        shares: Language -> share of the mean squared length of its embeddings that is removed.
        encoder: Name of the model that the embeddings are from.
        prompt: The prompts that were given; None if they were the model's own.

    Examples:
        >>> debias = Debias({"fr": np.array([[1.0], [0.0]])}, counts={"fr": 10}, shares={"fr": 0.5})
        >>> debias.apply(np.array([[3.0, 4.0]]), "fra")
        array([[0., 4.]])
        >>> debias.apply(np.array([[3.0, 4.0]]), "fr", normalize=True)
        array([[0., 1.]])
    """

    fitted: Mapping[str, np.ndarray]
    method: str = "components"
    counts: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    encoder: str = ""
    prompt: Prompts = None

    def __post_init__(self) -> None:
        for language in self.fitted:
            path_name(language, "language")

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self.fitted)

    @property
    def dimension(self) -> int:
        """Width of the embeddings."""
        first_fit = next(iter(self.fitted.values()))
        return len(first_fit.T if self.method == "whitening" else first_fit)

    @property
    def removed(self) -> int:
        """Number of components removed of each language; 0 for the other methods."""
        first_fit = next(iter(self.fitted.values()))
        return first_fit.shape[1] if self.method == "components" else 0

    @property
    def variant(self) -> str:
        """Its name in metric keys: `pcr1` (principal component removal), `pcr2`, ..., `mean` or `whitening`."""
        return f"pcr{self.removed}" if self.method == "components" else self.method

    def language_of(self, language: str | None) -> str:
        """The tag under which a language was fitted: this one, or another of the same language."""
        tag = nearest_tag(language, self.languages)
        if tag is None:
            raise XlsrError(f"`language` must be one of the fitted {', '.join(self.languages)}, got '{language}'.")
        return tag

    def apply(
        self,
        vectors: np.ndarray,
        language: str,
        *,
        normalize: bool = False,
    ) -> np.ndarray:
        """Removes what was fitted of a language from its embeddings, `(..., width)`.

        The arithmetic is in float32 or float64. With `normalize` the result has length 1 (a zero vector
        stays zero); the notebook of the authors does not normalise, and cosines do not depend on it.
        """
        fitted = self.fitted[self.language_of(language)]
        vectors = np.asarray(vectors)
        if vectors.shape[-1:] != (self.dimension,):
            raise XlsrError(f"Embeddings must be {self.dimension} wide, as those fitted on, got {vectors.shape}.")

        dtype = np.result_type(vectors, np.float32)
        _, remove = METHODS[self.method]
        unbiased: np.ndarray = remove(vectors.astype(dtype, copy=False), fitted.astype(dtype))
        if normalize:
            unbiased = unit_length(unbiased)
        if vectors.dtype == np.float16:
            unbiased = unbiased.astype(np.float16)
        return unbiased

    def facts(self) -> dict[str, Any]:
        """Content of `debias.json`: method, components, dimension, encoder, prompt, and texts and share by language."""
        languages = {name: {"texts": self.counts[name], "share": self.shares[name]} for name in self.languages}
        return {
            "method": self.method,
            "components": self.removed,
            "dimension": self.dimension,
            "encoder": self.encoder,
            "prompt": self.prompt,
            "languages": languages,
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Writes `debias.safetensors` and `debias.json` to a folder, which is created."""
        home = Path(folder)
        kind, _ = METHODS[self.method]
        tensors = {f"{kind}/{name}": np.ascontiguousarray(array) for name, array in self.fitted.items()}
        facts = {"format": FORMAT, "hf_xlsr": version("hf-xlsr"), **self.facts()}

        home.mkdir(parents=True, exist_ok=True)
        with atomic_write(home / FACTS) as facts_file:
            write_json(facts_file, facts)
            with atomic_write(home / TENSORS) as tensors_file:
                save_file(tensors, tensors_file)
                (home / FACTS).unlink(missing_ok=True)  # those of an earlier call would not belong to the new tensors
        return home

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Debias:
        """Reads what `save` wrote."""
        home = Path(folder)
        fitted: dict[str, np.ndarray] = {}
        counts: dict[str, int] = {}
        shares: dict[str, float] = {}
        try:
            facts = read_json(home / FACTS)
            tensors = load_file(home / TENSORS)
            kind, _ = METHODS[facts["method"]]
            for name, entry in facts["languages"].items():
                fitted[name] = tensors[f"{kind}/{name}"].astype(np.float64)
                counts[name] = entry["texts"]
                shares[name] = entry["share"]
            return cls(fitted, facts["method"], counts, shares, facts["encoder"], facts["prompt"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError) as error:
            raise XlsrError(f"{home} must hold {FACTS} and {TENSORS} of `hf-xlsr debias fit`: {error!r}.") from error


class DebiasedEncoder(WrappedEncoder):
    """Wraps an encoder; the language of the texts is given as `task`.

    Its `routes` are the fitted languages, so protocols and mining pass the language. `routes` names those of the
    encoder that are not named after languages. Embeddings are truncated and normalised after the removal.
    """

    def __init__(
        self,
        encoder: Any,
        debias: Debias,
        routes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(encoder)
        self.debias = debias
        self.routes = debias.languages
        self._routes = routes

    def vectors_of(
        self,
        texts: list[str],
        *,
        prompt: str,
        task: str | None,
        **options: Any,
    ) -> np.ndarray:
        """Embeddings of texts of the language `task`, without what was fitted on embeddings of any length."""
        language = self.debias.language_of(task)
        route = route_of(self.encoder, task, self._routes)
        return self.debias.apply(self.inner_vectors(texts, prompt, route, **options), language)


class DebiasFitter:
    """Collects moments of each language's embeddings, batch by batch.

    Of the embeddings `M` of a language, `(n, width)`, only `M^T M`, their sum and their number are kept, in float64. The
    eigenvectors of `M^T M` are the right singular vectors of `M`, so memory does not grow with `n`. `M` is **not**
    centred: the first component then holds most of the mean, which all sentences of a language share.
    """

    def __init__(self) -> None:
        self._moments: dict[str, tuple[int, Any, Any]] = {}  # number, sum and `M^T M`

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self._moments)

    def partial_fit(self, language: str, vectors: np.ndarray) -> DebiasFitter:
        """Adds embeddings of one language, `(n, width)`, as the encoder returns them; use the same tag in each call."""
        matrix = np.asarray(vectors, np.float64)
        if len(matrix):
            count, total, moment = self._moments.get(language, (0, 0.0, 0.0))
            check_finite(matrix, "the embeddings", count)
            self._moments[language] = (count + len(matrix), total + matrix.sum(axis=0), moment + matrix.T @ matrix)
        return self

    def finish(
        self,
        components: int = 1,
        method: str = "components",
        *,
        encoder: str = "",
        prompt: Prompts = None,
    ) -> Debias:
        """Computes what to remove, from the embeddings so far; more may follow.

        `components` is the number of principal components: the paper removes 1, its authors' notebook 1 or 2. The
        methods `mean`, which subtracts the mean of a language's embeddings, and `whitening`, which also makes their
        covariance the identity, ignore it. Each direction has the sign that makes its entry of largest magnitude
        positive.
        """
        check_method(components, method)
        require_positive("number of embeddings", len(self._moments))
        fitted: dict[str, np.ndarray] = {}
        counts: dict[str, int] = {}
        shares: dict[str, float] = {}

        for language, (count, total, moment) in self._moments.items():
            mean = total / count
            removed_squares = float(count * (mean @ mean))
            if method == "mean":
                fitted[language] = mean
            elif method == "whitening":
                covariance = moment / count - np.outer(mean, mean)
                fitted[language] = np.vstack([mean, _inverse_root(covariance)])
            else:
                fitted[language], removed_squares = _leading(moment, count, components, language)

            counts[language] = count
            squares = float(np.trace(moment))
            shares[language] = removed_squares / squares if squares else 0.0

        return Debias(fitted, method, counts, shares, encoder, prompt)


def _leading(
    moment: np.ndarray,
    count: int,
    components: int,
    language: str,
) -> tuple[np.ndarray, float]:
    """The first eigenvectors, `(width, components)`, and the sum of their eigenvalues."""
    values, vectors = np.linalg.eigh(moment)  # the largest last
    rank = int(_varying(values).sum())
    most = min(rank, count - 1, len(moment) - 1)
    if components > most:
        raise XlsrError(f"`components` must be at most {most} for the texts of '{language}', got {components}.")

    first = slice(None, -components - 1, -1)  # from the largest on
    leading = vectors[:, first]
    # The sign of an eigenvector depends on the library.
    signs = np.sign(leading[np.abs(leading).argmax(axis=0), np.arange(components)])
    return np.ascontiguousarray(leading * signs), float(values[first].sum())


def _varying(eigenvalues: np.ndarray) -> np.ndarray:
    """Which of the ascending eigenvalues are not 0 up to rounding."""
    varying: np.ndarray = eigenvalues > len(eigenvalues) * np.finfo(np.float64).eps * eigenvalues[-1]
    return varying


def _inverse_root(covariance: np.ndarray) -> np.ndarray:
    """`U L^(-1/2) U^T` of the eigenvectors and eigenvalues, `(width, width)`; directions without variance become 0.

    Su et al. stop at `U L^(-1/2)`, which has the same cosines. Rotating back keeps the directions that languages share.
    """
    values, vectors = np.linalg.eigh(covariance)
    varying = _varying(values)
    scales = np.zeros_like(values)
    scales[varying] = 1 / np.sqrt(values[varying])
    root: np.ndarray = (vectors * scales) @ vectors.T
    return root


def check_method(components: int, method: str) -> None:
    """Raises for a method that does not exist, or without components."""
    require_choice("method", method, tuple(METHODS))
    require_positive("components", components)


def fit_debias(
    encoder: Encoder,
    texts: Mapping[str, Iterable[str]],
    *,
    components: int = 1,
    method: str = "components",
    prompt: Prompts = None,
    batch_size: int = BATCH_SIZE,
    routes: Mapping[str, str] | None = None,
    show_progress_bar: bool = False,
    name: str = "",
) -> Debias:
    """Encodes texts of each language as a stream, and fits on the embeddings.

    Texts are encoded some batches at a time, and not kept; they need not be translations. Embeddings are used as the
    encoder returns them: if they do not have length 1, long ones count more. A text that occurs twice counts twice.
    Each language has its own prompt, see `EncodingOptions`.
    `components` and `method` are those of `DebiasFitter.finish`.

    Examples:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0, text.count("e")] for text in texts])
        >>> debias = fit_debias(Lengths(), {"en": ["one", "seven"], "fr": ["deux", "trois", "quatre"]})
        >>> debias.languages, debias.fitted["fr"].shape
        (('en', 'fr'), (3, 1))
    """
    check_method(components, method)
    fitter = DebiasFitter()
    with tqdm(desc="fitting", unit=" texts", disable=not show_progress_bar) as bar:
        for language, stream in texts.items():
            bar.set_description(f"fitting {language}")
            sentences = iter(() if isinstance(stream, str) else stream)
            while chunk := list(islice(sentences, batch_size * BATCHES_AT_ONCE)):
                vectors = embed(
                    encoder,
                    chunk,
                    language=language,
                    prompt=prompt,
                    batch_size=batch_size,
                    routes=routes,
                    normalize=False,
                )
                fitter.partial_fit(language, vectors)
                bar.update(len(chunk))
            if language not in fitter.languages:
                raise XlsrError(f"`texts` of '{language}' must be a list of sentences that is not empty.")

    return fitter.finish(components, method, encoder=name, prompt=prompt)
