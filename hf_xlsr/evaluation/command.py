"""`hf-xlsr evaluate`: a model, protocols and data in; metrics and a JSON file out."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from hf_xlsr.data.prompts import Prompts
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.debias import Debias, DebiasedEncoder, fit_debias
from hf_xlsr.encoders.encoding import RUN_BATCH_SIZE, EncodingOptions
from hf_xlsr.encoders.graph_sessions import FORMATS
from hf_xlsr.encoders.loading import check_choice, encoder_facts, load_encoder
from hf_xlsr.evaluation.parallel_texts import SELF
from hf_xlsr.evaluation.protocol import DataOptions, Inputs, Protocol, check_options, find_protocols
from hf_xlsr.evaluation.reading import RowInputs
from hf_xlsr.evaluation.results import Results, mean_over_languages, save_results, with_intervals
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import check_writable
from hf_xlsr.utils.plugins import recorded, with_plugins

logger = logging.getLogger(__name__)


class EncoderOptions(BaseModel, extra="forbid"):
    """How a model is loaded and encodes; each attribute is the command's option of that name.

    Attributes:
        prompt: Put before sentences: one text for all, which may be empty, or by name; None: the model's own prompts.
        routes: Language -> route of an encoder.
        batch_size: Sentences encoded at a time.
        device: None: the best available.
        dtype: Precision of the encoder's weights; None: as its files have them.
        truncate_dim: Number of leading dimensions of embeddings that are kept; None: as stored.
    """

    prompt: str | dict[str, str] | None = None
    routes: dict[str, str] = Field(default_factory=dict)
    batch_size: int = RUN_BATCH_SIZE
    device: str | None = None
    dtype: str | None = None
    truncate_dim: int | None = Field(None, gt=0)

    def load(self, model: str) -> Any:
        """The model, loaded as these options say."""
        return load_encoder(model, self.device, self.dtype, self.truncate_dim)

    @property
    def encoding(self) -> EncodingOptions:
        return {"prompt": self.prompt, "batch_size": self.batch_size, "routes": self.routes or None}


def evaluate_files(
    model: str,
    protocols: str | Sequence[str],
    data: DataOptions,
    options: Mapping[str, Any] | None = None,
    *,
    encoder: EncoderOptions | None = None,
    seed: int | None = None,
    output: str | None = None,
    predictions: bool = False,
    vectors: str | None = None,
) -> Results:
    """Evaluates a model on files, or on data called by name.

    Args:
        model: Folder or Hub id of a sentence encoder.
        protocols: Names of `PROTOCOLS` with equal data; one text may have several with commas between.
        data: What to read, and how.
        options: Options of the protocols by name, see `option_specs`; None and False count as absent.
        encoder: How the model is loaded and encodes.
        seed: Seed of everything random; None: that of the protocol.
        output: A JSON file for the results.
        predictions: Also save the outcomes of single examples, next to the results file.
        vectors: A folder in which embeddings are kept for other runs, see `VectorStore`.

    Returns:
        What was measured; with several languages also the means.
    """
    encoder = encoder or EncoderOptions()
    if output:
        check_writable(output, "--output")
    check_choice(model, encoder.device, encoder.dtype)
    task = read_task(protocols, data, options, seed=seed)
    inputs = task.inputs_for(model, encoder)

    loaded = encoder.load(model)
    shared = loaded
    if vectors and task.takes_vectors:
        shared = CachedEncoder(loaded, VectorStore(vectors, encoder_facts(loaded, model)))
    elif len(task.protocols) > 1 or task.wrapped(inputs):
        shared = CachedEncoder(loaded)
    results, settings = measure(task, inputs, shared, model, encoder)

    if output:
        settings["encoder"] = encoder_facts(loaded, model)
        save_results(
            output,
            results,
            settings=settings,
            data_hashes=task.inputs.hashes,
            predictions=predictions,
        )
    return results


@dataclass(frozen=True)
class Task:
    """Protocols that take equal data, and the data that they are run on.

    Attributes:
        plugins: Package and version of each plug-in that took part, see `recorded`.
    """

    protocols: Sequence[Protocol]
    data: DataOptions
    options: Mapping[str, Any]
    seed: int | None
    inputs: Inputs
    plugins: Mapping[str, str] = field(default_factory=dict)

    def inputs_for(self, model: str, encoder: EncoderOptions) -> Inputs:
        """The data with the way a model encodes them, and what is removed of its vectors."""
        if encoder.dtype in FORMATS and self.protocols[0].name == "mteb":
            raise XlsrError(f"--dtype {encoder.dtype} is not supported by mteb, which runs only PyTorch models.")

        inputs = replace(self.inputs, encoding={**encoder.encoding, "show_progress_bar": sys.stderr.isatty()})
        folder = self.options.get("debias")
        if folder == SELF:
            inputs.debias = SELF
        elif folder and isinstance(inputs, RowInputs):
            inputs.debias = _load_debias(folder, model, encoder.prompt, inputs)
        return inputs

    @property
    def takes_vectors(self) -> bool:
        """Whether stored vectors can take the place of the encoder."""
        return self.protocols[0].name != "mteb" and self.options.get("head") != "trained"

    def wrapped(self, inputs: Inputs) -> bool:
        """Whether language bias is removed before the protocol; two protocols measure before and after."""
        return inputs.debias is not None and self.protocols[0].name not in ("language-bias", "search")


def read_task(
    protocols: str | Sequence[str],
    data: DataOptions,
    options: Mapping[str, Any] | None = None,
    *,
    seed: int | None = None,
) -> Task:
    """Reads the data of some protocols, and refuses options that none of them has."""
    with recorded() as plugins:
        return replace(_read_task(protocols, data, options, seed), plugins=plugins)


def _read_task(
    protocols: str | Sequence[str], data: DataOptions, options: Mapping[str, Any] | None, seed: int | None
) -> Task:
    run_together = find_protocols(protocols)
    values = {name: value for name, value in (options or {}).items() if _is_set(value)}
    check_options(values, run_together)
    if seed is not None:
        values["seed"] = seed

    first = run_together[0]
    inputs = first.read(first, data, values)
    return Task(run_together, data, values, seed, inputs)


def measure(
    task: Task, inputs: Inputs, loaded: Any, model: str, encoder: EncoderOptions
) -> tuple[Results, dict[str, Any]]:
    """Runs the protocols of a task, and gives the results with the settings that produced them."""
    options = dict(task.options)
    if encoder.device is not None:
        options["device"] = encoder.device
    if task.wrapped(inputs) and isinstance(inputs, RowInputs):
        inputs, loaded = _debiased(loaded, inputs)

    results = Results()
    arguments: dict[str, dict[str, Any]] = {}
    for protocol in task.protocols:
        protocol_options = protocol.options.of(options)
        results |= _finished(protocol.run(loaded, inputs, protocol_options), task.data.limit)
        arguments[protocol.name] = protocol_options.arguments()

    settings: dict[str, Any] = {"model": model, "protocol": ",".join(arguments), "data": task.data.files}
    settings |= {
        **asdict(task.data),
        **options,
        **encoder.model_dump(exclude={"model"}),
        "files": None,
    }

    settings = {name: value for name, value in settings.items() if _is_set(value)}
    settings |= {
        "name": inputs.name,
        "options": {name: values for name, values in arguments.items() if values},
        "seed": task.seed,
        "skipped_rows": inputs.skipped,
    }
    settings = with_plugins(settings, task.plugins)

    if encoder.prompt is not None:
        settings["prompt"] = encoder.prompt  # also an empty one, which replaces the model's own
    if isinstance(inputs.debias, Debias):
        settings["debias"] = {"folder": options["debias"], **inputs.debias.facts()}
    return results, settings


def _finished(results: Results, limit: int | None) -> Results:
    """The results with means, intervals, and the limit of rows that they were measured under."""
    finished = with_intervals(mean_over_languages(results))
    records = [record._replace(limit=limit) for record in finished.records.values()]
    return Results(records, finished.outcomes)


def _load_debias(folder: str, model: str, prompt: Prompts, inputs: RowInputs) -> Debias:
    """Reads a fitted debias, which must have all languages of the rows."""
    debias = Debias.load(folder)
    for language in inputs.texts:
        debias.language_of(language)
    if debias.prompt != prompt:
        logger.warning("the debias was fitted with --prompt %r and is applied with %r", debias.prompt, prompt)
    if debias.encoder and Path(debias.encoder).name != Path(model).name:
        logger.warning("the debias was fitted on encoder '%s' and is applied to '%s'", debias.encoder, model)
    return debias


def _debiased(encoder: Any, inputs: RowInputs) -> tuple[RowInputs, DebiasedEncoder]:
    """The encoder with language bias removed; the data's name in metric keys gets the variant."""
    debias = inputs.debias
    suffix = ""
    if not isinstance(debias, Debias):
        debias = fit_debias(encoder, inputs.texts, **inputs.encoding)
        suffix = "-self"

    debiased_encoder = DebiasedEncoder(encoder, debias, inputs.encoding["routes"])
    name = f"{inputs.name}-{debias.variant}{suffix}"
    return replace(inputs, name=name, encoding={**inputs.encoding, "routes": None}), debiased_encoder


def _is_set(value: Any) -> bool:
    """0 equals False and counts as set."""
    return value is not None and value is not False and value not in ((), "", {})
