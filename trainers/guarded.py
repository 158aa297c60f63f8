"""A trainer that measures guards before, during and after a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import Trainer

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.evaluation.before_after import COUNTS, Change, measure_rows
from hf_xlsr.evaluation.results import Results
from hf_xlsr.trainers.guards import GuardWatch, read_pairs
from hf_xlsr.trainers.live_encoder import evaluating
from hf_xlsr.utils.errors import XlsrError


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

    def measure_before(self, *, resumes: bool) -> None:
        """Measures the guards before training; a resumed training reads what was measured then."""
        watch = self.guard_watch
        watch.before = None
        if resumes:
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
