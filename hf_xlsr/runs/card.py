"""Model cards, filled from a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.sources import as_list
from hf_xlsr.evaluation.registry import PROTOCOLS
from hf_xlsr.evaluation.report import load_results, metric_unit, metric_value, metrics_of, split_key, split_protocol
from hf_xlsr.export.card_values import code, one_line, prose, public_path, python_text, recipe_block
from hf_xlsr.runs.card_metadata import UNKNOWN, card_metadata, licence_of, starting_points, training_sources
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods import get_method
from hf_xlsr.runs.recipe_check import section_keys
from hf_xlsr.utils.errors import XlsrError

# Stands in the code of a card until it is known where the model goes; see `card_for`.
PLACE = "path/to/this/folder"
EXAMPLES = ("The weather is lovely today.", "It is sunny outside.")
POOLINGS = ("mean", "max", "cls")


def render_card(recipe: Mapping[str, Any], metrics: Mapping[str, float], settings: Mapping[str, Any]) -> str:
    """The card of a run, with its metadata header.

    Whatever comes from the recipe stands in it as text: Markdown, HTML, YAML and templates in names, descriptions and
    paths are shown, not followed. Access tokens are replaced, and of paths on this machine the last folder is kept.

    Args:
        recipe: The resolved recipe.
        metrics: Test metrics by key.
        settings: What the run wrote to `results.json`.

    Returns:
        Markdown.

    Raises:
        XlsrError: the recipe's `card` section has a licence or an id that the Hub does not know.
    """
    method, languages = get_method(recipe["method"]), list(map(one_line, recipe["languages"]))
    template = (resources.files("hf_xlsr.model_cards") / method.card_template).read_text("utf-8")
    routes = tuple(map(one_line, method.routes(recipe)))
    return (
        Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        .from_string(template)
        .render(
            card_data=card_metadata(recipe, metrics).to_yaml(),
            title=prose(recipe["name"]),
            description=prose(recipe["description"]),
            languages=[prose(language) for language in languages],
            dimension=settings["dimension"],
            recipe_name=code(recipe["name"]),
            recipe=recipe_block(recipe),
            method_paper=method.paper,
            metrics={code(key, cell=True): _shown(key, value) for key, value in metrics.items()},
            protocols=_protocols(metrics),
            facts=_facts(recipe, settings),
            licence=_licence_sentence(recipe),
            max_length=prose(recipe["data"]["max_length"]),
            citation=method.citation,
            use=method.card_use(recipe),
            examples=[python_text(sentence) for sentence in EXAMPLES],
            routes=[prose(route) for route in routes],
            python_routes=[python_text(route) for route in routes],
            stock=_stock_vectors(recipe, routes),
            place=PLACE,
        )
    )


def write_card(
    path: str | Path, recipe: Mapping[str, Any], metrics: Mapping[str, float], settings: Mapping[str, Any]
) -> None:
    """Writes `render_card` to a file."""
    Path(path).write_text(render_card(recipe, metrics, settings), "utf-8")


def card_of_run(
    run: str | Path, chosen: Mapping[str, Any] | None = None, changed: Mapping[str, Mapping[str, Any]] | None = None
) -> str:
    """The card of a finished run, made again from `results.json` and `training/recipe.json`.

    Args:
        run: The run's folder.
        chosen: Keys of the recipe's `card` section that are to win over it.
        changed: Section -> values by which the model was exported instead of the recipe's.

    Raises:
        XlsrError: a file is missing or does not read, or as `render_card`.
    """
    folder = RunFolder(run)
    recipe = recipe_of_run(folder)
    if not folder.results.is_file():
        raise XlsrError(f"run '{run}' has no results.json, so it has not ended; hf-xlsr train goes on with it.")
    results = load_results(folder.results)
    for section, keys in section_keys(recipe["method"]).items():  # a run of an older version lacks what came later
        recipe[section] = {name: key.default for name, key in keys.items()} | (recipe.get(section) or {})
    for section, values in {"card": chosen or {}, **(changed or {})}.items():
        recipe[section] = {**(recipe.get(section) or {}), **values}
    try:
        return render_card(recipe, metrics_of(results), results.get("settings") or {})
    except KeyError as error:
        raise XlsrError(f"run '{run}' lacks {error} in results.json or its recipe; evaluate it again.") from None


def recipe_of_run(folder: RunFolder) -> dict[str, Any]:
    """The resolved recipe of a run.

    Raises:
        XlsrError: the folder is none of a run, or its recipe does not read.
    """
    try:
        recipe = json.loads(folder.recipe.read_text("utf-8"))
        get_method(recipe["method"])
    except OSError:
        raise XlsrError(f"'{folder.path}' is no folder of a run: it has no training/recipe.json; check it.") from None
    except (ValueError, KeyError, TypeError):
        raise XlsrError(f"{folder.recipe} is no recipe of a run; train again to replace it.") from None
    return recipe


def card_for(card: str, place: str) -> str:
    """A card whose code loads the model from where it is pushed to.

    Example:
        >>> card_for('model = SentenceTransformer("path/to/this/folder")', "me/encoder")
        'model = SentenceTransformer("me/encoder")'
    """
    return card.replace(f'"{PLACE}"', f'"{place}"')


def _shown(key: str, value: float) -> str:
    metric = split_key(key)[3]
    if isinstance(value, int):
        return f"{value:,}"
    shown = metric_value(metric, value)
    return f"{shown} %" if metric_unit(metric) == "%" else shown


def _protocols(metrics: Mapping[str, float]) -> dict[str, str]:
    """What the protocols of the metrics measure, of those that have a description."""
    names = dict.fromkeys(split_protocol(split_key(key)[0])[1] for key in metrics)
    return {code(name): PROTOCOLS[name].summary.rstrip(".") for name in names if name in PROTOCOLS}


def _stock_vectors(recipe: Mapping[str, Any], routes: Sequence[str]) -> dict[str, Any] | None:
    """How transformers alone computes the vectors; None where more than an encoder and pooling takes part."""
    method, model = get_method(recipe["method"]), recipe.get("model") or {}
    pooling = model.get("pooling", getattr(method.config_class, "pooling", None))
    if method.library_name != "sentence-transformers" or method.card_use(recipe) or pooling not in POOLINGS:
        return None
    if model.get("projection_dim"):
        return None
    folder = f"{routes[0]}_0_Transformer" if routes else None  # as sentence-transformers names the parts of a router
    return {
        "pooling": pooling,
        "normalize": (recipe.get("export") or {}).get("normalize", True),
        "folder": python_text(folder) if folder else None,
    }


def _licence_sentence(recipe: Mapping[str, Any]) -> str:
    licence = licence_of(recipe)
    if licence == UNKNOWN:
        return (
            "No licence was chosen for the weights. The licences of the training text, and of what the training started "
            "from, bind them in any case."
        )
    if (recipe.get("card") or {}).get("license"):
        return f"The weights are under {code(licence)}. The licences of the training text may bind them further."
    starts = ", ".join(code(public_path(start)) for start in starting_points(recipe))
    return (
        f"The weights are under {code(licence)}, the licence of what the training started from ({starts}). The licences "
        "of the training text may bind them further."
    )


def _facts(recipe: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Rows of the table on training, as Markdown."""
    data = settings["data"]
    time = f"{settings['seconds']['training']:.0f} s on {settings['device']}, {settings['processes']} process(es), "
    facts = {
        **({"pairs after cleaning": f"{data['pairs']:,}"} if data["pairs"] else {}),
        **get_method(recipe["method"]).card_facts(recipe, data),
        "parameters": f"{settings['parameters']:,}, those used in training alone included",
        "steps": f"{settings['steps']:,}",
        "time": f"{time}{settings['threads']} threads, {settings['precision']}",
        **({"hardware": settings["hardware"]} if settings.get("hardware") else {}),
        "seed": recipe["seed"],
    }
    sources = dict.fromkeys(map(_source_text, training_sources(recipe)))
    return {"training data": "; ".join(sources), **{prose(name): prose(value) for name, value in facts.items()}}


def _source_text(source: Mapping[str, Any]) -> str:
    if corpus := source.get("corpus"):
        return prose(f"{corpus} ({CORPORA[corpus].licence})")
    return " + ".join(code(public_path(path), cell=True) for path in as_list(source.get("path")))
