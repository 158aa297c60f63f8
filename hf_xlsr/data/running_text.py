"""Running text: sentences in the order of their documents, tokenised once, and pairs of consecutive ones out of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value, load_from_disk
from datasets import Sequence as ListOf
from transformers import AutoTokenizer

from hf_xlsr.data.cleaning import Cleaner, RemoveEvaluation, Sample, build_text_cleaner
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.piece_counts import PieceCounts
from hf_xlsr.data.prepare import load_tokenizer, prepare_once, trained_tokenizer, vocabulary_hash
from hf_xlsr.data.prepared import (
    PreparedByLanguage,
    check_tokenizers,
    features_of,
    kept_columns,
    map_rows,
    store_rows,
)
from hf_xlsr.data.running_text_sources import read_running_text
from hf_xlsr.data.sampling import ExampleKey
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, expand
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

_FEATURES = Features({"text": Value("string"), "lang": Value("string"), "continues": Value("bool")})


class PreparedRunningText(PreparedByLanguage):
    """Pairs of consecutive sentences, fetched by the `(epoch, index)` keys of `LengthBucketBatchSampler`.

    Each is a mapping with `first_ids`, `second_ids`, `lang`, `index` and `epoch`. The sentences stand in the order of
    the text. Each is stored once, though most are the second of one pair and the first of the next.

    Args:
        tokenised: What `prepare_running_text` writes: `text_ids`, `length`, `group` and `continues` (whether the next
            row is the sentence that follows) of each sentence.
        report: Its counts: `sentences`, `pairs`, `documents` (unbroken stretches of two or more sentences), `single`
            (sentences without a neighbour, left out), `languages` (the language of each group), `cleaning` (sentences
            in and out by step), `rejected` (bad lines by reason), `truncated_sides` (sentences that were cut),
            `pieces`, and `vocab_size` where a tokenizer was made.
        tokenizer: That of all languages.

    Attributes:
        tokenizer: That of all languages, given or made; None where each has its own.
        lengths: Length of the longer sentence of each pair, in pieces, `(n,)`.
        groups: Group of each pair, by language, `(n,)`.

    Raises:
        XlsrError: the data was tokenised by a version that kept less of it.

    Example:
        >>> rows = {"text_ids": [[4], [5, 6], [7], [8], [9]], "length": [1, 2, 1, 1, 1], "group": [0, 0, 0, 1, 1]}
        >>> rows["continues"] = [True, True, False, True, False]
        >>> text = PreparedRunningText(Dataset.from_dict(rows), {"languages": ["en", "sw"]})
        >>> text[0, 1]
        {'first_ids': [5, 6], 'second_ids': [7], 'index': 1, 'epoch': 0, 'lang': 'en'}
        >>> text[0, 2]["first_ids"], text.lengths.tolist(), text.groups.tolist()
        ([8], [2, 2, 1], [0, 0, 1])
    """

    def __init__(self, tokenised: Dataset, report: Mapping[str, Any], tokenizer: Any = None) -> None:
        super().__init__(tokenised, report, ["text_ids"])
        self.tokenizer = tokenizer
        continues = kept_columns(tokenised, ["continues"]).with_format("arrow")[:]["continues"]
        self._places = np.flatnonzero(np.asarray(continues))
        self.lengths = np.maximum(self.lengths[self._places], self.lengths[self._places + 1])
        self.groups = self.groups[self._places]

    def __getitems__(self, keys: Sequence[ExampleKey]) -> list[dict[str, Any]]:
        places = self._places[[index for _, index in keys]]
        ids = self.rows[np.stack([places, places + 1], axis=1).ravel().tolist()]["text_ids"]
        features = features_of({"first_ids": ids[::2], "second_ids": ids[1::2]}, keys)
        for feature in features:
            feature["lang"] = self.languages[self.groups[feature["index"]]]
        return features


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
    """Reads, cleans and tokenises running text into `folder`, or takes what a finished call left there.

    A sentence that cleaning drops leaves a gap: those on its two sides are no neighbours of each other. So does a
    sentence of an evaluation set, and a bad line of a file. A sentence that is left without neighbours is left out.

    Args:
        sources: One source or several, as in a recipe; see `read_running_text`.
        languages: Languages of the recipe; the first is that of a file that says nothing.
        tokenizers: One tokenizer for all languages; a mapping from language to tokenizer; or a mapping of the options
            of a recipe's `tokenizer` section: `path` of an existing one, else one is trained on this text, with
            smoothing over the languages. A tokenizer made from options is kept in `folder/tokenizer/`.
        folder: Gets `data/`, `tokenizer/`, `rejected.jsonl` and, last of all, `prepared.json`.
        evaluation_texts: Sentences that are removed, or their keys from `evaluation_keys`.
        cleaning: Steps, as in a recipe; those that compare two sides are left out.
        max_length: Longest sentence kept whole, in pieces with special tokens.
        seed: Chooses the rows of a source with `sample`, and the text that a tokenizer is trained on.

    Returns:
        The pairs, with their counts.

    Raises:
        XlsrError: what readers and cleaning raise; a cleaning step that takes sentences at random; a language without
            tokenizer, or one that cannot be made; the folder was prepared with another vocabulary; no pair is
            left.

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
    # Tokenizers are called, options are not.
    options = None
    if isinstance(tokenizers, Mapping) and not any(map(callable, tokenizers.values())):
        options = tokenizers

    def make() -> dict[str, Any]:
        if options is None:
            check_tokenizers(tokenizers, languages)
        # Before hours of reading: a missing tokenizer is a mistake that can be told at once.
        found = load_tokenizer(expand(options["path"]), "tokenizer.path") if options and options.get("path") else None
        cleaner = _cleaner(cleaning, languages, evaluation_texts)
        with Quarantine(folder / "rejected.jsonl") as quarantine:
            read = read_running_text(sources, languages=languages, quarantine=quarantine, seed=seed)
            rows, counts = _store(cleaner(read), folder / "rows")
            if quarantine.total:
                logger.warning("%s", quarantine.report())
            counts |= {"rejected": dict(quarantine.counts), "cleaning": dict(cleaner.counts)}
        chosen = tokenizers
        if options is not None:
            chosen = trained_tokenizer(rows, options, max_length=max_length, seed=seed) if found is None else found
            # Saved before its first use: tokenizers keep the limits of their last call.
            chosen.save_pretrained(str(folder / "tokenizer"))
            counts["vocab_size"] = len(chosen)
        tokenised, pieces = _tokenize(rows, chosen, max_length)
        tokenised.save_to_disk(str(folder / "data"))
        return {**counts, **pieces}

    report = prepare_once(folder, sources, make, vocabulary_hash(tokenizers) if options is None else "")
    made = folder / "tokenizer"
    tokenizer: Any = None if isinstance(tokenizers, Mapping) else tokenizers
    if options is not None:
        tokenizer = AutoTokenizer.from_pretrained(str(made))
    return PreparedRunningText(load_from_disk(str(folder / "data")), report, tokenizer)


def mark_neighbours(rows: Iterable[Mapping[str, Any]], counts: dict[str, int]) -> Iterator[dict[str, Any]]:
    """Leaves out the sentences that have no neighbour, and says of the others whether the next one follows.

    Args:
        rows: As `read_running_text` gives them, some of them left out perhaps.
        counts: `documents` and `single` are added to.

    Yields:
        Rows of `text`, `lang` and `continues`: whether the next row is the sentence that follows.

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


def _cleaner(cleaning: Any, languages: Sequence[str], evaluation_texts: Iterable[str] | SeenHashes) -> Cleaner:
    cleaner = build_text_cleaner(cleaning or [], languages=list(languages))
    if any(isinstance(step, Sample) for step in cleaner.steps):
        raise XlsrError(
            "cleaning step 'sample' takes sentences at random, which leaves none of running text beside its "
            "neighbour; give the sources 'limit' instead."
        )
    cleaner.steps.append(RemoveEvaluation(evaluation_texts))
    return cleaner


def _store(cleaned: Iterable[Mapping[str, Any]], folder: Path) -> tuple[Dataset, dict[str, Any]]:
    """The sentences that have neighbours, with their counts."""
    counts = {"documents": 0, "single": 0}
    rows = store_rows(
        mark_neighbours(cleaned, counts),
        _FEATURES,
        folder,
        empty="no two consecutive sentences are left: none were read, every document has one sentence, or cleaning and "
        "the evaluation sets took the neighbours; check the sources of running text and their columns.",
    )
    pairs = len(rows) - counts["documents"]
    logger.info("%d sentences make %d consecutive pairs; %d had no neighbour.", len(rows), pairs, counts["single"])
    if counts["single"] > len(rows):
        logger.warning(
            "most sentences of the running text (%d of %d) have no neighbour: if a source has a sentence a row, name "
            "the column that tells its documents apart in columns, as 'document'.",
            counts["single"],
            len(rows) + counts["single"],
        )
    return rows, {"sentences": len(rows), "pairs": pairs, **counts}


def _tokenize(rows: Dataset, tokenizers: Any, max_length: int) -> tuple[Dataset, dict[str, Any]]:
    """Sentences as ids, with their counts."""
    languages = sorted({lang for batch in rows.select_columns(["lang"]).iter(10_000) for lang in batch["lang"]})
    check_tokenizers(tokenizers, languages)
    groups = {language: number for number, language in enumerate(languages)}
    counts = PieceCounts(tokenizers, max_length)

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = counts.tokenize(batch["text"], batch["lang"])
        return {
            "text_ids": ids,
            "length": list(map(len, ids)),
            "group": [groups[language] for language in batch["lang"]],
            "continues": batch["continues"],
        }

    features = {
        "text_ids": ListOf(Value("int32")),
        **{name: Value("int32") for name in ("length", "group")},
        "continues": Value("bool"),
    }
    tokenised = map_rows(rows, encode, features)
    return tokenised, {**counts.report(), "languages": languages}
