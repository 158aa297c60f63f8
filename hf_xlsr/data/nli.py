"""Labelled pairs of natural language inference, tokenised once: the second task of multi-task training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hf_xlsr.data.cleaning import Cleaner
from hf_xlsr.data.columns import parse_columns
from hf_xlsr.data.encoding import NLI, Row, check_tokenizers
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.labelled import LabelledTask, label_facts, with_labels
from hf_xlsr.data.masking import counter_uniform
from hf_xlsr.data.pairs import with_removal
from hf_xlsr.data.preparation import prepare_rows
from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, as_source, default_language, open_source, open_texts, source_name
from hf_xlsr.utils.errors import XlsrError

LABEL_NAMES = ("entailment", "neutral", "contradiction")
TASK = LabelledTask(labels=LABEL_NAMES)


def prepare_nli(
    sources: Any,
    *,
    languages: Sequence[str],
    tokenizers: Any,
    evaluation_texts: Iterable[str] | SeenHashes,
    seed: int = 1,
    **options: Any,
) -> PreparedRows:
    """Reads, cleans and tokenises labelled pairs, or finds them in the cache.

    Sources have rows of `premise`, `hypothesis`, `label` (see `label_number`) and perhaps `lang`. Of a file with a column
    per language, `columns` with `premise=premise_{lang}` and `hypothesis=hypothesis_{lang}` gives one pair per row in two
    different languages, drawn by the seed; `lang` is that of the premise. `options` are those of `prepare_rows`.

    Returns:
        Rows of `premise_ids`, `hypothesis_ids`, `label` and `lang`; the report has `pairs`, `languages`, `labels` (rows
        by label) and `unlabelled` (skipped rows).
    """
    sources, unlabelled = as_list(sources), Counter[str]()
    check_tokenizers(tokenizers, [default_language(source, languages) for source in sources])

    def read(quarantine: Quarantine) -> Iterator[Row]:
        common: dict[str, Any] = {"languages": languages, "quarantine": quarantine, "seed": seed}
        for source in sources:
            place = source_name(source)
            if "{lang}" not in str(as_source(source).get("columns")):
                rows = open_texts(source, NLI.texts, more=("label",), **common)
            elif isinstance(tokenizers, Mapping):
                raise XlsrError(
                    f"NLI data '{place}' has premise and hypothesis in two languages, but each language has its own "
                    "encoder; name the columns of one language."
                )
            else:
                rows = _crossed_rows(source, **common)
            for row in with_labels(rows, TASK, place, unlabelled):
                yield {name: row[name] for name in (*NLI.texts, "label", "lang")}

    _, rows, report = prepare_rows(
        NLI,
        read,
        sources=sources,
        languages=languages,
        cleaner=with_removal(Cleaner(), evaluation_texts),
        tokenizers=tokenizers,
        describe=lambda rows: {**label_facts(rows, TASK), "unlabelled": unlabelled.total()},
        seed=seed,
        **options,
    )
    return PreparedRows(rows, report)


def label_number(label: Any) -> int | None:
    """The number of an NLI label (0 entailment, 1 neutral, 2 contradiction) or word; None for nothing, `-` and -1."""
    number = TASK.value(label)
    return None if number is None else int(number)


def _crossed_rows(source: Any, *, languages: Sequence[str], seed: int, quarantine: Quarantine) -> Iterator[Row]:
    """One pair per row of a wide file, premise and hypothesis in two languages whose cells are filled."""
    columns = parse_columns(as_source(source)["columns"])
    wanted = [str(language) for language in as_list(as_source(source).get("languages")) or languages]
    if (
        len(set(wanted)) < 2
        or not all("{lang}" in columns.get(side, "") for side in NLI.texts)
        or "label" not in columns
    ):
        raise XlsrError(
            f"NLI data '{source_name(source)}' needs two or more `languages`, and `columns` with {{lang}} in premise and "
            "hypothesis, and with label."
        )
    wide = {f"{side} {code}": columns[side].replace("{lang}", code) for side in NLI.texts for code in wanted}
    wide["label"] = columns["label"]
    rows = open_source(source, languages=wanted, required=(), quarantine=quarantine, seed=seed, wide=wide)
    for number, row in enumerate(rows):
        filled = [code for code in wanted if all(str(row[f"{side} {code}"] or "").strip() for side in NLI.texts)]
        if len(filled) < 2:
            quarantine.reject(source_name(source), number + 1, "fewer than two languages filled", str(row["label"]))
            continue
        first = int(counter_uniform(seed, 0, np.array(number), 0) * len(filled))
        step = 1 + int(counter_uniform(seed, 0, np.array(number), 1) * (len(filled) - 1))
        premise, hypothesis = filled[first], filled[(first + step) % len(filled)]
        yield {
            "premise": row[f"premise {premise}"],
            "hypothesis": row[f"hypothesis {hypothesis}"],
            "label": row["label"],
            "lang": premise,
        }
