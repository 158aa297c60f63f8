"""What labelled rows hold: classifications and regressions of texts, and their evaluation sets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from hf_xlsr.data.columns import Row
from hf_xlsr.data.encoding import LABELLED, RowKind, column_rows, encode_texts, row_columns
from hf_xlsr.utils.errors import XlsrError, require_choice

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
        num_classes = len(self._numbers)
        has_classes = num_classes > 1 and num_classes == len(self.labels)
        if bool(self.labels) == bool(self.scores) or (self.labels and not has_classes):
            raise XlsrError(
                "task needs either two or more distinct task.labels, or the lowest and the highest of task.scores."
            )

        supported = CLASS_METRICS if self.labels else SCORE_METRICS
        default = CLASS_METRICS[:1] if self.labels else SCORE_METRICS
        object.__setattr__(self, "metrics", tuple(self.metrics) or default)

        for name in self.metrics:
            require_choice("task.metrics", name, supported)
        if "f1" in self.metrics and num_classes != 2:
            raise XlsrError(f"task.metrics: f1 needs two classes, got {num_classes}.")

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The number of each class by its name in lower case."""
        return {str(name).strip().lower(): number for number, name in enumerate(self.labels)}

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
        lowest: float
        highest: float
        if self.scores is not None:
            lowest, highest = self.scores
            unlabelled = UNLABELLED - {"-1"}
        else:
            class_name = SYNONYMS.get(text, text)
            if class_name in self._numbers:
                return self._numbers[class_name]
            lowest = 0
            highest = len(self.labels) - 1
            unlabelled = UNLABELLED
            text = text.removesuffix(".0")

        if text in unlabelled:
            return None
        number = float(text) if self.scores else int(text)
        if not lowest <= number <= highest:
            raise ValueError(f"label {label!r} is out of range")
        return number

    @property
    def allowed(self) -> str:
        """The valid labels, for errors and cards."""
        if self.scores is not None:
            return f"scores are {self.scores[0]:g} to {self.scores[1]:g}"
        return f"labels are {', '.join(self.labels)}, or 0 to {len(self.labels) - 1}, or -1 for none"


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
            texts = row_columns(self.rows, self.task.columns)
            columns, _ = encode_texts(list(texts.values()), tokenizer, max_length)
            self._encoded[key] = list(column_rows(columns))
        return self._encoded[key]


NLI_TASK = LabelledTask(labels=("entailment", "neutral", "contradiction"))


def check_framing(tokenizer: Any, num_texts: int) -> None:
    """Raises an error for a tokenizer without a special token before a text or between two texts."""
    first = tokenizer(*["a"] * num_texts)["input_ids"][0]
    num_special = tokenizer.num_special_tokens_to_add(pair=num_texts == 2)
    if first not in tokenizer.all_special_ids or num_special < num_texts:
        raise XlsrError("the tokenizer must put a special token before a text and between two, as those of BERT do.")
