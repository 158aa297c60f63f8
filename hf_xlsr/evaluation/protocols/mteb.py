"""Protocol `mteb` of the command: tasks under mteb's own evaluation, `hf_xlsr.evaluation.mteb.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_xlsr.encoders.encoding import Encoder
from hf_xlsr.evaluation.inputs import DataOptions, Inputs
from hf_xlsr.evaluation.registry import Options, Protocol
from hf_xlsr.evaluation.results import Results
from hf_xlsr.evaluation.table import MTEB, data_name


def _read(protocol: Protocol, data: DataOptions, options: Mapping[str, Any]) -> Inputs:
    """Names of tasks; mteb reads their data."""
    from hf_xlsr.evaluation.mteb.data import mteb_task

    data.refuse("mteb", "columns", "languages", "where", "config", "limit", "name", "split")
    inputs = Inputs(name=data_name(data.files), split=data.split)
    for file in data.files:
        task = file.removeprefix(MTEB)
        inputs.rows[task] = []
        inputs.revisions[task] = mteb_task(task).metadata.dataset["revision"]
    return inputs


def _run(encoder: Encoder, inputs: Inputs, options: Options) -> Results:
    from hf_xlsr.evaluation.mteb.evaluate import evaluate_mteb

    encoding: dict[str, Any] = {key: value for key, value in inputs.encoding.items() if value not in (None, "")}
    return evaluate_mteb(encoder, list(inputs.rows), **encoding)


PROTOCOL = Protocol("mteb", "mteb's own evaluation of its tasks", "names of mteb's tasks", _read, _run)
