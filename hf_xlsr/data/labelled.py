"""Labelled texts and pairs of texts, also of natural language inference: tasks, evaluation sets, tokenised rows."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf

from hf_xlsr.data.cleaning import Cleaner, RemoveEvaluation, build_cleaner
from hf_xlsr.data.columns import filled, parse_columns
from hf_xlsr.data.encoding import LABELLED, NLI, Row, RowEncoder, RowKind, check_tokenizers, num_longer
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.masking import counter_uniform
from hf_xlsr.data.pairs import with_removal
from hf_xlsr.data.preparation import prepare_rows
from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.data.sources import as_list, as_source, default_language, open_source, open_texts, source_name
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

CLASS_METRICS = ("accuracy", "f1", "matthews")
SCORE_METRICS = ("pearson", "spearman")
# Labels of rows whose annotators disagreed or whose label is not public.
UNLABELLED = frozenset({"", "-", "-1", "none", "nan"})
# As in the training files of XNLI.
SYNONYMS = {"contradictory": "contradiction"}


@dataclass(frozen=True)
class LabelledTask:
    """A classification or regression of texts or pairs of texts.

    Args:
        texts: `pair` (columns `first` and `second`) or `single` (column `text`).
        labels: Names of the classes in the order of their numbers; none for a regression.
        scores: Lowest and highest score of a regression.
        metrics: `accuracy` (the default), `f1` (of the second of two classes) and `matthews` for classes, `pearson` and
            `spearman` (both by default) for scores.

    Examples:
        >>> task = LabelledTask(labels=("entailment", "neutral", "contradiction"))
        >>> task.value("Neutral"), task.value(2), task.value("-"), task.columns, task.metrics
        (1, 2, None, ('first', 'second'), ('accuracy',))
    """

    texts: str = "pair"
    labels: tuple[str, ...] = ()
    scores: tuple[float, float] | None = None
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        classes = len({str(name).strip().lower() for name in self.labels})
        if bool(self.labels) == bool(self.scores) or (self.labels and not 2 <= classes == len(self.labels)):
            raise XlsrError(
                f"task needs either two or more distinct `labels` or the lowest and highest of `scores`, got "
                f"task.labels {list(self.labels)} and task.scores {self.scores}."
            )
        known = CLASS_METRICS if self.labels else SCORE_METRICS
        object.__setattr__(self, "metrics", tuple(self.metrics) or (known[:1] if self.labels else known))
        for name in self.metrics:
            if name not in known or (name == "f1" and classes != 2):
                raise XlsrError(f"task.metrics: '{name}' is unsupported for this task; use {', '.join(known)}.")

    @property
    def kind(self) -> RowKind:
        kind = LABELLED[self.texts]
        return kind if self.labels else replace(kind, kept={"label": "float32"})

    @property
    def columns(self) -> tuple[str, ...]:
        return self.kind.texts

    @property
    def num_labels(self) -> int:
        return len(self.labels) or 1

    def value(self, label: Any) -> int | float | None:
        """The number of a class by its name or number, or a score; None for no label, `ValueError` for an invalid one."""
        text = str(label).strip().lower()
        if self.scores is not None:
            if text in UNLABELLED - {"-1"}:
                return None
            number, (least, most) = float(text), self.scores
        else:
            names = {name.strip().lower(): number for number, name in enumerate(self.labels)}
            name = SYNONYMS.get(text, text)
            if name in names:
                return names[name]
            if text.removesuffix(".0") in UNLABELLED:
                return None
            number, least, most = int(text.removesuffix(".0")), 0, len(self.labels) - 1
        if not least <= number <= most:
            raise ValueError(f"label {label!r} is out of range")
        return number

    @property
    def allowed(self) -> str:
        """The valid labels, for errors and cards."""
        if self.scores is not None:
            return f"scores are {self.scores[0]:g} to {self.scores[1]:g}"
        return f"labels are {', '.join(self.labels)}, or 0 to {len(self.labels) - 1}, or -1 for none"


def language_views(source: Any, languages: Sequence[str]) -> list[dict[str, Any]]:
    """Splits a source that contains `{lang}` into one source per language."""
    options = as_source(source)
    chosen = [str(language) for language in as_list(options.pop("languages", None)) or languages]
    wide = filled(options, "") != options
    return [{**filled(options, language), "languages": [language]} for language in (chosen if wide else chosen[:1])]


def labelled_rows(
    sources: Iterable[Any],
    task: LabelledTask,
    *,
    languages: Sequence[str],
    split: str = "train",
    quarantine: Quarantine | None = None,
    unlabelled: Counter[str] | None = None,
    seed: int = 1,
) -> Iterator[Row]:
    """Streams rows with the texts of the task, `lang`, and a numeric `label`.

    Sources may contain `{lang}`, for each of their languages; `columns` maps those of the file to `text`, or `first` and
    `second`, and to `label`. Rows without a label are skipped and counted in `unlabelled` by source.
    """
    missing = Counter[str]() if unlabelled is None else unlabelled
    options: dict[str, Any] = {"split": split, "quarantine": quarantine, "seed": seed}
    for view in [view for source in sources for view in language_views(source, languages)]:
        rows = open_texts(view, task.columns, languages=languages, more=("label",), **options)
        yield from with_labels(rows, task, source_name(view), missing)


def with_labels(
    rows: Iterable[Row], task: LabelledTask, place: str, unlabelled: Counter[str], columns: Sequence[str] = ()
) -> Iterator[Row]:
    """Texts, `lang` and numeric `label` of rows; those without a label are skipped and counted under `place`."""
    columns = columns or task.columns
    for number, row in enumerate(rows):
        try:
            label = task.value(row["label"])
        except (KeyError, ValueError):
            raise XlsrError(
                f"row {number} of '{place}' has label {row.get('label')!r:.40}; map the column of the labels to 'label' "
                f"in `columns`; {task.allowed}."
            ) from None
        if label is None:
            unlabelled[place] += 1
        else:
            yield {**{name: row[name] for name in (*columns, "lang")}, "label": label}


@dataclass
class LabelledSet:
    """Rows of an evaluation set; `name` is that in metric keys, `split` is `dev` or `test`."""

    name: str
    split: str
    rows: list[Row]
    task: LabelledTask
    _encoded: dict[tuple[int, int], list[Row]] = field(default_factory=dict, repr=False)

    def texts(self) -> Iterator[str]:
        """All texts, row by row."""
        return (row[name] for row in self.rows for name in self.task.columns)

    def features(self, tokenizer: Any, max_length: int) -> list[Row]:
        """The rows for `LabelledCollator`, without labels; tokenised once."""
        key = (id(tokenizer), max_length)
        if key not in self._encoded:
            texts = [[row[name] for row in self.rows] for name in self.task.columns]
            columns, _ = encode_texts(texts, tokenizer, max_length)
            self._encoded[key] = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return self._encoded[key]


def read_sets(
    sets: Mapping[str, Any] | None, task: LabelledTask, *, languages: Sequence[str], split: str, seed: int = 1
) -> list[LabelledSet]:
    """Reads the evaluation sets of a recipe's `data.dev` or `data.test`: name -> sources that together are one set."""
    result = []
    for name, sources in (sets or {}).items():
        missing = Counter[str]()
        common: dict[str, Any] = {"languages": languages, "split": split, "unlabelled": missing, "seed": seed}
        rows = list(labelled_rows(as_list(sources), task, **common))
        if missing:
            logger.warning("data.%s.%s: %d rows have no label and are skipped.", split, name, sum(missing.values()))
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
    evaluation_texts: Iterable[str] | SeenHashes,
    max_length: int = 128,
    cleaning: Any = (),
    fraction: float = 1.0,
    overlap: str = "text",
    seed: int = 1,
    **options: Any,
) -> PreparedRows:
    """Reads, cleans and tokenises labelled rows, or finds them in the cache.

    Args:
        sources: One source or several; see `labelled_rows`.
        evaluation_texts: Texts that are removed from training, or their `evaluation_keys`; with `overlap` `row`, texts of
            `row_text`: rows are removed only if all of their texts are in one row of an evaluation set.
        max_length: Longer rows are truncated to this many tokens, the longer text of a pair first.
        **options: `folder`, `limit` and `num_proc` of `prepare_rows`.

    Returns:
        Rows of `input_ids`, `label`, `lang` and, where the tokenizer has them, `token_type_ids`; the report has `pairs`
        (rows), `languages`, `labels` (rows by class) and `unlabelled` (skipped rows by source).
    """
    check_tokenizer(tokenizer, task)
    views = [view for source in as_list(sources) for view in language_views(source, languages)]
    cleaner = build_cleaner(cleaning or [], languages=list(languages))
    removal = {"text": RemoveEvaluation, "row": RemoveEvaluationRows}[overlap]
    unlabelled = Counter[str]()
    more: dict[str, Any] = {"languages": languages, "unlabelled": unlabelled, "seed": seed}
    _, rows, report = prepare_rows(
        task.kind,
        lambda quarantine: labelled_rows(views, task, quarantine=quarantine, **more),
        sources=views,
        languages=languages,
        cleaner=with_removal(cleaner, evaluation_texts, fraction, seed, removal),
        tokenizers=tokenizer,
        max_length=max_length,
        describe=lambda rows: {**label_facts(rows, task), "unlabelled": unlabelled},
        encoder=LabelledEncoder,
        key=task,
        seed=seed,
        **options,
    )
    return PreparedRows(rows, report)


def label_facts(rows: Dataset, task: LabelledTask) -> dict[str, Any]:
    """Counts of labelled rows for a report: `pairs` (rows), `languages` and `labels`."""
    by_label = Counter(rows["label"])
    labels = {name: by_label[number] for number, name in enumerate(task.labels)}
    return {"pairs": len(rows), "languages": sorted(rows.unique("lang")), "labels": labels}


class LabelledEncoder(RowEncoder):
    """Tokenises the texts of a row as one sequence."""

    @property
    def features(self) -> Features:
        ids = {name: ListOf(Value("int32")) for name in _id_columns(self.counts.tokenizers)}
        return Features(
            {**ids, "label": Value(self.kind.kept["label"]), "lang": Value("string"), "length": Value("int32")}
        )

    def encode(self, rows: Sequence[Row]) -> dict[str, Any]:
        texts, counts = [[row[name] for row in rows] for name in self.kind.texts], self.counts
        columns, truncated = encode_texts(texts, counts.tokenizers, counts.max_length)
        lengths = [len(ids) for ids in columns["input_ids"]]
        counts.counts["truncated"][""] += truncated
        counts.counts["tokens"][""] += sum(lengths)
        return {**columns, **{name: [row[name] for row in rows] for name in ("label", "lang")}, "length": lengths}


class RemoveEvaluationRows(RemoveEvaluation):
    """Removes rows whose `row_text` is among the evaluation texts, or one of whose texts is."""

    def apply(self, rows: list[Row]) -> list[Row | None]:
        # Held-out sources are removed text by text, evaluation sets row by row.
        kept = super().apply([{**row, "text": row_text(row)} for row in rows])
        return [row if one is not None else None for row, one in zip(rows, kept, strict=True)]


def row_text(row: Mapping[str, Any]) -> str:
    """The texts of a row joined by a tab."""
    return "\t".join(row[name] for name in ("text", "first", "second") if name in row)


def check_tokenizer(tokenizer: Any, task: LabelledTask) -> None:
    """Raises an error for a tokenizer without a special token before a text or between two texts."""
    texts = len(task.columns)
    first = tokenizer(*["a"] * texts)["input_ids"][0]
    if first not in tokenizer.all_special_ids or tokenizer.num_special_tokens_to_add(pair=texts == 2) < texts:
        raise XlsrError("the tokenizer must put a special token before a text and between two, as those of BERT do.")


def encode_texts(
    sides: Sequence[Sequence[str]], tokenizer: Any, max_length: int
) -> tuple[dict[str, list[list[int]]], int]:
    """Tokenises texts, or pairs of texts as one sequence each; the longer text of a pair is truncated first.

    Returns:
        `input_ids` and, where the tokenizer has them, `token_type_ids`; and how many rows were truncated.
    """
    columns = _id_columns(tokenizer)
    options = {"return_attention_mask": False, "return_token_type_ids": len(columns) == 2, "verbose": False}
    encoded = tokenizer(*map(list, sides), truncation="longest_first", max_length=max_length, **options)

    def whole_rows(numbers: list[int]) -> Any:
        chosen = [[side[number] for number in numbers] for side in sides]
        return tokenizer(*chosen, truncation=False, **options)["input_ids"]

    return {name: encoded[name] for name in columns}, num_longer(encoded["input_ids"], max_length, whole_rows)


def _id_columns(tokenizer: Any) -> list[str]:
    return [name for name in ("input_ids", "token_type_ids") if name in tokenizer.model_input_names]


NLI_TASK = LabelledTask(labels=("entailment", "neutral", "contradiction"))


def prepare_nli(
    sources: Any,
    *,
    languages: Sequence[str],
    tokenizers: Any,
    evaluation_texts: Iterable[str] | SeenHashes,
    seed: int = 1,
    **options: Any,
) -> PreparedRows:
    """Reads, cleans and tokenises inference rows, or finds them in the cache; `options` are those of `prepare_rows`.

    Sources have rows of `premise`, `hypothesis`, `label` (as in `NLI_TASK`) and perhaps `lang`. Of a file with a column
    per language, `columns` with `premise=premise_{lang}` and `hypothesis=hypothesis_{lang}` gives one pair per row in two
    different languages, drawn by the seed; `lang` is that of the premise.

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
                raise XlsrError(f"NLI data '{place}' are in two languages with an encoder each; name columns of one.")
            else:
                rows = _crossed_rows(source, **common)
            yield from with_labels(rows, NLI_TASK, place, unlabelled, NLI.texts)

    _, rows, report = prepare_rows(
        NLI,
        read,
        sources=sources,
        languages=languages,
        cleaner=with_removal(Cleaner(), evaluation_texts),
        tokenizers=tokenizers,
        describe=lambda rows: {**label_facts(rows, NLI_TASK), "unlabelled": unlabelled.total()},
        seed=seed,
        **options,
    )
    return PreparedRows(rows, report)


def _crossed_rows(source: Any, *, languages: Sequence[str], seed: int, quarantine: Quarantine) -> Iterator[Row]:
    """One pair per row of a wide file, premise and hypothesis in two languages whose cells are filled."""
    columns = parse_columns(as_source(source)["columns"])
    wanted = [str(language) for language in as_list(as_source(source).get("languages")) or languages]
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
        lang, other = filled[first], filled[(first + step) % len(filled)]
        texts = {"premise": row[f"premise {lang}"], "hypothesis": row[f"hypothesis {other}"]}
        yield {**texts, "label": row["label"], "lang": lang}
