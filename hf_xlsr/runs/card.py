"""Model cards, filled from a run, and their headers: languages, licence, datasets, base models, results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData, try_to_load_from_cache
from jinja2 import Environment, StrictUndefined
from langcodes import tag_is_valid

from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.sources import Source, as_list, parse_sources
from hf_xlsr.encoders.encoding import routes_of
from hf_xlsr.encoders.heads import HeadConfig, leaves_out_prompt, pooling_name
from hf_xlsr.encoders.loading import finite_length, load_encoder
from hf_xlsr.evaluation.before_after import Change, change_columns, change_rows
from hf_xlsr.evaluation.protocol import PROTOCOLS
from hf_xlsr.evaluation.report import metric_unit, metric_value
from hf_xlsr.evaluation.results import Results, load_results
from hf_xlsr.export.card import code, one_line, part_card, prose, public_path, python_text, recipe_block
from hf_xlsr.export.hub import TAG, is_hub_id
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.inputs import is_dataset
from hf_xlsr.runs.methods.base import Method
from hf_xlsr.runs.recipe import read_run
from hf_xlsr.runs.sections import TRAINING_PLACES, Recipe
from hf_xlsr.utils.markdown import front_matter

# In the code of a card until `card_for` knows where the model goes.
PLACE = "path/to/this/folder"
EXAMPLES = ("The weather is lovely today.", "It is sunny outside.")
POOLINGS = ("mean", "max", "cls")
PLOTS = {"loss.png": "Loss over training", "tsne.png": "Test pairs in two dimensions, by t-SNE"}
FRAMEWORKS = ("transformers", "sentence-transformers", "torch")
UNKNOWN = "unknown"  # licence of the weights where none was chosen and none follows from the base models


def render_card(run: Method, metrics: Results, settings: Mapping[str, Any]) -> str:
    """The card of a run, in Markdown with its metadata header; `settings` are those of `results.json`.

    Text of the recipe is escaped: Markdown, HTML, YAML and templates in names, descriptions and paths are not rendered.
    Access tokens are redacted, and local paths are shortened to their last folder.
    """
    recipe = run.recipe
    task = getattr(recipe, "task", None)
    routes = list(map(one_line, run.routes()))
    prompt = settings.get("prompt", "")
    metric_cells = {}
    for key, value in metrics.items():
        metric_cells[code(key, cell=True)] = _shown(key, value)

    changes = {key: Change(**values) for key, values in settings.get("comparison", {}).items()}
    comparison = [[code(key, cell=True), *values] for key, *values in change_rows(changes)]

    template = (resources.files("hf_xlsr.model_cards") / run.card_template).read_text("utf-8")
    environment = Environment(
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(template).render(
        card_data=card_metadata(run, metrics).to_yaml(),
        title=prose(recipe.name),
        description=prose(recipe.description),
        languages=list(map(prose, recipe.languages)),
        dimension=settings["dimension"],
        recipe_name=code(recipe.name) if recipe.description else "",
        recipe=recipe_block(recipe.settings()),
        method_paper=run.paper,
        metrics=metric_cells,
        protocols=_protocols(metrics),
        comparison=comparison,
        comparison_columns=change_columns(changes),
        facts=_facts(run, settings),
        plots={name: PLOTS[name] for name in settings.get("plots", ()) if name in PLOTS},
        licence=_licence_sentence(recipe),
        max_length=prose(settings["max_length"]),
        citation=run.citation,
        exported=run.exported,
        task=run.pipeline_tag,
        pairs=task is not None and task.texts == "pair",
        prompt=python_text(prompt) if prompt else "",
        examples=list(map(python_text, EXAMPLES)),
        prompted=[python_text(prompt + sentence) for sentence in EXAMPLES],
        routes=list(map(prose, routes)),
        python_routes=list(map(python_text, routes)),
        stock=_stock_vectors(settings.get("head", []), routes),
        place=PLACE,
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
        "language": [route for route in routes if route != "und" and tag_is_valid(route)] or None,
    }
    for key, value in (metadata or {}).items():
        header[key] = _clean(value)

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

    example = f"""from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{PLACE}")
vectors = model.encode([{", ".join(map(python_text, EXAMPLES))}]{task})"""
    return part_card(ModelCardData(**header), title=Path(name).resolve().name, paragraphs=paragraphs, example=example)


def card_for(card: str, place: str) -> str:
    """A card whose code loads the model from where it is pushed to.

    Examples:
        >>> card_for('model = SentenceTransformer("path/to/this/folder")', "me/encoder")
        'model = SentenceTransformer("me/encoder")'
    """
    return card.replace(f'"{PLACE}"', f'"{place}"')


def _shown(key: str, value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    metric = key.rpartition("/")[2]
    shown = metric_value(metric, value)
    return f"{shown} %" if metric_unit(metric) == "%" else shown


def _protocols(metrics: Results) -> dict[str, str]:
    names = dict.fromkeys(record.protocol for record in metrics.records.values())
    return {code(name): PROTOCOLS[name].summary.rstrip(".") for name in names if name in PROTOCOLS}


def _stock_vectors(head: HeadConfig, routes: Sequence[str]) -> dict[str, Any] | None:
    """Pooling and folder for code with transformers alone; None if the vectors need more than that."""
    kinds = [module["kind"] for module in head]
    pooling = pooling_name(head)
    if kinds not in (["Pooling"], ["Pooling", "Normalize"]) or pooling not in POOLINGS or leaves_out_prompt(head):
        return None

    folder = None
    if routes:
        folder = python_text(f"{routes[0]}_0_Transformer")  # as sentence-transformers names the parts of a router
    return {"pooling": pooling, "normalize": "Normalize" in kinds, "folder": folder}


def _licence_sentence(recipe: Recipe) -> str:
    licence = licence_of(recipe)
    if licence == UNKNOWN:
        return (
            "No licence was chosen for the weights. The licences of the training text and of the models that training "
            "started from apply."
        )
    reason = ""
    if not recipe.card.license:
        starts = ", ".join(code(public_path(start)) for start in starting_points(recipe))
        reason = f", the licence of the models that training started from ({starts})"
    return f"The weights are under {code(licence)}{reason}. The licences of the training text may apply too."


def _facts(run: Method, settings: Mapping[str, Any]) -> dict[str, str]:
    """What a card says of the training, by heading, in Markdown."""
    facts = {key: public_path(path) for key, path in _starting_weights(run.recipe).items()}
    facts |= run.card_facts(settings["data"])

    facts["parameters"] = f"{settings['parameters']:,}, including those only for training"
    facts["steps"] = f"{settings['steps']:,}"
    facts["time"] = (
        f"{settings['seconds']['training']:.0f} s on {settings['device']}, {settings['processes']} process(es), "
        f"{settings['threads']} threads, {settings['precision']}"
    )
    if settings.get("hardware"):
        facts["hardware"] = settings["hardware"]
    facts["seed"] = str(run.recipe.seed)
    versions = settings.get("versions", {})
    facts["versions"] = ", ".join(f"{name} {versions.get(name) or version(name)}" for name in FRAMEWORKS)

    sources = dict.fromkeys(map(_source_text, training_sources(run.recipe)))
    prose_facts = {"training data": "; ".join(sources)}
    for name, value in facts.items():
        prose_facts[prose(name)] = prose(value)
    return prose_facts


def _source_text(source: Source) -> str:
    if source.corpus:
        return prose(f"{source.corpus} ({CORPORA[source.corpus].licence})")
    return " + ".join(code(public_path(path), cell=True) for path in as_list(source.path))


def card_metadata(run: Method, metrics: Mapping[str, float]) -> ModelCardData:
    """The header of a run's card: keys of the recipe's section `card`, or derived from the rest of the recipe."""
    recipe = run.recipe
    stated = recipe.card
    scores = []
    for key, value in metrics.items():
        if isinstance(value, float) and 0 <= value <= 1:
            scores.append(_eval_result(key, value, run.pipeline_tag))

    return ModelCardData(
        language=list(map(one_line, recipe.languages)),
        license=licence_of(recipe),
        license_name=_clean(stated.license_name),
        license_link=_clean(stated.license_link),
        library_name=run.library_name,
        pipeline_tag=run.pipeline_tag,
        tags=[*run.card_tags, TAG, recipe.method],
        base_model=_clean(as_list(stated.base_model)) or base_models(recipe) or None,
        datasets=_clean(as_list(stated.datasets)) or datasets_of(recipe) or None,
        model_name=one_line(recipe.name) if scores else None,
        eval_results=scores or None,
    )


def licence_of(recipe: Recipe) -> str:
    """The licence of the weights: `card.license`, else that of all models that they started from, else `unknown`."""
    if recipe.card.license:
        return one_line(recipe.card.license).lower()
    licences = {str(_card_data(start).get("license") or UNKNOWN) for start in starting_points(recipe)}
    return licences.pop() if len(licences) == 1 else UNKNOWN


def base_models(recipe: Recipe) -> list[str]:
    """Hub ids of the models that a run started from; for folders, those that their cards name."""
    names: list[str] = []
    for start in starting_points(recipe):
        if _on_hub(start) and start != recipe.start_from:  # which is always a folder
            names.append(start)
        else:
            names += map(str, as_list(_card_data(start).get("base_model")))
    return list(filter(is_hub_id, dict.fromkeys(names)))


def starting_points(recipe: Recipe) -> list[str]:
    """Folders and Hub ids of the weights that a run started from, as the recipe writes them."""
    return list(dict.fromkeys(_starting_weights(recipe).values()))


def _starting_weights(recipe: Recipe) -> dict[str, str]:
    weights = recipe.weights()
    weights.pop("tokenizer.path", None)
    return weights


def training_sources(recipe: Recipe) -> Iterator[Source]:
    """The sources of all training text, including a second task's."""
    for key in TRAINING_PLACES:
        yield from parse_sources(getattr(recipe.data, key, None))
    if hasattr(recipe, "nli"):
        yield from parse_sources(recipe.nli.train)


def datasets_of(recipe: Recipe) -> list[str]:
    """Hub ids of the datasets that a run was trained on; files have none."""
    names = []
    for source in training_sources(recipe):
        path = source.path
        if source.corpus:
            names.append(CORPORA[source.corpus].hub_id)
        elif isinstance(path, str) and _on_hub(path) and is_dataset([Path(path)]):
            names.append(path)
    return list(filter(None, dict.fromkeys(names)))


def _on_hub(path: str) -> bool:
    return is_hub_id(path) and not Path(path).exists()


def _card_data(start: str) -> Mapping[str, Any]:
    """Metadata of the local card next to the weights; empty if it is missing or invalid."""
    if _on_hub(start):
        cached = try_to_load_from_cache(start, "README.md")
        cards = [Path(cached)] if isinstance(cached, str) else []
    else:
        folder = Path(os.path.expandvars(start))
        cards = [folder / "README.md", folder.parent.parent / "README.md"]  # of a run: training/final
    for card in cards:
        with suppress(OSError, ValueError):
            return front_matter(card.read_text("utf-8"))
    return {}


def _clean(value: Any) -> Any:
    """A text or a list of texts of a user, on one line each; None for an empty text."""
    if isinstance(value, list):
        return list(map(one_line, value))
    return one_line(value) if value else None


def _eval_result(key: str, value: float, pipeline_tag: str) -> EvalResult:
    task, _, metric = one_line(key).rpartition("/")
    name, config, split, *_ = [*task.split("/"), None, None]
    return EvalResult(
        task_type=pipeline_tag,
        dataset_type=str(name),
        dataset_name=task,
        dataset_config=config,
        dataset_split=split,
        metric_type=metric,
        metric_value=round(value, 4),
    )
