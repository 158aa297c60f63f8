"""Parallel texts of several languages: their sentences row by row, and their vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, check_directions, embed
from hf_xlsr.evaluation.containers import by_name, sentence_list
from hf_xlsr.evaluation.reading import RowInputs
from hf_xlsr.evaluation.rows import by_language
from hf_xlsr.utils.errors import XlsrError

if TYPE_CHECKING:
    from hf_xlsr.encoders.debias import Debias

SELF: Literal["self"] = "self"


def encode_parallel(
    encoder: Encoder,
    texts: Mapping[str, Sequence[str]],
    debias: Debias | Literal["self"] | None,
    *,
    role: str | None = None,
    **encoding: Unpack[EncodingOptions],
) -> dict[str, dict[str, np.ndarray]]:
    """Vectors of parallel texts by language, and without language bias; each by its part of the protocol's name."""
    texts = texts_by_language(texts)
    counts = {language: len(rows) for language, rows in texts.items()}
    if len(counts) < 2 or len(set(counts.values())) > 1:
        raise XlsrError(f"`texts` must have the same number of sentences in two or more languages, got {counts}.")

    vectors = {}
    for language, rows in texts.items():
        vectors[language] = embed(
            encoder,
            rows,
            language=language,
            role=role,
            normalize=False,
            **encoding,
        )
    variants = {"": vectors}

    if debias == SELF:
        fitted = _fit_on(vectors, texts)
        variants[f"-{fitted.variant}-self"] = _apply(fitted, vectors)
    elif debias is not None:
        variants[f"-{debias.variant}"] = _apply(debias, vectors)

    for vectors_of_variant in variants.values():
        for language, matrix in vectors_of_variant.items():
            check_directions(matrix, texts[language])
    return variants


def texts_by_language(texts: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """The sentences of each language as a list."""
    columns = by_name(texts, "texts", "language", "{'en': [...], 'fr': [...]}")
    return {language: sentence_list(rows, f"texts['{language}']") for language, rows in columns.items()}


def _apply(debias: Debias, vectors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {language: debias.apply(matrix, language) for language, matrix in vectors.items()}


def _fit_on(vectors: Mapping[str, np.ndarray], texts: Mapping[str, Sequence[str]]) -> Debias:
    """One component of each language; a sentence that occurs twice counts once."""
    from hf_xlsr.encoders.debias import DebiasFitter

    fitter = DebiasFitter()
    for language, matrix in vectors.items():
        row_of = {text: row for row, text in enumerate(texts[language])}
        fitter.partial_fit(language, matrix[list(row_of.values())])
    return fitter.finish()


def parallel_texts(inputs: RowInputs) -> dict[str, list[str]]:
    """The sentences of each language, row by row."""
    texts = {}
    for language, rows in by_language(inputs.rows).items():
        texts[language] = [row["text"] for row in rows]
    return texts
