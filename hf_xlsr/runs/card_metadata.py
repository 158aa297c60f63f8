"""The header of a card: languages, licence, data sets, base models, results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData, try_to_load_from_cache

from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.formats.reading import detect_format
from hf_xlsr.data.sources import as_list, as_source
from hf_xlsr.export.card_values import one_line
from hf_xlsr.export.hub_names import TAG, is_hub_id
from hf_xlsr.runs.methods import get_method
from hf_xlsr.utils.errors import XlsrError

UNKNOWN = "unknown"  # licence of the weights where none was chosen and none follows from the base models
TRAINING_PLACES = ("text", "monolingual", "train")  # running text, sentences, pairs or labelled texts


def card_metadata(recipe: Mapping[str, Any], metrics: Mapping[str, float]) -> ModelCardData:
    """The header of a run's card.

    The recipe's section `card`, where there is one, may hold `license` (with `license_name` and `license_link` where it
    is `other`), `base_model` and `datasets`. What it does not say is found out from the rest of the recipe, and left out
    where that does not tell.

    Args:
        recipe: Resolved.
        metrics: Test metrics by key.
    """
    method, chosen = get_method(recipe["method"]), recipe.get("card") or {}
    languages = [one_line(language) for language in recipe["languages"]]
    scores = {key: value for key, value in metrics.items() if isinstance(value, float) and 0 <= value <= 1}
    return ModelCardData(
        language=languages,
        license=licence_of(recipe),
        license_name=_given(chosen, "license_name"),
        license_link=_given(chosen, "license_link"),
        library_name=method.library_name,
        pipeline_tag=method.pipeline_tag,
        tags=[*method.card_tags, TAG, recipe["method"]],
        base_model=_names(chosen, "base_model") or base_models(recipe) or None,
        datasets=_names(chosen, "datasets") or datasets_of(recipe) or None,
        model_name=one_line(recipe["name"]) if scores else None,
        eval_results=[_eval_result(key, value, method.pipeline_tag) for key, value in scores.items()] or None,
    )


def licence_of(recipe: Mapping[str, Any]) -> str:
    """The licence of the weights: `card.license`, else that of all models that they started from, else `unknown`.

    Text that a model was trained on may bind its use further; the card lists it.
    """
    if given := (recipe.get("card") or {}).get("license"):
        return one_line(given).lower()
    stated = [_card_data(start).get("license") for start in starting_points(recipe)]
    return str(stated[0]) if stated and stated[0] and set(map(str, stated)) == {str(stated[0])} else UNKNOWN


def base_models(recipe: Mapping[str, Any]) -> list[str]:
    """Hub ids of the models that a run started from; folders count by the base models that their cards name."""
    found: list[str] = []
    for start in starting_points(recipe):
        # A run starts from a folder, whatever its name looks like.
        on_hub = is_hub_id(start) and not Path(start).exists() and start != recipe.get("start_from")
        found += [start] if on_hub else as_list(_card_data(start).get("base_model"))
    return [name for name in dict.fromkeys(map(str, found)) if is_hub_id(name)]


def starting_points(recipe: Mapping[str, Any]) -> list[str]:
    """Folders and Hub ids of the weights that a run started from, as the recipe writes them."""
    model = recipe.get("model") or {}
    encoder = model.get("encoder")
    paths = [
        *(model.get("encoders") or {}).values(),
        encoder.get("path") if isinstance(encoder, Mapping) else None,
        model.get("start"),
        recipe.get("start_from"),
    ]
    return list(dict.fromkeys(str(path) for path in paths if path))


def training_sources(recipe: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The sources of all training text, a second task's included."""
    data, nli = recipe["data"], (recipe.get("nli") or {}).get("train")
    for source in (*(source for place in TRAINING_PLACES for source in as_list(data.get(place))), *as_list(nli)):
        yield as_source(source)


def datasets_of(recipe: Mapping[str, Any]) -> list[str]:
    """Hub ids of the data sets that a run was trained on; those read from files have none."""
    found = []
    for source in training_sources(recipe):
        path = source.get("path")
        if source.get("corpus"):
            found.append(CORPORA[source["corpus"]].hub_id)
        elif isinstance(path, str) and is_hub_id(path) and _is_data_set(path):
            found.append(path)
    return [name for name in dict.fromkeys(found) if name]


def _is_data_set(path: str) -> bool:
    try:
        return not Path(path).exists() and detect_format([Path(path)]) == "datasets"
    except XlsrError:
        return False


def _card_data(start: str) -> Mapping[str, Any]:
    """Metadata of the card beside the weights, on this machine; nothing where there is none that reads."""
    folder = Path(os.path.expandvars(start))
    if is_hub_id(start) and not folder.exists():
        cached = try_to_load_from_cache(start, "README.md")
        cards = [Path(cached)] if isinstance(cached, str) else []
    else:
        cards = [folder / "README.md", folder.parent.parent / "README.md"]  # of a run: training/final
    for card in cards:
        try:
            text = card.read_text("utf-8")
            # A card without a head is no mistake of the user's, about which the library would warn.
            return ModelCard(text, ignore_metadata_errors=True).data.to_dict() if text.startswith("---") else {}
        except (OSError, ValueError, yaml.YAMLError):
            continue
    return {}


def _names(chosen: Mapping[str, Any], key: str) -> list[str]:
    return [one_line(name) for name in as_list(chosen.get(key))]


def _given(chosen: Mapping[str, Any], key: str) -> str | None:
    return one_line(chosen[key]) if chosen.get(key) else None


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
