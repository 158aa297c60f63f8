"""Readers of running text: sentences in document order, from files and corpora of several forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import sentencex

from hf_xlsr.data.columns import PLACE_COLUMNS, parse_columns
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import detect_format, expand_braces, read_rows
from hf_xlsr.data.languages import language_code
from hf_xlsr.data.sources import RowFilter, as_list, as_source, expand, open_source, source_name
from hf_xlsr.utils.errors import XlsrError

PAIR = ("first", "second")
# In some languages sentencex takes quadratic time in the length of a paragraph (Chinese: 30 s for 350,000 characters),
# and it never splits between two quotation marks. Long text is therefore split in blocks of this many characters.
_BLOCK = 10_000
# A sentence, its language, and whether it follows the one before.
_Sentence = tuple[str, str, bool]


def read_running_text(
    sources: Any, *, languages: Sequence[str], quarantine: Quarantine | None = None, seed: int = 1
) -> Iterator[dict[str, Any]]:
    """Streams the sentences of running text, each with its place.

    The columns of a source determine its form:

    - `text` and `document` (and `position`, `lang`): one sentence per row, in order. A document ends where `document` or
      the language changes or is empty, where `position` does not increase by one, and at a bad line or a row that `where`
      or `hash_split` leave out.
    - `text` (and `lang`): one document per row, for `split_sentences`.
    - `first`, `second` (and `lang`): two consecutive sentences per row. Rows where the second sentence of one is the
      first of the next are one document.
    - one file of plain text (`.txt`, or `format: moses`): one sentence per line, and blank lines between documents.

    The corpora `bible`, `wikipedia` and `cc-text` are read in each language of the source, or else of the recipe, one
    after the other; `limit` and `sample` then apply to each language. A row that names no language is in the first of
    them.

    Args:
        sources: One or several, as in a recipe.
        languages: Languages of the recipe.
        quarantine: Counts and stores bad lines.
        seed: Chooses the rows of `sample`.

    Returns:
        Rows of `text`, `lang` and `place`, an increasing number: by one from a sentence to the next one of its document,
        by two otherwise. The neighbours of a dropped row are thus not consecutive.

    Raises:
        XlsrError: what readers raise; columns of no form above; a key that removes single sentences of a document.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "pages.jsonl"
        ...     _ = file.write_text('{"text": "It rained. We left."}\\n{"text": "Why not?"}\\n')
        ...     [(row["text"], row["place"]) for row in read_running_text(str(file), languages=["en"])]
        [('It rained.', 1), ('We left.', 2), ('Why not?', 4)]
    """
    bad = Quarantine() if quarantine is None else quarantine
    place = -1
    for source in as_list(sources):
        before = None
        for text, lang, follows in _sentences(as_source(source), languages, bad, seed):
            place += 1 if follows and lang == before else 2
            before = lang
            yield {"text": text, "lang": lang, "place": place}


def _sentences(
    options: Mapping[str, Any], languages: Sequence[str], quarantine: Quarantine, seed: int
) -> Iterator[_Sentence]:
    """The sentences of one source."""
    named = [str(language) for language in as_list(options.get("languages")) or languages]
    if "corpus" in options:
        for language in named:
            yield from _of_corpus({**options, "languages": [language]}, language, quarantine, seed)
        return
    options = {**options, "languages": named[:1]}
    # Checks the keys; columns are checked below.
    open_source({**options, "columns": None}, languages=named, required=("text",))
    paths, _ = expand_braces(expand(options["path"]))
    if (options.get("format") or detect_format(paths)) == "moses" and len(paths) == 1:
        yield from _of_lines(options, named[0], quarantine)
        return
    columns = parse_columns(options.get("columns"))
    form = _form(options, columns)
    if form == "sentences":
        yield from islice(_of_rows(options, columns, named[0], quarantine), options.get("limit"))
        return
    required = PAIR if form == "pairs" else ("text",)
    rows = open_source(
        options, languages=named, required=required, optional=("lang",), quarantine=quarantine, seed=seed
    )
    yield from _of_pairs(rows, named[0]) if form == "pairs" else _of_documents(rows, named[0])


def _of_corpus(options: Mapping[str, Any], language: str, quarantine: Quarantine, seed: int) -> Iterator[_Sentence]:
    name = options["corpus"]
    required = PAIR if name == "bible" else ("text",)
    rows = open_source(options, languages=[language], required=required, quarantine=quarantine, seed=seed)
    yield from _of_pairs(rows, language) if name == "bible" else _of_documents(rows, language)


def _of_pairs(rows: Iterable[Mapping[str, Any]], language: str) -> Iterator[_Sentence]:
    before = None
    for row in rows:
        lang = row.get("lang") or language
        if (row["first"], lang) != before:
            yield row["first"], lang, False
        yield row["second"], lang, True
        before = row["second"], lang


def _of_documents(rows: Iterable[Mapping[str, Any]], language: str) -> Iterator[_Sentence]:
    for row in rows:
        lang = row.get("lang") or language
        for number, sentence in enumerate(split_sentences(row["text"], lang)):
            yield sentence, lang, number > 0


def _of_lines(options: Mapping[str, Any], language: str, quarantine: Quarantine) -> Iterator[_Sentence]:
    _check_keys(options, "sample", "distinct", "columns", "where", "hash_split")
    # No column is required, so that blank lines are read.
    rows = open_source({**options, "columns": {"text": "0"}}, languages=[language], required=(), quarantine=quarantine)
    joined = False
    for row, whole in _with_losses(rows, quarantine):
        blank = not row["text"].strip()
        if not blank:
            yield row["text"], language, joined and whole
        joined = not blank


def _of_rows(
    options: Mapping[str, Any], columns: Mapping[str, str], language: str, quarantine: Quarantine
) -> Iterator[_Sentence]:
    """One sentence per row. `open_source` does not show where it leaves a row out."""
    _check_keys(options, "sample", "distinct")
    chosen, name = RowFilter(options), source_name(options)
    before: tuple[str, int | None] | None = None  # document and position
    rows = _with_losses(_file_rows(options, columns, ("text",), quarantine, chosen.columns), quarantine)
    for number, (row, whole) in enumerate(rows, 1):
        if not chosen.takes(row):
            before = None
            continue
        try:
            # Tables with empty cells write 3 as 3.0.
            position = int(str(row["position"]).removesuffix(".0")) if "position" in row else None
        except ValueError:
            quarantine.reject(name, number, "position is not an integer", row["text"])
            before = None
            continue
        document = row["document"] or ""
        follows = document != "" and before == (document, None if position is None else position - 1)
        yield row["text"], row.get("lang") or language, follows and whole
        before = (document, position)


def _check_keys(options: Mapping[str, Any], *unsupported: str) -> None:
    for key in unsupported:
        if options.get(key):
            raise XlsrError(
                f"'{key}' is unsupported for running text with one sentence per row ({options['path']}), since it "
                "separates neighbours; use 'limit' or the cleaning step 'deduplicate'."
            )


def _with_losses(rows: Iterator[dict[str, Any]], quarantine: Quarantine) -> Iterator[tuple[dict[str, Any], bool]]:
    """Rows, each with whether there is no bad line between it and the row before."""
    bad = quarantine.total
    for row in rows:
        yield row, quarantine.total == bad
        bad = quarantine.total


def _form(options: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """The form of a file: `sentences`, `documents` or `pairs`."""
    if any(side in columns for side in PAIR):
        return "pairs"
    try:
        first = next(_file_rows(options, columns, ("text",), Quarantine()), {})
    except XlsrError as error:
        if columns:
            raise
        no_text = error
    else:
        if "document" in first:
            return "sentences"
        if "position" in columns:
            raise XlsrError("columns has 'position' but not 'document'; map the column of the documents to it.")
        return "documents"
    try:
        next(_file_rows(options, columns, PAIR, Quarantine()), None)
        return "pairs"
    except XlsrError as error:
        if str(error) == str(no_text):  # a file that cannot be read, whatever it holds
            raise
    raise XlsrError(
        f"{options['path']} has neither a column 'text' nor 'first' and 'second'; map its columns to them in 'columns'."
    )


def _file_rows(
    options: Mapping[str, Any],
    columns: Mapping[str, str],
    required: Sequence[str],
    quarantine: Quarantine,
    selecting: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    return read_rows(
        expand(options["path"]),
        columns=columns,
        required=required,
        optional=("lang", *PLACE_COLUMNS),
        selecting=selecting,
        format=options.get("format"),
        split=options.get("split"),
        config=options.get("config"),
        quarantine=quarantine,
    )


def split_sentences(text: str, language: str) -> list[str]:
    """Splits a document into sentences by the rules and abbreviations of `sentencex`.

    A blank line ends a sentence; a single line break is white space. Unknown languages fall back to a related one or to
    English. Languages without sentence marks, such as Thai, are hardly split: provide one sentence per row instead.

    Args:
        text: A document.
        language: Its language; see `language_code`.

    Returns:
        The sentences that are not empty, with single spaces.

    Example:
        >>> split_sentences("Dr. Lee came  at 5.30 p.m. yesterday.\\nNobody\\nknew why.\\n\\nThe end", "en")
        ['Dr. Lee came at 5.30 p.m. yesterday.', 'Nobody knew why.', 'The end']
        >>> split_sentences("今天天气很好。我们走吧！", "zh-Hans")
        ['今天天气很好。', '我们走吧！']
    """
    return [" ".join(words) for sentence in _segments(text, language_code(language)) if (words := sentence.split())]


def _segments(text: str, code: str) -> Iterator[str]:
    """Sentences of a text; the last, possibly incomplete sentence of a block begins the next one."""
    rest = ""
    for start in range(0, len(text), _BLOCK):
        *whole, rest = sentencex.segment(code, rest + text[start : start + _BLOCK])
        yield from whole
    yield rest
