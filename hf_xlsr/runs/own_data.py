"""Options of `train` that put one's own data and encoders into any recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from hf_xlsr.data.columns import MissingColumn, parse_columns
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import detect_format, expand_braces, read_rows
from hf_xlsr.data.sources import as_list, as_source, expand, unset_variables
from hf_xlsr.evaluation.languages import language_of_name
from hf_xlsr.runs.inputs import missing_files
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.sections import holds_named_sources, holds_sources
from hf_xlsr.utils.errors import XlsrError

OPTIONS = ("train", "dev", "test", "guard", "languages", "encoder", "columns")
STS_COLUMNS = ("sentence1", "sentence2", "score")
# A tenth of the training pairs, at most 1,000, is drawn as dev set.
DEV_MODULUS, DEV_PAIRS = 10, 1000


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
        if not languages:
            raise XlsrError("--languages is missing; give the languages of --train, e.g. --languages en,de.")
        data = {key: value for key, value in data.items() if key not in fields or not holds_sources(fields[key])}
        content.pop("nli", None)
    for split in ("train", "dev", "test"):
        if split in given:
            sources = [own_source(value, languages, columns) for value in given[split] if value is not None]
            named = holds_named_sources(fields[split])
            data[split] = {Path(str(one["path"])).stem: one for one in sources} if named else sources
    if "train" in given and "dev" not in given and not holds_named_sources(fields["dev"]):
        data["dev"] = [drawn for source in data["train"] if (drawn := drawn_dev(source, len(data["train"])))]
    if data:
        content["data"] = data
    if "guard" in given:
        guard = [guard_source(value) for value in given["guard"]]
        content["evaluation"] = {**(content.get("evaluation") or {}), "guard": guard}
    if "encoder" in given:
        pairs = [re.fullmatch(r"(?:(\w+)=)?(.+)", str(value)) for value in given["encoder"]]
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
    source = as_source(str(value))
    if "corpus" in source:
        return source
    if columns:
        return {**source, "columns": parse_columns(columns)}
    named = {language_of_name(name, languages): name for name in column_names(source["path"])}
    found = {language: named[language] for language in languages if language in named}
    if len(found) == 2:
        columns_found = dict(zip(("source", "target"), found.values(), strict=True))
        return {**source, "columns": columns_found, "languages": list(found)}
    return {**source, "parallel": found} if found else source


def guard_source(value: Any) -> dict[str, Any]:
    """A source of pairs or, where the file has columns `sentence1`, `sentence2` and `score`, of scored pairs."""
    if isinstance(value, Mapping):
        return dict(value)
    names = column_names(str(value))
    if set(STS_COLUMNS) <= set(names):
        return {"path": str(value), "columns": {name: name for name in STS_COLUMNS}}
    return own_source(value, [language for name in names if (language := language_of_name(name))][:2])


def column_names(path: str) -> list[str]:
    """The columns of a table, or the labels of Moses files; empty for formats with fixed columns and missing files."""
    if unset_variables(path) or missing_files({"path": path}):  # an error of `check_inputs`
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
