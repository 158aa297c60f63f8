"""Parallel texts of several languages: their reading, their sentences row by row, and their vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from typing_extensions import Unpack

from hf_xlsr.data.seen import hash64
from hf_xlsr.encoders.encoding import Encoder, EncodingOptions, check_directions, embed
from hf_xlsr.evaluation.containers import by_name, sentence_list
from hf_xlsr.evaluation.drawing import drawn_rows, reference_language
from hf_xlsr.evaluation.languages import metric_languages
from hf_xlsr.evaluation.protocol import DataOptions, Protocol, Rows
from hf_xlsr.evaluation.reading import RowInputs, finished_fields, open_data, read_one_table
from hf_xlsr.evaluation.rows import by_language
from hf_xlsr.evaluation.table import Table
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


def read_parallel(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> RowInputs:
    """Reads parallel texts, as many in each language; a row with an empty text is left out in all languages."""
    table = replace(open_data(protocol, data), nullable=("text",))
    rows = read_one_table(table, "--data", data.split)
    if table.quarantine.counts:
        raise XlsrError(
            f"{table.source_name}: {table.quarantine.report()} What is left is not parallel; correct these lines."
        )

    rows_by_language = by_language(rows)
    numbers = _whole_rows(rows_by_language, table)
    if data.limit is not None:
        numbers = _drawn_numbers(rows_by_language, numbers, data.limit)
    whole_rows = [group[number] for group in rows_by_language.values() for number in numbers]
    return RowInputs(**finished_fields(protocol, table, data, {"rows": whole_rows}, whole=["rows"]))


def _whole_rows(rows_by_language: Mapping[str, Rows], table: Table) -> list[int]:
    """The numbers of the rows that have a text in every language; the table's quarantine counts the others."""
    counts = {language: len(rows) for language, rows in rows_by_language.items()}
    if len(set(counts.values())) > 1:
        raise XlsrError(f"{table.source_name} must have the same number of rows in all languages, got {counts}.")

    numbers = []
    for number, translations in enumerate(zip(*rows_by_language.values(), strict=True)):
        gaps = [row["lang"] for row in translations if not (row["text"] or "").strip()]
        if gaps:
            languages = ", ".join(gaps)
            table.quarantine.reject(table.source_name, number, f"empty text in {languages}", str(translations))
        else:
            numbers.append(number)
    if not numbers:
        raise XlsrError(f"{table.source_name} has no row with a text in all of {', '.join(counts)}.")
    return numbers


def _drawn_numbers(rows_by_language: Mapping[str, Rows], numbers: Sequence[int], limit: int) -> list[int]:
    """The numbers of rows drawn by the text in one of the languages."""
    tag_of_code = {code: tag for tag, code in metric_languages(rows_by_language).items()}
    reference = tag_of_code[reference_language([(code,) for code in tag_of_code])]

    candidates = []
    for number in numbers:
        text = rows_by_language[reference][number]["text"]
        candidates.append({"number": number, "hash": hash64(text)})
    drawn = drawn_rows(candidates, limit, key=itemgetter("hash"))
    return [row["number"] for row in drawn]


def parallel_texts(inputs: RowInputs) -> dict[str, list[str]]:
    """The sentences of each language, row by row."""
    texts = {}
    for language, rows in by_language(inputs.rows).items():
        texts[language] = [row["text"] for row in rows]
    return texts
