"""Reading recipes: YAML files on top of each other, with overrides, as the runs that they stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from hf_xlsr.data.sources import as_list
from hf_xlsr.export.access_tokens import check_no_token
from hf_xlsr.runs.fields import training_section
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods import METHODS, Method, get_method
from hf_xlsr.runs.sections import dotted_keys
from hf_xlsr.utils.errors import XlsrError, did_you_mean

# Lists of runs that a recipe may stand for: side by side, or one after the other.
LISTS = {"runs": "run", "stages": "stage"}
_NAME = re.compile(r"\w[\w.+ -]*")


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: `1e-3` is a number, only true and false are booleans (`no` is Norwegian), and a key
    that stands twice is a mistake."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    problem = f"the key '{key.value}' stands twice in one mapping"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return node


_Loader.yaml_implicit_resolvers = {
    # A date is the text that it is written as: names of runs and values of `where` are compared and stored as text.
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("bool", "timestamp")]
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


def read_recipe(name_or_path: str, *, above: Sequence[str] = ()) -> dict[str, Any]:
    """Reads a recipe by name or path, with the recipe that its `base` names underneath; checks nothing yet.

    `data_from` names a recipe, of any method, whose `data` alone comes underneath.

    Args:
        name_or_path: A name of `recipe_names`, or the path of a YAML file.
        above: Those that led to this one by `base` and `data_from`.

    Returns:
        The recipe's keys as written, `runs` or `stages` among them; `name` is set.

    Raises:
        XlsrError: there is no such recipe, it is not valid YAML, or it rests on itself.
    """
    if name_or_path in above:
        raise XlsrError(
            f"recipe '{name_or_path}' rests on itself, by base or data_from ({' on '.join((*above, name_or_path))}); "
            "mend one of them."
        )
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise XlsrError(f"recipe file '{name_or_path}' does not exist; built-in are {', '.join(recipe_names())}.")
        try:
            text, name = path.read_text("utf-8"), path.stem
        except UnicodeDecodeError as error:
            raise XlsrError(f"recipe file '{name_or_path}' is not in UTF-8 ({error.reason}); save it so.") from None
    elif name_or_path in recipe_names():
        text, name = (resources.files("hf_xlsr.recipes") / f"{name_or_path}.yaml").read_text("utf-8"), name_or_path
    else:
        raise XlsrError(f"recipe '{name_or_path}' was not found; {did_you_mean(name_or_path, recipe_names())}")
    content = parse_yaml(text, f"recipe '{name}'")
    if not isinstance(content, dict):
        raise XlsrError(f"recipe '{name}' is not a mapping of keys to values; see recipes/quickstart.yaml.")
    for key in ("base", "data_from", "method"):
        if not isinstance(content.get(key) or "", str):
            raise XlsrError(f"recipe '{name}': {key} is {content[key]!r}; it takes one name.")
    rest = {"above": (*above, name_or_path)}
    if data_from := content.pop("data_from", None):
        content["data"] = merge(read_recipe(data_from, **rest).get("data") or {}, content.get("data") or {})
    base = content.pop("base", None)
    below = read_recipe(base, **rest) if base else {}
    models = [part.get("model") for part in (content, below)]
    if all(isinstance(model, dict) and "encoders" in model for model in models):
        del below["model"]["encoders"]  # they belong to the languages: all or none are taken over
    merged = merge(below, content)
    if base:
        for key in LISTS:
            merged.pop(key, None)
        merged.update({key: content[key] for key in LISTS if key in content})
    own_name = content.get("name")
    merged["name"] = name if own_name is None else str(own_name)
    if own_name is not None:
        _check_name(merged["name"], f"recipe '{name}': its name")
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


def _check_name(name: str, what: str) -> None:
    """Names become folders: one that is a path would lead out of the place that outputs go to."""
    if not _NAME.fullmatch(name):
        raise XlsrError(
            f"{what} is {name!r}; write letters, digits, '.', '_', '+' and '-', the first of them no '.', '+' or '-'."
        )


def _check_runs(name: str, runs: Any, what: str) -> None:
    for run in as_list(runs):
        if isinstance(run, dict) and run.get("name") is not None:
            run["name"] = str(run["name"])  # YAML reads 1 as a number
    names = [run.get("name") if isinstance(run, dict) else None for run in as_list(runs)]
    for run, run_name in zip(as_list(runs), names, strict=True):
        if run_name is None or not set(run) <= {"name", "set"} or not isinstance(run.get("set", {}), Mapping):
            raise XlsrError(
                f"recipe '{name}': the {what} {run} is not of the form {{name: ..., set: {{...}}}}; mend it."
            )
        _check_name(run_name, f"recipe '{name}': the name of a {what}")
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
    method = method_of(recipe)
    dotted = [
        *dotted_keys(method.recipe_class, recipe),
        *dotted_keys(method.model_section, None, "model."),
        *method.nested_keys(recipe),
        *dotted_keys(training_section(method.arguments_class), None, "training."),
    ]
    result: dict[str, Any] = {}
    seen: list[str] = []
    for key, text in _options(arguments):
        full = _full_key(key, dotted)
        clashing = [one for one in seen if one.startswith(f"{full}.") or full.startswith(f"{one}.")]
        if clashing:
            raise XlsrError(f"--{full} and --{clashing[0]} say two things of one value; keep one of them.")
        seen.append(full)
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
    raise XlsrError(f"--{key} is no key of the recipe; {did_you_mean(key, dotted)}")


def resolve(recipe: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Method:
    """Binds a recipe, with overrides on top, to its method.

    Args:
        recipe: From `read_recipe`, without `runs` and `stages`.
        overrides: Nested keys, from `parse_overrides` or a run of an ablation list.

    Raises:
        XlsrError: the method or a key is unknown, or a value is invalid.
    """
    merged = merge({key: value for key, value in recipe.items() if key not in LISTS}, overrides or {})
    check_no_token(merged, f"recipe '{merged.get('name', 'recipe')}'")
    return method_of(merged).bind(merged)


def method_of(recipe: Mapping[str, Any]) -> type[Method]:
    """The method that a recipe names.

    Raises:
        XlsrError: it names none, or an unknown one.
    """
    if not recipe.get("method"):
        raise XlsrError(f"recipe '{recipe.get('name', 'recipe')}' has no 'method'; {did_you_mean('', METHODS)}")
    return get_method(recipe["method"])


def read_run(folder: RunFolder) -> Method:
    """The method of a run, bound to the recipe in its folder.

    Raises:
        XlsrError: the folder holds no run, or its recipe is invalid.
    """
    try:
        content = json.loads(folder.recipe.read_text("utf-8"))
    except OSError:
        raise XlsrError(f"'{folder.path}' is not the folder of a run: training/recipe.json is missing.") from None
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise XlsrError(f"{folder.recipe} is not a recipe; train again to replace it.")
    return method_of(content).bind({key: value for key, value in content.items() if key != "processes"})


def load_runs(name_or_path: str, arguments: Sequence[str] = (), only: Sequence[str] | None = None) -> list[Method]:
    """The runs that a recipe stands for: one, those of its list of ablations, or its stages.

    `runs` are independent. Each of `stages` starts from the final weights of the stage before, unless it sets
    `start_from` itself.

    Args:
        name_or_path: See `read_recipe`.
        arguments: Command-line overrides; they win over the recipe and over each run.
        only: Names of the runs wanted; all when absent.

    Returns:
        Methods bound to their recipes, in order; the runs of a list are called `recipe/run` and write to folders of
        those names.

    Raises:
        XlsrError: as `resolve`, a run of `only` does not exist, or there are both kinds of lists.

    Example:
        >>> [run.recipe.languages for run in load_runs("quickstart")]
        [['en', 'fr']]
    """
    recipe = read_recipe(name_or_path)
    lists = {key: recipe.pop(key) for key in LISTS if recipe.get(key)}
    if len(lists) > 1:
        raise XlsrError(f"recipe '{recipe['name']}' has runs and stages; keep one of them.")
    kind, runs = next(iter(lists.items()), ("runs", []))
    _check_runs(recipe["name"], runs, LISTS[kind])
    overrides = parse_overrides(arguments, recipe)
    if not runs:
        if only:
            raise XlsrError(f"recipe '{recipe['name']}' has no list of runs; leave --only out.")
        return [resolve(recipe, overrides)]
    names = [run["name"] for run in runs]
    for name in only or ():
        if name not in names:
            raise XlsrError(f"recipe '{recipe['name']}' has no {LISTS[kind]} '{name}'; {did_you_mean(name, names)}")
    resolved: list[Method] = []
    # A stage needs those before it; other runs that are not wanted are left out of it.
    chosen = [run for run in runs if kind == "stages" or not only or run["name"] in only]
    for run in chosen:
        method = resolve(merge(recipe, run.get("set", {})), overrides)
        full = method.recipe
        full.output_dir = str(Path(full.output_dir) / run["name"])
        full.name = f"{recipe['name']}/{run['name']}"
        if kind == "stages" and resolved and "start_from" not in run.get("set", {}):
            full.start_from = resolved[-1].recipe.output_dir
        resolved.append(method)
    return [method for run, method in zip(chosen, resolved, strict=True) if not only or run["name"] in only]
