"""What `hf-xlsr evaluate` does: an encoder, protocols, data; out come metrics, one JSON file and a report."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from hf_xlsr.encoders.debias.encoder import DebiasedEncoder
from hf_xlsr.encoders.debias.fitting import fit_debias
from hf_xlsr.encoders.debias.removal import Debias
from hf_xlsr.encoders.loading import check_choice, encoder_facts, load_encoder
from hf_xlsr.evaluation.averages import mean_over_languages
from hf_xlsr.evaluation.inputs import Inputs, read_inputs
from hf_xlsr.evaluation.protocols.language_bias import SELF
from hf_xlsr.evaluation.registry import CHOICES, DATA_OPTIONS, check_options, protocols_of
from hf_xlsr.evaluation.report import check_writable, load_results, save_results
from hf_xlsr.evaluation.request import Request
from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

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
    if (request.dtype or "").startswith("onnx") and any(protocol.name == "mteb" for protocol in protocols):
        raise XlsrError(f"--dtype is {request.dtype}, but mteb runs models of torch alone; leave it out.")
    if request.output:
        check_writable(request.output, "--output")
    if request.report:
        check_writable(request.report, "--report", folder=True)
    check_choice(request.model, request.device, request.dtype)
    inputs = read_inputs(request, protocols[0])
    if request.debias:
        inputs.debias = _chosen_debias(request, inputs)
    encoder = load_encoder(request.model, request.device, request.dtype)
    inputs.encoding = {
        "prompt": request.prompt,
        "batch_size": request.batch_size,
        "routes": request.routes or None,
        "show_progress_bar": sys.stderr.isatty(),
    }
    shared: Any = encoder
    # This protocol measures before and after the removal; others know nothing of it.
    wrapped = inputs.debias is not None and protocols[0].name != "language-bias"
    if len(protocols) > 1 or wrapped or (request.report and protocols[0].layout == "pairs"):
        from hf_xlsr.encoders.cache import CachedEncoder

        shared = CachedEncoder(encoder)
    if wrapped:
        shared = _debiased(shared, inputs)
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
        if inputs.debias is not None and not isinstance(inputs.debias, str):
            settings["debias"] = {"folder": request.debias, **inputs.debias.facts()}
        hashes = inputs.hashes(protocols[0].columns)
    for file in files:
        save_results(file, metrics, settings=settings, data_hashes=hashes)
    if request.report:
        from hf_xlsr.evaluation.command_report import write_report

        label, seed = Path(request.model).name, 1 if request.seed is None else request.seed
        write_report(request.report, label, load_results(files[-1]), inputs, shared, seed=seed)
    return metrics


def _chosen_debias(request: Request, inputs: Inputs) -> Debias | Literal["self"]:
    """Reads the folder, which has to have all languages of the rows."""
    if request.debias == SELF:
        return SELF
    debias = Debias.load(str(request.debias))
    for language in inputs.texts:
        debias.language_of(language)
    if debias.prompt != request.prompt:
        logger.warning(
            "the debias was fitted with --prompt '%s' and is applied with '%s'", debias.prompt, request.prompt
        )
    if debias.encoder and Path(debias.encoder).name != Path(request.model).name:
        logger.warning("the debias was fitted on encoder '%s' and is applied to '%s'", debias.encoder, request.model)
    return debias


def _debiased(encoder: Any, inputs: Inputs) -> DebiasedEncoder:
    """The encoder without what is removed; the data's name in keys says so."""
    debias, routes = inputs.debias, inputs.encoding["routes"]
    flag = ""
    if not isinstance(debias, Debias):
        debias, flag = fit_debias(encoder, inputs.texts, **inputs.encoding), "-self"
    inputs.name += f"-{debias.variant}{flag}"
    inputs.encoding["routes"] = None
    return DebiasedEncoder(encoder, debias, routes)


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
