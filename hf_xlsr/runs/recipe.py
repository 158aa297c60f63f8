"""Recipes: the recipes that they extend, their lists of runs, and changes of a user, as bound methods."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from hf_xlsr.data.sources import as_list
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods import METHODS, Method
from hf_xlsr.runs.overrides import parse_arguments, parse_overrides
from hf_xlsr.runs.own_data import OwnData, take_own_data
from hf_xlsr.runs.own_sources import with_own_data
from hf_xlsr.runs.sections import TRAINING_PLACES, validated
from hf_xlsr.runs.sending import check_reporters
from hf_xlsr.utils.access_tokens import check_no_token
from hf_xlsr.utils.errors import XlsrError, did_you_mean, error_line
from hf_xlsr.utils.plugins import PLUGINS
from hf_xlsr.utils.validation import Section
from hf_xlsr.utils.yaml import parse_yaml

# Lists of runs: independent, or one after the other.
LISTS = ("runs", "stages")
# Keys that describe the model of a recipe; they do not hold for other data, languages or encoders.
DESCRIBING = ("description", "card")
LONGEST_CHAIN = 8  # recipes that extend each other; two keys of each name another one


class ListedRun(Section):
    """A run of a list. Names become folders, so they cannot be paths."""

    # YAML reads 1 as a number.
    name: Annotated[str, BeforeValidator(str)] = Field(pattern=r"^\w[\w.+ -]*$", max_length=100)
    set: dict[str, Any] = Field({}, description="changes to the recipe")


def recipe_names() -> list[str]:
    folder = resources.files("hf_xlsr.recipes")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


@cache
def _packaged_recipe(name: str) -> Any:
    """The content of a recipe of the package, parsed once; many recipes extend others."""
    text = (resources.files("hf_xlsr.recipes") / f"{name}.yaml").read_bytes()
    return parse_yaml(text, f"recipe '{name}'")


def read_recipe(name_or_path: str, depth: int = 0) -> dict[str, Any]:
    """Reads a recipe by name or path and merges it over the recipe that its `base` names; without validation.

    `data_from` names a recipe, of any method, over whose `data` those of the recipe are merged; null removes a key that
    the method lacks. `depth` counts the recipes that lead to this one.
    """
    if depth > LONGEST_CHAIN:
        raise XlsrError(f"recipe '{name_or_path}': more than {LONGEST_CHAIN} recipes extend each other.")
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        name = path.stem
        content = parse_yaml(path.read_bytes(), f"recipe '{name}'")
    elif name_or_path in recipe_names():
        name = name_or_path
        content = deepcopy(_packaged_recipe(name))
    else:
        raise XlsrError(f"recipe '{name_or_path}' was not found; {did_you_mean(name_or_path, recipe_names())}")
    if not isinstance(content, dict):
        raise XlsrError(f"recipe '{name}' must be a mapping, got {type(content).__name__}.")

    data_from = content.pop("data_from", None)
    if data_from:
        data = section(read_recipe(str(data_from), depth + 1), "data")
        content["data"] = merge(data, content.get("data") or {})

    base_name = content.pop("base", None)
    base = read_recipe(str(base_name), depth + 1) if base_name else {}
    for key in LISTS:
        base.pop(key, None)
    if "encoders" in section(content, "model"):
        section(base, "model").pop("encoders", None)  # they belong to the languages: all or none are inherited

    merged = _undescribed(base, merge(base, content))
    merged["name"] = name
    if content.get("name") is not None:
        merged["name"] = validated(ListedRun, {"name": content["name"]}, name).name
    return merged


def section(recipe: Mapping[str, Any], key: str) -> dict[str, Any]:
    """A section of a recipe that is not validated; empty if it is missing or no mapping."""
    value = recipe.get(key)
    return value if isinstance(value, dict) else {}


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merges one nested mapping over another; lists and values are replaced.

    Examples:
        >>> merge({"a": {"x": 1, "y": 2}, "b": [1]}, {"a": {"y": 3}, "b": [2]})
        {'a': {'x': 1, 'y': 3}, 'b': [2]}
    """
    result = deepcopy(dict(below))
    if ("corpus" in above and "path" in below) or ("path" in above and "corpus" in below):
        result = {}  # another source: split, columns, ... of the one below do not apply
    for key, value in above.items():
        value_below = result.get(key)
        if isinstance(value_below, dict) and isinstance(value, Mapping):
            result[key] = merge(value_below, value)
        else:
            result[key] = deepcopy(value)
    return result


def trained_on(recipe: Mapping[str, Any]) -> list[Any]:
    """Languages, training data and encoders of a merged recipe: what its name and description are about."""
    data = section(recipe, "data")
    model = section(recipe, "model")
    texts = [data.get(key) for key in TRAINING_PLACES]
    encoders = [model.get("encoders"), model.get("start"), section(model, "encoder").get("path")]
    return [as_list(recipe.get("languages")), texts, section(recipe, "nli").get("train"), encoders]


def _undescribed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A changed recipe. With other data it loses the description of the original model."""
    recipe = dict(after)
    if trained_on(before) != trained_on(after):
        for key in DESCRIBING:
            if recipe.get(key) == before.get(key):
                recipe.pop(key, None)
    return recipe


def named_for_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe that a user changed, without the description and the name of another model.

    The new name is that of `output_dir`, where one is given, else of the method; the default of `output_dir` stays.

    Examples:
        >>> before = {"name": "bible", "method": "hictl", "description": "On the Bible.", "languages": ["en", "fr"]}
        >>> named_for_changes(before, {**before, "languages": ["en", "de"]})
        {'name': 'hictl', 'method': 'hictl', 'languages': ['en', 'de'], 'output_dir': 'outputs/bible'}
    """
    recipe = _undescribed(before, after)
    if trained_on(before) == trained_on(after):
        return recipe
    folder = after.get("output_dir")
    if after.get("name") == before.get("name"):
        recipe["name"] = Path(folder).name if folder else after.get("method")
    recipe["output_dir"] = folder or f"outputs/{after.get('name')}"
    return recipe


def resolve(recipe: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Method:
    """Binds a recipe of `read_recipe` with overrides to its method."""
    merged = merge(recipe, overrides or {})
    for key in LISTS:
        merged.pop(key, None)
    check_no_token(merged, f"recipe '{merged.get('name', 'recipe')}'")
    return method_of(merged).bind(merged)


def method_of(recipe: Mapping[str, Any]) -> type[Method]:
    return METHODS.find("method", str(recipe.get("method")))


def read_run(folder: RunFolder) -> Method:
    """The method of a run, bound to the recipe that its folder holds."""
    try:
        recipe = dict(json.loads(folder.recipe.read_text("utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise XlsrError(f"'{folder.path}' is not the folder of a run: {error_line(error)}.") from None
    for key in ("processes", PLUGINS):
        recipe.pop(key, None)
    return method_of(recipe).bind(recipe)


def load_runs(
    name_or_path: str,
    arguments: Sequence[str] = (),
    only: Sequence[str] | None = None,
    own_data: OwnData | None = None,
) -> list[Method]:
    """The runs of a recipe, as methods bound to their recipes: one, those of its list, or its stages.

    `runs` are independent. Each of `stages` starts from the final weights of the stage before, unless it sets
    `start_from` itself. They are named `recipe/run` and have folders of those names.

    Args:
        name_or_path: A built-in recipe, or a YAML file.
        arguments: Words of a command line, `--key value`, which win over the recipe and over each run.
        only: Names of runs, in a recipe with a list of them; by default all.
        own_data: Data, languages and encoders instead of the recipe's; `arguments` may name them too.

    Raises:
        XlsrError: A key or value is invalid; the recipe, rather than `arguments`, reports to a service.
    """
    recipe = read_recipe(name_or_path)
    name = recipe["name"]
    independent = as_list(recipe.pop("runs", None))
    stages = as_list(recipe.pop("stages", None))
    if independent and stages:
        raise XlsrError(f"recipe '{name}' has runs and stages; remove one of them.")
    kind = "stages" if stages else "runs"
    runs = [validated(ListedRun, entry, name, kind) for entry in independent + stages]
    _check_selected(name, [run.name for run in runs], only or ())
    if only and not stages:  # a stage needs those before it
        runs = [run for run in runs if run.name in only]

    own, options = take_own_data(parse_arguments(arguments), own_data)
    overrides = parse_overrides(options, recipe, method_of(recipe))

    def changed(content: Mapping[str, Any]) -> Method:
        check_reporters(name, section(content, "training"), section(overrides, "training"))
        on_own_data = with_own_data(content, own, method_of(content))
        return resolve(named_for_changes(content, merge(on_own_data, overrides)))

    if not runs:
        return [changed(recipe)]

    methods: list[Method] = []
    for run in runs:
        method = changed(merge(recipe, run.set))
        bound = method.recipe
        bound.output_dir = str(Path(bound.output_dir) / run.name)
        bound.name = f"{bound.name}/{run.name}"
        if stages and methods and "start_from" not in run.set:
            bound.start_from = methods[-1].recipe.output_dir
        methods.append(method)
    return [method for run, method in zip(runs, methods, strict=True) if not only or run.name in only]


def _check_selected(recipe: str, names: Sequence[str], only: Sequence[str]) -> None:
    for name in only:
        if name not in names:
            hint = did_you_mean(name, names) if names else "it has no list of runs."
            raise XlsrError(f"recipe '{recipe}' has no run '{name}' for --only; {hint}")
