"""Guards: data on which training should not make a model worse, measured before, during and after a training."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from transformers import Trainer

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.encoding import PAIRS, UNDETERMINED
from hf_xlsr.data.formats.reading import column_names
from hf_xlsr.data.raw_rows import UNNAMED, open_datasets, open_reader
from hf_xlsr.data.sources import Source, open_source, open_texts
from hf_xlsr.evaluation.before_after import (
    COUNTS,
    SCORED,
    Change,
    changes_between,
    falls_of,
    measure_rows,
    shown_difference,
)
from hf_xlsr.evaluation.results import Results, load_results, save_results
from hf_xlsr.trainers.live_encoder import evaluating
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.variables import expand

logger = logging.getLogger(__name__)

Rows = list[dict[str, Any]]
FILE = "guards.json"


@dataclass
class GuardWatch:
    """Compares what guards measure with what they measured before training.

    Attributes:
        folder: Where what was measured before training is kept, for a training that is resumed.
        limit: A guard falls if its metric falls by more than this even at the upper end of the interval of its change.
        resumes: Whether the training is resumed.
        before: What the guards measured before training.
        falls: The metrics that fell in the last evaluation.
    """

    folder: Path
    limit: float
    resumes: bool = False
    before: Results | None = None
    falls: dict[str, Change] = field(default_factory=dict)

    def read_before(self) -> None:
        """Reads what the first process of a resumed training measured, if it wrote that."""
        file = self.folder / FILE
        if file.is_file():
            self.before = load_results(file)["metrics"]

    def write_before(self) -> None:
        """Writes what was measured before training."""
        if self.before is not None:
            save_results(self.folder / FILE, self.before, settings={}, predictions=True)

    def look(self, after: Results) -> None:
        """Finds the guards that fell, and warns of them."""
        if self.before is None:
            return
        self.falls = falls_of(self.before, after, self.limit)
        for key, change in self.falls.items():
            metric = key.rpartition("/")[2]
            logger.warning(
                "Guard %s fell by more than `guard_limit` %g: %s.", key, self.limit, shown_difference(metric, change)
            )

    def changes(self, after: Results, teacher: Results | None = None) -> dict[str, Change]:
        """The changes from before training."""
        if self.before is None:
            raise XlsrError("The guards were not measured before training; call `train` first.")
        missing = self.before.keys() ^ after.keys()
        if missing:
            raise XlsrError(f"'{min(missing)}' was not measured both before and after training; use the same guards.")
        return changes_between(self.before, after, teacher)


def is_source(data: Any) -> bool:
    """Whether data are a path, the name of a corpus, or a source as in a recipe, and not rows."""
    return isinstance(data, str | Path | Source) or (
        isinstance(data, Mapping) and not {"path", "corpus"}.isdisjoint(data)
    )


def source_rows(data: Any, languages: Sequence[str]) -> Any:
    """The rows of a path, a corpus or a source as in a recipe; rows are returned as they are.

    All columns of a file are read, unless the source maps columns.
    """
    if not is_source(data):
        return data

    source = Source.parse(str(data) if isinstance(data, Path) else data)
    has_columns = source.corpus or source.columns or source.parallel
    names = [] if has_columns else column_names(expand(source.path))
    if not names:
        return guard_rows(source, languages)
    columns = {name: name for name in names}
    return list(open_source(source, languages=languages, split="dev", required=(), wide=columns))


def guard_rows(source: Source, languages: Sequence[str]) -> Rows:
    """Rows of a guard set: scored pairs where its `columns` map `score`, else translation pairs."""
    if "score" in source.column_map:
        return list(open_texts(source, SCORED, languages=languages, split="dev"))
    return list(open_source(source, languages=languages, split="dev"))


def read_pairs(data: Any, name: str, languages: Sequence[str]) -> Rows:
    """Scored pairs or translation pairs in any form that trainers take, or of a source, with their languages.

    Args:
        languages: Languages of the model: of pairs that name none, and the first of scored pairs that name none.
    """
    rows: Rows = []
    for key, dataset in open_datasets(source_rows(data, languages), name):
        first_row: Mapping[str, Any] = next(iter(dataset), {})
        if set(SCORED) <= set(first_row):
            default = languages[0] if languages else UNDETERMINED
            rows += [{**row, "lang": row.get("lang") or default} for row in dataset]
            continue

        reader = open_reader(PAIRS, first_row, key=key)
        if reader is None:
            raise XlsrError(
                f"`{name}` must have the columns {', '.join(SCORED)}, or those of translation pairs, got "
                f"{', '.join(first_row) or 'no row'}."
            )
        if reader.languages == UNNAMED and len(languages) == 2:
            reader = replace(reader, languages=tuple(languages))
        rows += reader.stream(dataset.iter(batch_size=1000))
    return rows


class GuardedTrainer(Trainer):
    """`Trainer` that compares a model with itself before training, on data that are not trained on.

    What guards measure is that of the exported model: it is computed in the precision of the weights.

    Attributes:
        changes: Of each metric of the guards, from before the last training to after it; empty without guards.
    """

    args: Any
    converter: DataConverter
    guards: Mapping[str, Any] = {}
    guard_watch: GuardWatch
    changes: Mapping[str, Change] = {}

    def read_guard(self, name: str, data: Any) -> Any:
        """The rows of a guard, as `measure_guard` takes them."""
        return read_pairs(data, f"guards['{name}']", self.converter.languages)

    def measure_guard(self, encoder: Any, name: str, rows: Any) -> Results:
        """What a guard measures of the live model."""
        return measure_rows(encoder, rows, name=name)

    def live_encoder(self) -> Any:
        """The model in training, as evaluations get it."""
        raise NotImplementedError

    def measure_guards(self) -> Results:
        """What all guards measure of the live model; every process must call."""
        encoder = self.live_encoder()
        results = Results()
        with evaluating(self.accelerator.unwrap_model(self.model), None):
            for name, rows in self.guards.items():
                results |= self.measure_guard(encoder, name, rows)
        return results

    def measure_before(self) -> None:
        """Measures the guards before training; a resumed training reads what was measured then."""
        watch = self.guard_watch
        watch.before = None
        watch.falls = {}
        if watch.resumes:
            watch.read_before()
        if watch.before is None:
            watch.before = self.measure_guards()
            if self.is_world_process_zero():
                watch.write_before()

    def evaluate_guards(self) -> dict[str, float]:
        """The metrics of the guards by key, compared with those before training."""
        results = self.measure_guards()
        self.guard_watch.look(results)
        return {key: record.value for key, record in results.records.items() if record.metric not in COUNTS}

    def compare_guards(self) -> Mapping[str, Change]:
        """The changes of what the guards measure, from before training to the live model."""
        watch = self.guard_watch
        if watch.before is None:
            watch.read_before()
        after = self.measure_guards()
        watch.look(after)
        return watch.changes(after, self.measure_teacher())

    def measure_teacher(self) -> Results | None:
        """What the guards measure of the teacher of a distillation."""
        return None

    def learning_curve(self) -> list[dict[str, Any]]:
        """The log of the training, from step 0 with what the guards measured before it."""
        watch = self.guard_watch
        if self.guards and watch.before is None:
            watch.read_before()
        start: dict[str, Any] = {"step": 0}
        for key, value in (watch.before or {}).items():
            start[f"eval_{key}"] = value
        return [start, *self.state.log_history]

    @property
    def is_stopped_by_guard(self) -> bool:
        """Whether a guard forbids the weights of the last evaluation."""
        return self.args.guard_action == "stop" and bool(self.guard_watch.falls)

    def stop_by_guard(self) -> None:
        """Ends the training before it saves the weights that a guard forbids."""
        self.control.should_training_stop = True
        self.control.should_save = False
        if self.state.best_model_checkpoint is None:
            raise XlsrError(
                f"Guard {min(self.guard_watch.falls)} fell by more than `guard_limit` {self.args.guard_limit:g} in the "
                "first evaluation, so no checkpoint is allowed. Lower `learning_rate`, or evaluate and save more often."
            )

    def _determine_best_metric(self, *args: Any, **kwargs: Any) -> bool:
        # With save_strategy="best" this alone decides whether Trainer saves, even after a signal.
        is_best = not self.is_stopped_by_guard and super()._determine_best_metric(*args, **kwargs)
        return is_best or self.stopped_early

    @property
    def stopped_early(self) -> bool:
        """Whether a signal ended the last training."""
        raise NotImplementedError
