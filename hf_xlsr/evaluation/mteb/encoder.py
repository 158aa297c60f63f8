"""Encoders as mteb takes them, and runs of mteb's own evaluation with results under our keys."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import mteb
import numpy as np
from mteb.abstasks import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder, get_prompt_name
from mteb.models.model_implementations import MODEL_REGISTRY
from mteb.models.model_meta import ScoringFunction
from mteb.results import TaskResult
from mteb.types import Licenses, PromptType
from transformers import PreTrainedModel
from typing_extensions import TypedDict, Unpack

from hf_xlsr.data.prompts import Prompts, PromptTable
from hf_xlsr.data.sources import as_list
from hf_xlsr.encoders.encoding import BATCH_SIZE, call_encode, route_of, routes_of
from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.encoders.loading import finite_length, load_encoder
from hf_xlsr.evaluation.languages import metric_languages
from hf_xlsr.evaluation.mteb.tasks import column_language, langscript, mteb_task, subset_languages
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown import front_matter
from hf_xlsr.utils.vectors import as_vectors


class MtebEncoder(AbsEncoder):
    """A `SentenceTransformer` as an encoder of mteb, made by `as_mteb_encoder`."""

    mteb_model_meta: ModelMeta

    def __init__(
        self,
        model: Any,
        mteb_model_meta: ModelMeta,
        *,
        prompt: Prompts = None,
        routes: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.mteb_model_meta = mteb_model_meta
        self.prompt = prompt
        self.routes = routes

    @property
    def prompts(self) -> PromptTable:
        """The model's own prompts with those that were given."""
        return PromptTable.of(self.model).given(self.prompt)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **encode_kwargs: Any,
    ) -> np.ndarray:
        """Embeds one column of texts, `(number of texts, width)`, float32; a text that occurs twice is encoded once.

        `hf_subset` is the subset, or the language of the column. A prompt of the task, as mteb names it, comes before
        that of `prompt_type`, and this before that of the language. `encode_kwargs` are options of the model's `encode`
        other than those that choose its prompt and route.
        """
        if "prompt_name" in encode_kwargs:
            raise XlsrError("`prompt_name` must not be in `encode_kwargs`; give `prompt` to `as_mteb_encoder`.")

        texts = list(chain.from_iterable(batch["text"] for batch in inputs))
        role = None if prompt_type is None else PromptType(prompt_type).value
        routes = routes_of(self.model)
        by_language = self._routes_by_language()
        if routes and role is None and not by_language:
            raise XlsrError(f"mteb's task {task_metadata.name} chooses none of the routes {routes}. Give `routes`.")

        prompt_name = get_prompt_name(dict(self.prompts.texts), task_metadata, prompt_type) or role
        language = self._language(texts, task_metadata, hf_subset, prompt_name, by_language)
        route = role if routes else None
        if by_language:
            route = route_of(self.model, language, self.routes)

        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        prompt = self.prompts.text(role=prompt_name, language=language)
        encoded = call_encode(
            self.model,
            list(row_of),
            prompt=prompt,
            task=route,
            **encode_kwargs,
        )
        vectors = as_vectors(encoded, "the model's output")
        return vectors[[row_of[text] for text in texts]]

    def _routes_by_language(self) -> bool:
        """Whether the model needs the language of texts to choose a route."""
        try:
            route_of(self.model, None, self.routes)
        except XlsrError:
            return True
        return False

    def _language(
        self, texts: Sequence[str], metadata: TaskMetadata, subset: str, prompt_name: str | None, by_language: bool
    ) -> str | None:
        """The language of a column, where the prompt or, with `by_language`, the route depends on it."""
        candidates = subset_languages(metadata, subset)
        ways = set()
        for language in candidates:
            route = route_of(self.model, language, self.routes) if by_language else None
            ways.add((route, self.prompts.text(role=prompt_name, language=language)))
        if len(ways) == 1:
            return candidates[0]
        if not (ways or by_language):
            return None

        column = f"A column of mteb's task {metadata.name}, subset '{subset}',"
        if len(candidates) != 2:
            raise XlsrError(
                f"{column} may be in {candidates or 'any language'}. Choose subsets of one or two languages."
            )
        return column_language(texts, (candidates[0], candidates[1]), place=column)


class MtebEncoderOptions(TypedDict, total=False):
    """Options of `as_mteb_encoder`, for functions that pass them on."""

    name: str | None
    prompt: Prompts
    routes: Mapping[str, str] | None
    languages: Sequence[str] | None


def as_mteb_encoder(
    model: str | os.PathLike[str] | Any,
    *,
    name: str | None = None,
    prompt: Prompts = None,
    routes: Mapping[str, str] | None = None,
    languages: Sequence[str] | None = None,
) -> MtebEncoder:
    """A model that `mteb.evaluate` takes; its scores are filed under `content_hash` as revision.

    For a model with an encoder for each language, the language of a column is that of the subset where it has one, and
    else found by `column_language` among the subset's two. mteb files the scores of each prompt and routes apart.

    Args:
        model: Folder or Hub id of an export, or a loaded `SentenceTransformer`.
        name: How mteb files it, `owner/name`; by default the id on the Hub, or `local/` and the folder's name.
        prompt: Put before texts instead of the model's own prompts: one for all (`"query: "`, or `""` for none), or by
            language, `query` or `document`.
        routes: Language -> route of a model whose routes do not have the languages' names.
        languages: What the model is for, in its metadata; by default what its card or its routes say.
    """
    loaded: Any = model
    card: dict[str, Any] = {}
    if isinstance(model, (str, os.PathLike)):
        loaded = load_encoder(os.fspath(model))
        readme = Path(model) / "README.md"
        if readme.is_file():
            card = front_matter(readme.read_text("utf-8", errors="replace"))

    languages = as_list(languages or card.get("language") or routes_of(loaded))

    parameters = list(loaded.parameters())
    embedding_tables = set()
    for module in loaded.modules():
        if isinstance(module, PreTrainedModel):
            embeddings: Any = module.get_input_embeddings()
            embedding_tables.add(embeddings.weight)

    license = card.get("license")
    num_embeddings = sum(table.numel() for table in embedding_tables)

    meta = ModelMeta.create_empty(
        overwrites={
            "name": _name(model, name),
            "revision": content_hash(model),
            "languages": list(filter(None, map(langscript, languages))) or None,
            "n_parameters": sum(parameter.numel() for parameter in parameters),
            "n_embedding_parameters": num_embeddings or None,
            "memory_usage_mb": sum(parameter.numel() * parameter.element_size() for parameter in parameters) / 2**20,
            "max_tokens": finite_length(loaded),
            "embed_dim": loaded.get_embedding_dimension(),
            "license": license if license in get_args(Licenses) else None,
            "open_weights": True,
            "framework": ["Sentence Transformers", "PyTorch"],
            "similarity_fn_name": ScoringFunction(loaded.similarity_fn_name or "cosine"),
            "use_instructions": any(PromptTable.of(loaded).given(prompt).texts.values()),
            "experiment_kwargs": _experiment({"prompt": prompt, "routes": routes and dict(routes)}),
        }
    )
    return MtebEncoder(loaded, meta, prompt=prompt, routes=routes)


def _experiment(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """What affects embeddings besides the model; mteb caches results per combination."""
    options = {name: value for name, value in options.items() if value not in (None, {})}
    if not options:
        return None

    # mteb replaces many signs in the names of its folders by underscores, so that two prompts may look the same.
    content = json.dumps(options, sort_keys=True, default=str)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return {**options, "digest": digest[:12]}


def _name(model: Any, name: str | None) -> str:
    """How mteb files a model, `owner/name`."""
    if name is None and isinstance(model, (str, os.PathLike)):
        folder = Path(model)
        name = folder.resolve().name if folder.is_dir() else str(model)
    name = name or "sentence-transformer"
    return name if "/" in name else f"local/{name}"


def register_model(model: str | os.PathLike[str], **options: Unpack[MtebEncoderOptions]) -> ModelMeta:
    """Makes an export known to mteb in this process: `mteb.get_model(name)` loads it as `as_mteb_encoder` does.

    mteb does not search other packages for models, so each process registers its own. `options` are those of
    `as_mteb_encoder`; `name` is how mteb calls it.
    """

    def load(name: str, revision: str | None = None, device: str | None = None, **_: Any) -> MtebEncoder:
        if revision != content_hash(model):
            raise XlsrError(f"'{model}' has changed since it was registered as '{name}'. Register it again.")
        encoder = as_mteb_encoder(model, **options)
        if device:
            encoder.model.to(device)
        return encoder

    meta = as_mteb_encoder(model, **options).mteb_model_meta.model_copy(update={"loader": load})
    MODEL_REGISTRY[str(meta.name)] = meta
    return meta


def evaluate_mteb(
    model: str | os.PathLike[str] | Any,
    tasks: str | AbsTask | Iterable[str | AbsTask],
    *,
    cache: str | os.PathLike[str] | None = None,
    batch_size: int = BATCH_SIZE,
    show_progress_bar: bool = False,
    encode_kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[MtebEncoderOptions],
) -> Results:
    """Runs mteb's tasks and gives their main scores under our keys.

    Args:
        model: What `as_mteb_encoder` takes, with its `options`, or returns.
        tasks: Names of mteb's tasks or task objects (`mteb.get_task`, our own), one or several.
        cache: Folder for mteb's result files; by default they are not kept. A score in it is reused only for the same
            model, prompt, routes and `encode_kwargs`, and the same revision of the task's data.
        encode_kwargs: Further options of the model's `encode`: `truncate_dim`, `normalize_embeddings`, `precision`.

    Returns:
        `main_score`, and the same under the metric's own name (`f1`, `cosine_spearman`), for each subset and split:
        `Tatoeba-mteb/de-en/test/f1`. Languages are named by their codes. A subset with more than three languages, or
        with the same languages as another one of its task, is named as mteb names it.
    """
    if not isinstance(model, MtebEncoder):
        model = as_mteb_encoder(model, **options)
    elif options:
        raise XlsrError(f"An encoder of mteb takes no {', '.join(options)}. Give them to `as_mteb_encoder`.")
    if isinstance(tasks, (str, AbsTask)):
        tasks = [tasks]

    if encode_kwargs:
        model = _as_experiment(model, encode_kwargs)
    encode_kwargs = {**(encode_kwargs or {}), "batch_size": batch_size, "show_progress_bar": show_progress_bar}
    measurements = Results()
    with tempfile.TemporaryDirectory() as folder:
        results = mteb.ResultCache(Path(cache or folder))
        for task in tasks:
            if isinstance(task, str):
                task = mteb_task(task)
            measurements |= _task_results(task, _run(model, task, results, encode_kwargs))
    return measurements


def _as_experiment(encoder: MtebEncoder, encode_kwargs: Mapping[str, Any]) -> MtebEncoder:
    """The encoder under metadata that mteb files apart from those of other options of `encode`."""
    experiment = dict(encoder.mteb_model_meta.experiment_kwargs or {})
    experiment.pop("digest", None)
    meta = encoder.mteb_model_meta.model_copy(
        update={"experiment_kwargs": _experiment({**experiment, **encode_kwargs})}
    )
    return MtebEncoder(encoder.model, meta, prompt=encoder.prompt, routes=encoder.routes)


def _run(encoder: MtebEncoder, task: AbsTask, results: mteb.ResultCache, encode_kwargs: Any) -> TaskResult:
    """mteb's result of one task, from the cache if it has one of these data."""
    cached = results.load_task_result(task.metadata.name, encoder.mteb_model_meta)
    # mteb takes a complete result from its cache whatever data it is of.
    valid = cached is not None and cached.is_mergeable(task)
    result = mteb.evaluate(
        encoder,
        task,
        cache=results,
        overwrite_strategy="only-missing" if valid else "always",
        encode_kwargs=encode_kwargs,
        show_progress_bar=encode_kwargs["show_progress_bar"],
        co2_tracker=False,
    )
    return result.task_results[0]


def _task_results(task: AbsTask, result: TaskResult) -> Results:
    """The main score of each subset and split, under our keys."""
    names = _subset_languages(task)
    results = Results()
    for split in task.eval_splits:
        for scores in result.scores.get(split, ()):
            subset = scores["hf_subset"]
            if subset not in task.hf_subsets and not task.is_aggregate:
                continue
            languages = names.get(subset, subset.replace("/", "-"))
            values = dict.fromkeys(("main_score", task.metadata.main_score), float(scores["main_score"]))
            results |= measured(task.metadata.name, "mteb", languages, split, values)

    return results


def _subset_languages(task: AbsTask) -> dict[str, str | tuple[str, str]]:
    """The languages of subsets with at most three that no other subset has, as results name them."""
    tags_of = task.metadata.hf_subsets_to_langscripts
    codes = metric_languages(set(chain.from_iterable(tags_of.values())))
    codes_of = {}
    for subset, tags in tags_of.items():
        codes_of[subset] = tuple(codes[tag] for tag in tags)
    counts = Counter(codes_of.values())

    names: dict[str, str | tuple[str, str]] = {}
    for subset, languages in codes_of.items():
        if len(languages) > 3 or counts[languages] > 1:
            continue
        names[subset] = "-".join(languages)
        if len(languages) == 2:
            names[subset] = (languages[0], languages[1])
    return names
