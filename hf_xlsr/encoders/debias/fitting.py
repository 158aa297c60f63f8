"""Principal components and means of each language's vectors, from texts in a stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import langcodes
import numpy as np
from tqdm.auto import tqdm

from hf_xlsr.data.languages import language_code
from hf_xlsr.encoders.debias.removal import Debias, check_finite
from hf_xlsr.encoders.encoding import Encoder, check_batch_size, embed
from hf_xlsr.utils.errors import XlsrError, did_you_mean

METHODS = ("components", "mean")
BATCHES_AT_ONCE = 16  # the encoder sorts the texts it gets by length: more than a batch, so that little is padded


class DebiasFitter:
    """Collects what is needed of each language, batch by batch.

    For the vectors `M` of a language (`n x width`) only `M^T M`, their sum and their number are kept, in float64. The
    eigenvectors of `M^T M` are the right singular vectors of `M`, so memory does not grow with `n`. `M` is **not**
    centred: the first component then holds most of the mean, which is what all sentences of a language share.

    Example:
        >>> fitter = DebiasFitter()
        >>> for batch in ([[2.0, 0.1], [3.0, -0.1]], [[4.0, 0.0]]):
        ...     _ = fitter.partial_fit("fr", np.array(batch))
        >>> debias = fitter.finish(components=1)
        >>> np.abs(debias.components["fr"]).round(1).tolist(), debias.counts
        ([[1.0], [0.0]], {'fr': 3})
    """

    def __init__(self) -> None:
        self._moments: dict[str, np.ndarray] = {}
        self._sums: dict[str, np.ndarray] = {}
        self._counts: dict[str, int] = {}

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that there are vectors of."""
        return tuple(self._counts)

    def partial_fit(self, language: str, vectors: np.ndarray) -> DebiasFitter:
        """Adds vectors of one language.

        Args:
            language: Their language; any tag, the same one each time.
            vectors: `(n, width)`, as the encoder gives them; they are not changed.

        Returns:
            Itself.

        Raises:
            XlsrError: the language is no tag or was called otherwise before, the vectors are no matrix, of another
                width than those before, or hold NaN or infinity.
        """
        if language not in self._counts:
            check_language(language, self.languages)
        matrix = np.asarray(vectors, np.float64)
        if matrix.ndim != 2:
            raise XlsrError(
                f"the vectors of '{language}' have shape {matrix.shape}; give a matrix with one row a sentence."
            )
        width = len(next(iter(self._sums.values()))) if self._sums else matrix.shape[1]
        if matrix.shape[1] != width:
            raise XlsrError(
                f"the vectors of '{language}' are {matrix.shape[1]} wide and those before {width}; fit vectors of one "
                "encoder."
            )
        if not len(matrix):
            return self
        check_finite(matrix, self._counts.get(language, 0))
        if language not in self._counts:
            self._moments[language], self._sums[language] = np.zeros((width, width)), np.zeros(width)
            self._counts[language] = 0
        self._moments[language] += matrix.T @ matrix
        self._sums[language] += matrix.sum(axis=0)
        self._counts[language] += len(matrix)
        return self

    def finish(
        self, components: int = 1, method: str = "components", *, encoder: str = "", prompt: str = ""
    ) -> Debias:
        """What is to be removed, by the vectors so far; more may follow.

        Args:
            components: How many principal components, r. The paper removes 1; its authors' notebook 1 or 2.
            method: `components`, or `mean`, the control: the mean of a language's vectors is subtracted, and
                `components` is without effect.
            encoder: What the encoder is called, for the file.
            prompt: What stood before every text, for the file.

        Returns:
            The directions. Each is given the sign by which its largest entry, by amount, is positive.

        Raises:
            XlsrError: there is no vector, the method is unknown, or a language has too few texts, or texts too much
                alike, for so many components.
        """
        check_method(components, method)
        if not self._counts:
            raise XlsrError("no vectors are there to fit on; give texts of at least one language.")
        fitted: dict[str, np.ndarray] = {}
        shares: dict[str, float] = {}
        for language, count in self._counts.items():
            moment, mean = self._moments[language], self._sums[language] / count
            whole = float(np.trace(moment))
            if not whole > 0:
                raise XlsrError(f"all vectors of '{language}' are zero; check the encoder.")
            if method == "mean":
                fitted[language], shares[language] = mean, float(count * (mean @ mean) / whole)
            else:
                self._check_enough(language, components)
                fitted[language], squares = _leading(moment, components, language)
                shares[language] = squares / whole
        removed = {"means" if method == "mean" else "components": fitted}
        return Debias(**removed, counts=dict(self._counts), shares=shares, encoder=encoder, prompt=prompt)

    def _check_enough(self, language: str, components: int) -> None:
        count, width = self._counts[language], len(self._sums[language])
        if components >= min(count, width):
            raise XlsrError(
                f"components is {components}, and '{language}' has {count} texts with vectors of width {width}; remove "
                "fewer than both, or give more texts."
            )


def _leading(moment: np.ndarray, components: int, language: str) -> tuple[np.ndarray, float]:
    """The first eigenvectors, `(width, components)`, and the sum of their eigenvalues."""
    values, vectors = np.linalg.eigh(moment)
    values, vectors = values[::-1], vectors[:, ::-1]
    if values[components - 1] <= len(values) * np.finfo(np.float64).eps * values[0]:
        raise XlsrError(
            f"the vectors of '{language}' span fewer than {components} directions; give texts that differ, or remove "
            "fewer components."
        )
    chosen = vectors[:, :components]
    # An eigenvector's sign is the library's whim.
    signs = np.sign(chosen[np.abs(chosen).argmax(axis=0), np.arange(components)])
    return np.ascontiguousarray(chosen * signs), float(values[:components].sum())


def check_method(components: Any, method: str) -> None:
    """Refuses an unknown method and a number of components below 1.

    Raises:
        XlsrError: it is one.
    """
    if method not in METHODS:
        raise XlsrError(f"method is '{method}'; {did_you_mean(method, METHODS)}")
    if isinstance(components, bool) or not isinstance(components, int) or components < 1:
        raise XlsrError(f"components is {components!r}; it takes a whole number above 0.")


def check_language(language: str, known: Iterable[str]) -> None:
    """Refuses what is no language tag, and a second tag of one language.

    Raises:
        XlsrError: it is one.
    """
    if not langcodes.tag_is_valid(language):
        raise XlsrError(f"'{language}' is no language tag; name each language by one, such as en or zh.")
    same = next((other for other in known if language_code(other) == language_code(language)), None)
    if same is not None:
        raise XlsrError(f"'{same}' and '{language}' are the same language; call it by one of them.")


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
    """Fits on the vectors that an encoder gives to texts, in a stream.

    Texts are encoded as they come, some batches at a time, and not kept. Vectors are taken as the encoder gives them:
    where they are not of length 1, long ones count more. A text that occurs twice counts twice.

    Args:
        encoder: Anything with a sentence-transformers style `encode`; one with an encoder for each language is given
            the language as `task`.
        texts: Language -> its texts, any iterable. They need not be translations of each other.
        components: How many principal components are removed of each language.
        method: `components` or `mean`, see `DebiasFitter.finish`.
        prompt: Put before every text, for instance `"query: "`.
        batch_size: Texts encoded at a time.
        routes: Language -> route of an encoder whose routes do not bear the languages' names.
        show_progress_bar: Show how many texts are done.
        name: What the encoder is called, for the file.

    Raises:
        XlsrError: a language has no text, or what `embed` and `DebiasFitter` raise.

    Example:
        >>> class Lengths:
        ...     def encode(self, texts, **kwargs):
        ...         return np.array([[len(text), 1.0, text.count("e")] for text in texts])
        >>> debias = fit_debias(Lengths(), {"en": ["one", "seven"], "fr": ["deux", "trois", "quatre"]})
        >>> debias.languages, debias.components["fr"].shape
        (('en', 'fr'), (3, 1))
    """
    check_method(components, method)
    check_batch_size(batch_size)
    for number, language in enumerate(texts):
        check_language(language, list(texts)[:number])
        if isinstance(texts[language], str):
            raise XlsrError(f"the texts of '{language}' are a single string; give a list of sentences.")
    fitter = DebiasFitter()
    with tqdm(desc="fitting", unit=" texts", disable=not show_progress_bar) as bar:
        for language, stream in texts.items():
            bar.set_description(f"fitting {language}")
            rows = iter(stream)
            while chunk := list(islice(rows, batch_size * BATCHES_AT_ONCE)):
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
                raise XlsrError(f"'{language}' has no text to fit on; give some, or leave the language out.")
    return fitter.finish(components, method, encoder=name, prompt=prompt)
