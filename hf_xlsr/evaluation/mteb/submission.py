"""Results of mteb's own evaluation for its leaderboard: a folder of results and the metadata of the model."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mteb
from mteb.models import ModelMeta, SentenceTransformerEncoderWrapper
from mteb.results import TaskResult
from pydantic import ValidationError

from hf_xlsr.encoders.encoding import routes_of
from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.evaluation.mteb.encoder import as_mteb_encoder
from hf_xlsr.evaluation.results import load_results
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.files import write_text
from hf_xlsr.utils.markdown import front_matter

COMMIT = re.compile(r"[0-9a-f]{40}")
MODEL_META = "model_meta.json"
# What reviewers of mteb ask for, and no file of an export says.
WANTED = ("release_date", "languages", "license", "adapted_from", "public_training_code", "training_datasets")


@dataclass
class Submission:
    """What `write_submission` wrote.

    Attributes:
        folder: The result files and `model_meta.json`.
        code: A Python file with the model's `ModelMeta`, for mteb's `model_implementations`.
        meta: The metadata.
        tasks: Names of the tasks.
        incomplete: Task -> subsets and splits without a score, as `SPLIT/SUBSET`.
        missing: Tasks of the benchmark without a result.
        empty: Names of wanted fields of the metadata that are not known.
    """

    folder: Path
    code: Path
    meta: ModelMeta
    tasks: list[str] = field(default_factory=list)
    incomplete: dict[str, list[str]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)


def write_submission(
    results: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    name: str,
    revision: str,
    model: str | None = None,
    benchmark: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Submission:
    """Writes the results of a model as the leaderboard takes them, under its name and commit on the Hub.

    The scores must be those of this very model: mteb's files are found by its `content_hash`. Everything is read by
    mteb's own classes, which check it.

    Args:
        results: What `hf-xlsr evaluate --protocol mteb` wrote: the folder of `--cache`, or the file of `--output`.
        output: Gets `results/OWNER__NAME/REVISION/`, as the repository of results has it, and `NAME.py`.
        name: Id of the model on the Hub, `owner/name`.
        revision: Its commit there.
        model: Folder or id of the model that was measured; by default as the results file says.
        benchmark: A benchmark of mteb, of which the missing tasks are listed.
        facts: Fields of `ModelMeta` that no file says: `release_date`, `public_training_code`, `training_datasets`, ...
    """
    if not COMMIT.fullmatch(revision):
        raise XlsrError(
            f"--revision must be the commit of the model on the Hub, 40 hexadecimal digits, got '{revision}'."
        )
    folder, measured_model = _place_of(results)
    model = model or measured_model
    if model is None:
        raise XlsrError(f"--model is missing: the model whose results are in {results}.")

    encoder = load_encoder(model)
    meta = model_meta(model, encoder, name=name, revision=revision, facts=facts or {})
    # The command files the scores of the loaded model, `as_mteb_encoder(FOLDER)` those of its files.
    task_results = _read_results(folder, {content_hash(model), content_hash(encoder)}, model)

    cache = mteb.ResultCache(Path(output))
    code = Path(output) / f"{_identifier(name)}.py"
    target = cache.get_task_result_path("task", meta).parent
    submission = Submission(target, code, meta, empty=[field for field in WANTED if not getattr(meta, field)])
    for result in task_results:
        absent = _absent_scores(result)
        if absent:
            submission.incomplete[result.task_name] = absent
        cache.save_to_cache(result, meta)
        submission.tasks.append(result.task_name)

    if benchmark is not None:
        submission.missing = _missing_tasks(benchmark, submission.tasks)
    write_text(code, python_code(meta))
    _check_written(submission)
    return submission


def model_meta(model: str, encoder: Any, *, name: str, revision: str, facts: Mapping[str, Any]) -> ModelMeta:
    """The metadata of a model of the Hub, which mteb loads by its own wrapper of sentence-transformers."""
    if routes_of(encoder):
        raise XlsrError(
            f"'{model}' has routes, which mteb's own wrapper does not choose. Submit an export of one encoder."
        )

    local = as_mteb_encoder(model, name=name).mteb_model_meta
    values = {
        **local.model_dump(),
        "name": name,
        "loader": SentenceTransformerEncoderWrapper,
        "revision": revision,
        "reference": f"https://huggingface.co/{name}",
        "adapted_from": _base_model(model),
        **{field: value for field, value in facts.items() if value},
    }

    try:
        return ModelMeta.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise XlsrError(
            f"mteb does not take `{place}` of the metadata, {first['input']!r:.60}: {first['msg']}."
        ) from error


def python_code(meta: ModelMeta) -> str:
    """A module of mteb's `model_implementations` with this metadata."""
    imports = (
        "from mteb.models import ModelMeta, SentenceTransformerEncoderWrapper\n"
        "from mteb.models.model_meta import ScoringFunction\n"
    )
    return f"{imports}\n{_identifier(str(meta.name))} = {meta.to_python()}\n"


def _identifier(name: str) -> str:
    word = re.sub(r"\W", "_", name.rpartition("/")[2], flags=re.ASCII)
    return f"_{word}" if word[:1].isdigit() else word


def _base_model(model: str) -> str | None:
    """The model that a card says it was made from, if it is one of the Hub."""
    readme = Path(model) / "README.md"
    if not readme.is_file():
        return None
    base = front_matter(readme.read_text("utf-8", errors="replace")).get("base_model")
    first = base[0] if isinstance(base, list) and base else base
    return str(first) if first else None


def _place_of(results: str | os.PathLike[str]) -> tuple[Path, str | None]:
    """The folder of mteb's result files, and the model that a results file names."""
    if Path(results).is_dir():
        return Path(results), None
    settings = load_results(results)["settings"]
    if settings.get("protocol") != "mteb" or not settings.get("cache"):
        raise XlsrError(
            f"{results} names no folder of mteb's results. Write it by hf-xlsr evaluate --protocol mteb --cache FOLDER."
        )
    return Path(settings["cache"]), settings["model"]


def _read_results(folder: Path, measured_revisions: Collection[str], model: str) -> list[TaskResult]:
    """mteb's results of a model, without those of other prompts or options, which are in folders of experiments."""
    files = [file for file in sorted(folder.rglob("*.json")) if file.name != MODEL_META]
    task_results = []
    for file in files:
        if file.parent.name in measured_revisions:
            task_results.append(_read_result(file))
    if not task_results:
        revisions = sorted({file.parent.name[:12] for file in files})
        raise XlsrError(
            f"{folder} has no results of '{model}' as it is now, only of revisions "
            f"{', '.join(revisions) or 'none'}. Measure it by hf-xlsr evaluate --protocol mteb --cache."
        )
    return task_results


def _read_result(file: Path) -> TaskResult:
    """The result of one task, checked by mteb's own class, and that it is of the data that mteb has now."""
    try:
        result = TaskResult.from_disk(file)
        task = mteb.get_task(result.task_name)
    except (ValueError, KeyError, OSError) as error:
        raise XlsrError(f"mteb does not take {file}: {error_line(error)}") from error

    if task.metadata.name != result.task_name:
        raise XlsrError(f"{file} is of task '{result.task_name}', which mteb calls '{task.metadata.name}'.")

    revision = task.metadata.dataset["revision"]
    if result.dataset_revision != revision:
        raise XlsrError(f"{file} is of data revision {result.dataset_revision}, not {revision}. Measure it again.")
    for split, scores in result.scores.items():
        for score in scores:
            if not math.isfinite(score["main_score"]):
                raise XlsrError(f"{file} has no score of {split}/{score['hf_subset']}. Measure it again.")
    return result


def _absent_scores(result: TaskResult) -> list[str]:
    """The splits and subsets of a task without a score."""
    absent = []
    for split, scores in result.validate_and_filter_scores().scores.items():
        for score in scores:
            if math.isnan(score["main_score"]):
                absent.append(f"{split}/{score['hf_subset']}")
    return sorted(absent)


def _missing_tasks(benchmark: str, tasks: Sequence[str]) -> list[str]:
    try:
        expected = mteb.get_benchmark(benchmark).tasks
    except (KeyError, ValueError) as error:
        raise XlsrError(f"--benchmark '{benchmark}': {error_line(error)}") from error
    return sorted({task.metadata.name for task in expected} - set(tasks))


def _check_written(submission: Submission) -> None:
    """Reads everything again as mteb's tools do."""
    written = (submission.folder / MODEL_META).read_bytes()
    meta = ModelMeta.model_validate_json_resolved(json.dumps(_without(json.loads(written), "is_cross_encoder")))
    if (meta.name, meta.revision) != (submission.meta.name, submission.meta.revision):
        raise XlsrError(
            f"{submission.folder} is of {meta.name}, {meta.revision}; mteb read another model than was written."
        )
    for task in submission.tasks:
        TaskResult.from_disk(submission.folder / f"{task}.json")


def _without(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != name}
