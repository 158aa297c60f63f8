"""Mappings that users write, as pydantic models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from hf_xlsr.utils.errors import did_you_mean


class Section(BaseModel, extra="forbid", strict=True, arbitrary_types_allowed=True):
    """A mapping whose unknown keys are errors; values are not converted (`"3"` is not a number)."""


def explain(error: ValidationError, model: type[BaseModel], place: str = "") -> str:
    """The first problem of a validation error, in one sentence without a full stop; `place` is the key of the value.

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
    path = [str(part) for part in first["loc"]]
    where = ".".join([place, *path] if place else path)
    if first["type"] == "extra_forbidden":
        owner: Any = model
        for part in path[:-1]:
            owner = owner.model_fields[part].annotation if part in getattr(owner, "model_fields", {}) else owner
        return f"unknown key '{where}'; {did_you_mean(path[-1], owner.model_fields).rstrip('.')}"
    if first["type"] == "missing":
        return f"{where} is missing"
    message = str(first.get("ctx", {}).get("error") or first["msg"])
    if first["type"] == "value_error":
        return f"{where}: {message}".removeprefix(": ").rstrip(".")
    return f"{where} is {first['input']!r}: {message[0].lower()}{message[1:]}"
