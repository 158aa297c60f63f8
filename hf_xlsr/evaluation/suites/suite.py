"""Suites: several encoders under several protocols, one file for each result, and a table at the end."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import traceback
import uuid
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from importlib.metadata import version
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator

from hf_xlsr.data.sources import as_list
from hf_xlsr.encoders.cache import CachedEncoder, VectorStore
from hf_xlsr.encoders.debias import TENSORS
from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.encoders.loading import check_choice, encoder_facts
from hf_xlsr.evaluation.command import EncoderOptions, Task, measure, read_task
from hf_xlsr.evaluation.comparison import ComparisonTable, compare_encoders
from hf_xlsr.evaluation.comparison_files import ENDINGS, render_tables
from hf_xlsr.evaluation.protocol import DataOptions, option_specs
from hf_xlsr.evaluation.results import Results, load_results, outcomes_file, save_results
from hf_xlsr.utils.console import warn
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.extras import can_plot
from hf_xlsr.utils.files import LEFTOVER, FullDiskError, check_writable, path_name, read_json, write_json, write_text
from hf_xlsr.utils.hashing import file_sha256
from hf_xlsr.utils.tasks import InProcess, LocalPool, Runner, import_ahead
from hf_xlsr.utils.tasks import Task as Cell
from hf_xlsr.utils.validation import explain
from hf_xlsr.utils.variables import expand
from hf_xlsr.utils.yaml import parse_yaml

logger = logging.getLogger(__name__)
_runners: dict[tuple[str, str], _Runner] = {}
"""What measures an encoder in this process, by the id of its suite and its label; one at a time."""


class SuiteEncoder(EncoderOptions):
    """A model, as folder or Hub id that may have variables `HF_XLSR_*`, and how it is loaded and encodes."""

    model: str


class SuiteTask(BaseModel, extra="forbid"):
    """Protocols on data; the attributes are the options of `hf-xlsr evaluate`, `options` those of its protocols.

    `protocol` is one or several that take the same data, `data` may have variables `HF_XLSR_*`. `columns` and `where` may
    be mappings.
    """

    protocol: list[str]
    data: list[str]
    columns: str | None = None
    languages: tuple[str, ...] = ()
    split: str = "test"
    where: tuple[str, ...] = ()
    config: str | None = None
    format: str | None = None
    limit: int | None = Field(None, gt=0)
    name: str | None = None
    seed: int | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("protocol", "data", "languages", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            return list(map(str.strip, value.split(",")))
        return value

    @field_validator("columns", "where", mode="before")
    @classmethod
    def _written(cls, value: Any, info: ValidationInfo) -> Any:
        """Writes a mapping in the form of the command line, such as `source=en,target=de`."""
        if not isinstance(value, Mapping):
            return value
        conditions = []
        for name, values in value.items():
            conditions += [f"{name}={item}" for item in as_list(values)]
        return conditions if info.field_name == "where" else ",".join(conditions)

    def read(self) -> Task:
        """Reads the data, and refuses options that no protocol has."""
        data_fields = self.model_dump(include={field.name for field in fields(DataOptions)})
        data = DataOptions(tuple(map(expand, self.data)), **data_fields)

        specs = option_specs()
        options: dict[str, Any] = {}
        for name, value in self.options.items():
            values = [expand(item) if isinstance(item, str) else item for item in as_list(value)]
            if name in specs and specs[name].several:
                options[name] = tuple(values)
            elif values:
                options[name] = values[0]

        return read_task(self.protocol, data, options, seed=self.seed)


class Suite(BaseModel, extra="forbid"):
    """Encoders and tasks by name."""

    encoders: dict[str, SuiteEncoder] = Field(default_factory=dict)
    tasks: dict[str, SuiteTask] = Field(default_factory=dict)

    @field_validator("encoders", "tasks", mode="before")
    @classmethod
    def _is_mapping(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and not isinstance(value, Mapping):
            kind = "a model by its name" if info.field_name == "encoders" else "a task by its name"
            raise ValueError(f"each must be {kind}, as in `{info.field_name}: {{NAME: ...}}`, got '{value}'")
        return value or {}

    @field_validator("encoders", mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        encoders = dict(value)
        for name, encoder in encoders.items():
            if isinstance(encoder, str):
                encoders[name] = {"model": encoder}
        return encoders


def shipped_suites() -> dict[str, Path]:
    """The files of the suites that come with this package, by name."""
    return {file.stem: file for file in sorted(Path(__file__).parent.glob("*.yaml"))}


def load_suite(*suites: str | os.PathLike[str]) -> Suite:
    """Reads YAML files or shipped suites of a name, and puts the encoders and tasks of all together."""
    whole = Suite()
    shipped = shipped_suites()
    for suite in suites:
        file = Path(shipped.get(str(suite), suite))
        try:
            content = Suite.model_validate(parse_yaml(file.read_bytes(), f"suite '{suite}'"))
        except ValidationError as error:
            raise XlsrError(f"suite '{suite}': {explain(error, Suite)}.") from error
        except OSError as error:
            names = ", ".join(shipped)
            message = f"suite '{suite}' cannot be read ({error_line(error)}); shipped suites: {names}."
            raise XlsrError(message) from error

        whole.encoders |= content.encoders
        whole.tasks |= content.tasks
    return whole


def evaluate_suite(
    suite: Suite,
    output: str | os.PathLike[str],
    *,
    vectors: str | os.PathLike[str] | None = None,
    metrics: Sequence[str] = (),
    runner: Runner | None = None,
) -> list[ComparisonTable]:
    """Evaluates the encoders of a suite under its tasks, and gives the tables of `compare_encoders` with its `metrics`.

    Everything is checked before a model is loaded. Each result is saved at once as `OUTPUT/ENCODER/TASK.json`, with its
    outcomes. A later run measures only what has a new model, data or settings. After a failure the suite goes on with the
    next task, and raises at the end. Tables are `OUTPUT/table.md`, `.csv`, `.tex` and `.json`; plots are in
    `OUTPUT/plots`. Embeddings are kept for other commands in `vectors`, by default `OUTPUT/vectors`.

    `runner` runs each task on each encoder by itself, in several processes or on a Ray cluster, which see both folders;
    by default one after the other in this process. The tables are the same.
    """
    home = Path(output)
    check_writable(home, "--output", folder=True)
    if not suite.encoders or not suite.tasks:
        raise XlsrError("a suite needs `encoders`, unless the command line has models, and `tasks`.")
    _check_file_names("encoders", suite.encoders)
    _check_file_names("tasks", suite.tasks)
    models = {label: expand(encoder.model) for label, encoder in suite.encoders.items()}
    tasks = _read_tasks(suite, models)

    runner = runner or InProcess()
    description = ""
    if not isinstance(runner, InProcess):
        description = "evaluating"
    if isinstance(runner, LocalPool):
        import_ahead(__name__, "sentence_transformers")

    home.mkdir(parents=True, exist_ok=True)
    work = _Cells(suite, models, tasks, home, Path(vectors or home / "vectors"), runner.device)
    failures: list[str] = []
    merged: dict[str, dict[str, Any]] = {}
    with TemporaryDirectory(prefix=LEFTOVER, dir=home.absolute()) as reports:
        cells = []
        for number, (label, name) in enumerate(product(suite.encoders, tasks)):
            cells.append(Cell(Path(reports) / f"{number}.json", (label, name)))
        finished: Iterator[Cell] = iter(())
        try:
            finished = runner.run(work, cells, description=description)
            for label in suite.encoders:
                contents, failed = _collected(label, islice(finished, len(tasks)), home)
                failures += failed
                merged[label] = _merged(contents)
            next(finished, None)  # after the last cell it ends its processes
        finally:
            if isinstance(finished, Generator):
                finished.close()  # before the folder that its processes write to is removed
            _runners.clear()

    tables = compare_encoders(merged, metrics)
    _write_tables(home, tables)
    if failures:
        raise XlsrError(f"{len(failures)} tasks failed: {'; '.join(failures)}")
    return tables


def _collected(label: str, cells: Iterable[Cell], home: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """The contents of the results files of one encoder by task, and what its other tasks failed with."""
    contents: dict[str, dict[str, Any]] = {}
    failures = []
    texts = 0
    encoding = 0.0
    total = 0.0
    for cell in cells:
        _, name = cell.content
        report = read_json(cell.output)
        texts += report["texts"]
        encoding += report["encoding"]
        total += report["seconds"]
        if report["failure"] is None:
            contents[name] = load_results(_result_file(home, label, name))
        else:
            failures.append(f"{label}/{name}: {report['failure']}")
            logger.error("%s/%s failed%s", label, name, report["traceback"])

    warn(f"{label}: {texts:,} texts encoded in {encoding:,.1f} of {total:,.1f} seconds")
    return contents, failures


def result_files(suite: Suite, output: str | os.PathLike[str]) -> list[Path]:
    """The files that `evaluate_suite` writes, without plots."""
    home = Path(output)
    files = [home / f"table{ending}" for ending in ENDINGS]
    for label, name in product(suite.encoders, suite.tasks):
        file = _result_file(home, label, name)
        files += [file, outcomes_file(file)]
    return files


def _result_file(home: Path, label: str, name: str) -> Path:
    return home / file_name(label) / f"{file_name(name)}.json"


def _check_file_names(kind: str, labels: Iterable[str]) -> None:
    """Refuses labels that share a file, of which one result would replace the other."""
    label_of: dict[str, str] = {}
    for label in labels:
        name = file_name(label)
        if name in label_of:
            raise XlsrError(f"{kind} '{label_of[name]}' and '{label}' would share the file name '{name}'. Rename one.")
        label_of[name] = label


def _read_tasks(suite: Suite, models: Mapping[str, str]) -> dict[str, Task]:
    """Reads the tasks of a suite, and checks that they can be run on all its encoders."""
    for label, encoder in suite.encoders.items():
        check_choice(models[label], encoder.device, encoder.dtype)

    tasks = {name: task.read() for name, task in suite.tasks.items()}
    _check_repeated(tasks)
    for task in tasks.values():
        for label, encoder in suite.encoders.items():
            task.inputs_for(models[label], encoder)
    return tasks


def _check_repeated(tasks: Mapping[str, Task]) -> None:
    """Refuses tasks that would measure the same. Those that share only some languages are found in their results."""
    name_of: dict[str, str] = {}
    for name, task in tasks.items():
        data = [task.inputs.name, task.inputs.split, sorted(task.inputs.hashes), task.data.languages]
        for protocol in task.protocols:
            measurement = repr([protocol.name, protocol.options.of(task.options), *data])
            if measurement in name_of:
                raise XlsrError(
                    f"task '{name}' measures what task '{name_of[measurement]}' does, protocol {protocol.name} on "
                    f"'{task.inputs.name}', a second time; give its data another `name`."
                )
            name_of[measurement] = name


def _write_tables(home: Path, tables: list[ComparisonTable]) -> None:
    home.mkdir(parents=True, exist_ok=True)  # also where every task failed
    for ending in ENDINGS:
        write_text(home / f"table{ending}", render_tables(tables, ending))
    if can_plot():
        from hf_xlsr.evaluation.plots import plot_comparisons

        plot_comparisons(home / "plots", tables)


def file_name(label: str) -> str:
    """A label as the name of one file or folder: `models-e5` for `/models/e5`."""
    return path_name(re.sub(r"[^\w.@+-]+", "-", label).strip("-.") or "-", "name")


class _Cells:
    """Work of tasks: measures a task of a suite on an encoder. A cell's content is the names of both.

    The results go to their own file; the file of the cell says how it went.
    """

    def __init__(
        self,
        suite: Suite,
        models: Mapping[str, str],
        tasks: Mapping[str, Task],
        home: Path,
        vectors: Path,
        device: str | None,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.encoders = suite.encoders
        self.models = models
        self.tasks = tasks
        self.home = home.absolute()  # other processes may run in another folder
        self.vectors = vectors.absolute()
        self.device = device
        self.locations = {label: _location(model) for label, model in models.items()}
        self.is_copy = False

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "is_copy": True}

    def __call__(self, output: Path, content: tuple[str, str]) -> None:
        label, name = content
        runner = self._runner(label)
        texts_before, encoding_before = runner.encoded
        start = perf_counter()
        failure = None
        details = ""
        try:
            runner.run(self.tasks[name], _result_file(self.home, label, name))
        except FullDiskError:
            raise
        except Exception as error:  # the others should run
            failure = error_line(error) or type(error).__name__
            if not isinstance(error, XlsrError):  # what is invalid says so in one sentence
                details = f"\n{traceback.format_exc()}"

        texts, encoding = runner.encoded
        report = {"failure": failure, "traceback": details, "seconds": perf_counter() - start}
        write_json(output, report | {"texts": texts - texts_before, "encoding": encoding - encoding_before})

    def _runner(self, label: str) -> _Runner:
        """What measures an encoder in this process, which holds one encoder at a time."""
        if (self.id, label) not in _runners:
            _runners.clear()
            _runners[self.id, label] = _Runner(
                self.models[label],
                self.locations[label],
                self.encoders[label],
                self.vectors,
                self.device,
                show_progress_bar=not self.is_copy,
            )
        return _runners[self.id, label]


def _location(model: str) -> str:
    """Where processes that run in other folders find a model."""
    return os.path.abspath(model) if os.path.isdir(model) else model


@dataclass
class _Runner:
    """Runs tasks on one encoder, which is loaded when the first needs it, on `device` unless its options name one."""

    model: str
    location: str
    options: EncoderOptions
    vectors: Path
    device: str | None
    show_progress_bar: bool

    @property
    def encoded(self) -> tuple[int, float]:
        """How many texts were encoded so far, and the seconds that it took."""
        if "cached" not in vars(self):
            return 0, 0.0
        return self.cached.encoded, self.cached.seconds

    @cached_property
    def loaded(self) -> Any:
        options = self.options.model_copy(update={"device": self.options.device or self.device})
        return options.load(self.location)

    @cached_property
    def cached(self) -> CachedEncoder:
        """The encoder with the store of its vectors."""
        return CachedEncoder(self.loaded, VectorStore(self.vectors, encoder_facts(self.loaded, self.location)))

    @cached_property
    def hash(self) -> str:
        """The model's `content_hash`; a model of the Hub is downloaded first."""
        try:
            return content_hash(self.location)
        except XlsrError:
            _ = self.loaded
            return content_hash(self.location)

    def run(self, task: Task, file: Path) -> None:
        """Writes the results of a task to the file, unless it has them."""
        key = self._key(task)
        if file.is_file():
            try:
                content = load_results(file)
            except XlsrError as error:
                logger.warning("%s It is measured again.", error)
                content = {"settings": {}}
            if content["settings"].get("suite_key") == key:
                return

        inputs = task.inputs_for(self.model, self.options)
        inputs.encoding["show_progress_bar"] &= self.show_progress_bar
        encoder = self.cached if task.takes_vectors else self.loaded
        results, settings = measure(task, inputs, encoder, self.model, self.options)
        settings |= {"encoder": encoder_facts(self.loaded, self.location), "suite_key": key}
        save_results(
            file,
            results,
            settings=settings,
            data_hashes=task.inputs.hashes,
            predictions=True,
        )

    def _key(self, task: Task) -> str:
        """A hash of all that affects the results of a task."""
        names = [protocol.name for protocol in task.protocols]
        encoding = self.options.model_dump(exclude={"model"})
        facts: list[Any] = [version("hf-xlsr"), names, self.hash, task.inputs.hashes, task.options, task.seed]
        facts += [vars(task.data), encoding]
        if task.plugins:
            facts.append(dict(task.plugins))
        debias = Path(str(task.options.get("debias"))) / TENSORS
        if debias.is_file():
            facts.append(file_sha256(debias))
        return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def _merged(contents: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The contents of the results files of one encoder as one; two tasks must not measure the same."""
    metrics = Results()
    hashes: dict[str, str] = {}
    for name, content in contents.items():
        for key, record in content["metrics"].records.items():
            if key in metrics and not (record.is_mean or record.is_average):
                raise XlsrError(f"task '{name}' measures '{key}' a second time; give its data another `name`.")

        metrics |= content["metrics"]
        hashes |= {f"{name}/{role}": value for role, value in content["data_sha256"].items()}
    return {"metrics": metrics, "data_sha256": hashes}
