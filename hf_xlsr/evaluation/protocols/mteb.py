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


def _read(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> Inputs:
    from hf_xlsr.evaluation.mteb.tasks import mteb_task

    data.refuse("mteb", "columns", "where", "config", "limit", "split")
    inputs = Inputs(name=data.name or "", split=data.split)
    for file in data.files:
        task = file.removeprefix(MTEB)
        chosen = mteb_task(task, data.languages, hf_subsets=options.get("hf_subsets") or ())
        inputs.mteb_tasks[task] = chosen
        inputs.revisions[task] = chosen.metadata.dataset["revision"]
    return inputs


def _run(encoder: Encoder, inputs: Inputs, options: MtebOptions) -> Results:
    from hf_xlsr.evaluation.mteb import evaluate_mteb

    encoding: dict[str, Any] = {key: value for key, value in inputs.encoding.items() if value is not None}
    encoding |= {"name": inputs.name} if inputs.name else {}
    return evaluate_mteb(encoder, list(inputs.mteb_tasks.values()), cache=options.cache, **encoding)


PROTOCOLS = (
    Protocol("mteb", "mteb's own evaluation of its tasks", "names of mteb's tasks", _read, _run, MtebOptions),
)
