"""Labelled texts and pairs of texts, tokenised: what classifiers are trained and evaluated on."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, Value, load_from_disk
from datasets import Sequence as ListOf

from hf_xlsr.data.cleaning import RemoveEvaluation, Sample, build_cleaner
from hf_xlsr.data.collators.lightweight import pad_rows
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.labelled_tasks import LabelledTask, labelled_rows, language_views
from hf_xlsr.data.prepare import prepare_once
from hf_xlsr.data.prepared import PreparedByLanguage, map_rows, store_rows
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list
from hf_xlsr.utils.errors import XlsrError, nearest

logger = logging.getLogger(__name__)

OVERLAPS = ("text", "row")
EMPTY = (
    "no labelled row is left: none was read, none has a label, or all are in evaluation sets; check data.train and the "
    "counts of data.cleaning."
)


class PreparedLabelled(PreparedByLanguage):
    """Tokenised labelled rows, fetched by the `(epoch, index)` keys of `LengthBucketBatchSampler`.

    Each is a mapping with `input_ids`, `label` (number of a class, or a score), `lang`, `index` and `epoch`, and with
    `token_type_ids` where the tokenizer gives them.

    Args:
        tokenised: What `prepare_labelled` writes.
        report: Its counts: `pairs` (rows), `languages` (the language of each group), `labels` (rows by class),
            `unlabelled` (rows left out, by source), `cleaning` (rows in and out by step), `rejected` (bad lines by
            reason), `truncated_sides` (rows cut), `pieces`.

    Attributes:
        lengths: Length of each row, in pieces, `(n,)`.
        groups: Group of each row, by language, `(n,)`.

    Raises:
        XlsrError: the data was tokenised by a version that kept less of it.

    Example:
        >>> rows = {"input_ids": [[0, 4, 2, 2, 5, 2]], "label": [1], "length": [6], "group": [0]}
        >>> row = PreparedLabelled(Dataset.from_dict(rows), {"languages": ["en"]})[0, 0]
        >>> row["label"], row["lang"]
        (1, 'en')
    """

    def __init__(self, tokenised: Dataset, report: Mapping[str, Any]) -> None:
        types = ["token_type_ids"] if "token_type_ids" in tokenised.column_names else []
        super().__init__(tokenised, report, ["input_ids", *types, "label"])
        self.labels = np.asarray(tokenised.select_columns(["label"]).with_format("arrow")[:]["label"])


class LabelledCollator:
    """Pads rows on the right.

    Args:
        pad_id: Id of the tokenizer's padding token.
        max_length: Longest row that is to come, in pieces; rows come cut, since where a pair is cut is the tokenizer's
            to say.
        pad_to_multiple_of: Rounds the length up; 8 suits the matrix units of GPUs.

    Returns:
        `input_ids`, `attention_mask` and, if the rows have them, `token_type_ids`, each `(batch, length)`, int64; if the
        rows have them also `labels`, `(batch,)`, int64 for classes and float32 for scores.

    Example:
        >>> batch = LabelledCollator(1)([{"input_ids": [0, 7, 2], "label": 1}, {"input_ids": [0, 2], "label": 0}])
        >>> batch["input_ids"].tolist(), batch["labels"].tolist()
        ([[0, 7, 2], [0, 2, 1]], [1, 0])
    """

    def __init__(self, pad_id: int, *, max_length: int = 128, pad_to_multiple_of: int = 1) -> None:
        self.pad_id, self.max_length, self.pad_to_multiple_of = pad_id, max_length, pad_to_multiple_of

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        rounding = self.pad_to_multiple_of, self.max_length
        ids, mask = pad_rows([feature["input_ids"] for feature in features], self.pad_id, *rounding)
        batch = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        if "token_type_ids" in features[0]:
            types, _ = pad_rows([feature["token_type_ids"] for feature in features], 0, *rounding)
            batch["token_type_ids"] = torch.from_numpy(types)
        if "label" in features[0]:
            batch["labels"] = torch.tensor([feature["label"] for feature in features])
        return batch


@dataclass
class LabelledSet:
    """Rows to evaluate on.

    Args:
        name: What metric keys call it.
        split: `dev` or `test`.
        rows: As `labelled_rows` gives them.
        task: What they hold.
    """

    name: str
    split: str
    rows: list[dict[str, Any]]
    task: LabelledTask
    _encoded: dict[tuple[int, int], list[dict[str, Any]]] = field(default_factory=dict, repr=False)

    def texts(self) -> Iterator[str]:
        """All texts, row by row."""
        return (row[name] for row in self.rows for name in self.task.columns)

    def features(self, tokenizer: Any, max_length: int) -> list[dict[str, Any]]:
        """The rows as `LabelledCollator` takes them, without labels; tokenised once."""
        key = (id(tokenizer), max_length)
        if key not in self._encoded:
            columns, _ = encode_texts(
                [[row[name] for row in self.rows] for name in self.task.columns], tokenizer, max_length
            )
            self._encoded[key] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return self._encoded[key]


def read_sets(
    sets: Mapping[str, Any] | None, task: LabelledTask, *, languages: Sequence[str], split: str, seed: int = 1
) -> list[LabelledSet]:
    """The evaluation sets that `data.dev` or `data.test` of a recipe names.

    Args:
        sets: Name -> source or list of sources, which together are one set.
        task: What the rows hold.
        languages: Of the recipe.
        split: `dev` or `test`.
        seed: Chooses the rows of a source with `sample`.

    Raises:
        XlsrError: it is no such mapping, a set has no labelled row, or what readers raise.
    """
    if sets is not None and (not isinstance(sets, Mapping) or "path" in sets or "corpus" in sets):
        raise XlsrError(f"data.{split} is {sets!r:.60}; give each set a name: {{mrpc: {{path: ..., columns: ...}}}}.")
    result = []
    for name, sources in (sets or {}).items():
        missing: Counter[str] = Counter()
        common: dict[str, Any] = {"languages": languages, "split": split, "unlabelled": missing, "seed": seed}
        rows = list(labelled_rows(as_list(sources), task, **common))
        if missing:
            logger.warning("data.%s.%s: %d rows have no label and are left out", split, name, sum(missing.values()))
        if not rows:
            raise XlsrError(f"data.{split}.{name} has no labelled row; check its path, columns and conditions.")
        result.append(LabelledSet(str(name), split, rows, task))
    return result


def prepare_labelled(
    sources: Any,
    *,
    task: LabelledTask,
    languages: Sequence[str],
    tokenizer: Any,
    folder: str | Path,
    evaluation_texts: Iterable[str] | SeenHashes,
    max_length: int = 128,
    cleaning: Any = (),
    fraction: float = 1.0,
    limit: int | None = None,
    overlap: str = "text",
    seed: int = 1,
) -> PreparedLabelled:
    """Reads, cleans and tokenises labelled rows into `folder`, or takes what a finished call left there.

    Args:
        sources: One source or several; see `labelled_rows`.
        task: What the rows hold.
        languages: Of the recipe.
        tokenizer: Of the encoder; pairs are tokenised as it does pairs.
        folder: Gets `data/`, `rejected.jsonl` and, last of all, `prepared.json`.
        evaluation_texts: Texts that are removed from training, or their keys from `evaluation_keys`. For `overlap` `row`
            texts of `row_text`.
        max_length: Longest row kept whole, in pieces; of a longer pair the longer text is cut first. 128 is what the
            paper pre-trains with; of fine-tuning it says nothing.
        cleaning: Steps as in a recipe.
        fraction: Share of the rows that is kept.
        limit: At most so many of the clean rows.
        overlap: `text` removes rows with a text of an evaluation set; `row` only rows all of whose texts stand in one row
            of an evaluation set. The second is for data whose splits share texts by design: of Quora's question pairs a
            large share of the training set has a question that also stands in the development set.
        seed: Chooses the rows of a source with `sample`, and those of `fraction`.

    Returns:
        The rows, with their counts.

    Raises:
        XlsrError: what readers raise; a label that is none; a tokenizer without special tokens; `overlap` is unknown; no
            row is left.
    """
    check_tokenizer(tokenizer, task, max_length)
    if overlap not in OVERLAPS:
        raise XlsrError(f"data.overlap is '{overlap}'; {nearest(str(overlap), OVERLAPS)}")
    views = [view for source in as_list(sources) for view in language_views(source, languages)]
    if not views:
        raise XlsrError("the recipe has no data.train; name a path there.")

    def make() -> dict[str, Any]:
        cleaner = build_cleaner(cleaning or [], languages=list(languages))
        cleaner.steps.append(
            RemoveEvaluationRows(evaluation_texts) if overlap == "row" else RemoveEvaluation(evaluation_texts)
        )
        if fraction != 1.0:
            cleaner.steps.append(Sample(fraction=fraction, seed=seed))
        unlabelled: Counter[str] = Counter()
        with Quarantine(target / "rejected.jsonl") as quarantine:
            read = labelled_rows(
                views, task, languages=languages, quarantine=quarantine, unlabelled=unlabelled, seed=seed
            )
            rows = store_rows(islice(cleaner(read), limit), _row_features(task), target / "rows", empty=EMPTY)
            rejected = dict(quarantine.counts)
        tokenised, counts = _tokenize(rows, task, tokenizer, max_length)
        tokenised.save_to_disk(str(target / "data"))
        return {**counts, "unlabelled": unlabelled, "cleaning": dict(cleaner.counts), "rejected": rejected}

    target = Path(folder)
    report = prepare_once(target, views, make)
    return PreparedLabelled(load_from_disk(str(target / "data")), report)


class RemoveEvaluationRows(RemoveEvaluation):
    """Removes rows whose texts together, as `row_text` joins them, or one of whose texts is among those of evaluation."""

    def apply(self, rows: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
        # The texts of a pair beside them both: what is held out comes text by text.
        kept = super().apply([{**row, "text": row_text(row)} for row in rows])
        return [row if one is not None else None for row, one in zip(rows, kept, strict=True)]


def row_text(row: Mapping[str, Any]) -> str:
    """The texts of a row as one.

    Example:
        >>> row_text({"first": "Who?", "second": "Why?", "lang": "en", "label": 0})
        'Who?\\tWhy?'
    """
    return "\t".join(row[name] for name in ("text", "first", "second") if name in row)


def check_tokenizer(tokenizer: Any, task: LabelledTask, max_length: int) -> None:
    """Refuses a tokenizer without a token in front, whose state is classified, or without one between two texts.

    Raises:
        XlsrError: as said, or `max_length` leaves no room for a piece of each text.
    """
    texts = len(task.columns)
    first = tokenizer(*["a"] * texts)["input_ids"][0]
    special = tokenizer.num_special_tokens_to_add(pair=texts == 2)
    if first not in tokenizer.all_special_ids or special < texts:
        raise XlsrError(
            "the tokenizer puts no special token in front of a text or between two, which classification needs; take "
            "an encoder whose tokenizer does, as XLM-R's and BERT's do."
        )
    if max_length < special + texts:
        raise XlsrError(
            f"data.max_length is {max_length}; special tokens and a piece of each text need {special + texts}: raise it."
        )


def encode_texts(
    sides: Sequence[Sequence[str]], tokenizer: Any, max_length: int
) -> tuple[dict[str, list[list[int]]], int]:
    """Tokenises texts, or pairs of them in one row each, and cuts what is too long, the longer text of a pair first.

    Args:
        sides: The texts, or the first and the second ones.
        tokenizer: Of the encoder.
        max_length: In pieces, special tokens among them.

    Returns:
        `input_ids` and, where the tokenizer gives them, `token_type_ids`; and how many rows were cut.
    """
    columns = id_columns(tokenizer)
    options = {"return_attention_mask": False, "return_token_type_ids": len(columns) == 2, "verbose": False}
    cut = tokenizer(*map(list, sides), truncation="longest_first", max_length=max_length, **options)
    # Tokenizers do not say whether they cut; only rows that fill the limit can be longer.
    full = [place for place, ids in enumerate(cut["input_ids"]) if len(ids) == max_length]
    whole = tokenizer(*([side[place] for place in full] for side in sides), **options)["input_ids"] if full else []
    return {name: cut[name] for name in columns}, sum(len(ids) > max_length for ids in whole)


def id_columns(tokenizer: Any) -> list[str]:
    """What a tokenizer gives of each piece: its id, and with some the number of its text."""
    return [name for name in ("input_ids", "token_type_ids") if name in tokenizer.model_input_names]


def _row_features(task: LabelledTask) -> Features:
    label = Value("int32" if task.labels else "float32")
    return Features({**{name: Value("string") for name in (*task.columns, "lang")}, "label": label})


def _tokenize(rows: Dataset, task: LabelledTask, tokenizer: Any, max_length: int) -> tuple[Dataset, dict[str, Any]]:
    """Rows as ids, with the counts of `PreparedLabelled`."""
    found = rows.select_columns(["lang", "label"]).with_format("arrow")[:]
    languages = sorted(found["lang"].unique().to_pylist())
    groups = {language: number for number, language in enumerate(languages)}
    counts = {"pairs": len(rows), "truncated_sides": 0, "pieces": 0}

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        columns, truncated = encode_texts([batch[name] for name in task.columns], tokenizer, max_length)
        lengths = [len(ids) for ids in columns["input_ids"]]
        counts["truncated_sides"] += truncated
        counts["pieces"] += sum(lengths)
        group = [groups[language] for language in batch["lang"]]
        return {**columns, "label": batch["label"], "length": lengths, "group": group}

    features: dict[str, Any] = {
        **{
            name: ListOf(Value("int32"))
            for name in ("input_ids", "token_type_ids")
            if name in tokenizer.model_input_names
        },
        "label": rows.features["label"],
        **{name: Value("int32") for name in ("length", "group")},
    }
    tokenised = map_rows(rows, encode, features)
    labels = Counter(found["label"].to_pylist()) if task.labels else {}
    named = {name: labels[number] for number, name in enumerate(task.labels)}
    return tokenised, {**counts, "languages": languages, "labels": named}
