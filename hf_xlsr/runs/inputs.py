"""What a recipe reads: data, encoders and environment variables, checked together before anything runs."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hf_xlsr.data.formats.reading import detect_format, expand_braces
from hf_xlsr.data.sources import as_list, as_source, expand, unset_variables, variables_of
from hf_xlsr.runs.methods.base import Method
from hf_xlsr.runs.sections import Recipe, holds_sources
from hf_xlsr.utils.errors import XlsrError


def data_sources(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every source of a recipe, in all of its sections, with its key."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from data_sources(value, f"{prefix}{name}.")
        elif holds_sources(field):
            named = isinstance(value, Mapping) and not {"path", "corpus"} & {*value}
            for part, sources in value.items() if named else [("", value)]:
                for source in as_list(sources):
                    yield f"{prefix}{name}.{part}".rstrip("."), as_source(source)


def weights(recipe: Recipe) -> dict[str, str]:
    """Folders and Hub ids of encoders, tokenizers and weights by key, as the recipe writes them."""
    model, encoder = recipe.model, recipe.model.get("encoder")
    tokenizer, teacher = getattr(recipe, "tokenizer", None), getattr(recipe, "teacher", None)
    found = {
        **{f"model.encoders.{name}": path for name, path in (model.get("encoders") or {}).items()},
        "model.encoder.path": encoder.get("path") if isinstance(encoder, Mapping) else None,
        "model.start": model.get("start"),
        "tokenizer.path": tokenizer.path if tokenizer else None,
        "teacher.path": teacher.path if teacher else None,
        "start_from": recipe.start_from,
    }
    return {key: str(path) for key, path in found.items() if path}


def missing_files(source: Mapping[str, Any], languages: Sequence[str] = ()) -> list[str]:
    """Files of a source that do not exist, with `{lang}` for each language; datasets on the Hub are not looked up."""
    path = expand(source["path"])
    if "{lang}" in str(path):
        each = [{**source, "path": str(path).replace("{lang}", language)} for language in languages]
        return [file for one in each for file in missing_files(one)]
    if isinstance(path, str) and glob.has_magic(path):
        return [] if glob.glob(str(Path(path).expanduser()), recursive=True) else [path]
    files = expand_braces(path)[0]
    missing = [str(file) for file in files if not file.exists()]
    try:
        on_hub = missing and (source.get("format") or detect_format(files)) == "datasets"
    except XlsrError:  # an unknown suffix
        on_hub = False
    return [] if on_hub else missing


def needs(recipe: Recipe) -> list[str]:
    """What a recipe reads, in words: environment variables, corpora, other paths and ids, or own data."""
    sources = [source for _, source in data_sources(recipe)]
    corpora = [f"corpus {source['corpus']}" for source in sources if source.get("corpus")]
    paths = [str(path) for source in sources for path in as_list(source.get("path"))]
    paths += weights(recipe).values() if not recipe.start_from else []
    variables = [f"${name}" for name in variables_of(paths)]
    others = [path for path in paths if not variables_of(path)]
    return list(dict.fromkeys([*([] if sources else ["own data"]), *variables, *corpora, *others]))


class Missing:
    """Collects what cannot be found, to report it at once."""

    def __init__(self) -> None:
        self.variables: dict[str, None] = {}
        self.paths: dict[str, str] = {}  # path -> key

    def look_up(self, key: str, source: Mapping[str, Any], languages: Sequence[str] = ()) -> None:
        if unset := unset_variables(source.get("path")):
            self.variables |= dict.fromkeys(unset)
        elif source.get("path"):
            self.paths |= {file: key for file in missing_files(source, languages)}

    def look_up_named(self, key: str, path: str, languages: Sequence[str] = ()) -> None:
        """Looks for a file of a command line, which may be labelled; tasks of mteb are not looked up."""
        if not path.startswith("mteb:"):
            label = re.match(r"[\w-]+=", path) if not Path(path).exists() else None
            self.look_up(key, as_source(path[label.end() :] if label else path), languages)

    def look_up_model(self, key: str, path: str, *, local: bool = False) -> None:
        """Looks for a folder, unless it may be an id on the Hub."""
        if unset := unset_variables(path):
            self.variables |= dict.fromkeys(unset)
        elif (local or path.startswith((".", "/", "~", "$"))) and not Path(expand(path)).expanduser().exists():
            self.paths[expand(path)] = key

    def report(self, what: str) -> None:
        parts = [f"the environment variable {name}" for name in self.variables]
        parts += [f"'{path}' ({key})" for path, key in self.paths.items()]
        if parts:
            raise XlsrError(f"{what} needs {', '.join(parts)}, which cannot be found.")


def check_inputs(runs: Sequence[Method]) -> None:
    """Raises one error that names all files, folders and environment variables of runs that are missing."""
    missing = Missing()
    earlier = {run.recipe.output_dir for run in runs}
    for recipe in (run.recipe for run in runs):
        for key, source in data_sources(recipe):
            missing.look_up(key, source, as_list(source.get("languages")) or recipe.languages)
        for key, path in weights(recipe).items():
            if path not in earlier:
                missing.look_up_model(key, path, local=key == "start_from")
    missing.report(f"recipe '{runs[0].recipe.name}'")


def check_named(model: str | None, files: Mapping[str, Any], languages: Sequence[str] = ()) -> None:
    """As `check_all_named`, for one model and the files of options, which may be labelled, as in `de=texts.txt`."""
    models = {} if model is None else {"MODEL": model}
    check_all_named(models, {option: (as_list(paths), languages) for option, paths in files.items()}, "the command")


def check_all_named(
    models: Mapping[str, str], data: Mapping[str, tuple[Sequence[str], Sequence[str]]], what: str
) -> None:
    """Raises one error that names all models and files that are missing, before `what` starts.

    `models` are a folder or Hub id by the words that name it in the error; `data` likewise files, and the languages of
    paths with `{lang}`.
    """
    missing = Missing()
    for key, (paths, languages) in data.items():
        for path in paths:
            missing.look_up_named(key, path, languages)
    for key, path in models.items():
        missing.look_up_model(key, path)
    missing.report(what)
