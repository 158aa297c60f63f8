"""Labelled tasks: what their rows hold and where these come from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.nli import UNLABELLED
from hf_xlsr.data.sources import as_list, as_source, open_source, source_name
from hf_xlsr.utils.errors import XlsrError, nearest

TEXTS = {"pair": ("first", "second"), "single": ("text",)}
CLASS_METRICS = ("accuracy", "f1", "matthews")
SCORE_METRICS = ("pearson", "spearman")
# In a path, a column, a configuration or a condition of a source, it stands for each of its languages in turn.
PLACEHOLDER = "{lang}"
# What the training files of XNLI say.
SYNONYMS = {"contradictory": "contradiction"}


@dataclass(frozen=True)
class LabelledTask:
    """What the rows of a task hold: a text or a pair of them, with a class or with a number.

    Args:
        texts: `pair` (columns `first` and `second`) or `single` (column `text`).
        labels: Names of the classes in the order of their numbers; none for a regression.
        scores: Lowest and highest number of a regression.
        metrics: Of `accuracy`, `f1` (of the second of two classes) and `matthews` for classes, `pearson` and `spearman`
            for numbers; by default `accuracy`, or both correlations.

    Raises:
        XlsrError: classes and a range are both given or both missing, or a value does not fit.

    Example:
        >>> task = LabelledTask(labels=("entailment", "neutral", "contradiction"))
        >>> task.value("Neutral"), task.value(2), task.value("-"), task.columns, task.metrics
        (1, 2, None, ('first', 'second'), ('accuracy',))
    """

    texts: str = "pair"
    labels: tuple[str, ...] = ()
    scores: tuple[float, float] | None = None
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.texts not in TEXTS:
            raise XlsrError(f"task.texts is '{self.texts}'; {nearest(str(self.texts), TEXTS)}")
        if bool(self.labels) == (self.scores is not None):
            raise XlsrError(
                "the task has both or neither of task.labels, names of classes, and task.scores; give one."
            )
        names = [str(name).strip().lower() for name in self.labels]
        if self.labels and (len(set(names)) < 2 or len(set(names)) < len(names)):
            raise XlsrError(f"task.labels is {list(self.labels)}; name two or more classes, each once.")
        if self.scores is not None and not (
            len(self.scores) == 2 and all(map(_is_number, self.scores)) and self.scores[0] < self.scores[1]
        ):
            raise XlsrError(f"task.scores is {list(self.scores)}; give the lowest and the highest, such as [0, 5].")
        known = CLASS_METRICS if self.labels else SCORE_METRICS
        object.__setattr__(self, "metrics", tuple(self.metrics) or (known[:1] if self.labels else known))
        for name in self.metrics:
            if name not in known:
                raise XlsrError(f"task.metrics has '{name}'; {nearest(str(name), known)}")
        if "f1" in self.metrics and len(self.labels) != 2:
            raise XlsrError(f"task.metrics has 'f1', which is of two classes; this task has {len(self.labels)}.")

    @property
    def columns(self) -> tuple[str, ...]:
        """The text columns of a row."""
        return TEXTS[self.texts]

    @property
    def num_labels(self) -> int:
        """Outputs that a model of it has."""
        return len(self.labels) or 1

    def value(self, label: Any) -> int | float | None:
        """The number of a class by its name or number, or a score; None where a row has no label.

        Raises:
            ValueError: it is neither.
        """
        text = str(label).strip().lower()
        if self.scores is not None:
            if text in UNLABELLED - {"-1"}:
                return None
            score = float(text)
            if not self.scores[0] <= score <= self.scores[1]:
                raise ValueError(f"{label!r} is out of range")
            return score
        names = {name.strip().lower(): number for number, name in enumerate(self.labels)}
        name = SYNONYMS.get(text, text)
        if name in names:
            return names[name]
        if text.removesuffix(".0") in UNLABELLED:
            return None
        number = int(text.removesuffix(".0"))
        if not 0 <= number < len(self.labels):
            raise ValueError(f"{label!r} is no label")
        return number

    @property
    def allowed(self) -> str:
        """What labels may be, for error sentences."""
        if self.scores is not None:
            return f"scores are {self.scores[0]:g} to {self.scores[1]:g}"
        return f"labels are {', '.join(self.labels)}, or 0 to {len(self.labels) - 1}, or -1 for none"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def language_views(source: Any, languages: Sequence[str]) -> list[dict[str, Any]]:
    """A source that holds `{lang}` as one source for each of its languages, in their order; any other as it is.

    Args:
        source: As in a recipe.
        languages: Of the recipe, for sources that name none.

    Example:
        >>> wide = {"path": "xnli.tsv", "columns": "first=premise_{lang},label=label", "languages": ["en", "sw"]}
        >>> [(view["columns"], view["languages"]) for view in language_views(wide, ["en"])]
        [('first=premise_en,label=label', ['en']), ('first=premise_sw,label=label', ['sw'])]
    """
    options = as_source(source)
    chosen = [str(language) for language in as_list(options.get("languages")) or languages]
    rest = {key: value for key, value in options.items() if key != "languages"}
    wide = _filled(rest, "") != rest
    return [{**_filled(rest, language), "languages": [language]} for language in (chosen if wide else chosen[:1])]


def _filled(value: Any, language: str) -> Any:
    if isinstance(value, str):
        return value.replace(PLACEHOLDER, language)
    if isinstance(value, Mapping):
        return {key: _filled(part, language) for key, part in value.items()}
    return [_filled(part, language) for part in value] if isinstance(value, (list, tuple)) else value


def labelled_rows(
    sources: Iterable[Any],
    task: LabelledTask,
    *,
    languages: Sequence[str],
    split: str = "train",
    quarantine: Quarantine | None = None,
    unlabelled: Counter[str] | None = None,
    seed: int = 1,
) -> Iterator[dict[str, Any]]:
    """Streams rows with the texts of the task, `lang`, and `label` as a number.

    Args:
        sources: As in a recipe, with `{lang}` for each of their languages; `columns` maps those of the file to `text`,
            or `first` and `second`, and to `label`. Rows that do not name their language are in the first of their
            source's `languages`, else in the first of the recipe's.
        task: What the rows hold.
        languages: Of the recipe.
        split: Of a data set whose source names none.
        quarantine: Where bad lines are counted and written.
        unlabelled: Counts the rows left out for want of a label, by source.
        seed: Chooses the rows of a source with `sample`.

    Raises:
        XlsrError: what readers raise; a source is a corpus; a file has no labels, or one that is none.
    """
    for source in sources:
        for view in language_views(source, languages):
            if "corpus" in view:
                raise XlsrError(f"labelled rows are read from files and data sets; give '{view['corpus']}' as a path.")
            place = source_name(view)
            rows = open_source(
                view,
                languages=view["languages"],
                split=split,
                required=task.columns,
                optional=("label", "lang"),
                quarantine=quarantine,
                seed=seed,
            )
            for number, row in enumerate(rows):
                if "label" not in row:
                    raise XlsrError(f"'{place}' has no column 'label'; name the one that holds it in 'columns'.")
                try:
                    label = task.value(row["label"])
                except ValueError:
                    raise XlsrError(
                        f"row {number} of '{place}' has label {row['label']!r:.40}; {task.allowed}."
                    ) from None
                if label is None:
                    if unlabelled is not None:
                        unlabelled[place] += 1
                    continue
                texts = {name: row[name] for name in task.columns}
                yield {**texts, "lang": row.get("lang") or view["languages"][0], "label": label}
