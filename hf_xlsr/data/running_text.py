"""Running text: sentences in document order, tokenised once, and the pairs of consecutive ones."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import AutoTokenizer

from hf_xlsr.data.cleaning import Sample, build_text_cleaner
from hf_xlsr.data.preparation import RowKind, check_tokenizers, prepare_rows, tokenize_rows, vocabulary_hash
from hf_xlsr.data.prepare import load_tokenizer, trained_tokenizer, with_removal
from hf_xlsr.data.prepared import PreparedRows, examples_of
from hf_xlsr.data.running_text_sources import read_running_text
from hf_xlsr.data.sampling import ExampleKey
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, expand
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

SENTENCES = RowKind(
    ("text",),
    kept={"continues": "bool"},
    empty="no two consecutive sentences are left: none were read, every document has one sentence, or cleaning and the "
    "evaluation sets removed the neighbours; check the sources of running text and their columns.",
)


class PreparedRunningText(PreparedRows):
    """Pairs of consecutive sentences.

    An example has `first_ids`, `second_ids`, `lang`, `index` and `epoch`. Each sentence is stored once, though most
    are the second of one pair and the first of the next.

    Args:
        rows: Sentences in document order: `text_ids`, `length`, `lang` and `continues` (whether the next row is the next
            sentence of the document).
        report: Counts of the preparation.
        tokenizer: The tokenizer of all languages; None where each has its own.

    Attributes:
        lengths: Length of the longer sentence of each pair in tokens, `(n,)`.
        groups: Language of each pair, `(n,)`.

    Example:
        >>> rows = {"text_ids": [[4], [5, 6], [7], [8], [9]], "length": [1, 2, 1, 1, 1]}
        >>> rows |= {"lang": ["en", "en", "en", "sw", "sw"], "continues": [True, True, False, True, False]}
        >>> text = PreparedRunningText(Dataset.from_dict(rows))
        >>> text[0, 1]
        {'first_ids': [5, 6], 'second_ids': [7], 'lang': 'en', 'index': 1, 'epoch': 0}
        >>> text[0, 2]["first_ids"], text.lengths.tolist(), text.groups.tolist()
        ([8], [2, 2, 1], [0, 0, 1])
    """

    def __init__(self, rows: Dataset, report: Mapping[str, Any] | None = None, tokenizer: Any = None) -> None:
        super().__init__(rows, report)
        self.tokenizer = tokenizer
        self._places = np.flatnonzero(
            np.asarray(rows.select_columns("continues").with_format("arrow")[:]["continues"])
        )
        self.lengths = np.maximum(self.lengths[self._places], self.lengths[self._places + 1])
        self.groups = self.groups[self._places]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        places = self._places[[index for _, index in keys]]
        rows = self.rows[np.stack([places, places + 1], axis=1).ravel().tolist()]
        ids, langs = rows["text_ids"], rows["lang"]
        return examples_of({"first_ids": ids[::2], "second_ids": ids[1::2], "lang": langs[::2]}, keys)


def prepare_running_text(
    sources: Any,
    *,
    languages: Sequence[str],
    tokenizers: Any,
    folder: str | Path,
    evaluation_texts: Iterable[str] | SeenHashes,
    cleaning: Any = ("normalize", "deduplicate"),
    max_length: int = 200,
    seed: int = 1,
) -> PreparedRunningText:
    """Reads, cleans and tokenises running text into `folder`, or loads what a finished call left there.

    A sentence that cleaning or an evaluation set removes, and a bad line of a file, leave a gap: the sentences around it
    are not neighbours. A sentence without neighbours is dropped.

    Args:
        sources: One source or several, as in a recipe; see `read_running_text`.
        languages: Languages of the recipe; the first is that of a file that names none.
        tokenizers: One tokenizer; a mapping from language to tokenizer; or a recipe's `tokenizer` section: `path` of an
            existing one, or options of `trained_tokenizer`, kept in `folder/tokenizer/`.
        folder: As in `prepare`, but another folder.
        evaluation_texts: Sentences that are removed, or their `evaluation_keys`.
        cleaning: Steps as in a recipe; those that compare two sides are ignored.
        max_length: Longer sentences are truncated to this many tokens.
        seed: Chooses the rows of a source with `sample`, and the text that a tokenizer is trained on.

    Returns:
        The pairs. The report has `sentences`, `pairs`, `documents` (unbroken stretches of two or more sentences),
        `single` (sentences without a neighbour), `languages`, and `vocab_size` where a tokenizer was made.

    Raises:
        XlsrError: what `prepare_rows` raises; a cleaning step that samples sentences.

    Example:
        >>> import tempfile
        >>> from datasets.utils.logging import disable_progress_bar
        >>> disable_progress_bar()
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     file = Path(scratch) / "stories.txt"
        ...     _ = file.write_text("the cat sat\\nit slept\\nit woke\\n\\na dog came\\nit ran\\n")
        ...     text = prepare_running_text(
        ...         str(file),
        ...         languages=["en"],
        ...         tokenizers={"vocab_size": 30, "algorithm": "bpe"},
        ...         folder=Path(scratch) / "text",
        ...         evaluation_texts=["It woke!"],
        ...     )
        ...     [
        ...         [text.tokenizer.decode(text[0, index][side]) for side in ("first_ids", "second_ids")]
        ...         for index in range(len(text))
        ...     ]
        [['the cat sat', 'it slept'], ['a dog came', 'it ran']]
    """
    folder, sources = Path(folder), as_list(sources)
    options: Mapping[str, Any] | None = None
    if isinstance(tokenizers, Mapping) and not any(map(callable, tokenizers.values())):  # tokenizers are callable
        options = tokenizers
        tokenizers = load_tokenizer(expand(options["path"]), "tokenizer.path") if options.get("path") else None
    check_tokenizers(tokenizers, languages)  # before hours of reading
    cleaner = with_removal(build_text_cleaner(cleaning or [], languages=list(languages)), evaluation_texts)
    if any(isinstance(step, Sample) for step in cleaner.steps):
        raise XlsrError(
            "cleaning step 'sample' would separate the sentences of running text from their neighbours; give the "
            "sources a 'limit' instead."
        )
    counts = {"documents": 0, "single": 0}

    def tokenize(rows: Dataset) -> tuple[Dataset, dict[str, Any]]:
        chosen, pairs, made = tokenizers, len(rows) - counts["documents"], {}
        logger.info("%d sentences make %d consecutive pairs; %d had no neighbour.", len(rows), pairs, counts["single"])
        if counts["single"] > len(rows):
            logger.warning(
                "most sentences of the running text (%d of %d) have no neighbour: if a source has one sentence per row, "
                "map its document column to 'document' in 'columns'.",
                counts["single"],
                len(rows) + counts["single"],
            )
        if options is not None:
            chosen = chosen or trained_tokenizer(rows, options, max_length=max_length, seed=seed)
            # Saved before its first use: tokenizers keep the limits of their last call.
            chosen.save_pretrained(str(folder / "tokenizer"))
            made = {"vocab_size": len(chosen)}
        tokenised, tokens = tokenize_rows(SENTENCES, rows, chosen, max_length=max_length)
        facts = {"sentences": len(rows), "pairs": pairs, "languages": sorted(rows.unique("lang"))}
        return tokenised, {**facts, **counts, **made, **tokens}

    rows, report = prepare_rows(
        SENTENCES,
        lambda quarantine: read_running_text(sources, languages=languages, quarantine=quarantine, seed=seed),
        sources=sources,
        folder=folder,
        cleaner=cleaner,
        tokenize=tokenize,
        vocabulary=vocabulary_hash(tokenizers),
        finish=lambda clean: mark_neighbours(clean, counts),
    )
    tokenizer = None if isinstance(tokenizers, Mapping) else tokenizers
    if options is not None:
        tokenizer = AutoTokenizer.from_pretrained(str(folder / "tokenizer"))
    return PreparedRunningText(rows, report, tokenizer)


def mark_neighbours(rows: Iterable[Mapping[str, Any]], counts: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Drops sentences without a neighbour and marks for the others whether the next row follows.

    Args:
        rows: Rows of `read_running_text`, cleaned.
        counts: `documents` and `single` are incremented.

    Yields:
        Rows of `text`, `lang` and `continues`: whether the next row is the next sentence of the document.

    Example:
        >>> places = {"One.": 1, "Two.": 2, "Alone.": 4, "Three.": 6, "Four.": 7}
        >>> counts = {"documents": 0, "single": 0}
        >>> rows = ({"text": text, "lang": "en", "place": place} for text, place in places.items())
        >>> [(row["text"], row["continues"]) for row in mark_neighbours(rows, counts)]
        [('One.', True), ('Two.', False), ('Three.', True), ('Four.', False)]
        >>> counts
        {'documents': 2, 'single': 1}
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
