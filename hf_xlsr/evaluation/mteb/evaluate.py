"""Protocol `mteb`: runs of mteb's own evaluation, with results under our keys."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mteb
from mteb.abstasks import AbsTask
from mteb.results import TaskResult

from hf_xlsr.encoders.loading import encoder_facts
from hf_xlsr.evaluation.languages import metric_languages
from hf_xlsr.evaluation.mteb.data import mteb_task
from hf_xlsr.evaluation.mteb.encoder import MtebEncoder, as_mteb_encoder
from hf_xlsr.evaluation.results import Results, measured, save_results
from hf_xlsr.utils.errors import XlsrError


def evaluate_mteb(
    model: str | os.PathLike[str] | Any,
    tasks: str | AbsTask | Iterable[str | AbsTask],
    *,
    output: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    show_progress_bar: bool = False,
    **options: Any,
) -> Results:
    """Runs mteb's tasks and gives their main scores under our keys.

    mteb's default cache of results is never read or written. A score in `cache` is reused only for the same model,
    prompt and routes, and the same revision of the task's data.

    Args:
        model: What `as_mteb_encoder` takes or returns.
        tasks: Names of mteb's tasks or task objects (`mteb.get_task`, our own), one or several.
        output: JSON file for the results and what produced them.
        cache: Folder for mteb's result files; by default they are not kept.
        **options: See `as_mteb_encoder`.

    Returns:
        `main_score`, and the same under the metric's own name (`f1`, `cosine_spearman`), for each subset and split:
        `Tatoeba-mteb/de-en/test/f1`. Languages are named by their codes. A subset with more than three languages, or
        with the same languages as another one of its task, is named as mteb names it.
    """
    if isinstance(model, MtebEncoder) and options:
        raise XlsrError(f"`{next(iter(options))}` has no effect on a made encoder. Give it to `as_mteb_encoder`.")
    encoder = model if isinstance(model, MtebEncoder) else as_mteb_encoder(model, **options)
    listed = [tasks] if isinstance(tasks, (str, AbsTask)) else list(tasks)
    chosen = [mteb_task(task) if isinstance(task, str) else task for task in listed]
    names = [task.metadata.name for task in chosen]
    measurements = Results()
    with tempfile.TemporaryDirectory() as folder:
        results = mteb.ResultCache(Path(cache or folder))
        encode_kwargs = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
        for task in chosen:
            measurements |= _task_results(task, _run(encoder, task, results, encode_kwargs))
    if output:
        meta = encoder.mteb_model_meta
        settings = {
            "model": meta.name,
            "revision": meta.revision,
            "protocol": "mteb",
            "tasks": names,
            **encoder_facts(encoder.model),
            "prompt": encoder.prompt,
            "routes": encoder.routes,
            "batch_size": batch_size,
            "data_revisions": {task.metadata.name: task.metadata.revision for task in chosen},
        }
        save_results(output, measurements, settings=settings)
    return measurements


def _run(encoder: Any, task: AbsTask, results: mteb.ResultCache, encode_kwargs: Any) -> TaskResult:
    """mteb's result of one task, from the cache if it has one of these data."""
    found = results.load_task_result(task.metadata.name, encoder.mteb_model_meta)
    # mteb takes a complete result from its cache whatever data it is of.
    valid = found if found is not None and found.is_mergeable(task) else None
    was_loaded = task.data_loaded
    result = mteb.evaluate(
        encoder,
        task,
        cache=results,
        overwrite_strategy="only-missing" if valid else "always",
        encode_kwargs=encode_kwargs,
        show_progress_bar=encode_kwargs["show_progress_bar"],
        co2_tracker=False,
    )
    if task.data_loaded and not was_loaded:
        task.unload_data()
    return result.task_results[0]


def _task_results(task: AbsTask, result: TaskResult) -> Results:
    found = Results()
    subsets = task.metadata.hf_subsets_to_langscripts
    tags = metric_languages(dict.fromkeys(tag for langs in subsets.values() for tag in langs))
    names = {subset: tuple(tags[tag] for tag in langs) for subset, langs in subsets.items()}
    counts = Counter(names.values())
    for split in task.eval_splits:
        for scores in result.scores.get(split, ()):
            subset = scores["hf_subset"]
            if subset not in task.hf_subsets and not task.is_aggregate:
                continue
            plain = subset in names and len(subsets[subset]) <= 3 and counts[names[subset]] == 1
            tagged = names[subset] if plain else (subset.replace("/", "-"),)
            languages = (tagged[0], tagged[1]) if len(tagged) == 2 else "-".join(tagged)
            values = dict.fromkeys(("main_score", task.metadata.main_score), float(scores["main_score"]))
            found |= measured(task.metadata.name, "mteb", languages, split, values)
    return found
