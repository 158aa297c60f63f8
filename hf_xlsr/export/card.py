"""Model cards, filled from a run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, StrictUndefined

from hf_xlsr.data.corpora import CORPORA
from hf_xlsr.data.sources import as_list, as_source
from hf_xlsr.evaluation.report import metric_unit, metric_value, split_key
from hf_xlsr.methods import get_method


def render_card(recipe: Mapping[str, Any], metrics: Mapping[str, float], settings: Mapping[str, Any]) -> str:
    """The card of a run, with its metadata header.

    Args:
        recipe: The resolved recipe.
        metrics: Test metrics by key.
        settings: What the run wrote to `results.json`.

    Returns:
        Markdown.
    """
    name, method = str(recipe["name"]), get_method(recipe["method"])
    shown = {key: _shown(key, value) for key, value in metrics.items()}
    scores = {key: value for key, value in metrics.items() if isinstance(value, float) and 0 <= value <= 1}
    data = ModelCardData(
        language=list(recipe["languages"]),
        library_name=method.library_name,
        pipeline_tag=method.pipeline_tag,
        tags=[*method.card_tags, "hf-xlsr"],
        model_name=name if scores else None,
        eval_results=[_eval_result(key, value, method.pipeline_tag) for key, value in scores.items()] or None,
    )
    template = (resources.files("hf_xlsr.model_cards") / method.card_template).read_text("utf-8")
    return (
        Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
        .from_string(template)
        .render(
            card_data=data.to_yaml(),
            title=name,
            description=" ".join(str(recipe["description"]).split()),
            languages=recipe["languages"],
            dimension=settings["dimension"],
            recipe_name=name,
            method_paper=method.paper,
            metrics=shown,
            facts=_facts(recipe, settings),
            max_length=recipe["data"]["max_length"],
            citation=method.citation,
            use=method.card_use(recipe),
            routes=method.routes(recipe),
            needs_package=method.needs_package(recipe),
        )
    )


def write_card(
    path: str | Path, recipe: Mapping[str, Any], metrics: Mapping[str, float], settings: Mapping[str, Any]
) -> None:
    """Writes `render_card` to a file."""
    Path(path).write_text(render_card(recipe, metrics, settings), "utf-8")


def _shown(key: str, value: float) -> str:
    metric = split_key(key)[3]
    if isinstance(value, int):
        return f"{value:,}"
    shown = metric_value(metric, value)
    return f"{shown} %" if metric_unit(metric) == "%" else shown


def _eval_result(key: str, value: float, pipeline_tag: str) -> EvalResult:
    *task, metric = key.split("/")
    return EvalResult(
        task_type=pipeline_tag,
        dataset_type=task[0],
        dataset_name="/".join(task),
        dataset_config=task[1] if len(task) > 1 else None,
        dataset_split=task[2] if len(task) > 2 else None,
        metric_type=metric,
        metric_value=round(value, 4),
    )


def _facts(recipe: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    sources = []
    places = ("text", "monolingual", "train")  # running text, sentences, pairs or labelled texts
    for source in (source for place in places for source in as_list(recipe["data"].get(place))):
        corpus, path = as_source(source).get("corpus"), as_source(source).get("path")
        sources.append(f"{corpus} ({CORPORA[corpus].licence})" if corpus else " + ".join(map(str, as_list(path))))
    data = settings["data"]
    return {
        "training data": "; ".join(sources),
        **({"pairs after cleaning": f"{data['pairs']:,}"} if data["pairs"] else {}),
        **get_method(recipe["method"]).facts(recipe, data),
        "parameters": f"{settings['parameters']:,}, those used in training alone included",
        "steps": f"{settings['steps']:,}",
        "time": f"{settings['seconds']['training']:.0f} s on {settings['device']}, {settings['processes']} process(es), "
        f"{settings['threads']} threads, {settings['precision']}",
        "seed": str(recipe["seed"]),
    }
