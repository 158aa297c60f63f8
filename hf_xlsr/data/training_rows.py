"""Clean training rows of each kind of row, from sources.

Each function takes `languages` (those of sources that name none), `evaluation_texts` (which are kept out of training, or
their `evaluation_keys`), `cleaning` (as in a recipe), `seed` (of drawn rows) and `num_proc` (processes that clean).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset

from hf_xlsr.data.cleaning import (
    AnyStep,
    NoLabel,
    RemoveEvaluation,
    RemoveEvaluationRows,
    Sample,
    build_steps,
    build_text_steps,
)
from hf_xlsr.data.columns import PLACEHOLDER, Row
from hf_xlsr.data.encoding import NLI, PAIRS, PLACED_SENTENCES, TEXTS
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.label_tasks import NLI_TASK, LabelledTask
from hf_xlsr.data.masking import counter_uniform
from hf_xlsr.data.preparation import CleanRows, clean_rows
from hf_xlsr.data.raw_rows import continues_after
from hf_xlsr.data.running_text import read_running_text
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sentences import split_sentences
from hf_xlsr.data.sources import Source, open_source, open_texts
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.runners import Processes

logger = logging.getLogger(__name__)

EvaluationTexts = Iterable[str] | SeenHashes
PAIR_CLEANING = ("normalize", "drop_identical", "deduplicate")
TEXT_CLEANING = ("normalize", "deduplicate")


def clean_pairs(
    sources: Sequence[Source],
    *,
    languages: Sequence[str],
    evaluation_texts: EvaluationTexts = (),
    cleaning: Any = PAIR_CLEANING,
    fraction: float = 1.0,
    limit: int | None = None,
    one_language: bool = False,
    seed: int = 1,
    num_proc: Processes = 1,
) -> CleanRows:
    """Clean translation pairs: rows of `source`, `target`, `source_lang` and `target_lang`.

    Args:
        fraction: Share of the clean pairs that is kept, drawn by a hash of their text.
        limit: Maximum number of pairs.
        one_language: Allows pairs with both sides in one language.

    Returns:
        The report has `pairs` and `language_pairs`.
    """
    steps = [*build_steps(cleaning, languages), RemoveEvaluation(evaluation_texts), *_sampling(fraction, seed)]

    def read(quarantine: Quarantine) -> Iterator[Row]:
        for source in sources:
            yield from open_source(source, languages=languages, quarantine=quarantine, seed=seed)

    return clean_rows(
        PAIRS,
        read,
        steps,
        partial(pair_facts, one_language=one_language),
        sources=sources,
        key=[list(languages), one_language],
        limit=limit,
        seed=seed,
        num_proc=num_proc,
    )


def pair_facts(rows: Dataset, one_language: bool = False) -> dict[str, Any]:
    """Counts of pairs for a report: `pairs` and `language_pairs`, sorted; `one_language` allows both sides in one."""
    language_pairs: set[tuple[str, str]] = set()
    for batch in rows.select_columns(["source_lang", "target_lang"]).iter(batch_size=10_000):
        language_pairs.update(zip(batch["source_lang"], batch["target_lang"], strict=True))
    for source_lang, target_lang in language_pairs:
        if source_lang == target_lang and not one_language:
            raise XlsrError(f"both sides of a pair are in '{source_lang}'; name two in data.languages.")
    return {"pairs": len(rows), "language_pairs": list(map(list, sorted(language_pairs)))}


def clean_texts(
    sources: Sequence[Source],
    *,
    languages: Sequence[str],
    evaluation_texts: EvaluationTexts = (),
    cleaning: Any = TEXT_CLEANING,
    seed: int = 1,
    num_proc: Processes = 1,
) -> CleanRows:
    """Clean single sentences: rows of `text` and `lang`; of a source with `split_sentences`, a text is a document.

    Cleaning steps that compare two sides are ignored.

    Returns:
        The report has `texts` and `languages`.
    """
    steps = [*build_text_steps(cleaning, languages), RemoveEvaluation(evaluation_texts)]

    def read(quarantine: Quarantine) -> Iterator[Row]:
        for source in sources:
            for row in open_texts(source, TEXTS.texts, languages=languages, quarantine=quarantine, seed=seed):
                texts = [row["text"]]
                if source.split_sentences:
                    texts = split_sentences(row["text"], row["lang"])
                for text in texts:
                    yield {"text": text, "lang": row["lang"]}

    def describe(rows: Dataset) -> dict[str, Any]:
        return {"texts": len(rows), "languages": sorted(rows.unique("lang"))}

    return clean_rows(
        TEXTS,
        read,
        steps,
        describe,
        sources=sources,
        key=list(languages),
        seed=seed,
        num_proc=num_proc,
    )


def clean_running_text(
    sources: Sequence[Source],
    *,
    languages: Sequence[str],
    evaluation_texts: EvaluationTexts = (),
    cleaning: Any = TEXT_CLEANING,
    seed: int = 1,
    num_proc: Processes = 1,
) -> CleanRows:
    """Clean sentences in the order of their documents: rows of `text`, `lang` and `place`, see `read_running_text`.

    What cleaning or an evaluation set removes leaves a gap.

    Returns:
        The report has `sentences`, `pairs`, `documents` (unbroken stretches of two or more sentences), `single`
        (sentences without a neighbour, which no trainer uses) and `languages`.
    """
    steps = [*build_text_steps(cleaning, languages), RemoveEvaluation(evaluation_texts)]

    def read(quarantine: Quarantine) -> Iterator[Row]:
        return read_running_text(sources, languages=languages, quarantine=quarantine, seed=seed)

    return clean_rows(
        PLACED_SENTENCES,
        read,
        steps,
        running_text_facts,
        sources=sources,
        key=list(languages),
        seed=seed,
        num_proc=num_proc,
    )


def running_text_facts(rows: Dataset) -> dict[str, Any]:
    """Counts of running text for a report, see `clean_running_text`; an error without two consecutive sentences."""
    continues = continues_after(rows)
    starts = np.append(False, continues[:-1])
    num_single = int((~continues & ~starts).sum())
    num_sentences = len(rows) - num_single
    num_pairs = int(continues.sum())
    if not num_pairs:
        raise XlsrError(PLACED_SENTENCES.empty)

    logger.info("%d sentences make %d consecutive pairs; %d had no neighbour.", num_sentences, num_pairs, num_single)
    if num_single > num_sentences:
        logger.warning(
            "most sentences of the running text have no neighbour: if a source has one sentence per row, map its column "
            "of documents to 'document' in 'columns'."
        )

    return {
        "sentences": num_sentences,
        "pairs": num_pairs,
        "documents": num_sentences - num_pairs,
        "single": num_single,
        "languages": sorted(rows.unique("lang")),
    }


def clean_labelled(
    sources: Sequence[Source],
    task: LabelledTask,
    *,
    languages: Sequence[str],
    evaluation_texts: EvaluationTexts = (),
    cleaning: Any = (),
    fraction: float = 1.0,
    limit: int | None = None,
    whole_rows: bool = False,
    seed: int = 1,
    num_proc: Processes = 1,
) -> CleanRows:
    """Clean labelled texts: rows of the texts of the task, `label` (a `ClassLabel`, or a score) and `lang`.

    Args:
        sources: See `labelled_rows`.
        fraction: Share of the clean rows that is kept, drawn by a hash of their text.
        limit: Maximum number of rows.
        whole_rows: Removes rows only if all of their texts are in one row of an evaluation set, of which
            `evaluation_texts` has the `row_text`.

    Returns:
        The report has `pairs` (rows), `languages` and `labels` (rows by class).
    """
    removal = RemoveEvaluationRows if whole_rows else RemoveEvaluation
    steps = [NoLabel(), *build_steps(cleaning, languages), removal(evaluation_texts), *_sampling(fraction, seed)]

    def read(quarantine: Quarantine) -> Iterator[Row]:
        return labelled_rows(sources, task, languages=languages, quarantine=quarantine, seed=seed)

    clean = clean_rows(
        task.kind,
        read,
        steps,
        partial(label_facts, task=task),
        sources=sources,
        key=[list(languages), repr(task)],
        limit=limit,
        seed=seed,
        num_proc=num_proc,
    )
    return _with_names(clean, task)


def clean_inference(
    sources: Sequence[Source],
    *,
    languages: Sequence[str],
    evaluation_texts: EvaluationTexts = (),
    crossed: bool = True,
    seed: int = 1,
    num_proc: Processes = 1,
) -> CleanRows:
    """Clean pairs of natural language inference: rows of `premise`, `hypothesis`, `label` (of `NLI_TASK`) and `lang`.

    Of a file with a column per language, `columns` with `premise=premise_{lang}` and `hypothesis=hypothesis_{lang}` gives
    one pair per row in two different languages, drawn by the seed; `lang` is that of the premise. Without `crossed`, such
    sources are an error.

    Returns:
        The report has `pairs`, `languages` and `labels` (rows by label).
    """
    steps: list[AnyStep] = [NoLabel(), RemoveEvaluation(evaluation_texts)]
    for source in sources:
        if _is_wide(source) and not crossed:
            raise XlsrError(
                f"NLI data '{source.name}' are in two languages with an encoder each; name columns of one."
            )

    def read(quarantine: Quarantine) -> Iterator[Row]:
        options: dict[str, Any] = {"languages": languages, "quarantine": quarantine, "seed": seed}
        for source in sources:
            if _is_wide(source):
                rows = _crossed_rows(source, **options)
            else:
                rows = open_texts(source, NLI.texts, more=("label",), **options)
            yield from with_labels(rows, NLI_TASK, source.name, NLI.texts)

    clean = clean_rows(
        NLI,
        read,
        steps,
        partial(label_facts, task=NLI_TASK),
        sources=sources,
        key=list(languages),
        seed=seed,
        num_proc=num_proc,
    )
    return _with_names(clean, NLI_TASK)


def label_facts(rows: Dataset, task: LabelledTask) -> dict[str, Any]:
    """Counts of labelled rows for a report: `pairs` (rows), `languages` and `labels`."""
    num_rows = Counter(rows["label"])
    labels = {name: num_rows[number] for number, name in enumerate(task.labels)}
    return {"pairs": len(rows), "languages": sorted(rows.unique("lang")), "labels": labels}


def _with_names(clean: CleanRows, task: LabelledTask) -> CleanRows:
    """Rows whose labels have the names of their classes."""
    if not task.labels:
        return clean
    return replace(clean, rows=clean.rows.cast_column("label", ClassLabel(names=list(task.labels))))


def _sampling(fraction: float, seed: int) -> list[AnyStep]:
    return [Sample(fraction=fraction, seed=seed)] if fraction != 1.0 else []


def language_views(source: Source, languages: Sequence[str]) -> list[Source]:
    """A source with `{lang}` as one source per language, another one in its first language."""
    own_languages = source.languages_or(languages)
    if not source.is_template:
        own_languages = own_languages[:1]
    return list(map(source.in_language, own_languages))


def labelled_rows(
    sources: Iterable[Source],
    task: LabelledTask,
    *,
    languages: Sequence[str],
    split: str = "train",
    quarantine: Quarantine | None = None,
    seed: int = 1,
) -> Iterator[Row]:
    """Streams rows with the texts of the task, `lang`, and a numeric `label`, None where a row has none.

    Sources may contain `{lang}`, for each of their languages; `columns` maps those of the file to `text`, or `first` and
    `second`, and to `label`.
    """
    for source in sources:
        for view in language_views(source, languages):
            rows = open_texts(
                view,
                task.columns,
                languages=languages,
                more=("label",),
                split=split,
                quarantine=quarantine,
                seed=seed,
            )
            yield from with_labels(rows, task, view.name, task.columns)


def with_labels(
    rows: Iterable[Row],
    task: LabelledTask,
    name: str,
    columns: Sequence[str],
) -> Iterator[Row]:
    """Texts, `lang` and numeric `label` of the rows of a source, None where a row has none."""
    for number, row in enumerate(rows):
        text = {column: row[column] for column in (*columns, "lang")}
        try:
            yield {**text, "label": task.value(row["label"])}
        except (KeyError, ValueError):
            raise XlsrError(
                f"row {number} of '{name}' has label {row.get('label')!r:.40}; map the column of the labels to 'label' "
                f"in `columns`; {task.allowed}."
            ) from None


def _is_wide(source: Source) -> bool:
    return PLACEHOLDER in str(source.columns)


def _crossed_rows(
    source: Source,
    *,
    languages: Sequence[str],
    seed: int,
    quarantine: Quarantine,
) -> Iterator[Row]:
    """One pair per row of a wide file, premise and hypothesis in two languages whose cells are filled."""
    columns = source.column_map
    own_languages = source.languages_or(languages)
    wide: dict[str, str] = {"label": columns["label"]}
    for language in own_languages:
        for side in NLI.texts:
            wide[f"{side} {language}"] = columns[side].replace(PLACEHOLDER, language)

    rows = open_source(
        source,
        languages=own_languages,
        required=(),
        quarantine=quarantine,
        seed=seed,
        wide=wide,
    )
    for number, row in enumerate(rows):
        filled_languages = [language for language in own_languages if _is_filled(row, language)]
        if len(filled_languages) < 2:
            quarantine.reject(source.name, number + 1, "fewer than two languages filled", str(row["label"]))
            continue

        first = _drawn_below(len(filled_languages), seed, number, 0)
        premise_language = filled_languages.pop(first)
        second = first + _drawn_below(len(filled_languages), seed, number, 1)
        hypothesis_language = filled_languages[second % len(filled_languages)]
        yield {
            "premise": row[f"premise {premise_language}"],
            "hypothesis": row[f"hypothesis {hypothesis_language}"],
            "label": row["label"],
            "lang": premise_language,
        }


def _is_filled(row: Mapping[str, Any], language: str) -> bool:
    return all(str(row[f"{side} {language}"] or "").strip() for side in NLI.texts)


def _drawn_below(
    limit: int,
    seed: int,
    row: int,
    draw: int,
) -> int:
    return int(counter_uniform(seed, 0, np.array(row), draw) * limit)
