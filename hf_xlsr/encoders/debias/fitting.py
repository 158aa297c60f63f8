"""Principal components and means of each language's embeddings, from a stream of texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import langcodes
import numpy as np
from tqdm.auto import tqdm

from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.debias.removal import PARTS, Debias
from hf_xlsr.encoders.encoding import Encoder, embed
from hf_xlsr.utils.errors import XlsrError, require_choice, require_positive
from hf_xlsr.utils.vectors import check_finite

BATCHES_AT_ONCE = 16  # encoders sort texts by length: more than one batch at a time saves padding


class DebiasFitter:
    """Collects moments of each language's embeddings, batch by batch.

    Of the embeddings `M` of a language, `(n, width)`, only `M^T M`, their sum and their number are kept, in float64. The
    eigenvectors of `M^T M` are the right singular vectors of `M`, so memory does not grow with `n`. `M` is **not**
    centred: the first component then holds most of the mean, which all sentences of a language share.
    """

    def __init__(self) -> None:
        self._moments: dict[str, np.ndarray] = {}
        self._sums: dict[str, np.ndarray] = {}
        self._counts: dict[str, int] = {}

    @property
    def languages(self) -> tuple[str, ...]:
        return tuple(self._counts)

    def partial_fit(self, language: str, vectors: np.ndarray) -> DebiasFitter:
        """Adds embeddings of one language, `(n, width)`, as the encoder returns them; use the same tag in each call."""
        if language not in self._counts:
            check_language(language, self.languages)
        matrix = np.asarray(vectors, np.float64)
        expected = (len(matrix), len(next(iter(self._sums.values())))) if self._sums else np.shape(matrix)
        if matrix.ndim != 2 or matrix.shape != expected:
            raise XlsrError(f"`vectors` of '{language}' must be equally wide rows of a matrix, got {matrix.shape}.")
        if not len(matrix):
            return self
        check_finite(matrix, "the embeddings", self._counts.get(language, 0))
        if language not in self._counts:
            width = matrix.shape[1]
            self._moments[language], self._sums[language] = np.zeros((width, width)), np.zeros(width)
            self._counts[language] = 0
        self._moments[language] += matrix.T @ matrix
        self._sums[language] += matrix.sum(axis=0)
        self._counts[language] += len(matrix)
        return self

    def finish(
        self, components: int = 1, method: str = "components", *, encoder: str = "", prompt: str = ""
    ) -> Debias:
        """Computes what to remove, from the embeddings so far; more may follow.

        `components` is the number of principal components: the paper removes 1, its authors' notebook 1 or 2. The
        methods `mean`, which subtracts the mean of a language's embeddings, and `whitening`, which also makes their
        covariance the identity, ignore it. Each direction has the sign that makes its entry of largest magnitude
        positive.
        """
        check_method(components, method)
        require_positive("number of embeddings", sum(self._counts.values()))
        fitted: dict[str, np.ndarray] = {}
        shares: dict[str, float] = {}
        for language, count in self._counts.items():
            moment, mean = self._moments[language], self._sums[language] / count
            squares = float(count * (mean @ mean))
            if method == "mean":
                fitted[language] = mean
            elif method == "whitening":
                fitted[language] = np.vstack([mean, _inverse_root(moment / count - np.outer(mean, mean))])
            else:
                fitted[language], squares = _leading(moment, count, components, language)
            total = float(np.trace(moment))
            shares[language] = squares / total if total else 0.0
        return Debias(
            **{PARTS[method]: fitted}, counts=dict(self._counts), shares=shares, encoder=encoder, prompt=prompt
        )


def _leading(moment: np.ndarray, count: int, components: int, language: str) -> tuple[np.ndarray, float]:
    """The first eigenvectors, `(width, components)`, and the sum of their eigenvalues."""
    values, vectors = np.linalg.eigh(moment)
    values, vectors = values[::-1], vectors[:, ::-1]
    rank = int((values > len(values) * np.finfo(np.float64).eps * values[0]).sum())
    if components > (most := min(rank, count - 1, len(moment) - 1)):
        raise XlsrError(f"`components` must be at most {most} for the texts of '{language}', got {components}.")
    chosen = vectors[:, :components]
    # The sign of an eigenvector depends on the library.
    signs = np.sign(chosen[np.abs(chosen).argmax(axis=0), np.arange(components)])
    return np.ascontiguousarray(chosen * signs), float(values[:components].sum())


def _inverse_root(covariance: np.ndarray) -> np.ndarray:
    """`U L^(-1/2) U^T` of the eigenvectors and eigenvalues, `(width, width)`; directions without variance become 0.

    Su et al. stop at `U L^(-1/2)`, which has the same cosines. Rotating back keeps the directions that languages share.
    """
    values, vectors = np.linalg.eigh(covariance)
    varying = values > len(values) * np.finfo(np.float64).eps * values[-1]
    scales = np.where(varying, 1 / np.sqrt(np.where(varying, values, 1.0)), 0.0)
    return (vectors * scales) @ vectors.T


def check_method(components: int, method: str) -> None:
    require_choice("method", method, tuple(PARTS))
    require_positive("components", components)


def check_language(language: str, known: Iterable[str]) -> None:
    """Raises for an invalid language tag, or if another tag of the same language is known."""
    if not langcodes.tag_is_valid(language):
        raise XlsrError(f"`language` must be a language tag such as en or zh, got '{language}'.")
    same = next((other for other in known if language_code(other) == language_code(language)), None)
    if same is not None:
        raise XlsrError(f"'{same}' and '{language}' are the same language. Use one of the tags.")


def fit_debias(
    encoder: Encoder,
    texts: Mapping[str, Iterable[str]],
    *,
    components: int = 1,
    method: str = "components",
    prompt: str = "",
    batch_size: int = 64,
    routes: Mapping[str, str] | None = None,
    show_progress_bar: bool = False,
    name: str = "",
) -> Debias:
    """Encodes texts of each language as a stream, and fits on the embeddings.

    Texts are encoded some batches at a time, and not kept; they need not be translations. Embeddings are used as the
    encoder returns them: if they do not have length 1, long ones count more. A text that occurs twice counts twice.
    `components` and `method` are those of `DebiasFitter.finish`.

    Examples:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0, text.count("e")] for text in texts])
        >>> debias = fit_debias(Lengths(), {"en": ["one", "seven"], "fr": ["deux", "trois", "quatre"]})
        >>> debias.languages, debias.components["fr"].shape
        (('en', 'fr'), (3, 1))
    """
    check_method(components, method)
    for number, language in enumerate(texts):
        check_language(language, list(texts)[:number])
    options: dict[str, Any] = {"prompt": prompt, "batch_size": batch_size, "routes": routes, "normalize": False}
    fitter = DebiasFitter()
    with tqdm(desc="fitting", unit=" texts", disable=not show_progress_bar) as bar:
        for language, stream in texts.items():
            bar.set_description(f"fitting {language}")
            rows = iter(() if isinstance(stream, str) else stream)
            while chunk := list(islice(rows, batch_size * BATCHES_AT_ONCE)):
                fitter.partial_fit(language, embed(encoder, chunk, language=language, **options))
                bar.update(len(chunk))
            if language not in fitter.languages:
                raise XlsrError(f"`texts` of '{language}' must be a list of sentences that is not empty.")
    return fitter.finish(components, method, encoder=name, prompt=prompt)
