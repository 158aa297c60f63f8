"""Suites: several encoders under several protocols, one file for each result, and a table at the end."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import yaml
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from hf_xlsr.data.sources import as_list, expand
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.debias import TENSORS
from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.encoders.loading import check_choice, encoder_facts, load_encoder
from hf_xlsr.evaluation.command import EncoderOptions, Task, measure, read_task
from hf_xlsr.evaluation.comparison import ENDINGS, ComparisonTable, compare, render
from hf_xlsr.evaluation.protocol import DataOptions, option_specs
from hf_xlsr.evaluation.results import Results, load_results, save_results
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.extras import can_plot
from hf_xlsr.utils.files import check_writable, write_text
from hf_xlsr.utils.hashing import file_sha256

logger = logging.getLogger(__name__)


class SuiteEncoder(EncoderOptions):
    """A model, as folder or Hub id that may have environment variables, and how it is loaded and encodes."""

    model: str


class SuiteTask(BaseModel, extra="forbid"):
    """Protocols on data; the attributes are the options of `hf-xlsr evaluate`, `options` those of its protocols.

    `protocol` is one or several that take the same data, `data` may have environment variables. `columns` and `where` may
    be mappings.
    """

    protocol: list[str]
    data: list[str]
    columns: str | None = None
    languages: tuple[str, ...] = ()
    split: str = "test"
    where: tuple[str, ...] = ()
    config: str | None = None
    limit: int | None = Field(None, gt=0)
    name: str | None = None
    seed: int | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("protocol", "data", "languages", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",")] if isinstance(value, str) else value

    @field_validator("columns", "where", mode="before")
    @classmethod
    def _written(cls, value: Any, info: ValidationInfo) -> Any:
        """Writes a mapping in the form of the command line, such as `source=en,target=de`."""
        if not isinstance(value, Mapping):
            return value
        parts = [f"{name}={one}" for name, values in value.items() for one in as_list(values)]
        return parts if info.field_name == "where" else ",".join(parts)

    def read(self) -> Task:
        same = self.model_dump(include={field.name for field in fields(DataOptions)})
        data = DataOptions(tuple(map(expand, self.data)), **same)
        specs, options = option_specs(), {}
        for name, value in self.options.items():
            if value is None:
                continue
            values = [expand(one) if isinstance(one, str) else one for one in as_list(value)]
            options[name] = tuple(values) if name in specs and specs[name].several else values[0]
        return read_task(self.protocol, data, options, seed=self.seed)


class Suite(BaseModel, extra="forbid"):
    """Encoders and tasks by name."""

    encoders: dict[str, SuiteEncoder] = Field(default_factory=dict)
    tasks: dict[str, SuiteTask] = Field(default_factory=dict)

    @field_validator("encoders", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        return {name: {"model": one} if isinstance(one, str) else one for name, one in (value or {}).items()}


def shipped_suites() -> dict[str, Path]:
    return {file.stem: file for file in Path(__file__).parent.glob("*.yaml")}


def load_suite(*suites: str | os.PathLike[str]) -> Suite:
    """Reads YAML files or shipped suites of a name, and puts the encoders and tasks of all together."""
    whole = Suite()
    for suite in suites:
        place = Path(shipped_suites().get(str(suite), suite))
        try:
            one = Suite.model_validate(yaml.safe_load(place.read_text("utf-8")))
        except (OSError, ValidationError, yaml.YAMLError) as error:
            names = ", ".join(sorted(shipped_suites()))
            raise XlsrError(
                f"suite '{suite}' cannot be read ({error_line(error)}); shipped suites: {names}."
            ) from error
        whole.encoders |= one.encoders
        whole.tasks |= one.tasks
    return whole


def evaluate_suite(
    suite: Suite, output: str | os.PathLike[str], *, vectors: str | os.PathLike[str] | None = None
) -> list[ComparisonTable]:
    """Evaluates the encoders of a suite under its tasks, and gives the tables of `compare`.

    Everything is checked before a model is loaded. Each result is saved at once as `OUTPUT/ENCODER/TASK.json`, with its
    outcomes. A later run measures only what has a new model, data or settings. After a failure the suite goes on with the
    next task, and raises at the end. Tables are `OUTPUT/table.md`, `.csv`, `.tex` and `.json`; plots are in
    `OUTPUT/plots`. Embeddings are kept for other commands in `vectors`, by default `OUTPUT/vectors`.
    """
    home = Path(output)
    check_writable(home, "--output", folder=True)
    if not suite.encoders or not suite.tasks:
        raise XlsrError("a suite needs `encoders`, unless the command line has models, and `tasks`.")
    models = {label: expand(encoder.model) for label, encoder in suite.encoders.items()}
    for label, encoder in suite.encoders.items():
        check_choice(models[label], encoder.device, encoder.dtype)
    tasks = {name: task.read() for name, task in suite.tasks.items()}
    for task in tasks.values():
        for label, encoder in suite.encoders.items():
            task.inputs_for(models[label], encoder)
    failed: dict[str, str] = {}
    merged: dict[str, dict[str, Any]] = {}
    for label, encoder in suite.encoders.items():
        runner = _Runner(models[label], encoder, Path(vectors or home / "vectors"))
        found: dict[str, dict[str, Any]] = {}
        for name, task in tasks.items():
            file = home / file_name(label) / f"{file_name(name)}.json"
            try:
                found[name] = runner.run(task, file)
            except Exception as error:  # the others should run
                failed[f"{label}/{name}"] = error_line(error) or type(error).__name__
                logger.error("%s failed: %s", f"{label}/{name}", failed[f"{label}/{name}"], exc_info=error)
        print(f"{label}: {runner.account()}", file=sys.stderr)
        merged[label] = _merged(found)
    tables = compare(merged)
    for ending in ENDINGS:
        write_text(home / f"table{ending}", render(tables, ending))
    if can_plot():
        from hf_xlsr.evaluation.plots import plot_comparisons

        plot_comparisons(home / "plots", tables)
    if failed:
        raise XlsrError(
            f"{len(failed)} of {len(models) * len(tasks)} tasks failed: {'; '.join(map(': '.join, failed.items()))}"
        )
    return tables


def file_name(label: str) -> str:
    """A label as the name of one file or folder: `models-e5` for `/models/e5`."""
    return re.sub(r"[^\w.@+-]+", "-", label).strip("-.") or "-"


class _Runner:
    """Runs tasks on one encoder, which is loaded when the first needs it."""

    def __init__(self, model: str, options: EncoderOptions, vectors: Path) -> None:
        self.model, self.options, self.vectors = model, options, vectors
        self._start = perf_counter()

    def account(self) -> str:
        texts, seconds = (self.cached.encoded, self.cached.seconds) if "cached" in vars(self) else (0, 0.0)
        return f"{texts:,} texts encoded in {seconds:,.1f} of {perf_counter() - self._start:,.1f} seconds"

    @cached_property
    def loaded(self) -> Any:
        return load_encoder(self.model, self.options.device, self.options.dtype)

    @cached_property
    def cached(self) -> CachedEncoder:
        return CachedEncoder(self.loaded, VectorStore(self.vectors, encoder_facts(self.loaded, self.model)))

    @cached_property
    def hash(self) -> str:
        """The model's `content_hash`; a model of the Hub is downloaded first."""
        try:
            return content_hash(self.model)
        except XlsrError:
            _ = self.loaded
            return content_hash(self.model)

    def run(self, task: Task, file: Path) -> dict[str, Any]:
        """The content of the results file, which is measured unless it is there."""
        encoding = self.options.model_dump(exclude={"model"})
        asked = [self.hash, task.hashes(), task.options, task.seed, vars(task.data), encoding]
        if (debias := Path(str(task.options.get("debias"))) / TENSORS).is_file():
            asked.append(file_sha256(debias))
        names = [protocol.name for protocol in task.protocols]
        key = hashlib.sha256(json.dumps([version("hf-xlsr"), names, *asked], default=str).encode()).hexdigest()
        if file.is_file() and (there := load_results(file))["settings"].get("suite_key") == key:
            return there
        inputs = task.inputs_for(self.model, self.options)
        encoder = self.cached if task.takes_vectors else self.loaded
        results, settings = measure(task, inputs, encoder, self.model, self.options)
        settings |= {"encoder": encoder_facts(self.loaded, self.model), "suite_key": key}
        save_results(file, results, settings=settings, data_hashes=task.hashes(), predictions=True)
        return load_results(file)


def _merged(results: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    metrics, hashes = Results(), dict[str, str]()
    for name, one in results.items():
        both = [metrics.records[key] for key in one["metrics"].keys() & metrics.keys()]
        if twice := [record.key for record in both if not (record.is_mean or record.is_average)]:
            raise XlsrError(f"task '{name}' measures '{min(twice)}' a second time; give its data another `name`.")
        metrics |= one["metrics"]
        hashes |= {f"{name}/{part}": value for part, value in one["data_sha256"].items()}
    return {"metrics": metrics, "data_sha256": hashes}
