"""What a recipe reads: data, held-out texts, encoders and environment variables, looked up before anything runs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pydantic import BaseModel

from hf_xlsr.data.columns import PLACEHOLDER, selecting_columns
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.encoding import CONSECUTIVE, PAIRS
from hf_xlsr.data.formats.reading import detect_format, expand_braces
from hf_xlsr.data.sources import (
    RowFilter,
    Source,
    as_list,
    expand,
    open_source,
    parse_sources,
    unset_variables,
    variables_of,
)
from hf_xlsr.runs.methods.base import Method
from hf_xlsr.runs.sections import Recipe, holds_sources
from hf_xlsr.utils.errors import XlsrError


def data_sources(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Source]]:
    """Every source of a recipe, in all of its sections, with its key."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from data_sources(value, f"{prefix}{name}.")
        elif holds_sources(field):
            is_named = isinstance(value, Mapping) and not {"path", "corpus"} & {*value}
            sources_by_set = value if is_named else {"": value}
            for set_name, sources in sources_by_set.items():
                key = f"{prefix}{name}.{set_name}".rstrip(".")
                for source in parse_sources(sources):
                    yield key, source


def missing_files(source: Source, languages: Sequence[str] = ()) -> list[str]:
    """Files of a source that do not exist, with `{lang}` for each language; datasets on the Hub are not looked up."""
    path = source.location
    if PLACEHOLDER in str(path):
        return [file for language in languages for file in missing_files(source.in_language(language))]
    if isinstance(path, str) and glob.has_magic(path):
        files = glob.glob(str(Path(path).expanduser()), recursive=True)
        return [] if files else [path]

    paths, _ = expand_braces(path)
    missing = [str(file) for file in paths if not file.exists()]
    return [] if missing and is_dataset(paths, source.format) else missing


def is_dataset(files: Sequence[Path], format: str | None = None) -> bool:
    """Whether a path that does not exist may be an id on the Hub."""
    try:
        return (format or detect_format(files)) == "datasets"
    except XlsrError:  # an unknown suffix
        return False


def needs(recipe: Recipe) -> list[str]:
    """What a recipe reads, in words: environment variables, corpora, other paths and ids, or own data."""
    sources = [source for _, source in data_sources(recipe)]
    paths: list[str] = []
    for source in sources:
        paths += map(str, as_list(source.path))
    if not recipe.start_from:
        paths += recipe.weights().values()

    words = [] if sources else ["own data"]
    words += [f"${name}" for name in variables_of(paths)]
    words += [f"corpus {source.corpus}" for source in sources if source.corpus]
    words += [path for path in paths if not variables_of(path)]
    return list(dict.fromkeys(words))


def missing_data(key: str, source: Source, languages: Sequence[str] = ()) -> Iterator[str]:
    """What a source needs and cannot be found, in words: environment variables, or files."""
    yield from _unset_in_words(source.path)
    if source.path and not unset_variables(source.path):
        yield from (f"'{file}' ({key})" for file in missing_files(source, languages))


def _unset_in_words(path: Any) -> list[str]:
    return [f"the environment variable {name}" for name in unset_variables(path)]


def missing_model(key: str, path: str, *, local: bool = False) -> Iterator[str]:
    """Like `missing_data`, for the folder of a model. A path that may be a Hub id is not missing."""
    yield from _unset_in_words(path)
    may_be_id = not local and not path.startswith((".", "/", "~", "$"))
    if not may_be_id and not unset_variables(path) and not Path(expand(path)).expanduser().exists():
        yield f"'{expand(path)}' ({key})"


def _raise_missing(missing: Sequence[str], what: str) -> None:
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        raise XlsrError(f"{what} needs {names}, which cannot be found.")


def check_inputs(runs: Sequence[Method]) -> None:
    """Raises one error that names all files, folders and environment variables of runs that are missing."""
    output_folders = {run.recipe.output_dir for run in runs}
    missing: list[str] = []
    for run in runs:
        recipe = run.recipe
        for key, source in data_sources(recipe):
            missing += missing_data(key, source, source.languages_or(recipe.languages))
        for key, path in recipe.weights().items():
            if path not in output_folders:
                missing += missing_model(key, path, local=key == "start_from")
    _raise_missing(missing, f"recipe '{runs[0].recipe.name}'")


def check_named(model: str | None, files: Mapping[str, Any], languages: Sequence[str] = ()) -> None:
    """Like `check_all_named`, for one model and the files of options."""
    models = {} if model is None else {"MODEL": model}
    check_all_named(models, {option: (as_list(paths), languages) for option, paths in files.items()}, "the command")


def check_all_named(
    models: Mapping[str, str], data: Mapping[str, tuple[Sequence[str], Sequence[str]]], what: str
) -> None:
    """Raises one error that names all models and files that are missing, before `what` starts.

    `models` are a folder or Hub id by the words that name it in the error; `data` likewise files, which may be labelled
    (`de=texts.txt`) or a task of mteb, and the languages of paths with `{lang}`.
    """
    missing: list[str] = []
    for key, (paths, languages) in data.items():
        for path in paths:
            if path.startswith("mteb:"):
                continue
            if not Path(path).exists():
                path = re.sub(r"^[\w-]+=", "", path)
            missing += missing_data(key, Source.parse(path), languages)

    for key, path in models.items():
        missing += missing_model(key, path)

    _raise_missing(missing, what)


EVERY_COLUMN = "*"


def held_out_texts(sources: Sequence[Source], *, languages: Sequence[str]) -> Iterator[str]:
    """Texts of a recipe's `data.held_out`, which are kept out of training.

    With `columns: "*"` the path is a pattern of Parquet files, of which all text columns are read; `where` and
    `hash_split` select rows. Otherwise `source` and `target` of the split `test` are read, or in a recipe of one language
    `first` and `second`; a corpus without languages in those of the recipe, of more than two the first with each other.
    """
    for source in sources:
        if source.columns == EVERY_COLUMN:
            yield from _every_text(source)
            continue

        for pair in _language_pairs(source, languages):
            sides = PAIRS.texts if len(pair) > 1 else CONSECUTIVE.texts
            for row in open_source(source, languages=pair, split="test", required=sides):
                yield from map(row.__getitem__, sides)


def _language_pairs(source: Source, languages: Sequence[str]) -> list[Sequence[str]]:
    """The language pairs of a source: of many languages, the first with each other one that a corpus has."""
    if source.corpus is None or source.languages or len(languages) < 3:
        return [languages]
    corpus_languages = CORPORA[source.corpus].languages or languages
    return [(languages[0], target) for target in languages[1:] if target in corpus_languages]


def _every_text(source: Source) -> Iterator[str]:
    row_filter = RowFilter(source)
    for pattern in source.paths:
        has_text = False
        for file in sorted(glob.glob(os.path.expanduser(pattern), recursive=True)):
            table = pq.ParquetFile(file)
            selecting_columns(row_filter.columns, (), [field.name for field in table.schema_arrow], file)
            for batch in table.iter_batches(batch_size=4096):
                for row in filter(row_filter.keeps, batch.to_pylist()):
                    for text in _texts_in(row):
                        has_text = True
                        yield text

        if not has_text:
            raise XlsrError(f"data.held_out: '{pattern}' selects no text.")


def _texts_in(value: Any) -> Iterator[str]:
    if value and isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts_in(item)
