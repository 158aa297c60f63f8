"""Encoders in mteb: the language of each column routed, scores filed under a hash of what decides the vectors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from typing_extensions import TypedDict, Unpack

from hf_xlsr.encoders.encoding import default_prompt, embed
from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.encoders.loading import encoder_facts, load_encoder
from hf_xlsr.encoders.routing import route_of, routes_of
from hf_xlsr.evaluation.input_languages import key_languages
from hf_xlsr.evaluation.mteb.data import load_task, mteb_task, require_mteb
from hf_xlsr.evaluation.mteb.languages import column_language, subset_languages
from hf_xlsr.evaluation.mteb.meta import model_meta
from hf_xlsr.evaluation.report import metric_prefix, save_results
from hf_xlsr.utils.errors import XlsrError, require_positive

__all__ = ["MtebEncoder", "MtebEncoderOptions", "as_mteb_encoder", "content_hash", "evaluate_mteb"]


class MtebEncoderOptions(TypedDict, total=False):
    """The options of `as_mteb_encoder`, which `evaluate_mteb` hands on."""

    name: str | None
    prompt: str
    routes: Mapping[str, str] | None
    languages: Sequence[str] | None
    identify: bool
    training_datasets: Iterable[str] | None


class MtebEncoder:
    """A `SentenceTransformer` as mteb wants an encoder; `as_mteb_encoder` makes it.

    Attributes:
        model: The model.
        mteb_model_meta: mteb's `ModelMeta` of it.
    """

    def __init__(
        self,
        model: Any,
        mteb_model_meta: Any,
        *,
        prompt: str = "",
        routes: Mapping[str, str] | None = None,
        identify: bool = True,
    ) -> None:
        self.model = model
        self.mteb_model_meta = mteb_model_meta
        self.prompt = prompt
        self.routes = routes
        self.identify = identify
        for language in routes or ():
            route_of(model, language, routes)
        self._by_language = _routes_by_language(model, routes)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **encode_kwargs: Any,
    ) -> np.ndarray:
        """One column of texts as vectors, as long as the model gives them.

        Args:
            inputs: Batches with a list `text`.
            task_metadata: Of the task, which knows the languages of its subsets.
            hf_split: The split, which decides nothing.
            hf_subset: The subset, or the language of the column.
            prompt_type: `query` or `document` in retrieval. Unless another was given, a model's own prompt is used, of
                the first of these names that it has: the task's name and this, the task's name, its type and this,
                its type, this.
            **encode_kwargs: `batch_size` and `show_progress_bar`.

        Returns:
            `(number of texts, width)`, float32.

        Raises:
            XlsrError: the model routes by language and the column's cannot be told, or has no route; the model has
                routes of another kind and the task does not say which to take; or another keyword was given.
        """
        unknown = set(encode_kwargs) - {"batch_size", "show_progress_bar"}
        if unknown:
            raise XlsrError(f"encode_kwargs has '{sorted(unknown)[0]}'; known are batch_size, show_progress_bar.")
        texts = [text for batch in inputs for text in batch["text"]]
        side = getattr(prompt_type, "value", prompt_type)
        place = f"a column of mteb's task {task_metadata.name}, subset '{hf_subset}',"
        encoder, language = self.model, None
        if self._by_language:
            language = self._language(texts, subset_languages(task_metadata, hf_subset), place)
        elif routes_of(self.model):
            if side is None:
                raise XlsrError(
                    f"the model has the routes {', '.join(routes_of(self.model))}, and {task_metadata.name} does not "
                    "say which to take; say which language takes which (routes, for instance de=source)."
                )
            encoder = SimpleNamespace(
                encode=partial(self.model.encode, task=side), default_prompt_name=default_prompt(self.model)
            )
        return embed(
            encoder,
            texts,
            language=language,
            prompt=self.prompt or _own_prompt(self.model.prompts, task_metadata, side),
            routes=self.routes,
            normalize=False,
            **encode_kwargs,
        )

    def _language(self, texts: Sequence[str], candidates: tuple[str, ...], place: str) -> str:
        if not candidates:
            raise XlsrError(f"{place} is in a language that neither the task nor the subset names.")
        routes = {route_of(self.model, language, self.routes) for language in candidates}
        if len(routes) == 1:
            return candidates[0]
        if len(candidates) > 2 or not self.identify:
            raise XlsrError(
                f"{place} is in one or more of {', '.join(candidates)}, and mteb does not say which; "
                f"{'choose subsets of one or two languages' if self.identify else 'allow identify'}."
            )
        return column_language(texts, (candidates[0], candidates[1]), place=place)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The model's similarity, by default cosine, of each vector to each."""
        return self.model.similarity(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """The same, row by row."""
        return self.model.similarity_pairwise(embeddings1, embeddings2)


def _own_prompt(prompts: Mapping[str, str], task_metadata: Any, side: str | None) -> str:
    """The prompt that mteb's own wrapper would take."""
    kinds = (task_metadata.name, task_metadata.type)
    names = [name for kind in kinds for name in (f"{kind}-{side}", kind)] + [str(side)]
    return next((prompts[name] for name in names if prompts.get(name) is not None), "")


def _routes_by_language(model: Any, routes: Mapping[str, str] | None) -> bool:
    try:
        route_of(model, None, routes)
    except XlsrError:
        return True
    return False


def as_mteb_encoder(
    model: str | os.PathLike[str] | Any,
    *,
    name: str | None = None,
    prompt: str = "",
    routes: Mapping[str, str] | None = None,
    languages: Sequence[str] | None = None,
    identify: bool = True,
    training_datasets: Iterable[str] | None = None,
) -> MtebEncoder:
    """A model that `mteb.evaluate` takes; its scores are filed under `content_hash` as revision.

    mteb says `deu-eng` when it hands over either column of a bitext task. Models without routes need not know more. For
    a model with an encoder for each language, the language of a column is that of the subset where it has one, and
    else found by `column_language` among the subset's two; a column whose language is not clear is refused.

    Prompt and routes decide the vectors too: mteb files scores with other ones apart, as an experiment.

    Args:
        model: Folder or Hub id of an export, or a loaded `SentenceTransformer`.
        name: How mteb files it, `owner/name`; by default the id on the Hub, or `local/` and the folder's name.
        prompt: Put before every text, for instance `"query: "`.
        routes: Language -> route of a model whose routes do not bear the languages' names.
        languages: What the model is for, as its metadata tell; by default what its card or its routes say.
        identify: Find out which of a subset's two languages a column is in; else such a subset is refused.
        training_datasets: Tasks of mteb that the model was trained on; None: not known.

    Returns:
        The encoder.

    Raises:
        XlsrError: mteb is not installed, the model cannot be loaded, it lacks a route that `routes` names, or mteb
            does not know one of `languages`.
    """
    require_mteb()
    loaded = load_encoder(os.fspath(model)) if isinstance(model, (str, os.PathLike)) else model
    meta = model_meta(
        model,
        loaded,
        name=name,
        prompt=prompt,
        routes=routes,
        languages=languages,
        training_datasets=training_datasets,
    )
    return MtebEncoder(loaded, meta, prompt=prompt, routes=routes, identify=identify)


def evaluate_mteb(
    model: str | os.PathLike[str] | Any,
    tasks: str | Any | Iterable[str | Any],
    *,
    output: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    show_progress_bar: bool = False,
    **options: Unpack[MtebEncoderOptions],
) -> dict[str, float]:
    """Runs mteb's tasks and gives their main scores under our keys.

    mteb's own cache of results is never read or written. In a `cache` that is given, a score is found again only for
    the same model, prompt and routes, and the same revision of the task's data.

    Args:
        model: What `as_mteb_encoder` takes, or what it gave.
        tasks: Names of mteb's tasks or task objects (`mteb.get_task`, our own), one or several.
        output: Where a JSON file of the results goes, with what produced them.
        cache: A folder for mteb's result files; by default they are not kept.
        batch_size: Texts encoded at a time.
        show_progress_bar: Show progress over tasks and while encoding.
        **options: See `MtebEncoderOptions`.

    Returns:
        `main_score`, and the same under the metric's own name (`f1`, `cosine_spearman`), for each subset and split:
        `Tatoeba-mteb/de-en/test/f1`. Languages are named by their codes; a subset whose languages do not tell it from
        another subset of its task, or that has more than three, by mteb's name.

    Raises:
        XlsrError: as `as_mteb_encoder` and its encoder do; `batch_size` is below 1; a task is unknown or given twice,
            or its data are not to be had.
    """
    require_positive("batch_size", batch_size)  # mteb makes batches of its own before a sentence reaches `embed`
    mteb = require_mteb()
    if isinstance(model, MtebEncoder):
        if options:
            raise XlsrError(f"{sorted(options)[0]} was given with an encoder; give it to as_mteb_encoder.")
        encoder = model
    else:
        encoder = as_mteb_encoder(model, **options)
    listed = [tasks] if isinstance(tasks, str) or hasattr(tasks, "metadata") else list(tasks)
    chosen = [mteb_task(task) if isinstance(task, str) else task for task in listed]
    names = [task.metadata.name for task in chosen]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise XlsrError(f"task '{twice[0]}' was given twice; give each once, under a name of its own.")
    metrics: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        results = mteb.ResultCache(cache or folder)
        encode_kwargs = {"batch_size": batch_size, "show_progress_bar": show_progress_bar}
        for task in chosen:
            metrics.update(_task_metrics(task, _run(mteb, encoder, task, results, encode_kwargs)))
    if output:
        meta = encoder.mteb_model_meta
        settings = {"model": meta.name, "revision": meta.revision, "protocol": "mteb", "tasks": names}
        settings.update(encoder_facts(encoder.model))
        settings.update(prompt=encoder.prompt, routes=encoder.routes, batch_size=batch_size)
        settings["data_revisions"] = {task.metadata.name: task.metadata.revision for task in chosen}
        save_results(output, metrics, settings=settings)
    return metrics


def _run(mteb: Any, encoder: MtebEncoder, task: Any, results: Any, encode_kwargs: dict[str, Any]) -> Any:
    """mteb's result of one task, from the cache if it is there for these data."""
    found = results.load_task_result(task.metadata.name, encoder.mteb_model_meta)
    # mteb takes a complete result from its cache whatever data it is of.
    valid = found is not None and found.is_mergeable(task)
    was_loaded = task.data_loaded
    if not task.is_aggregate and not (valid and not found.get_missing_evaluations(task)):
        load_task(task)
    try:
        result = mteb.evaluate(
            encoder,
            task,
            cache=results,
            overwrite_strategy="only-missing" if valid else "always",
            encode_kwargs=encode_kwargs,
            show_progress_bar=encode_kwargs["show_progress_bar"],
            co2_tracker=False,
        )
    finally:
        if task.data_loaded and not was_loaded:
            task.unload_data()
    return result.task_results[0]


def _task_metrics(task: Any, result: Any) -> Iterator[tuple[str, float]]:
    subsets = task.metadata.hf_subsets_to_langscripts
    tags = key_languages(dict.fromkeys(tag for langs in subsets.values() for tag in langs))
    names = {subset: "-".join(tags[tag] for tag in langs) for subset, langs in subsets.items()}
    counts: dict[str, int] = {}
    for name in names.values():
        counts[name] = counts.get(name, 0) + 1
    for split in task.eval_splits:
        for scores in result.scores.get(split, ()):
            subset = scores["hf_subset"]
            if subset not in task.hf_subsets and not task.is_aggregate:
                continue
            plain = subset in names and len(subsets[subset]) <= 3 and counts[names[subset]] == 1
            languages = names[subset] if plain else subset.replace("/", "-")
            prefix = metric_prefix(task.metadata.name, "mteb", languages, split)
            for metric in dict.fromkeys(("main_score", task.metadata.main_score)):
                yield f"{prefix}/{metric}", float(scores["main_score"])
