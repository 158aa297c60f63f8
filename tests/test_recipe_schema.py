"""The JSON Schema of each method takes the recipes that come with the package and refuses what the check refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe import read_recipe, recipe_names
from hf_xlsr.runs.recipe_schema import recipe_schema
from hf_xlsr.utils.errors import XlsrError

TYPES: dict[str, Any] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def is_type(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def mistakes(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], place: str = "") -> list[str]:
    """Where a value breaks a schema; knows the words that `recipe_schema` uses, and no others."""
    known = {"$ref", "anyOf", "type", "enum", "minimum", "exclusiveMinimum", "maximum", "properties", "items"}
    known |= {"additionalProperties", "required", "description", "default", "title", "$schema", "$defs"}
    assert set(schema) <= known, set(schema) - known
    found: list[str] = []
    if "$ref" in schema:
        found += mistakes(value, root["$defs"][schema["$ref"].rsplit("/", 1)[1]], root, place)
    if "anyOf" in schema and all(mistakes(value, part, root, place) for part in schema["anyOf"]):
        found.append(f"{place}: none of the kinds")
    names = schema.get("type", [])
    if names and not any(is_type(value, name) for name in ([names] if isinstance(names, str) else names)):
        return [*found, f"{place}: {value!r} is no {names}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{place}: {value!r} is not in {schema['enum']}")
    if is_type(value, "number"):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            found.append(f"{place}: {value} is out of bounds")
        if "exclusiveMinimum" in schema and value <= schema["exclusiveMinimum"]:
            found.append(f"{place}: {value} is out of bounds")
    if isinstance(value, Mapping):
        found += [f"{place}: lacks {key}" for key in schema.get("required", ()) if key not in value]
        for key, part in value.items():
            if key in schema.get("properties", {}):
                found += mistakes(part, schema["properties"][key], root, f"{place}.{key}")
            elif schema.get("additionalProperties") is False:
                found.append(f"{place}: unknown key {key}")
            elif isinstance(schema.get("additionalProperties"), Mapping):
                found += mistakes(part, schema["additionalProperties"], root, f"{place}.{key}")
    if isinstance(value, list) and "items" in schema:
        for number, part in enumerate(value):
            found += mistakes(part, schema["items"], root, f"{place}[{number}]")
    return found


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_fit(name: str) -> None:
    recipe = read_recipe(name)
    schema = recipe_schema(recipe["method"])
    assert mistakes(recipe, schema, schema) == []


@pytest.mark.parametrize("method", METHODS)
def test_it_is_a_schema(method: str) -> None:
    schema = json.loads(json.dumps(recipe_schema(method)))
    assert schema["properties"]["method"]["enum"] == [method]
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        return
    Draft202012Validator.check_schema(schema)
    for name in recipe_names():
        if (recipe := read_recipe(name))["method"] == method:
            assert not list(Draft202012Validator(schema).iter_errors(recipe)), name


@pytest.mark.parametrize(
    "recipe",
    [
        {"training": {"max_steps": -5}},
        {"training": {"max_steps": "many"}},
        {"training": {"eval_strategy": "step"}},
        {"training": {"learning_rat": 1.0}},
        {"model": [1]},
        {"model": {"pooling": 3}},
        {"data": {"train": 3}},
        {"data": {"train": {"pth": "x"}}},
        {"runs": [{"set": {}}]},
        {"runs": [{"name": "a", "set": {"modle": {}}}]},
        {"modle": {}},
    ],
)
def test_what_does_not_fit(recipe: dict[str, Any]) -> None:
    schema = recipe_schema("lightweight")
    assert mistakes({"method": "lightweight", "languages": ["en", "fr"], **recipe}, schema, schema)


def test_an_unknown_method_is_told() -> None:
    with pytest.raises(XlsrError, match="did you mean 'lightweight'"):
        recipe_schema("lightwight")
