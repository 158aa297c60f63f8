"""Protocol `mteb` of the command: tasks under mteb's own evaluation, `hf_xlsr.evaluation.mteb`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.protocol import DataOptions, Inputs, Options, Protocol, option
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.table import MTEB


@dataclass(frozen=True)
class MtebOptions(Options):
    hf_subsets: tuple[str, ...] = option((), "subsets of the tasks, as mteb calls them: deu-eng", data=True)
    cache: str | None = option(None, "folder for mteb's own result files, which its tools read", data=True)


@dataclass(kw_only=True)
class MtebInputs(Inputs):
    """Tasks of mteb, which reads their data itself."""

    tasks: list[Any]


def _read(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> MtebInputs:
    from hf_xlsr.evaluation.mteb.tasks import mteb_task

    data.refuse("mteb", "columns", "where", "config", "format", "limit", "split")
    tasks = []
    revisions = {}
    for file in data.files:
        name = file.removeprefix(MTEB)
        task = mteb_task(name, data.languages, hf_subsets=options.get("hf_subsets", ()))
        tasks.append(task)
        revisions[name] = task.metadata.dataset["revision"]

    return MtebInputs(
        name=data.name or "",
        split=data.split,
        hashes=revisions,
        tasks=tasks,
    )


def _run(encoder: Encoder, inputs: MtebInputs, options: MtebOptions) -> Results:
    from hf_xlsr.evaluation.mteb.encoder import evaluate_mteb

    return evaluate_mteb(
        encoder,
        inputs.tasks,
        cache=options.cache,
        name=inputs.name or None,
        **inputs.encoding,
    )


PROTOCOLS = (
    Protocol(
        "mteb",
        "mteb's own evaluation of its tasks",
        "names of mteb's tasks",
        _read,
        _run,
        MtebOptions,
        headlines=("main_score",),
        has_outcomes=False,
    ),
)
