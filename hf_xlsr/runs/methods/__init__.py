"""The methods of recipes: how each is prepared, built, trained and exported."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TypeVar

from hf_xlsr.runs.methods.base import Method as Method
from hf_xlsr.utils.plugins import Registry

MethodT = TypeVar("MethodT", bound=Method)


def find_methods() -> dict[str, type[Method]]:
    """Each `Method` with a name that a module of this folder has."""
    methods: dict[str, type[Method]] = {}
    for module in pkgutil.iter_modules(__path__):
        for value in vars(import_module(f"{__name__}.{module.name}")).values():
            if isinstance(value, type) and issubclass(value, Method) and hasattr(value, "name"):
                methods[value.name] = value
    return dict(sorted(methods.items()))


METHODS: Registry[type[Method]] = Registry("method", "methods", find_methods())
"""The methods that a recipe can name."""


def register_method(method: type[MethodT]) -> type[MethodT]:
    """A decorator: recipes can name the method, a subclass of `Method` with a `name`."""
    METHODS.add(method.name, method, method)
    return method
