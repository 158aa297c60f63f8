"""The data, languages and encoders of a user in place of a recipe's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.data.encoding import PAIRS
from hf_xlsr.data.formats.reading import column_names, expand_braces
from hf_xlsr.data.formats.tables import dataset_splits
from hf_xlsr.data.languages import language_of_name, nearest_tag
from hf_xlsr.data.sources import Source, as_list
from hf_xlsr.evaluation.before_after import SCORED
from hf_xlsr.runs.inputs import is_dataset, missing_files
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.own_data import OwnData, own_values
from hf_xlsr.runs.sections import holds_named_sources, holds_sources
from hf_xlsr.utils.variables import expand, unset_variables

SPLITS = ("train", "dev", "test")

# A tenth of the training pairs, at most 1,000, is drawn as dev set.
DEV_MODULUS = 10
DEV_PAIRS = 1000


def with_own_data(recipe: Mapping[str, Any], own: OwnData, method: type[Method]) -> dict[str, Any]:
    """A recipe on other data, in other languages, or from another encoder.

    - `train` replaces all data of the recipe. Without `dev`, a dev set is drawn from it by the hash of each source
      sentence; preparation then removes every training row with a sentence of the dev set.
    - `dev`, `test` and `guard` each replace one set. `columns` applies to `train`, `dev` and `test`.
    - `encoder` replaces the encoders, with their tokenizer.
    """
    content: dict[str, Any] = deepcopy(dict(recipe))
    if own.languages is not None:
        content["languages"] = own.language_codes()
    languages = as_list(content.get("languages"))

    if own.train is not None:
        content.pop("nli", None)
    data = _own_sets(content.get("data") or {}, own, languages, method)
    if data:
        content["data"] = data

    if own.guard is not None:
        guard: Any = [guard_source(value, languages) for value in own_values("guard", own.guard)]
        section: Any = method.recipe_class.model_fields["evaluation"].annotation
        if holds_named_sources(section.model_fields["guard"]):
            guard = _by_name(guard)
        content["evaluation"] = {**(content.get("evaluation") or {}), "guard": guard}

    if own.encoder is not None:
        encoders = {}
        for value in own_values("encoder", own.encoder):
            language, path = re.findall(r"^(?:([\w-]+)=)?(.*)", str(value))[0]
            encoders[language] = path
        content["model"] = {**(content.get("model") or {}), **method.encoder_keys(encoders)}
        for key in ("tokenizer", "start_from"):  # of the recipe's encoder
            content.pop(key, None)
    return content


def _own_sets(
    data: Mapping[str, Any],
    own: OwnData,
    languages: list[str],
    method: type[Method],
) -> dict[str, Any]:
    """The section `data` with the sets of a user, and with a dev set drawn from their training data."""
    section: Any = method.recipe_class.model_fields["data"].annotation
    data_fields = section.model_fields
    columns = ",".join(own.columns or ())

    changed = dict(data)
    if own.train is not None:
        for key, field in data_fields.items():
            if holds_sources(field):
                changed.pop(key, None)
    for split in SPLITS:
        texts = getattr(own, split)
        if texts is None:
            continue
        sources = [own_source(value, languages, columns) for value in own_values(split, texts)]
        changed[split] = _by_name(sources) if holds_named_sources(data_fields[split]) else sources

    if own.train is not None and own.dev is None and not holds_named_sources(data_fields["dev"]):
        drawn = (drawn_dev(source, len(changed["train"])) for source in changed["train"])
        changed["dev"] = list(filter(None, drawn))
    return changed


def _by_name(sources: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    sets: dict[str, list[dict[str, Any]]] = {}
    for source in sources:
        sets.setdefault(Source.parse(source).name, []).append(source)
    return sets


def own_source(value: Any, languages: Sequence[str], columns: str = "") -> dict[str, Any]:
    """A source for a path or corpus of the user; columns of tables are those named like the languages, unless given.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "pairs.tsv"
        ...     _ = file.write_text("en\\tde\\ngood day\\tguten Tag\\n")
        ...     own_source(file, ["en", "de"])["columns"]
        {'source': 'en', 'target': 'de'}
    """
    if isinstance(value, Mapping):
        return dict(value)
    source = _written_source(value)
    if "corpus" in source:
        return source
    if columns:
        return source | _mapped_columns(parse_columns(columns), languages)

    column_of_tag = {}
    for column in columns_of(source["path"]):
        tag = language_of_name(column, languages)
        if tag:
            column_of_tag[tag] = column
    column_of_language = {}
    for language in languages:
        tag = nearest_tag(language, column_of_tag)
        if tag:
            column_of_language[language] = column_of_tag[tag]

    if len(column_of_language) > 2:
        source["parallel"] = column_of_language
    elif len(column_of_language) == 2:
        source["columns"] = dict(zip(PAIRS.texts, column_of_language.values(), strict=True))
        source["languages"] = list(column_of_language)
    return source


def _mapped_columns(columns: dict[str, str], languages: Sequence[str]) -> dict[str, Any]:
    """Keys of a source with these columns, also the languages where both columns are named after one."""
    pair: list[str] = []
    for side in PAIRS.texts:
        tag = language_of_name(columns.get(side, ""))
        if tag:
            pair += [language for language in languages if nearest_tag(language, [tag])]
    if len(pair) != 2:
        return {"columns": columns}
    return {"columns": columns, "languages": pair}


def _written_source(value: Any) -> dict[str, Any]:
    """A corpus or path of the user as a recipe writes a source."""
    return Source.parse(str(value)).model_dump(exclude_unset=True)


def guard_source(value: Any, languages: Sequence[str]) -> dict[str, Any]:
    """A source of pairs or, where the file has columns `sentence1`, `sentence2` and `score`, of scored pairs.

    Pairs are of the languages among `languages`; with fewer than two there, of the file's first two.
    """
    if isinstance(value, Mapping):
        return dict(value)
    source = _written_source(value)
    if "corpus" in source:
        return source

    names = columns_of(str(value))
    if set(SCORED) <= set(names):
        return {**source, "columns": {name: name for name in SCORED}}

    languages_of_file = list(filter(None, map(language_of_name, names)))
    trained = [language for language in languages_of_file if nearest_tag(language, languages)]
    if len(trained) > 1:
        return own_source(value, trained)
    if len(languages_of_file) > 2 and "id" in languages_of_file:  # Indonesian, or a number
        languages_of_file.remove("id")
    return own_source(value, languages_of_file[:2])


def columns_of(path: str) -> list[str]:
    """The columns of a file; none of missing files, which are an error of `check_inputs`."""
    if unset_variables(path) or missing_files(Source(path=path)):
        return []
    return column_names(expand(path))


def drawn_dev(source: Mapping[str, Any], files: int) -> dict[str, Any] | None:
    """The part of a training source that a dev set is drawn from; None where the source selects its own part."""
    if "corpus" in source or source.get("hash_split"):
        return None

    columns = source.get("parallel") or {"source": "source", **parse_columns(source.get("columns"))}
    first_column = next(iter(columns.values()))
    drawn = {
        **source,
        "hash_split": "held",
        "hash_key": first_column,
        "hash_modulus": DEV_MODULUS,
        "distinct": True,
        "sample": max(1, DEV_PAIRS // files),
    }
    if "train" in splits_of(source):
        # A dev set is read from the split `dev` otherwise.
        drawn.setdefault("split", "train")
    return drawn


def splits_of(source: Mapping[str, Any]) -> list[str]:
    """The splits of a dataset in a folder or on the Hub; none of files."""
    path = source["path"]
    if unset_variables(path) or missing_files(Source(path=path)):
        return []
    paths, _ = expand_braces(expand(path))
    return dataset_splits(str(paths[0]), source.get("config")) if is_dataset(paths, source.get("format")) else []
