"""The header of a card: languages, licence, datasets, base models, results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData, try_to_load_from_cache

from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.formats.reading import detect_format
from hf_xlsr.data.sources import as_list, as_source
from hf_xlsr.export.card import one_line
from hf_xlsr.export.hub_names import TAG, is_hub_id
from hf_xlsr.runs.inputs import weights
from hf_xlsr.runs.methods.base import Method
from hf_xlsr.runs.sections import TRAINING_PLACES, Recipe
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.front_matter import front_matter

UNKNOWN = "unknown"  # licence of the weights where none was chosen and none follows from the base models


def card_metadata(run: Method, metrics: Mapping[str, float]) -> ModelCardData:
    """The header of a run's card: keys of the recipe's section `card`, or derived from the rest of the recipe."""
    recipe, chosen = run.recipe, run.recipe.card
    scores = {key: value for key, value in metrics.items() if isinstance(value, float) and 0 <= value <= 1}
    return ModelCardData(
        language=list(map(one_line, recipe.languages)),
        license=licence_of(recipe),
        license_name=_given(chosen.license_name),
        license_link=_given(chosen.license_link),
        library_name=run.library_name,
        pipeline_tag=run.pipeline_tag,
        tags=[*run.card_tags, TAG, recipe.method],
        base_model=_names(chosen.base_model) or base_models(recipe) or None,
        datasets=_names(chosen.datasets) or datasets_of(recipe) or None,
        model_name=one_line(recipe.name) if scores else None,
        eval_results=[_eval_result(key, value, run.pipeline_tag) for key, value in scores.items()] or None,
    )


def licence_of(recipe: Recipe) -> str:
    """The licence of the weights: `card.license`, else that of all models that they started from, else `unknown`."""
    if recipe.card.license:
        return one_line(recipe.card.license).lower()
    stated = [_card_data(start).get("license") for start in starting_points(recipe)]
    return str(stated[0]) if stated and stated[0] and set(map(str, stated)) == {str(stated[0])} else UNKNOWN


def base_models(recipe: Recipe) -> list[str]:
    """Hub ids of the models that a run started from; for folders, those that their cards name."""
    found: list[str] = []
    for start in starting_points(recipe):
        # `start_from` is always a folder.
        on_hub = is_hub_id(start) and not Path(start).exists() and start != recipe.start_from
        found += [start] if on_hub else as_list(_card_data(start).get("base_model"))
    return [name for name in dict.fromkeys(map(str, found)) if is_hub_id(name)]


def starting_points(recipe: Recipe) -> list[str]:
    """Folders and Hub ids of the weights that a run started from, as the recipe writes them."""
    return list(dict.fromkeys(path for key, path in weights(recipe).items() if key != "tokenizer.path"))


def training_sources(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """The sources of all training text, including a second task's."""
    second_task = getattr(recipe, "nli", None)
    places = [getattr(recipe.data, place, None) for place in TRAINING_PLACES]
    for sources in (*places, second_task.train if second_task else None):
        yield from map(as_source, as_list(sources))


def datasets_of(recipe: Recipe) -> list[str]:
    """Hub ids of the datasets that a run was trained on; files have none."""
    found = []
    for source in training_sources(recipe):
        path = source.get("path")
        if source.get("corpus"):
            found.append(CORPORA[source["corpus"]].hub_id)
        elif isinstance(path, str) and is_hub_id(path) and _is_dataset(path):
            found.append(path)
    return [name for name in dict.fromkeys(found) if name]


def _is_dataset(path: str) -> bool:
    try:
        return not Path(path).exists() and detect_format([Path(path)]) == "datasets"
    except XlsrError:
        return False


def _card_data(start: str) -> Mapping[str, Any]:
    """Metadata of the local card next to the weights; empty if it is missing or invalid."""
    folder = Path(os.path.expandvars(start))
    if is_hub_id(start) and not folder.exists():
        cached = try_to_load_from_cache(start, "README.md")
        cards = [Path(cached)] if isinstance(cached, str) else []
    else:
        cards = [folder / "README.md", folder.parent.parent / "README.md"]  # of a run: training/final
    for card in cards:
        try:
            return front_matter(card.read_text("utf-8"))
        except (OSError, ValueError):
            continue
    return {}


def _names(chosen: Any) -> list[str]:
    return [one_line(name) for name in as_list(chosen)]


def _given(value: str | None) -> str | None:
    return one_line(value) if value else None


def _eval_result(key: str, value: float, pipeline_tag: str) -> EvalResult:
    *task, metric = one_line(key).split("/")
    return EvalResult(
        task_type=pipeline_tag,
        dataset_type=task[0],
        dataset_name="/".join(task),
        dataset_config=task[1] if len(task) > 1 else None,
        dataset_split=task[2] if len(task) > 2 else None,
        metric_type=metric,
        metric_value=round(value, 4),
    )
