"""Mappings that users write, as pydantic models."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from hf_xlsr.utils.errors import did_you_mean


class Section(BaseModel, extra="forbid", strict=True, arbitrary_types_allowed=True):
    """A mapping whose unknown keys are errors; values are not converted (`"3"` is not a number)."""


def explain(
    error: ValidationError,
    model: type[BaseModel] = Section,
    place: str = "",
) -> str:
    """The first problem of a validation error, in one sentence without a full stop; `place` is the key of the value.

    `model` knows the keys that exist.

    Examples:
        >>> class Card(Section):
        ...     license: str = ""
        >>> try:
        ...     Card(licence="mit")
        ... except ValidationError as error:
        ...     explain(error, Card, "card")
        "unknown key 'card.licence'; did you mean 'license'?"
    """
    first = error.errors()[0]
    keys = [str(key) for key in first["loc"]]
    where = ".".join([place, *keys] if place else keys)
    if first["type"] == "missing":
        return f"{where} is missing"
    if first["type"] == "extra_forbidden":
        section: Any = model
        for key in keys[:-1]:
            if key in getattr(section, "model_fields", {}):
                section = section.model_fields[key].annotation
            elif get_origin(section) is dict:  # of sections by name
                section = get_args(section)[1]
        return f"unknown key '{where}'; {did_you_mean(keys[-1], section.model_fields).rstrip('.')}"

    message = str(first.get("ctx", {}).get("error") or first["msg"])
    if first["type"] == "value_error":
        return f"{where}: {message}".removeprefix(": ").rstrip(".")
    return f"{where} is {first['input']!r}: {message[0].lower()}{message[1:]}"
