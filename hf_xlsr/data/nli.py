"""Labelled pairs of natural language inference, tokenised once: the second stream of multi-task training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value, load_from_disk
from datasets import Sequence as ListOf

from hf_xlsr.data.cleaning import Cleaner, RemoveEvaluation
from hf_xlsr.data.collators.counter_random import counter_uniform
from hf_xlsr.data.columns import parse_columns
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.piece_counts import PieceCounts
from hf_xlsr.data.prepare import prepare_once, vocabulary_hash
from hf_xlsr.data.prepared import (
    PreparedByLanguage,
    check_tokenizers,
    map_rows,
    store_rows,
)
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, as_source, open_source, source_name
from hf_xlsr.utils.errors import XlsrError

LABEL_NAMES = ("entailment", "neutral", "contradiction")
LABELS = {name: number for number, name in enumerate(LABEL_NAMES)} | {"0": 0, "1": 1, "2": 2}
LABELS["contradictory"] = 2  # what the training files of XNLI say
# What corpora write where the annotators did not agree or the label is not public.
UNLABELLED = frozenset({"", "-", "-1", "none", "nan"})
SIDES = ("premise", "hypothesis")
_FEATURES = Features({**{name: Value("string") for name in (*SIDES, "lang")}, "label": Value("int8")})


class PreparedNli(PreparedByLanguage):
    """Tokenised premises and hypotheses, fetched by the `(epoch, index)` keys of `LengthBucketBatchSampler`.

    Each is a mapping with `premise_ids`, `hypothesis_ids`, `label` (0 entailment, 1 neutral, 2 contradiction), `lang`,
    `index` and `epoch`.

    Args:
        tokenised: What `prepare_nli` writes.
        report: Its counts: `pairs`, `languages` (the language of each group), `labels` (rows by label), `unlabelled`
            and `evaluation` (rows left out), `rejected` (bad lines by reason), `truncated_sides`, `pieces`.

    Attributes:
        lengths: Length of the longer side of each pair, in pieces, `(n,)`.
        groups: Group of each pair, by language, `(n,)`.

    Raises:
        XlsrError: the data was tokenised by a version that kept less of it.

    Example:
        >>> rows = {"premise_ids": [[4, 5]], "hypothesis_ids": [[6]], "label": [2], "length": [2], "group": [0]}
        >>> pair = PreparedNli(Dataset.from_dict(rows), {"languages": ["en"]})[0, 0]
        >>> pair["label"], pair["lang"]
        (2, 'en')
    """

    def __init__(self, tokenised: Dataset, report: Mapping[str, Any]) -> None:
        super().__init__(tokenised, report, [*(f"{side}_ids" for side in SIDES), "label"])


def prepare_nli(
    sources: Any,
    *,
    languages: Sequence[str],
    tokenizers: Any,
    folder: str | Path,
    evaluation_texts: Iterable[str] | SeenHashes,
    max_length: int = 200,
    seed: int = 1,
) -> PreparedNli:
    """Reads, cleans and tokenises labelled pairs into `folder`, or takes what a finished call left there.

    Args:
        sources: One source or several, as in a recipe's `data.train`: rows of `premise`, `hypothesis`, `label`
            (numbers or words, see `label_number`) and, if a file has it, `lang`; or a corpus such as `snli`. A file with
            a column for each language is read crosswise where `columns` says `premise=premise_{lang}` and
            `hypothesis=hypothesis_{lang}`: each row gives one pair, in two different ones of the source's languages,
            drawn by the seed; `lang` is then that of the premise.
        languages: Languages of the recipe. Rows that do not name theirs are in the first of their source's
            `languages`, else in the first of these, which is also the language that a corpus is read in.
        tokenizers: Language -> tokenizer, or one tokenizer for all.
        folder: Gets `data/`, `rejected.jsonl` and, last of all, `prepared.json`. Not the folder of the pairs.
        evaluation_texts: Sentences that are removed from training, on either side, or their keys from
            `evaluation_keys`.
        max_length: Longest sentence kept whole, in pieces.
        seed: Chooses the rows of a source with `sample`.

    Returns:
        The pairs, with their counts.

    Raises:
        XlsrError: what readers raise; a file without labels; a label that is none; a language without tokenizer; no
            row is left.
    """
    folder, sources = Path(folder), as_list(sources)
    report = prepare_once(
        folder,
        sources,
        lambda: _prepare_fresh(sources, list(languages), tokenizers, folder, evaluation_texts, max_length, seed),
        vocabulary_hash(tokenizers),
    )
    return PreparedNli(load_from_disk(str(folder / "data")), report)


def label_number(label: Any) -> int | None:
    """The number of a label; None where there is none.

    Args:
        label: 0 entailment, 1 neutral, 2 contradiction, or these words; `contradictory` is understood. Nothing, `-`
            and -1 stand for no label.

    Raises:
        ValueError: it is something else.

    Example:
        >>> label_number("neutral"), label_number(2), label_number("-")
        (1, 2, None)
    """
    text = str(label).strip().lower().removesuffix(".0")
    if text in UNLABELLED:
        return None
    if text not in LABELS:
        raise ValueError(f"{label!r} is no label")
    return LABELS[text]


def _prepare_fresh(
    sources: Sequence[Any],
    languages: Sequence[str],
    tokenizers: Any,
    folder: Path,
    evaluation_texts: Iterable[str] | SeenHashes,
    max_length: int,
    seed: int,
) -> dict[str, Any]:
    check_tokenizers(tokenizers, [_default_language(source, languages) for source in sources])
    unlabelled = [0]
    removal = Cleaner([RemoveEvaluation(evaluation_texts)])
    with Quarantine(folder / "rejected.jsonl") as quarantine:
        read = _labelled_rows(sources, languages, tokenizers, seed, quarantine, unlabelled)
        rows = store_rows(
            removal(read),
            _FEATURES,
            folder / "rows",
            empty="no labelled pair of premise and hypothesis is left: none was read, none has a label, or all are in "
            "evaluation sets; check the NLI sources.",
        )
        rejected = dict(quarantine.counts)
    tokenised, counts = _tokenize(rows, tokenizers, max_length)
    tokenised.save_to_disk(str(folder / "data"))
    (removed,) = removal.counts.values()
    return {
        **counts,
        "unlabelled": unlabelled[0],
        "evaluation": removed["in"] - removed["out"],
        "rejected": rejected,
    }


def _default_language(source: Any, languages: Sequence[str]) -> str:
    return str((as_list(as_source(source).get("languages")) or languages)[0])


def _labelled_rows(
    sources: Sequence[Any],
    languages: Sequence[str],
    tokenizers: Any,
    seed: int,
    quarantine: Quarantine,
    unlabelled: list[int],
) -> Iterator[dict[str, Any]]:
    """Rows with number and language; those without a label are counted in `unlabelled`."""
    for source in sources:
        place, default = source_name(source), _default_language(source, languages)
        crossed = "{lang}" in str(as_source(source).get("columns"))
        if crossed and isinstance(tokenizers, Mapping):
            raise XlsrError(
                f"NLI data '{place}' has premise and hypothesis in two languages, but each language has an encoder of "
                "its own here; name the columns of one language."
            )
        rows = (
            _crossed_rows(source, languages, seed, quarantine)
            if crossed
            else open_source(
                source,
                languages=[default],
                required=SIDES,
                optional=("label", "lang"),
                quarantine=quarantine,
                seed=seed,
            )
        )
        for number, row in enumerate(rows):
            if "label" not in row:
                raise XlsrError(f"NLI data '{place}' has no column 'label'; name the one that holds it in 'columns'.")
            try:
                label = label_number(row["label"])
            except ValueError:
                raise XlsrError(
                    f"row {number} of NLI data '{place}' has label {row['label']!r:.40}; labels are entailment, "
                    "neutral, contradiction, or 0, 1, 2, or -1 for none."
                ) from None
            if label is None:
                unlabelled[0] += 1
                continue
            lang = row.get("lang") or default
            check_tokenizers(tokenizers, [lang])
            yield {"premise": row["premise"], "hypothesis": row["hypothesis"], "lang": lang, "label": label}


def _crossed_rows(
    source: Any, languages: Sequence[str], seed: int, quarantine: Quarantine
) -> Iterator[dict[str, Any]]:
    """One pair of each row of a wide file, premise and hypothesis in two languages whose cells are filled."""
    columns = parse_columns(as_source(source)["columns"])
    wanted = [str(language) for language in as_list(as_source(source).get("languages")) or languages]
    if len(set(wanted)) < 2 or not all("{lang}" in columns.get(side, "") for side in SIDES) or "label" not in columns:
        raise XlsrError(
            f"NLI data '{source_name(source)}' is read crosswise and takes two languages or more and columns for "
            "premise={lang}, hypothesis={lang} and label; name them in 'languages' and 'columns'."
        )
    wide = {f"{side} {code}": columns[side].replace("{lang}", code) for side in SIDES for code in wanted}
    wide["label"] = columns["label"]
    rows = open_source(source, languages=wanted, required=(), quarantine=quarantine, seed=seed, wide=wide)
    for number, row in enumerate(rows):
        filled = [code for code in wanted if all(str(row[f"{side} {code}"] or "").strip() for side in SIDES)]
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


def _tokenize(rows: Dataset, tokenizers: Any, max_length: int) -> tuple[Dataset, dict[str, Any]]:
    """Rows as ids, with the counts of `PreparedNli`."""
    languages = sorted({lang for batch in rows.select_columns(["lang"]).iter(10_000) for lang in batch["lang"]})
    groups = {language: number for number, language in enumerate(languages)}
    counts = PieceCounts(tokenizers, max_length)
    labels = dict.fromkeys(LABEL_NAMES, 0)

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        ids = {side: counts.tokenize(batch[side], batch["lang"]) for side in SIDES}
        lengths = [[len(row) for row in ids[side]] for side in SIDES]
        for label in batch["label"]:
            labels[LABEL_NAMES[label]] += 1
        return {
            **{f"{side}_ids": ids[side] for side in SIDES},
            "label": batch["label"],
            "length": [max(pair) for pair in zip(*lengths, strict=True)],
            "group": [groups[language] for language in batch["lang"]],
        }

    features = {
        **{f"{side}_ids": ListOf(Value("int32")) for side in SIDES},
        **{name: Value("int32") for name in ("label", "length", "group")},
    }
    tokenised = map_rows(rows, encode, features)
    return tokenised, {"pairs": len(rows), **counts.report(), "languages": languages, "labels": labels}
