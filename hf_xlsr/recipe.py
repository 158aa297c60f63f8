"""Recipes: YAML files that say everything about a training run; read, merged with overrides, and checked."""

from __future__ import annotations

import dataclasses
import os
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hf_xlsr.data.sources import as_list
from hf_xlsr.errors import XlsrError, nearest
from hf_xlsr.field_types import KINDS, fits, plain_fields
from hf_xlsr.methods import METHODS, get_method

TOP_LEVEL: dict[str, Any] = {
    "name": None,
    "description": "",
    "method": None,
    "output_dir": None,
    "seed": 1,
    "languages": None,
    "data": {},
    "model": {},
    "training": {},
    "evaluation": {},
    "export": {},
    "start_from": None,
    "overwrite": False,
}
# Those of every method; each adds its own.
SECTIONS: dict[str, dict[str, Any]] = {
    "data": {
        "train": None,
        "dev": None,
        "test": None,
        "held_out": [],
        "cleaning": ["normalize", "drop_identical", "deduplicate"],
        "fraction": 1.0,
        "limit": None,
        "max_length": 200,
    },
}
# Lists of runs that a recipe may stand for: side by side, or one after the other.
LISTS = {"runs": "run", "stages": "stage"}
# Set by the run itself, from `output_dir` and `seed` at the top of the recipe.
RESERVED_TRAINING_KEYS = {"output_dir", "seed", "bf16", "fp16", "remove_unused_columns"}


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: `1e-3` is a number, and only true and false are booleans (`no` is Norwegian)."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:bool",)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


def parse_yaml(text: str, where: str) -> Any:
    """Parses YAML; a mistake is one sentence naming line and column."""
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise XlsrError(
            f"{where}{place}: not valid YAML ({getattr(error, 'problem', error)}); mend it there."
        ) from None


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    folder = resources.files("hf_xlsr.recipes")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_recipe(name_or_path: str) -> dict[str, Any]:
    """Reads a recipe by name or path, with the recipe that its `base` names underneath; checks nothing yet.

    `data_from` names a recipe, of any method, whose `data` alone comes underneath.

    Args:
        name_or_path: A name of `recipe_names`, or the path of a YAML file.

    Returns:
        The recipe's keys as written, `runs` or `stages` among them; `name` is set.

    Raises:
        XlsrError: there is no such recipe, or it is not valid YAML.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise XlsrError(f"recipe file '{name_or_path}' does not exist; built-in are {', '.join(recipe_names())}.")
        text, name = path.read_text("utf-8"), path.stem
    elif name_or_path in recipe_names():
        text, name = (resources.files("hf_xlsr.recipes") / f"{name_or_path}.yaml").read_text("utf-8"), name_or_path
    else:
        raise XlsrError(f"recipe '{name_or_path}' was not found; {nearest(name_or_path, recipe_names())}")
    content = parse_yaml(text, f"recipe '{name}'")
    if not isinstance(content, dict):
        raise XlsrError(f"recipe '{name}' is not a mapping of keys to values; see recipes/quickstart.yaml.")
    if data_from := content.pop("data_from", None):
        content["data"] = merge(read_recipe(data_from).get("data") or {}, content.get("data") or {})
    base = content.pop("base", None)
    below = read_recipe(base) if base else {}
    models = [part.get("model") for part in (content, below)]
    if all(isinstance(model, dict) and "encoders" in model for model in models):
        del below["model"]["encoders"]  # they belong to the languages: all or none are taken over
    merged = merge(below, content)
    if base:
        for key in LISTS:
            merged.pop(key, None)
        merged.update({key: content[key] for key in LISTS if key in content})
    merged["name"] = content.get("name", name)
    return merged


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lays one nested mapping over another; lists and values replace, mappings merge.

    Example:
        >>> merge({"a": {"x": 1, "y": 2}, "b": [1]}, {"a": {"y": 3}, "b": [2]})
        {'a': {'x': 1, 'y': 3}, 'b': [2]}
    """
    result = deepcopy(dict(below))
    for one, other in (("corpus", "path"), ("path", "corpus")):
        if one in above and other in result:  # another source altogether: its split, columns, ... go with it
            result = {}
    for key, value in above.items():
        under = result.get(key)
        result[key] = (
            merge(under, value) if isinstance(under, dict) and isinstance(value, Mapping) else deepcopy(value)
        )
    return result


def sections_of(method: object) -> dict[str, dict[str, Any]]:
    """The sections with defaults of a method's recipes: those of every method, and its own.

    Raises:
        XlsrError: there is no such method.
    """
    sections: dict[str, dict[str, Any]] = SECTIONS
    for part in reversed(type(get_method(method)).__mro__):  # a method adds to what its kind has
        sections = merge(sections, vars(part).get("sections", {}))
    return sections


def known_keys(recipe: Mapping[str, Any]) -> dict[str, list[str]]:
    """All dotted keys that a recipe may have, by section; the reference that overrides and typos are checked against.

    Args:
        recipe: Says the method, and what else decides on keys: the encoder's architecture, the languages.

    Raises:
        XlsrError: the recipe's method, or its encoder's architecture, is unknown.
    """
    name = recipe.get("method")
    if name is None:
        raise XlsrError(f"recipe '{recipe.get('name', 'recipe')}' has no 'method'; {nearest('', METHODS)}")
    method, sections = get_method(name), sections_of(name)
    arguments = {field.name for field in dataclasses.fields(method.arguments_class)} - RESERVED_TRAINING_KEYS
    return {
        "": [key for key in TOP_LEVEL if key not in (*sections, "model", "training")],
        **{section: list(keys) for section, keys in sections.items()},
        **method.model_keys(recipe),
        "training": sorted(arguments),
    }


def check_keys(recipe: Mapping[str, Any]) -> None:
    """Refuses unknown keys, naming the nearest.

    Raises:
        XlsrError: as said.
    """
    name, known = recipe.get("name", "recipe"), known_keys(recipe)
    for section, keys in known.items():
        content: Any = recipe
        for part in section.split(".") if section else []:
            content = (content or {}).get(part)
        allowed = [*keys, *([s for s in known if s and "." not in s] if not section else [])]
        if content is not None and not isinstance(content, Mapping):
            raise XlsrError(
                f"recipe '{name}': '{section}' is {content!r}; it holds keys: {', '.join(allowed[:8])} ..."
            )
        for key in content or {}:
            if key not in allowed:
                where = f"{section}.{key}" if section else key
                raise XlsrError(f"recipe '{name}': unknown key '{where}'; {nearest(str(key), allowed)}")
    check_types(recipe)
    method = get_method(recipe["method"])
    for place, sources in method.sources(recipe).items():
        for source in as_list(sources):
            for key in source if isinstance(source, Mapping) else {}:
                if key not in method.source_keys:
                    raise XlsrError(
                        f"recipe '{name}': unknown key '{place}.{key}'; {nearest(str(key), method.source_keys)}"
                    )


def check_types(recipe: Mapping[str, Any]) -> None:
    """Refuses words where numbers or true and false are meant; they would fail much later, or be taken for true.

    Raises:
        XlsrError: as said.
    """
    method = get_method(recipe["method"])
    hints = typing.get_type_hints(method.arguments_class)
    wanted = {"overwrite": "bool"}
    wanted.update({f"training.{key}": hint.__name__ for key, hint in hints.items() if hint in (int, float, bool)})
    wanted.update({f"model.{key}": kind for key, kind in plain_fields(method.config_class).items()})
    for section, defaults in sections_of(recipe["method"]).items():
        wanted.update({f"{section}.{k}": type(v).__name__ for k, v in defaults.items() if not isinstance(v, str)})
    for name, kind in wanted.items():
        section, _, key = name.rpartition(".")
        content = (recipe.get(section) or {}) if section else recipe
        value = content.get(key)
        if value is not None and not fits(value, kind):
            raise XlsrError(f"recipe '{recipe.get('name')}': {name} is {value!r}; it takes {KINDS[kind]}.")


def _check_runs(name: str, runs: Any, what: str) -> None:
    names = [run.get("name") if isinstance(run, Mapping) else None for run in as_list(runs)]
    for run, run_name in zip(as_list(runs), names, strict=True):
        if run_name is None or not set(run) <= {"name", "set"} or not isinstance(run.get("set", {}), Mapping):
            raise XlsrError(
                f"recipe '{name}': the {what} {run} is not of the form {{name: ..., set: {{...}}}}; mend it."
            )
        if names.count(run_name) > 1:
            raise XlsrError(f"recipe '{name}': two {what}s are called '{run_name}'; give each a name of its own.")


def parse_overrides(arguments: Sequence[str], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Turns `--training.learning_rate 1e-3`, `--learning_rate=1e-3` or `--data.train.path FILE` into nested keys.

    A key may be shortened to its last part where that is unique. Values are read as YAML.

    Args:
        arguments: What stands on the command line behind the recipe.
        recipe: The recipe to be overridden, for its method and encoder.

    Raises:
        XlsrError: a key is unknown or ambiguous, or misses its value.
    """
    known = known_keys(recipe)
    dotted = [f"{section}.{key}" if section else key for section, keys in known.items() for key in keys]
    method = get_method(recipe["method"])
    places = dict.fromkeys([*(f"data.{split}" for split in ("train", "dev", "test")), *method.sources(recipe)])
    dotted += [f"{place}.{key}" for place in places for key in method.source_keys]
    result: dict[str, Any] = {}
    for key, text in _options(arguments):
        full = _full_key(key, dotted)
        value = parse_yaml(text, f"--{key}")
        target = result
        *parents, leaf = full.split(".")
        for parent in parents:
            target = target.setdefault(parent, {})
        target[leaf] = value
    return result


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("--"):
            raise XlsrError(f"'{word}' is no option; overrides are written --key value, for example --seed 2.")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not waiting or waiting[0].startswith("--"):
                raise XlsrError(f"--{key} has no value; write --{key} VALUE.")
            value = waiting.pop(0)
        yield key.replace("-", "_"), value


def _full_key(key: str, dotted: Sequence[str]) -> str:
    if key in dotted:
        return key
    matches = [name for name in dotted if name.endswith(f".{key}") and not name.startswith("data.train.")]
    matches = [name for name in matches if name.count(".") == min(other.count(".") for other in matches)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise XlsrError(f"--{key} is ambiguous; write one of {', '.join('--' + name for name in matches)}.")
    raise XlsrError(f"--{key} is no key of the recipe; {nearest(key, dotted)}")


def resolve(recipe: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Fills a recipe with defaults, lays the overrides over it and checks every key.

    Args:
        recipe: From `read_recipe`, without `runs` and `stages`.
        overrides: Nested keys, from `parse_overrides` or a run of an ablation list.

    Returns:
        A recipe with every section present.

    Raises:
        XlsrError: a key is unknown, a value of the top level is of the wrong kind, or languages are missing.
    """
    merged = merge({key: value for key, value in recipe.items() if key not in LISTS}, overrides or {})
    check_keys(merged)
    for section, defaults in sections_of(merged["method"]).items():
        merged[section] = merge(defaults, merged.get(section) or {})
    for key, value in TOP_LEVEL.items():
        if merged.get(key) is None:
            merged[key] = deepcopy(value)
    merged["output_dir"] = os.path.expandvars(merged["output_dir"] or f"outputs/{merged['name']}")
    languages = as_list(merged["languages"])
    if len(set(languages)) < get_method(merged["method"]).least_languages:
        raise XlsrError(
            f"recipe '{merged['name']}': languages is {languages}; a cross-lingual encoder needs two, e.g. [en, fr]."
        )
    if not isinstance(merged["seed"], int) or isinstance(merged["seed"], bool):
        raise XlsrError(f"recipe '{merged['name']}': seed is {merged['seed']!r}; use a whole number.")
    get_method(merged["method"]).complete(merged)
    return merged


def load_runs(
    name_or_path: str, arguments: Sequence[str] = (), only: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    """A recipe as the runs it stands for: one, those of its list of ablations, or its stages.

    `runs` are independent. `stages` follow one another: each starts from the weights that the stage before ended with,
    unless it says `start_from` itself.

    Args:
        name_or_path: See `read_recipe`.
        arguments: Command-line overrides; they win over the recipe and over each run.
        only: Names of the runs wanted; all when absent.

    Returns:
        Resolved recipes, in order; the runs of a list are called `recipe/run` and write to folders of those names.

    Raises:
        XlsrError: as `resolve`, a run of `only` does not exist, or there are both kinds of lists.

    Example:
        >>> [run["languages"] for run in load_runs("quickstart")]
        [['en', 'fr']]
    """
    recipe = read_recipe(name_or_path)
    lists = {key: recipe.pop(key) for key in LISTS if recipe.get(key)}
    if len(lists) > 1:
        raise XlsrError(f"recipe '{recipe['name']}' has runs and stages; keep one of them.")
    kind, runs = next(iter(lists.items()), ("runs", []))
    _check_runs(recipe["name"], runs, LISTS[kind])
    check_keys(recipe)
    overrides = parse_overrides(arguments, recipe)
    if not runs:
        if only:
            raise XlsrError(f"recipe '{recipe['name']}' has no list of runs; leave --only out.")
        return [resolve(recipe, overrides)]
    names = [run["name"] for run in runs]
    for name in only or ():
        if name not in names:
            raise XlsrError(f"recipe '{recipe['name']}' has no {LISTS[kind]} '{name}'; {nearest(name, names)}")
    resolved: list[dict[str, Any]] = []
    for run in runs:
        full = resolve(merge(recipe, run.get("set", {})), overrides)
        full["output_dir"] = str(Path(full["output_dir"]) / run["name"])
        full["name"] = f"{recipe['name']}/{run['name']}"
        if kind == "stages" and resolved and "start_from" not in run.get("set", {}):
            full["start_from"] = resolved[-1]["output_dir"]
        resolved.append(full)
    return [full for name, full in zip(names, resolved, strict=True) if not only or name in only]
