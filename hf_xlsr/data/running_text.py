"""Running text: sentences in the order of their documents, each with its place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import PLACE_COLUMNS, Row
from hf_xlsr.data.encoding import CONSECUTIVE
from hf_xlsr.data.formats.content import refuse_markup
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import detect_format, expand_braces
from hf_xlsr.data.sentences import split_sentences
from hf_xlsr.data.sources import RowFilter, Source, open_texts, read_file
from hf_xlsr.utils.errors import XlsrError

# A sentence, its language, and whether it follows the one before.
_Sentence = tuple[str, str, bool]
_TEXT: dict[str, Any] = {"required": ("text",), "optional": ("lang", *PLACE_COLUMNS)}


def read_running_text(
    sources: Sequence[Source],
    *,
    languages: Sequence[str],
    quarantine: Quarantine | None = None,
    seed: int = 1,
) -> Iterator[Row]:
    r"""Streams the sentences of running text, each with its place.

    The columns of a source determine its form (`docs/running-text.md`): `text` and `document`, one sentence per row;
    `text`, one document per row; `first` and `second`, two consecutive sentences per row; or plain text, one sentence per
    line. A corpus is read in each language of the source, or else of the recipe; `limit` and `sample` apply to each.

    Returns:
        Rows of `text`, `lang` and `place`, which grows by one from a sentence to the next one of its document, and by two
        otherwise. The neighbours of a dropped row are thus not consecutive.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "pages.jsonl"
        ...     _ = file.write_text('{"text": "It rained. We left."}\n{"text": "Why not?"}\n')
        ...     [(row["text"], row["place"]) for row in read_running_text([Source(path=str(file))], languages=["en"])]
        [('It rained.', 1), ('We left.', 2), ('Why not?', 4)]
    """
    quarantine = quarantine or Quarantine()
    position = -1

    for source in sources:
        language_before = None
        for text, language, follows in _sentences(source, languages, quarantine, seed):
            position += 1
            if not follows or language != language_before:
                position += 1
            language_before = language
            yield {"text": text, "lang": language, "place": position}


def _sentences(
    source: Source,
    languages: Sequence[str],
    quarantine: Quarantine,
    seed: int,
) -> Iterator[_Sentence]:
    own_languages = source.languages_or(languages)
    form = _form(source)
    if form == "lines":
        yield from _of_lines(source, source.text_language(own_languages), quarantine)
        return

    if form == "sentences":
        yield from islice(_of_rows(source, own_languages, quarantine), source.limit)
        return

    if not source.corpus:
        own_languages = [source.text_language(own_languages)]
    for language in own_languages:
        in_language = source.in_language(language)
        columns = CONSECUTIVE.texts if form == "pairs" else ("text",)
        rows = open_texts(in_language, columns, languages=[language], quarantine=quarantine, seed=seed)
        yield from _of_pairs(rows) if form == "pairs" else _of_documents(rows)


def _form(source: Source) -> str:
    """The form of a source: `lines`, `sentences`, `documents` or `pairs`."""
    if source.corpus == "bible":
        return "pairs"
    if source.corpus:
        return "documents"

    paths, _ = expand_braces(source.location)
    if len(paths) == 1 and (source.format or detect_format(paths)) == "moses":
        return "lines"
    if not source.column_map.keys().isdisjoint(CONSECUTIVE.texts):
        return "pairs"

    columns = source.column_map
    try:
        first_row = next(read_file(source, columns, **_TEXT, quarantine=Quarantine()), {})
    except XlsrError as no_text:
        try:
            next(read_file(source, columns, required=CONSECUTIVE.texts, optional=(), quarantine=Quarantine()), None)
        except XlsrError:
            raise no_text from None
        return "pairs"
    return "sentences" if "document" in first_row else "documents"


def _of_pairs(rows: Iterable[Row]) -> Iterator[_Sentence]:
    sentence_before = None
    for row in rows:
        if (row["first"], row["lang"]) != sentence_before:
            yield row["first"], row["lang"], False
        yield row["second"], row["lang"], True
        sentence_before = (row["second"], row["lang"])


def _of_documents(rows: Iterable[Row]) -> Iterator[_Sentence]:
    for row in rows:
        for number, sentence in enumerate(split_sentences(row["text"], row["lang"])):
            yield sentence, row["lang"], number > 0


def _of_lines(source: Source, language: str, quarantine: Quarantine) -> Iterator[_Sentence]:
    _check_keys(source, "sample", "distinct", "columns", "where", "hash_split")
    if source.format is None:
        refuse_markup(Path(source.paths[0]))
    # No column is required, so that blank lines are read.
    rows = islice(read_file(source, {"text": "0"}, quarantine=quarantine), source.limit)
    follows_text = False
    for row, is_adjacent in _with_losses(rows, quarantine):
        is_blank = not row["text"].strip()
        if not is_blank:
            yield row["text"], language, follows_text and is_adjacent
        follows_text = not is_blank


def _of_rows(source: Source, languages: Sequence[str], quarantine: Quarantine) -> Iterator[_Sentence]:
    """One sentence per row. `open_source` does not show where it leaves a row out."""
    _check_keys(source, "sample", "distinct")
    row_filter = RowFilter(source)
    rows = read_file(source, source.column_map, selecting=row_filter.columns, quarantine=quarantine, **_TEXT)
    before: tuple[str, int | None] | None = None  # document and position
    language_of_name = cache(partial(source.text_language, languages))

    for number, (read_row, is_adjacent) in enumerate(_with_losses(rows, quarantine), 1):
        row = row_filter.taken(read_row)
        if row is None:
            before = None
            continue

        position = None
        position_before = None
        try:
            if "position" in row:
                position = int(str(row["position"]).removesuffix(".0"))  # tables with empty cells write 3 as 3.0
                position_before = position - 1
        except ValueError:
            quarantine.reject(source.name, number, "position is not an integer", row["text"])
            before = None
            continue

        document = row["document"] or ""
        follows = document != "" and before == (document, position_before)
        yield row["text"], row.get("lang") or language_of_name(), follows and is_adjacent
        before = (document, position)


def _check_keys(source: Source, *unsupported: str) -> None:
    for key in unsupported:
        if getattr(source, key):
            raise XlsrError(f"'{key}' separates neighbours in {source.path}; use 'limit' or the step 'deduplicate'.")


def _with_losses(rows: Iterator[Row], quarantine: Quarantine) -> Iterator[tuple[Row, bool]]:
    """Rows, each with whether it directly follows the row before, without a bad line between."""
    bad_lines = quarantine.total
    for row in rows:
        yield row, quarantine.total == bad_lines
        bad_lines = quarantine.total
