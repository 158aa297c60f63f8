"""Protocol `senteval` of the command; the function is `hf_xlsr.evaluation.senteval.evaluate.senteval`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.inputs import Inputs, read_tasks
from hf_xlsr.evaluation.registry import Options, Protocol, option
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.senteval.tasks import TASKS


@dataclass(frozen=True)
class SentevalOptions(Options):
    setting: Literal["literature", "fast"] = option("literature", "how SentEval's classifiers are trained")
    seed: int = option(1111, "seed of everything random (default: senteval 1111, nli 159753, as published; else 1)")
    device: str | None = option(None, "device of the encoder and of classifiers")


def _run(encoder: Encoder, inputs: Inputs, options: SentevalOptions) -> Results:
    from hf_xlsr.evaluation.senteval.evaluate import senteval

    results = Results()
    for language, tasks in inputs.tasks.items():
        results |= senteval(encoder, tasks, language=language, **options.arguments(), **inputs.encoding)
    return results


PROTOCOL = Protocol(
    "senteval",
    "accuracy of SentEval's classifiers on frozen vectors",
    "a table for each task with text or sentence1, sentence2; label or score; and split",
    read_tasks,
    _run,
    SentevalOptions,
    required=("text", "label"),
    optional=("lang", "split"),
    tasks={name: spec.columns for name, spec in TASKS.items()},
)
