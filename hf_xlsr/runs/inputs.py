"""What a recipe reads: data, held-out texts, encoders and environment variables, looked up before anything runs."""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hf_xlsr.data.columns import PLACEHOLDER, selecting_columns
from hf_xlsr.data.corpora.loading import CORPORA
from hf_xlsr.data.encoding import CONSECUTIVE, PAIRS
from hf_xlsr.data.formats.lines import BrokenFile
from hf_xlsr.data.formats.parquet_files import ParquetProcess
from hf_xlsr.data.formats.reading import column_names, detect_format, expand_braces
from hf_xlsr.data.preparation import source_files
from hf_xlsr.data.raw_rows import NEGATIVE_COLUMN
from hf_xlsr.data.sources import (
    RowFilter,
    Source,
    as_list,
    open_source,
    parse_sources,
)
from hf_xlsr.export.published_files import WEIGHTS_AND_SETTINGS
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.base import Method
from hf_xlsr.runs.sections import Recipe, holds_named_sources, holds_sources
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import refuse_overwriting
from hf_xlsr.utils.hashing import remembered_sha256
from hf_xlsr.utils.variables import expand, unset_variables, variables_of

logger = logging.getLogger(__name__)


def data_sources(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Source]]:
    """Every source of a recipe, in all of its sections, with its key."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from data_sources(value, f"{prefix}{name}.")
        elif holds_named_sources(field):
            for set_name, sources in (value or {}).items():
                for source in parse_sources(sources):
                    yield f"{prefix}{name}.{set_name}", source
        elif holds_sources(field):
            for source in parse_sources(value):
                yield f"{prefix}{name}", source


def missing_files(source: Source, languages: Sequence[str] = ()) -> list[str]:
    """Files of a source that do not exist, with `{lang}` for each language; datasets on the Hub are not looked up."""
    path = source.location
    missing: list[str] = []
    if PLACEHOLDER in str(path):
        for language in languages:
            missing += missing_files(source.in_language(language))
        return missing

    if isinstance(path, str) and glob.has_magic(path):
        files = glob.glob(os.path.expanduser(path), recursive=True)
        return [] if files else [path]

    paths, _ = expand_braces(path)
    missing += [str(file) for file in paths if not file.exists()]
    if missing and is_dataset(paths, source.format):
        return []
    return missing


def is_dataset(files: Sequence[Path], format: str | None = None) -> bool:
    """Whether a path that does not exist may be an id on the Hub."""
    try:
        return (format or detect_format(files)) == "datasets"
    except XlsrError:  # an unknown suffix
        return False


def needs(recipe: Recipe) -> list[str]:
    """What a recipe reads, in words: environment variables, corpora, other paths and ids, or own data."""
    paths: list[str] = []
    corpora: list[str] = []
    for _, source in data_sources(recipe):
        paths += map(str, as_list(source.path))
        corpora += as_list(source.corpus)
    words = [] if paths or corpora else ["own data"]
    if not recipe.start_from:
        paths += recipe.weights().values()

    words += [f"${name}" for name in variables_of(paths)]
    words += [f"corpus {corpus}" for corpus in corpora]
    words += [path for path in paths if not variables_of(path)]
    return list(dict.fromkeys(words))


def missing_data(key: str, source: Source, languages: Sequence[str] = ()) -> Iterator[str]:
    """What a source needs and cannot be found, in words: environment variables, or files."""
    variables = unset_variables(source.path)
    for name in variables:
        yield f"the environment variable {name}"
    if source.path and not variables:
        for file in missing_files(source, languages):
            yield f"'{file}' ({key})"


def missing_model(key: str, path: str, *, local: bool = False) -> Iterator[str]:
    """Like `missing_data`, for the folder of a model. A path that may be a Hub id is not missing."""
    may_be_id = not local and not path.startswith((".", "/", "~", "$"))
    variables = unset_variables(path)
    for name in variables:
        yield f"the environment variable {name}"
    if not (variables or may_be_id or Path(expand(path)).expanduser().exists()):
        yield f"'{expand(path)}' ({key})"


def _raise_missing(missing: Sequence[str], what: str) -> None:
    if missing:
        names = ", ".join(dict.fromkeys(missing))
        raise XlsrError(f"{what} needs {names}, which cannot be found.")


def check_inputs(runs: Sequence[Method]) -> None:
    """Raises one error that names all files, folders and environment variables of runs that are missing.

    Also raises for a run that would remove what it reads.
    """
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
    for run in runs:
        for source in parse_sources(getattr(run.recipe.data, "train", None)):
            warn_of_negatives(source)
        if run.recipe.overwrite:
            _refuse_removing(run.recipe)


def warn_of_negatives(source: Source) -> None:
    """Says that recipes do not read hard negatives, of a file that has some."""
    if not source.path or not all(map(Path.is_file, expand_braces(source.location)[0])):
        return
    names = list(filter(NEGATIVE_COLUMN.fullmatch, column_names(source.location)))
    if names:
        logger.warning(
            "'%s' has hard negatives (%s), which recipes do not train on. Train from Python, see docs/negatives.md.",
            source.path,
            ", ".join(names),
        )


def _refuse_removing(recipe: Recipe) -> None:
    """Raises if the old run in the folder of a new one holds what the new one reads."""
    folder = RunFolder(recipe.output_dir)
    removed = list(filter(Path.exists, [folder.training, *folder.outputs]))
    inputs = [_local(path) for path in recipe.weights().values()]
    for _, source in data_sources(recipe):
        inputs += _files_of(source, source.languages_or(recipe.languages))

    for path in filter(Path.exists, inputs):
        for place, old in product([path, *path.resolve().parents], removed):
            if place.samefile(old):
                raise XlsrError(
                    f"--overwrite would remove '{old}', in which '{path}' is read. Use another --output_dir."
                )


def _local(path: str) -> Path:
    return Path(expand(path)).expanduser()


def _model_files(folder: Path) -> Iterator[Path]:
    """The weights and settings in a folder, and in the folders inside it."""
    for file in folder.rglob("*"):
        if any(fnmatchcase(file.name, pattern) for pattern in WEIGHTS_AND_SETTINGS):
            yield file


def _files_of(source: Source, languages: Sequence[str]) -> Iterator[Path]:
    """The files of a source that exist, with `{lang}` for each language; those of a folder one by one."""
    if source.is_template:
        for language in languages:
            yield from _files_of(source.in_language(language), ())
        return
    for _, file in source_files(source):
        if file is not None:
            yield file


def verify_inputs(runs: Sequence[Method]) -> None:
    """Reads every data file of runs again for its hash, which is otherwise remembered, see `remembered_sha256`."""
    for run in runs:
        for _, source in data_sources(run.recipe):
            parts = [source]
            if source.is_template:
                parts = [source.in_language(language) for language in source.languages_or(run.recipe.languages)]
            for part in parts:
                for _, file in source_files(part):
                    if file is not None:
                        remembered_sha256(file, verify=True)


def check_named(
    model: str | None,
    files: Mapping[str, Any],
    languages: Sequence[str] = (),
    outputs: Iterable[str | Path] = (),
) -> None:
    """Like `check_all_named`, for one model and the files of options."""
    models = {} if model is None else {"MODEL": model}
    data = {option: (as_list(paths), languages) for option, paths in files.items()}
    check_all_named(models, data, "the command", outputs)


def check_all_named(
    models: Mapping[str, str],
    data: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    what: str,
    outputs: Iterable[str | Path] = (),
) -> None:
    """Raises one error that names all models and files that are missing, before `what` starts.

    `models` are a folder or Hub id by the words that name it in the error; `data` likewise files, which may be labelled
    (`de=texts.txt`) or a task of mteb, and the languages of paths with `{lang}`. An output that is one of these files or
    folders, or a file of one of the models, is an error.
    """
    missing: list[str] = []
    sources: list[tuple[Source, Sequence[str]]] = []
    for key, (paths, languages) in data.items():
        for path in paths:
            if not Path(path).exists():
                path = re.sub(r"^[\w-]+=", "", path)
            if not path.startswith("mteb:"):
                source = Source.parse(path)
                missing += missing_data(key, source, languages)
                sources.append((source, languages))

    for key, path in models.items():
        missing += missing_model(key, path)
    _raise_missing(missing, what)

    inputs = list(map(_local, models.values()))
    for folder in filter(Path.is_dir, list(inputs)):
        inputs += _model_files(folder)
    for source, languages in sources:
        inputs += map(_local, source.paths)
        inputs += _files_of(source, languages)
    refuse_overwriting(outputs, inputs, "--output")


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
                for side in sides:
                    yield row[side]


def _language_pairs(source: Source, languages: Sequence[str]) -> list[Sequence[str]]:
    """The language pairs of a source: of many languages, the first with each other one that a corpus has."""
    if source.corpus is None or source.languages or len(languages) < 3:
        return [languages]
    first, *other_languages = languages
    corpus_languages = CORPORA[source.corpus].languages or other_languages
    return [(first, language) for language in other_languages if language in corpus_languages]


def _every_text(source: Source) -> Iterator[str]:
    row_filter = RowFilter(source)
    for pattern in source.paths:
        has_text = False
        for file in sorted(glob.glob(os.path.expanduser(pattern), recursive=True)):
            for row in filter(row_filter.keeps, _every_row(file, row_filter)):
                for text in _texts_in(row):
                    has_text = True
                    yield text

        if not has_text:
            raise XlsrError(f"data.held_out: '{pattern}' selects no text.")


def _every_row(file: str, row_filter: RowFilter) -> Iterator[dict[str, Any]]:
    try:
        with ParquetProcess(file) as table:
            names = table.schema().names
            selecting_columns(row_filter.columns, (), names, file)
            for batch in table.batches(names):
                yield from batch.to_pylist()
    except BrokenFile as error:
        raise XlsrError(f"data.held_out: {file} cannot be read ({error}).") from error


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts_in(item)
    elif value and isinstance(value, str):
        yield value
