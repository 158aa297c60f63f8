"""Reading recipes: YAML files, the recipes that they extend, one's own data, and overrides, as bound methods."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field

from hf_xlsr.data.columns import MissingColumn, parse_columns
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import detect_format, expand_braces, read_rows
from hf_xlsr.data.languages import language_of_name, nearest_tag
from hf_xlsr.data.sources import Source, as_list, expand, unset_variables
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.inputs import missing_files
from hf_xlsr.runs.methods import METHODS, Method
from hf_xlsr.runs.sections import (
    TRAINING_PLACES,
    dotted_keys,
    holds_named_sources,
    holds_sources,
    training_section,
    validated,
)
from hf_xlsr.utils.access_tokens import check_no_token
from hf_xlsr.utils.errors import XlsrError, did_you_mean, error_line
from hf_xlsr.utils.validation import Section

# Lists of runs: independent, or one after the other.
LISTS = ("runs", "stages")
# Keys that describe the model of a recipe; they do not hold for other data, languages or encoders.
DESCRIBING = ("description", "card")
# Options of a command line for one's own data.
OPTIONS = ("train", "dev", "test", "guard", "languages", "encoder", "columns")
STS_COLUMNS = ("sentence1", "sentence2", "score")
# A tenth of the training pairs, at most 1,000, is drawn as dev set.
DEV_MODULUS, DEV_PAIRS = 10, 1000


class ListedRun(Section):
    """A run of a list. Names become folders, so they cannot be paths."""

    name: Annotated[str, BeforeValidator(str)] = Field(pattern=r"^\w[\w.+ -]*$")  # YAML reads 1 as a number
    set: dict[str, Any] = Field({}, description="changes to the recipe")


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: `1e-3` is a number, only true and false are booleans (`no` is Norwegian), and a
    repeated key is an error.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    problem = f"the key '{key.value}' is repeated"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        return node


_Loader.yaml_implicit_resolvers = {
    # Dates stay text, as names of runs and values of `where` are text.
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("bool", "timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


def parse_yaml(text: str | bytes, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise XlsrError(f"{where}{place}: invalid YAML ({error_line(getattr(error, 'problem', error))}).") from None


def recipe_names() -> list[str]:
    folder = resources.files("hf_xlsr.recipes")
    return sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def read_recipe(name_or_path: str) -> dict[str, Any]:
    """Reads a recipe by name or path and merges it over the recipe that its `base` names; without validation.

    `data_from` names a recipe, of any method, over whose `data` those of the recipe are merged; null removes a key that
    the method lacks.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml"):
        text, name = path.read_bytes(), path.stem
    elif name_or_path in recipe_names():
        text, name = (resources.files("hf_xlsr.recipes") / f"{name_or_path}.yaml").read_bytes(), name_or_path
    else:
        raise XlsrError(f"recipe '{name_or_path}' was not found; {did_you_mean(name_or_path, recipe_names())}")
    content = parse_yaml(text, f"recipe '{name}'")
    if not isinstance(content, dict):
        raise XlsrError(f"recipe '{name}' must be a mapping, got {type(content).__name__}.")
    if data_from := content.pop("data_from", None):
        content["data"] = merge(read_recipe(str(data_from)).get("data") or {}, content.get("data") or {})
    base = content.pop("base", None)
    below = {key: value for key, value in read_recipe(str(base)).items() if key not in LISTS} if base else {}
    models = [part.get("model") for part in (content, below)]
    if all(isinstance(model, dict) and "encoders" in model for model in models):
        del below["model"]["encoders"]  # they belong to the languages: all or none are inherited
    merged = {**_undescribed(below, merge(below, content)), "name": name}
    if content.get("name") is not None:
        merged["name"] = validated(ListedRun, {"name": content["name"]}, name).name
    return merged


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merges one nested mapping over another; lists and values are replaced.

    Examples:
        >>> merge({"a": {"x": 1, "y": 2}, "b": [1]}, {"a": {"y": 3}, "b": [2]})
        {'a': {'x': 1, 'y': 3}, 'b': [2]}
    """
    result = deepcopy(dict(below))
    for one, other in (("corpus", "path"), ("path", "corpus")):
        if one in above and other in result:  # another source: its split, columns, ... do not apply
            result = {}
    for key, value in above.items():
        under = result.get(key)
        both = isinstance(under, dict) and isinstance(value, Mapping)
        result[key] = merge(under or {}, value) if both else deepcopy(value)
    return result


def parse_overrides(options: Iterable[tuple[str, str]], recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Turns options such as `data.train.path` with values in YAML into nested keys.

    A key may be shortened to its last part where that is unique.
    """
    method = method_of(recipe)
    dotted = [
        *dotted_keys(method.recipe_class, recipe),
        *dotted_keys(method.model_section, None, "model."),
        *method.nested_keys(recipe),
        *dotted_keys(training_section(method.arguments_class), None, "training."),
    ]
    result: dict[str, Any] = {}
    for key, text in options:
        *parents, leaf = _full_key(key, dotted).split(".")
        target = result
        for parent in parents:
            target = target.setdefault(parent, {})
        # A prompt such as `query: ` would be a mapping in YAML.
        target[leaf] = text if text.rstrip().endswith(":") else parse_yaml(text, f"--{key}")
    return result


def own_options(options: Iterable[tuple[str, str]]) -> dict[str, list[Any]]:
    """The values of the options of `with_own_data`: text, or YAML where they start with a bracket.

    Examples:
        >>> own_options([("train", "a.tsv"), ("languages", "[en, de]"), ("train", "b.tsv")])
        {'train': ['a.tsv', 'b.tsv'], 'languages': ['en', 'de']}
    """
    given: dict[str, list[Any]] = {}
    for key, text in options:
        value = parse_yaml(text, f"--{key}") if text[:1] + text[-1:] in ("[]", "{}") or text == "null" else text
        given.setdefault(key, []).extend(value if isinstance(value, list) else [value])
    return given


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Key and value of `--learning_rate 1e-3` or `--learning-rate=1e-3`."""
    waiting = list(arguments)
    while waiting:
        option = waiting.pop(0)
        key, equals, value = option.removeprefix("--").partition("=")
        has_value = equals or (waiting and not waiting[0].startswith("--"))
        if not option.startswith("--") or not has_value:
            raise XlsrError(f"overrides must be --key value, e.g. --seed 2, got '{option}'.")
        yield key.replace("-", "_"), value if equals else waiting.pop(0)


def _full_key(key: str, dotted: Sequence[str]) -> str:
    if key in dotted:
        return key
    matches = [name for name in dotted if name.endswith(f".{key}") and not name.startswith("data.train.")]
    matches = [name for name in matches if name.count(".") == min(other.count(".") for other in matches)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise XlsrError(f"--{key} is ambiguous; write one of {', '.join('--' + name for name in matches)}.")
    raise XlsrError(f"unknown option --{key}; {did_you_mean(key, dotted)}")


def trained_on(recipe: Mapping[str, Any]) -> list[Any]:
    """Languages, training data and encoders of a merged recipe: what its name and description are about."""
    keys = ("data", "model", "nli")
    data, model, nli = (part if isinstance(part := recipe.get(key), Mapping) else {} for key in keys)
    encoder = model.get("encoder")
    path = encoder.get("path") if isinstance(encoder, Mapping) else encoder
    encoders = [model.get("encoders"), model.get("start"), path]
    texts = [data.get(place) for place in TRAINING_PLACES]
    return [as_list(recipe.get("languages")), texts, nli.get("train"), encoders]


def _undescribed(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A changed recipe. With other data it loses the description of the original model."""
    same = trained_on(before) == trained_on(after)
    return {key: value for key, value in after.items() if same or key not in DESCRIBING or value != before.get(key)}


def named_for_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe that a user changed, without the description and the name of another model.

    The new name is that of `output_dir`, where one is given, else of the method; the default of `output_dir` stays.

    Examples:
        >>> before = {"name": "bible", "method": "hictl", "description": "On the Bible.", "languages": ["en", "fr"]}
        >>> named_for_changes(before, {**before, "languages": ["en", "de"]})
        {'name': 'hictl', 'method': 'hictl', 'languages': ['en', 'de'], 'output_dir': 'outputs/bible'}
    """
    if trained_on(before) == trained_on(after):
        return dict(after)
    kept = _undescribed(before, after)
    folder = after.get("output_dir")
    if after.get("name") == before.get("name"):
        kept["name"] = (Path(str(folder)).name if folder else "") or after.get("method")
    return {**kept, "output_dir": folder or f"outputs/{after.get('name')}"}


def resolve(recipe: Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Method:
    """Binds a recipe of `read_recipe` with overrides to its method."""
    merged = merge({key: value for key, value in recipe.items() if key not in LISTS}, overrides or {})
    check_no_token(merged, f"recipe '{merged.get('name', 'recipe')}'")
    return method_of(merged).bind(merged)


def method_of(recipe: Mapping[str, Any]) -> type[Method]:
    name = str(recipe.get("method"))
    if name not in METHODS:
        raise XlsrError(f"`method` is '{name}'; {did_you_mean(name, METHODS)}")
    return METHODS[name]


def read_run(folder: RunFolder) -> Method:
    try:
        content = dict(json.loads(folder.recipe.read_text("utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise XlsrError(f"'{folder.path}' is not the folder of a run: {error_line(error)}.") from None
    return method_of(content).bind({key: value for key, value in content.items() if key != "processes"})


def load_runs(name_or_path: str, arguments: Sequence[str] = (), only: Sequence[str] | None = None) -> list[Method]:
    """The runs of a recipe, as methods bound to their recipes: one, those of its list, or its stages.

    `runs` are independent. Each of `stages` starts from the final weights of the stage before, unless it sets
    `start_from` itself. They are named `recipe/run` and have folders of those names; `only` selects some. `arguments`
    of a command line win over the recipe and over each run.
    """
    recipe = read_recipe(name_or_path)
    lists = {key: recipe.pop(key) for key in LISTS if recipe.get(key)}
    if len(lists) > 1:
        raise XlsrError(f"recipe '{recipe['name']}' has runs and stages; remove one of them.")
    kind, found = next(iter(lists.items()), ("runs", []))
    runs = [validated(ListedRun, run, recipe["name"], kind) for run in as_list(found)]
    names = [run.name for run in runs]
    for name in only or ():
        if name not in names:
            known = did_you_mean(name, names) if names else "it has no list of runs."
            raise XlsrError(f"recipe '{recipe['name']}' has no run '{name}' for --only; {known}")
    options = list(_options(arguments))
    given = own_options(option for option in options if option[0] in OPTIONS)
    overrides = parse_overrides((option for option in options if option[0] not in OPTIONS), recipe)

    def own(content: Mapping[str, Any]) -> Method:
        changed = with_own_data(content, given, method_of(content)) if given else content
        return resolve(named_for_changes(content, merge(changed, overrides)))

    if not runs:
        return [own(recipe)]
    resolved: list[Method] = []
    # A stage needs the stages before it; other runs that are not selected are skipped.
    chosen = [run for run in runs if kind == "stages" or not only or run.name in only]
    for run in chosen:
        method = own(merge(recipe, run.set))
        full = method.recipe
        full.output_dir = str(Path(full.output_dir) / run.name)
        full.name = f"{full.name}/{run.name}"
        if kind == "stages" and resolved and "start_from" not in run.set:
            full.start_from = resolved[-1].recipe.output_dir
        resolved.append(method)
    return [method for run, method in zip(chosen, resolved, strict=True) if not only or run.name in only]


def with_own_data(
    recipe: Mapping[str, Any], given: Mapping[str, Sequence[Any]], method: type[Method]
) -> dict[str, Any]:
    """A recipe on other data, in other languages, or from another encoder.

    - `train` replaces all data of the recipe. Without `dev`, a dev set is drawn from it by the hash of each source
      sentence; preparation then removes every training row with a sentence of the dev set.
    - `dev`, `test` and `guard` each replace one set. `columns` applies to `train`, `dev` and `test`.
    - `encoder` replaces the encoders, with their tokenizer.
    """
    content: dict[str, Any] = deepcopy(dict(recipe))
    if "languages" in given:
        content["languages"] = [part.strip() for one in given["languages"] for part in str(one).split(",")]
    languages = as_list(content.get("languages"))
    columns = ",".join(given["columns"]) if "columns" in given else None
    section: Any = method.recipe_class.model_fields["data"].annotation
    fields, data = section.model_fields, dict(content.get("data") or {})
    if "train" in given:
        data = {key: value for key, value in data.items() if key not in fields or not holds_sources(fields[key])}
        content.pop("nli", None)
    for split in ("train", "dev", "test"):
        if split in given:
            sources = [own_source(value, languages, columns) for value in given[split] if value is not None]
            sets: dict[str, list[Any]] = {}
            for one in sources:
                sets.setdefault(Source.parse(one).name, []).append(one)
            data[split] = sets if holds_named_sources(fields[split]) else sources
    if "train" in given and "dev" not in given and not holds_named_sources(fields["dev"]):
        data["dev"] = [drawn for source in data["train"] if (drawn := drawn_dev(source, len(data["train"])))]
    if data:
        content["data"] = data
    if "guard" in given:
        guard = [guard_source(value, languages) for value in given["guard"]]
        content["evaluation"] = {**(content.get("evaluation") or {}), "guard": guard}
    if "encoder" in given:
        pairs = [re.fullmatch(r"(?:([\w-]+)=)?(.+)", str(value)) for value in given["encoder"]]
        encoders = {pair[1] or "": pair[2] for pair in pairs if pair}
        content["model"] = {**(content.get("model") or {}), **method.encoder_keys(encoders)}
        for key in ("tokenizer", "start_from"):  # of the recipe's encoder
            content.pop(key, None)
    return content


def own_source(value: Any, languages: Sequence[str], columns: str | None = None) -> dict[str, Any]:
    """A source for a path or corpus of the user; columns of tables are those named like the languages, unless given.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "pairs.tsv"
        ...     _ = file.write_text("en\\tde\\ngood day\\tguten Tag\\n")
        ...     own_source(file, ["en", "de"])["columns"]
        {'source': 'en', 'target': 'de'}
    """
    if isinstance(value, Mapping):
        return dict(value)
    source = _written(value)
    if "corpus" in source:
        return source
    if columns:
        chosen = parse_columns(columns)
        tags = [language_of_name(chosen.get(side, "")) for side in ("source", "target")]
        own = [language for tag in tags for language in languages if tag and nearest_tag(language, [tag])]
        return {**source, "columns": chosen, **({"languages": own} if len(own) == 2 else {})}
    named = {tag: name for name in column_names(source["path"]) if (tag := language_of_name(name, languages))}
    found = {language: named[tag] for language in languages if (tag := nearest_tag(language, named))}
    if len(found) == 2:
        columns_found = dict(zip(("source", "target"), found.values(), strict=True))
        return {**source, "columns": columns_found, "languages": list(found)}
    return {**source, "parallel": found} if len(found) > 2 else source


def _written(value: Any) -> dict[str, Any]:
    """A corpus or path of the user as a recipe writes a source."""
    return Source.parse(str(value)).model_dump(exclude_unset=True)


def guard_source(value: Any, languages: Sequence[str]) -> dict[str, Any]:
    """A source of pairs or, where the file has columns `sentence1`, `sentence2` and `score`, of scored pairs.

    Pairs are of the languages among `languages`; with fewer than two there, of the file's first two.
    """
    if isinstance(value, Mapping):
        return dict(value)
    source = _written(value)
    if "corpus" in source:
        return source
    names = column_names(str(value))
    if set(STS_COLUMNS) <= set(names):
        return {**source, "columns": {name: name for name in STS_COLUMNS}}
    known = [language for name in names if (language := language_of_name(name))]
    ours = [language for language in known if nearest_tag(language, languages)]
    others = [language for language in known if language != "id" or len(known) == 2]  # Indonesian, or a number
    return own_source(value, ours if len(ours) > 1 else others[:2])


def column_names(path: str) -> list[str]:
    """The columns of a table, or the labels of Moses files; empty for formats with fixed columns and missing files."""
    if unset_variables(path) or missing_files(Source(path=path)):  # an error of `check_inputs`
        return []
    if detect_format(expand_braces(expand(path))[0]) in ("tmx", "po", "mo"):
        return []
    try:
        next(read_rows(expand(path), columns={"source": "\0"}, quarantine=Quarantine()), None)
    except MissingColumn as error:
        return list(error.names)
    return []


def drawn_dev(source: Mapping[str, Any], files: int) -> dict[str, Any] | None:
    """The part of a training source that a dev set is drawn from; None where the source selects its own part."""
    if "corpus" in source or source.get("hash_split"):
        return None
    columns = source.get("parallel") or parse_columns(source.get("columns"))
    key = next(iter(columns.values())) if source.get("parallel") else columns.get("source", "source")
    drawn = {"hash_split": "held", "hash_key": key, "hash_modulus": DEV_MODULUS}
    return {**source, **drawn, "distinct": True, "sample": max(1, DEV_PAIRS // files)}
