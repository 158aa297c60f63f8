"""What `hf-xlsr evaluate` does: an encoder, protocols, data; out come metrics, one JSON file and a report."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_xlsr.evaluation.averages import mean_over_languages
from hf_xlsr.evaluation.encoders import check_model_place, encoder_facts, load_encoder
from hf_xlsr.evaluation.inputs import Inputs, read_inputs
from hf_xlsr.evaluation.protocols import CHOICES, DATA_OPTIONS, check_options, protocols_of
from hf_xlsr.evaluation.report import check_writable, load_results, save_results
from hf_xlsr.evaluation.request import Request

# What says where results go, or is told by keys of its own.
_NO_SETTINGS = {"output", "report", "seed"}


def evaluate_files(request: Request) -> dict[str, float]:
    """Evaluates a model on files, or on data called by name.

    Args:
        request: What to evaluate, under which protocols, on what.

    Returns:
        Metrics by key; where there are several languages, with their means.

    Raises:
        XlsrError: a protocol, an option, a file, a column or the model is not right, or there is no row.
    """
    protocols = protocols_of(request.protocol)
    asked = {name: getattr(request, name) for name in (*DATA_OPTIONS, *CHOICES)}
    given = {name: value for name, value in asked.items() if _is_given(value)}
    check_options(given, protocols)
    if request.output:
        check_writable(request.output, "--output")
    if request.report:
        check_writable(request.report, "--report", folder=True)
    check_model_place(request.model)
    inputs = read_inputs(request, protocols[0])
    encoder = load_encoder(request.model, request.device, request.dtype)
    inputs.encoding = {
        "prompt": request.prompt,
        "batch_size": request.batch_size,
        "routes": request.routes or None,
        "show_progress_bar": sys.stderr.isatty(),
    }
    shared: Any = encoder
    if len(protocols) > 1 or (request.report and protocols[0].layout == "pairs"):
        from hf_xlsr.evaluation.remembered import RememberedEncoder

        shared = RememberedEncoder(encoder)
    metrics: dict[str, float] = {}
    used: dict[str, dict[str, Any]] = {}
    for protocol in protocols:
        inputs.options = {name: given[name] for name in protocol.options if name in given and name in CHOICES}
        used[protocol.name] = protocol.defaults() | inputs.options
        if protocol.layout == "rows" and inputs.tune:
            used[protocol.name]["tune_language"] = inputs.tune_languages
        metrics |= mean_over_languages(protocol.run(shared, inputs))
    files = [Path(request.output)] if request.output else []
    if request.report:
        files.append(Path(request.report) / "results.json")
    if files:
        settings = _settings(request, inputs, used) | {"encoder": encoder_facts(encoder, request.model)}
        hashes = inputs.hashes(protocols[0].columns)
    for file in files:
        save_results(file, metrics, settings=settings, data_hashes=hashes)
    if request.report:
        from hf_xlsr.evaluation.command_report import write_report

        label, seed = Path(request.model).name, 1 if request.seed is None else request.seed
        write_report(request.report, label, load_results(files[-1]), inputs, shared, seed=seed)
    return metrics


def _is_given(value: Any) -> bool:
    """Whether the user gave an option; 0 equals False and is given all the same."""
    return value is not None and value is not False and value != ()


def _settings(request: Request, inputs: Inputs, used: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What has to be known to measure again: all that was asked for, and the protocols' own choices."""
    asked = {
        key: value
        for key, value in asdict(request).items()
        if key not in _NO_SETTINGS and _is_given(value) and value not in ("", {})
    }
    options = {name: values for name, values in used.items() if values}
    return {**asked, "name": inputs.name, "options": options, "seed": request.seed, "skipped_rows": inputs.skipped}
