"""Translation pairs and single sentences of a recipe, tokenised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import AutoTokenizer

from hf_xlsr.data.cleaning import Cleaner, RemoveEvaluation, Row, Sample, build_cleaner, build_text_cleaner
from hf_xlsr.data.encoding import PAIRS, TAUGHT_PAIRS, TEXTS, RowKind, check_tokenizers
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.preparation import prepare_rows
from hf_xlsr.data.prepared import PreparedPairs, PreparedRows
from hf_xlsr.data.prompts import Prompts, PromptTable
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, as_source, open_source, open_texts, without_repeats
from hf_xlsr.data.tokenization import smoothed_text, train_tokenizer
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError, error_line

_TOKENIZER_OPTIONS = ("vocab_size", "algorithm", "lowercase", "frame")


@dataclass
class PreparedData:
    """Training data of a run: `train` is `PreparedPairs`, or what a method made of them.

    `tokenizer` is that of all languages, or `tokenizers` maps each language to its own; languages with one path share
    one object. `pairs` and `nli` are the rows of further tasks; None where a task has no data or no weight.
    """

    train: Any
    tokenizer: Any
    report: dict[str, Any]
    tokenizers: dict[str, Any] = field(default_factory=dict)
    pairs: Any = None
    nli: Any = None


def prepare(
    *,
    data: Mapping[str, Any],
    tokenizer: Any,
    languages: Sequence[str],
    evaluation_texts: Iterable[str] | SeenHashes,
    folder: str | Path,
    seed: int,
    max_length: int = 200,
    num_proc: int = 1,
    prompts: PromptTable | Prompts = None,
    kind: RowKind = PAIRS,
) -> PreparedData:
    """Reads, cleans and tokenises the training pairs, or finds them in the cache.

    Args:
        data: The recipe's `data` section.
        tokenizer: A tokenizer; a mapping from language to tokenizer; or options of `trained_tokenizer`.
        evaluation_texts: Sentences that are removed from both sides, or their `evaluation_keys`.
        folder: Folder of the run: gets `prepared.json`, `tokenizer/` and perhaps `rejected.jsonl`; see `prepare_rows`.
        seed: Chooses sampled rows and the text that a tokenizer is trained on.
        max_length: Tokens that sentences are truncated to.
        prompts: Texts that stand before sentences, see `PromptTable`.
        kind: `PAIRS`, or `TAUGHT_PAIRS` with the text of the source.
    """
    sources = as_list(data["train"])
    given = None if is_section(tokenizer) else tokenizer
    check_tokenizers(given, languages)  # before hours of reading

    def read(quarantine: Quarantine) -> Iterator[Row]:
        for source in sources:
            yield from open_source(source, languages=languages, quarantine=quarantine, seed=seed)

    def train_on(rows: Dataset) -> Any:
        columns = [(side, f"{side}_lang") for side in PAIRS.texts]
        return trained_tokenizer(rows, tokenizer, columns=columns, max_length=max_length, seed=seed)

    cleaner = build_cleaner(data["cleaning"] or [], languages=list(languages))
    path, rows, report = prepare_rows(
        kind,
        read,
        sources=sources,
        languages=languages,
        folder=folder,
        cleaner=with_removal(cleaner, evaluation_texts, data["fraction"], seed),
        tokenizers=given,
        max_length=max_length,
        describe=partial(pair_facts, one_language=kind is TAUGHT_PAIRS),
        key=[dict(tokenizer), seed] if given is None else None,
        train=train_on if given is None else None,
        keep_tokenizers=True,
        limit=data["limit"],
        seed=seed,
        num_proc=num_proc,
        prompts=prompts,
    )
    train, saved = PreparedPairs(rows, report), path / "tokenizer"
    if not isinstance(given, Mapping):
        return PreparedData(train, load_auto(AutoTokenizer, str(saved)), report)
    # Languages that share a tokenizer share the loaded one.
    folder_of = {id(one): saved / language for language, one in given.items()}
    loaded = {key: load_auto(AutoTokenizer, str(copy)) for key, copy in folder_of.items()}
    return PreparedData(train, None, report, {language: loaded[id(one)] for language, one in given.items()})


def is_section(tokenizer: Any) -> bool:
    """Whether this is a recipe's section `tokenizer`, not a tokenizer or several by language."""
    return isinstance(tokenizer, Mapping) and not any(map(callable, tokenizer.values()))  # tokenizers are callable


def prepare_texts(
    sources: Any,
    *,
    languages: Sequence[str],
    evaluation_texts: Iterable[str] | SeenHashes,
    cleaning: Any = ("normalize", "deduplicate"),
    seed: int = 1,
    **options: Any,
) -> PreparedRows:
    """Reads, cleans and tokenises single sentences, or finds them in the cache.

    Sources have rows of `text` and, if a file has it, `lang`; with `split_sentences` a text is a document. Cleaning steps
    that compare two sides are ignored; `options` are those of `prepare_rows`.

    Returns:
        Rows of `text_ids` and `lang`; the report has `texts` and `languages`.
    """
    from hf_xlsr.data.running_text import split_sentences  # which imports this module

    sources = as_list(sources)

    def read(quarantine: Quarantine) -> Iterator[Row]:
        for source in sources:
            split = as_source(source).get("split_sentences")
            for row in open_texts(source, TEXTS.texts, languages=languages, quarantine=quarantine, seed=seed):
                sentences = split_sentences(row["text"], row["lang"]) if split else [row["text"]]
                yield from ({**row, "text": text} for text in sentences)

    _, rows, report = prepare_rows(
        TEXTS,
        read,
        sources=sources,
        languages=languages,
        cleaner=with_removal(build_text_cleaner(cleaning or [], languages=list(languages)), evaluation_texts),
        describe=lambda rows: {"texts": len(rows), "languages": sorted(rows.unique("lang"))},
        seed=seed,
        **options,
    )
    return PreparedRows(rows, report)


def pair_facts(pairs: Dataset, one_language: bool = False) -> dict[str, Any]:
    """Counts of pairs for a report: `pairs` and `language_pairs`, sorted; `one_language` allows both sides in one."""
    found: set[tuple[str, str]] = set()
    for batch in pairs.select_columns(["source_lang", "target_lang"]).iter(batch_size=10_000):
        found.update(zip(batch["source_lang"], batch["target_lang"], strict=True))
    for source_lang, target_lang in found:
        if source_lang == target_lang and not one_language:
            raise XlsrError(f"both sides of a pair are {source_lang or 'unnamed'}; name two in data.languages.")
    return {"pairs": len(pairs), "language_pairs": [list(pair) for pair in sorted(found)]}


def with_removal(
    cleaner: Cleaner,
    evaluation_texts: Iterable[str] | SeenHashes,
    fraction: float = 1.0,
    seed: int = 1,
    step: type[RemoveEvaluation] = RemoveEvaluation,
) -> Cleaner:
    """Adds the removal of evaluation texts, and sampling for a fraction below 1."""
    cleaner.steps.append(step(evaluation_texts))
    if fraction != 1.0:
        cleaner.steps.append(Sample(fraction=fraction, seed=seed))
    return cleaner


def evaluation_rows(
    sources: Sequence[Any], *, languages: Sequence[str], split: str, quarantine: Quarantine | None = None
) -> list[Row]:
    """The rows of small evaluation sets, in memory; sources that are `distinct` have no row in common."""
    options: dict[str, Any] = {"languages": languages, "split": split, "quarantine": quarantine}
    rows = (row for source in sources for row in open_source(source, **options))
    distinct = all(as_source(source).get("distinct") for source in sources)
    return list(without_repeats(rows, PAIRS.texts) if distinct else rows)


def load_tokenizer(path: str, key: str) -> Any:
    """Loads the tokenizer of a folder or Hub id; `key` is the name of the option in errors."""
    try:
        tokenizer = load_auto(AutoTokenizer, path)
    except (OSError, ValueError) as error:
        raise XlsrError(f"{key}: no tokenizer loads from '{path}' ({error_line(error, 200)}).") from error
    return tokenizer


def trained_tokenizer(
    rows: Dataset,
    options: Mapping[str, Any],
    *,
    columns: Sequence[tuple[str, str]] = (("text", "lang"),),
    max_length: int = 200,
    seed: int = 1,
) -> Any:
    """Trains a tokenizer on stored rows, by the `options` of a recipe's `tokenizer` section (see `smoothed_text` and
    `train_tokenizer`); `columns` are each text column with its language column.
    """
    sizes: Counter[str] = Counter()
    for batch in rows.select_columns([lang_column for _, lang_column in columns]).iter(batch_size=10_000):
        for names in batch.values():
            sizes.update(names)
    texts = (
        pair
        for batch in rows.iter(batch_size=1_000)
        for text_column, lang_column in columns
        for pair in zip(batch[lang_column], batch[text_column], strict=True)
    )
    ordered = {name: sizes[name] for name in sorted(sizes)}
    return train_tokenizer(
        smoothed_text(texts, ordered, exponent=options.get("smoothing", 0.3), seed=seed),
        **{name: options[name] for name in _TOKENIZER_OPTIONS if name in options},
        max_length=max_length,
    )
