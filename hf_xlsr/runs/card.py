"""Model cards of runs, and of models without a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from langcodes import tag_is_valid
from transformers import AutoConfig

from hf_xlsr.data.cleaning.cost import cost_table, removal_table
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.sources import Source, as_list, parse_sources
from hf_xlsr.encoders.assembly import modules_by_route
from hf_xlsr.encoders.encoding import routes_of
from hf_xlsr.encoders.heads import HeadConfig
from hf_xlsr.encoders.loading import finite_length, load_encoder
from hf_xlsr.evaluation.before_after import Change
from hf_xlsr.evaluation.results import Results, load_results
from hf_xlsr.export.base_models import base_models_of, on_hub
from hf_xlsr.export.card import EXAMPLES, PLACE, code, part_card, python_text
from hf_xlsr.export.hub import TAG
from hf_xlsr.export.model_card import (
    CardFacts,
    CardMetadata,
    DataSource,
    card_text,
    clean,
    encoder_facts_of,
    framework_versions,
    hub_languages,
)
from hf_xlsr.export.old_names import not_served
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.inputs import is_dataset
from hf_xlsr.runs.methods import METHODS, Method
from hf_xlsr.runs.recipe import read_run
from hf_xlsr.runs.sections import TRAINING_PLACES, Recipe
from hf_xlsr.trainers.card import method_settings
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.plugins import PLUGINS, in_words

HIDDEN_KEYS = ("name", "description", "output_dir", "overwrite", "processes", "card")  # of one machine or one call
MEASURED = "Keys are dataset, protocol, languages and split. The test text was removed from the training data."
NOT_MEASURED = "Not measured: the recipe names no test set."
COST = "What each step, alone, removes of known good pairs (`data.known`), and of bad pairs made from them:"
NO_COST = "How many good pairs this removed is not known: the recipe names no known pairs (`data.known`)."
TEACHER = "teacher.path"  # whose weights a student does not start from
NOT_KNOWN = "Not known: the card was written from the saved model."


def render_card(run: Method, metrics: Results, settings: Mapping[str, Any]) -> str:
    """The card of a run, in Markdown with its metadata header; `settings` are those of `results.json`."""
    return card_text(card_facts(run, metrics, settings))


def card_facts(run: Method, metrics: Results, settings: Mapping[str, Any]) -> CardFacts:
    """What the card of a run says, by its recipe, its metrics and the settings of `results.json`."""
    recipe = run.recipe
    starts = _starting_weights(recipe)
    recipe_settings = recipe.settings()
    shown_settings = {key: value for key, value in recipe_settings.items() if key not in HIDDEN_KEYS}
    sources = [_card_source(source) for source in training_sources(recipe)]
    task = getattr(recipe, "task", None)
    model_class: Any = getattr(run, "model_class", None)
    return CardFacts(
        title=recipe.name,
        method=run.trainer_class.method,
        tag=recipe.method,
        description=recipe.description,
        recipe=recipe.name if recipe.description else "",
        languages=recipe.languages,
        dimension=settings["dimension"],
        max_length=settings["max_length"],
        transformer=settings.get("transformer", {}),
        head=settings.get("head", []),
        prompts=settings.get("prompts", {}),
        prompt=settings.get("prompt", ""),
        routes=run.routes(),
        unexported="" if run.exported else model_class.__name__,
        weights="/training/final",
        text_pairs=task is not None and task.texts == "pair",
        starts=list(dict.fromkeys(starts.values())),
        pretrained=bool(starts.keys() - {TEACHER}) and not recipe.model.get("random_weights"),
        base_models=base_models_of(starts.values(), folders=[recipe.start_from]),
        sources=sources,
        training=_training_facts(run, starts, settings),
        cleaning=_cleaning_tables(settings["data"]),
        scores=metrics,
        scores_note=MEASURED if metrics else NOT_MEASURED,
        comparison={key: Change(**values) for key, values in settings.get("comparison", {}).items()},
        plots=settings.get("plots", ()),
        settings_title="The recipe, with every default filled in",
        settings=shown_settings,
        metadata=CardMetadata(**recipe.card.model_dump()),
    )


def card_of_run(run: str | Path, metadata: Mapping[str, Any] | None = None) -> str:
    """The card of a finished run, from `results.json` and `training/recipe.json`; `metadata` replaces keys of `card`."""
    folder = RunFolder(run)
    method = read_run(folder)
    recipe = method.recipe.settings()
    recipe["card"] |= metadata or {}
    results = load_results(folder.results)
    settings = {**(results.get("settings") or {}), "versions": results.get("versions", {})}
    return render_card(type(method).bind(recipe), results["metrics"], settings)


def card_of_saved(path: str, encoder: Any) -> str:
    """The card of a saved model of this package, which knows neither its training data nor its scores.

    Args:
        path: Its folder.
        encoder: Its export, a `SentenceTransformer`.
    """
    config = load_auto(AutoConfig, path)
    methods = []
    for recipe_method in METHODS.values():
        arguments: Any = recipe_method.arguments_class
        if recipe_method.config_class is type(config) and arguments.trains_embeddings:
            methods.append(recipe_method.trainer_class.method)
    method, *_ = methods  # a plug-in's may have the configuration of a built-in one, which comes first
    return card_text(
        CardFacts(
            title=Path(path).resolve().name,
            method=method,
            tag=config.model_type,
            languages=getattr(config, "languages", None) or (),
            dimension=encoder.get_embedding_dimension(),
            max_length=finite_length(encoder) or 0,
            routes=routes_of(encoder),
            scores_note=NOT_KNOWN,
            settings_title="The settings of the method",
            settings=method_settings(config, method.settings),
            **encoder_facts_of(config),
        )
    )


def card_of_model(name: str, metadata: Mapping[str, Any] | None = None, origin: str = "") -> str:
    """The card of a model without a run: what it makes of texts, where it is from, and how it is loaded.

    Args:
        name: Folder or Hub id.
        metadata: Further keys of the card's header.
        origin: A sentence on where the model is from.
    """
    encoder = load_encoder(name, "cpu")
    routes = routes_of(encoder)
    header: dict[str, Any] = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "feature-extraction", TAG],
        "language": [route for route in routes if route != "und" and tag_is_valid(route)],
    }
    for key, value in (metadata or {}).items():
        header[key] = clean(value)
    header["language"] = hub_languages(header["language"])

    facts = f"Sentence embeddings of {encoder.get_embedding_dimension()} dimensions"
    length = finite_length(encoder)
    if length:
        facts += f", of the first {length} tokens of a text"
    paragraphs = [f"{facts}."]
    task = ""
    if routes:
        paragraphs.append(f"Routes: {', '.join(map(code, routes))}.")
        task = f", task={python_text(routes[0])}"
    if origin:
        paragraphs.append(origin)
    transformer, *modules = _modules(encoder)
    only_there = not_served(modules, routes, transformer)
    if only_there:
        paragraphs.append(
            "Load it with sentence-transformers 5.4 or newer: text-embeddings-inference does not compute "
            f"{', '.join(only_there)}."
        )

    example = f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{PLACE}")
vectors = model.encode([{", ".join(map(python_text, EXAMPLES))}]{task})"""
    return part_card(ModelCardData(**header), title=Path(name).resolve().name, paragraphs=paragraphs, example=example)


def _modules(encoder: Any) -> HeadConfig:
    """The configuration of all modules of a model, the first with its architecture; of routes, those of the first."""
    modules = next(iter(modules_by_route(encoder).values()))
    first: Any = getattr(modules[0], "model", modules[0])
    model_type = first.config.model_type if hasattr(first, "config") else type(first).__name__
    configs = [{"kind": type(module).__name__, **module.get_config_dict()} for module in modules]
    configs[0]["model_type"] = model_type
    return configs


def _training_facts(run: Method, starts: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, str]:
    """What a card says of the training, by heading."""
    facts = {**starts, **run.card_facts(settings["data"])}
    facts["parameters"] = f"{settings['parameters']:,}, including those only for training"
    facts["steps"] = f"{settings['steps']:,}"
    if settings.get("optimizer"):
        facts["optimizer"] = settings["optimizer"]
    facts["time"] = (
        f"{settings['seconds']['training']:.0f} s on {settings['device']}, {settings['processes']} process(es), "
        f"{settings['threads']} threads, {settings['precision']}"
    )
    if settings.get("hardware"):
        facts["hardware"] = settings["hardware"]
    facts["seed"] = str(run.recipe.seed)
    if isinstance(settings.get(PLUGINS), Mapping):
        facts["plug-ins"] = in_words(settings[PLUGINS])
    facts["versions"] = framework_versions(settings.get("versions", {}))
    return facts


def _cleaning_tables(report: Mapping[str, Any]) -> list[str]:
    """Lines of Markdown: what each cleaning step removed, and what it costs and catches by the known pairs."""
    counts = report.get("cleaning")
    if not counts:
        return []
    lines = removal_table(counts)
    cost = report.get("cleaning_cost")
    if not cost:
        return [*lines, "", NO_COST]
    return [*lines, "", COST, "", *cost_table(cost)]


def licence_of(recipe: Recipe) -> str:
    """The licence of the weights of a run."""
    metadata = CardMetadata(**recipe.card.model_dump())
    return metadata.licence(_starting_weights(recipe).values())


def _starting_weights(recipe: Recipe) -> dict[str, str]:
    """Folders and Hub ids of the weights that a run started from, by key, as the recipe writes them."""
    weights = recipe.weights()
    weights.pop("tokenizer.path", None)
    return weights


def training_sources(recipe: Recipe) -> Iterator[Source]:
    """The sources of all training text, including a second task's."""
    for key in TRAINING_PLACES:
        yield from parse_sources(getattr(recipe.data, key, None))
    if hasattr(recipe, "nli"):
        yield from parse_sources(recipe.nli.train)


def _card_source(source: Source) -> DataSource:
    """A source as a card names it; files have no id on the Hub."""
    if source.corpus:
        corpus = CORPORA[source.corpus]
        return DataSource(source.corpus, (corpus.licence,), hub_id=corpus.hub_id or "")
    path = source.path
    is_id = isinstance(path, str) and on_hub(path) and is_dataset([Path(path)])
    return DataSource(paths=tuple(as_list(path)), hub_id=str(path) if is_id else "")
