"""Running text: readers of sentences in document order, their preparation, and pairs of consecutive ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer

from hf_xlsr.data.cleaning import build_text_cleaner
from hf_xlsr.data.columns import PLACE_COLUMNS, parse_columns
from hf_xlsr.data.encoding import CONSECUTIVE, SENTENCES, Row, check_tokenizers
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import detect_format, expand_braces
from hf_xlsr.data.languages import language_code
from hf_xlsr.data.pairs import is_section, trained_tokenizer, with_removal
from hf_xlsr.data.preparation import prepare_rows
from hf_xlsr.data.prepared import PreparedRunningText
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import (
    RowFilter,
    as_list,
    as_source,
    check_source,
    expand,
    open_source,
    open_texts,
    read_file,
    source_name,
)
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

logger = logging.getLogger(__name__)

# In some languages sentencex takes quadratic time in the length of a paragraph (Chinese: 30 s for 350,000 characters),
# and it never splits between two quotation marks. Long text is therefore split in blocks of this many characters.
BLOCK = 10_000
# A sentence, its language, and whether it follows the one before.
_Sentence = tuple[str, str, bool]
_TEXT: dict[str, Any] = {"required": ("text",), "optional": ("lang", *PLACE_COLUMNS)}


def prepare_running_text(
    sources: Any,
    *,
    languages: Sequence[str],
    tokenizers: Any,
    evaluation_texts: Iterable[str] | SeenHashes,
    cleaning: Any = ("normalize", "deduplicate"),
    max_length: int = 200,
    seed: int = 1,
    **more: Any,
) -> PreparedRunningText:
    """Reads, cleans and tokenises running text, or finds it in the cache.

    Args:
        sources: One source or several; see `read_running_text`. What cleaning or an evaluation set removes leaves a gap.
        languages: The first is that of a file that names none.
        tokenizers: One tokenizer; a mapping from language to tokenizer; or options of `trained_tokenizer`, whose result
            is kept in `folder/tokenizer/`.
        evaluation_texts: Sentences that are removed, or their `evaluation_keys`.
        **more: `folder`, `num_proc` and `prompts` of `prepare_rows`.

    Returns:
        The pairs. The report has `sentences`, `pairs`, `documents` (unbroken stretches of two or more sentences),
        `single` (dropped, for they have no neighbour), `languages`, and `vocab_size` where a tokenizer was made.
    """
    sources = as_list(sources)
    section = dict(tokenizers) if is_section(tokenizers) else None
    if section is not None:
        tokenizers = None
    check_tokenizers(tokenizers, languages)  # before hours of reading
    cleaner = with_removal(build_text_cleaner(cleaning or [], languages=list(languages)), evaluation_texts)
    counts = {"documents": 0, "single": 0}

    def describe(rows: Dataset) -> dict[str, Any]:
        pairs = len(rows) - counts["documents"]
        logger.info("%d sentences make %d consecutive pairs; %d had no neighbour.", len(rows), pairs, counts["single"])
        if counts["single"] > len(rows):
            logger.warning(
                "most sentences of the running text (%d of %d) have no neighbour: if a source has one sentence per row, "
                "map its document column to 'document' in 'columns'.",
                counts["single"],
                len(rows) + counts["single"],
            )
        return {"sentences": len(rows), "pairs": pairs, "languages": sorted(rows.unique("lang")), **counts}

    def train_on(rows: Dataset) -> Any:
        return trained_tokenizer(rows, section or {}, max_length=max_length, seed=seed)

    path, rows, report = prepare_rows(
        SENTENCES,
        lambda quarantine: read_running_text(sources, languages=languages, quarantine=quarantine, seed=seed),
        sources=sources,
        languages=languages,
        cleaner=cleaner,
        tokenizers=tokenizers,
        max_length=max_length,
        describe=describe,
        key=True if section is None else [section, seed],
        train=None if section is None else train_on,
        keep_tokenizers=section is not None,
        finish=lambda clean: mark_neighbours(clean, counts),
        seed=seed,
        **more,
    )
    tokenizer = None if isinstance(tokenizers, Mapping) else tokenizers
    if section is not None:
        tokenizer = load_auto(AutoTokenizer, str(path / "tokenizer"))
    return PreparedRunningText(rows, report, tokenizer)


def mark_neighbours(rows: Iterable[Mapping[str, Any]], counts: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Drops sentences without a neighbour; for the others, `continues` is whether the next row follows.

    Increments `documents` and `single` of the counts.
    """
    held, joined = None, False  # the row before, and whether it follows the one before it
    for row in chain(rows, [None]):
        if held is not None:
            continues = row is not None and row["place"] == held["place"] + 1
            if continues or joined:
                counts["documents"] += not continues
                yield {"text": held["text"], "lang": held["lang"], "continues": continues}
            else:
                counts["single"] += 1
            joined = continues
        held = row


def read_running_text(
    sources: Any, *, languages: Sequence[str], quarantine: Quarantine | None = None, seed: int = 1
) -> Iterator[dict[str, Any]]:
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
    named = [str(language) for language in as_list(options.get("languages")) or languages]
    if "corpus" in options:
        form = "pairs" if options["corpus"] == "bible" else "documents"
    else:
        check_source(options)
        paths, _ = expand_braces(expand(options["path"]))
        columns = parse_columns(options.get("columns"))
        lines = (options.get("format") or detect_format(paths)) == "moses" and len(paths) == 1
        form = "lines" if lines else _form(options, columns)
        named = named[:1]
    if form == "lines":
        yield from _of_lines({**options, "languages": named}, named[0], quarantine)
        return
    if form == "sentences":
        yield from islice(_of_rows(options, columns, named[0], quarantine), options.get("limit"))
        return
    for language in named:
        view, texts = {**options, "languages": [language]}, CONSECUTIVE.texts if form == "pairs" else ("text",)
        rows = open_texts(view, texts, languages=named, quarantine=quarantine, seed=seed)
        yield from _of_pairs(rows) if form == "pairs" else _of_documents(rows)


def _of_pairs(rows: Iterable[Row]) -> Iterator[_Sentence]:
    before = None
    for row in rows:
        if (row["first"], row["lang"]) != before:
            yield row["first"], row["lang"], False
        yield row["second"], row["lang"], True
        before = row["second"], row["lang"]


def _of_documents(rows: Iterable[Row]) -> Iterator[_Sentence]:
    for row in rows:
        for number, sentence in enumerate(split_sentences(row["text"], row["lang"])):
            yield sentence, row["lang"], number > 0


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
    more: dict[str, Any] = {"selecting": chosen.columns, "quarantine": quarantine}
    rows = _with_losses(read_file(options, columns, **_TEXT, **more), quarantine)
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
                f"'{key}' separates neighbours in {options['path']}; use 'limit' or the step 'deduplicate'."
            )


def _with_losses(rows: Iterator[dict[str, Any]], quarantine: Quarantine) -> Iterator[tuple[dict[str, Any], bool]]:
    """Rows, each with whether it directly follows the row before, without a bad line between."""
    bad = quarantine.total
    for row in rows:
        yield row, quarantine.total == bad
        bad = quarantine.total


def _form(options: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """The form of a table: `sentences`, `documents` or `pairs`."""
    if any(side in columns for side in CONSECUTIVE.texts):
        return "pairs"
    try:
        first = next(read_file(options, columns, **_TEXT, quarantine=Quarantine()), {})
    except XlsrError as no_text:
        try:
            next(read_file(options, columns, required=CONSECUTIVE.texts, optional=(), quarantine=Quarantine()), None)
        except XlsrError:
            raise no_text from None
        return "pairs"
    return "sentences" if "document" in first else "documents"


def split_sentences(text: str, language: str) -> list[str]:
    r"""Splits a document into sentences by the rules of `sentencex`, with single spaces. A blank line ends a sentence.

    Examples:
        >>> split_sentences("Dr. Lee came  at 5.30 p.m. yesterday.\nNobody\nknew why.\n\nThe end", "en")
        ['Dr. Lee came at 5.30 p.m. yesterday.', 'Nobody knew why.', 'The end']
    """
    require_package("sentencex")
    import sentencex

    code, sentences, rest = language_code(language), list[str](), ""
    for start in range(0, len(text), BLOCK):
        # The last, possibly incomplete sentence of a block begins the next one.
        *whole, rest = sentencex.segment(code, rest + text[start : start + BLOCK])
        sentences += whole
    return [" ".join(words) for sentence in (*sentences, rest) if (words := sentence.split())]
