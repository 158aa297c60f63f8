"""A method's recipes as JSON Schema, made of the same keys as the check, for editors and other programs."""

from __future__ import annotations

from typing import Any

from hf_xlsr.runs.methods import get_method
from hf_xlsr.runs.recipe_check import BEFORE, LISTS, TOP_LEVEL, recipe_keys
from hf_xlsr.runs.recipe_keys import Key

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Sections whose keys depend on the architecture, the languages, or names that users choose.
OPEN = ("model.encoder", "model.encoders")


def recipe_schema(method: str) -> dict[str, Any]:
    """What a recipe of a method may hold, as it is written: before `base` is laid under it and defaults are filled in.

    Whether values go together, and the keys of `model.encoder`, are checked by `hf_xlsr.runs.recipe.load_runs` alone.

    Args:
        method: Its name.

    Raises:
        XlsrError: there is no such method.

    Example:
        >>> schema = recipe_schema("cmlm")
        >>> schema["properties"]["training"]["properties"]["retrieval_batch_size"]["type"]
        ['integer', 'null']
    """
    chosen, sections = get_method(method), recipe_keys({"method": method})
    properties = {name: key.schema() for name, key in {**BEFORE, **sections.pop("")}.items()}
    properties["method"] = {**TOP_LEVEL["method"].schema(), "enum": [method], "type": "string"}
    for section, keys in sections.items():
        place = properties
        *parents, last = section.split(".")
        for parent in parents:
            place = place[parent]["properties"]
        place[last] = _section(section, keys)
    for name in LISTS:
        properties[name] = {**BEFORE[name].schema(), "items": {"$ref": "#/$defs/run"}}
    described = {key: {"description": text} for key, text in chosen.source_keys.items()}
    source = {"type": "object", "properties": described, "additionalProperties": False}
    sources: list[dict[str, Any]] = [
        {"type": ["string", "null"]},
        source,
        {"type": "array", "items": {"anyOf": [{"type": "string"}, source]}},
    ]
    if method == "classification":  # whose dev and test sets have names
        sources.append({"type": "object", "additionalProperties": {"$ref": "#/$defs/sources"}})
    changes = {"type": "object", "properties": properties, "additionalProperties": False}
    run = {"type": "object", "properties": {"name": {"type": "string"}, "set": changes}, "required": ["name"]}
    return {
        "$schema": DIALECT,
        "title": f"Recipe of hf-xlsr, method {method}",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": {"sources": {"anyOf": sources}, "run": {**run, "additionalProperties": False}},
    }


def _section(section: str, keys: dict[str, Key]) -> dict[str, Any]:
    """A section of named keys; of an open one those that every recipe may have."""
    shown = sorted({"path", "model_type"} & keys.keys()) if section in OPEN else list(keys)
    properties = {name: keys[name].schema() for name in shown}
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": section in OPEN}
