"""Model cards, filled from a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData
from jinja2 import Environment, StrictUndefined
from langcodes import tag_is_valid

from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.sources import as_list
from hf_xlsr.encoders.loading import finite_length, load_encoder
from hf_xlsr.encoders.routing import routes_of
from hf_xlsr.evaluation.registry import PROTOCOLS
from hf_xlsr.evaluation.report import metric_unit, metric_value
from hf_xlsr.evaluation.results import Results, load_results
from hf_xlsr.export.card import code, one_line, part_card, prose, public_path, python_text, recipe_block
from hf_xlsr.export.hub_names import TAG
from hf_xlsr.runs.card_metadata import UNKNOWN, card_metadata, licence_of, starting_points, training_sources
from hf_xlsr.runs.comparison import comparison_rows
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import Method
from hf_xlsr.runs.recipe import read_run
from hf_xlsr.runs.sections import Recipe
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import write_text

# In the code of a card until `card_for` knows where the model goes.
PLACE = "path/to/this/folder"
EXAMPLES = ("The weather is lovely today.", "It is sunny outside.")
POOLINGS = ("mean", "max", "cls")


def render_card(run: Method, metrics: Results, settings: Mapping[str, Any]) -> str:
    """The card of a run, in Markdown with its metadata header; `settings` are those of `results.json`.

    Text of the recipe is escaped: Markdown, HTML, YAML and templates in names, descriptions and paths are not rendered.
    Access tokens are redacted, and local paths are shortened to their last folder.
    """
    recipe, languages = run.recipe, list(map(one_line, run.recipe.languages))
    template = (resources.files("hf_xlsr.model_cards") / run.card_template).read_text("utf-8")
    routes = tuple(map(one_line, run.routes()))
    return (
        Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        .from_string(template)
        .render(
            card_data=card_metadata(run, metrics).to_yaml(),
            title=prose(recipe.name),
            description=prose(recipe.description),
            languages=[prose(language) for language in languages],
            dimension=settings["dimension"],
            recipe_name=code(recipe.name) if recipe.description else "",
            recipe=recipe_block(recipe.settings()),
            method_paper=run.paper,
            metrics={code(key, cell=True): _shown(key, value) for key, value in metrics.items()},
            protocols=_protocols(metrics),
            comparison=[
                (code(key, cell=True), *values) for key, *values in comparison_rows(settings.get("comparison") or {})
            ],
            facts=_facts(run, settings),
            licence=_licence_sentence(recipe),
            max_length=prose(recipe.data.max_length),
            citation=run.citation,
            use=run.card_use(),
            examples=[python_text(sentence) for sentence in EXAMPLES],
            routes=[prose(route) for route in routes],
            python_routes=[python_text(route) for route in routes],
            stock=_stock_vectors(run, routes),
            place=PLACE,
        )
    )


def write_card(path: str | Path, run: Method, metrics: Results, settings: Mapping[str, Any]) -> None:
    write_text(path, render_card(run, metrics, settings))


def card_of_run(
    run: str | Path, chosen: Mapping[str, Any] | None = None, changed: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """The card of a finished run, from `results.json` and `training/recipe.json`.

    `chosen` replaces keys of the recipe's `card`, `changed` (by section) those of the export.
    """
    folder = RunFolder(run)
    method = read_run(folder)
    results, content = load_results(folder.results), method.recipe.settings()
    for section, values in {"card": chosen or {}, **(changed or {})}.items():
        content[section] |= values
    try:
        return render_card(type(method).bind(content), results["metrics"], results.get("settings") or {})
    except KeyError as error:
        raise XlsrError(f"results.json of run '{run}' has no {error}.") from None


def card_of_model(name: str, chosen: Mapping[str, Any] | None = None) -> str:
    """The card of a model without a run: what it makes of texts, and how it is loaded."""
    encoder = load_encoder(name, "cpu")
    routes = routes_of(encoder)
    given: dict[str, Any] = {
        key: [*map(one_line, value)] if isinstance(value, list) else one_line(value)
        for key, value in (chosen or {}).items()
    }
    data = ModelCardData(
        language=[route for route in routes if route != "und" and tag_is_valid(route)] or None,
        library_name="sentence-transformers",
        pipeline_tag="sentence-similarity",
        tags=["sentence-transformers", "feature-extraction", TAG],
        **given,
    )
    length = finite_length(encoder)
    facts = f"Sentence embeddings of {encoder.get_embedding_dimension()} dimensions"
    facts += f", of the first {length} tokens of a text" if length else ""
    task = f", task={python_text(routes[0])}" if routes else ""
    lines = [
        "from sentence_transformers import SentenceTransformer",
        "",
        f'model = SentenceTransformer("{PLACE}")',
        f"vectors = model.encode([{', '.join(map(python_text, EXAMPLES))}]{task})",
    ]
    paragraphs = [f"{facts}.", *([f"Routes: {', '.join(map(code, routes))}."] if routes else [])]
    return part_card(data, title=Path(name).name, paragraphs=paragraphs, example="\n".join(lines))


def card_for(card: str, place: str) -> str:
    """A card whose code loads the model from where it is pushed to.

    Examples:
        >>> card_for('model = SentenceTransformer("path/to/this/folder")', "me/encoder")
        'model = SentenceTransformer("me/encoder")'
    """
    return card.replace(f'"{PLACE}"', f'"{place}"')


def _shown(key: str, value: float) -> str:
    metric = key.rpartition("/")[2]
    if isinstance(value, int):
        return f"{value:,}"
    shown = metric_value(metric, value)
    return f"{shown} %" if metric_unit(metric) == "%" else shown


def _protocols(metrics: Results) -> dict[str, str]:
    """Summaries of the protocols of the metrics."""
    names = dict.fromkeys(record.protocol for record in metrics.records.values())
    return {code(name): PROTOCOLS[name].summary.rstrip(".") for name in names if name in PROTOCOLS}


def _stock_vectors(run: Method, routes: Sequence[str]) -> dict[str, Any] | None:
    """Pooling and folder for code with transformers alone; None if the vectors need more than that."""
    pooling = run.recipe.model.get("pooling", getattr(run.config_class, "pooling", None))
    if run.library_name != "sentence-transformers" or run.card_use() or pooling not in POOLINGS:
        return None
    if run.recipe.model.get("projection_dim"):
        return None
    folder = f"{routes[0]}_0_Transformer" if routes else None  # as sentence-transformers names the parts of a router
    return {
        "pooling": pooling,
        "normalize": getattr(run.recipe.export, "normalize", True),
        "folder": python_text(folder) if folder else None,
    }


def _licence_sentence(recipe: Recipe) -> str:
    licence = licence_of(recipe)
    if licence == UNKNOWN:
        return (
            "No licence was chosen for the weights. The licences of the training text and of the models that training "
            "started from apply."
        )
    if recipe.card.license:
        return f"The weights are under {code(licence)}. The licences of the training text may apply too."
    starts = ", ".join(code(public_path(start)) for start in starting_points(recipe))
    return (
        f"The weights are under {code(licence)}, the licence of the models that training started from ({starts}). The "
        "licences of the training text may apply too."
    )


def _facts(run: Method, settings: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the table on training, as Markdown."""
    data = settings["data"]
    time = f"{settings['seconds']['training']:.0f} s on {settings['device']}, {settings['processes']} process(es), "
    facts = {
        **({"pairs after cleaning": f"{data['pairs']:,}"} if data["pairs"] else {}),
        **run.card_facts(data),
        "parameters": f"{settings['parameters']:,}, including those only for training",
        "steps": f"{settings['steps']:,}",
        "time": f"{time}{settings['threads']} threads, {settings['precision']}",
        **({"hardware": settings["hardware"]} if settings.get("hardware") else {}),
        "seed": str(run.recipe.seed),
    }
    sources = dict.fromkeys(map(_source_text, training_sources(run.recipe)))
    return {"training data": "; ".join(sources), **{prose(name): prose(value) for name, value in facts.items()}}


def _source_text(source: Mapping[str, Any]) -> str:
    if corpus := source.get("corpus"):
        return prose(f"{corpus} ({CORPORA[corpus].licence})")
    return " + ".join(code(public_path(path), cell=True) for path in as_list(source.get("path")))
