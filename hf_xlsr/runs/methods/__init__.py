"""The methods of recipes: how each is prepared, built, trained and exported."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from hf_xlsr.runs.methods.base import Method


def find_methods() -> dict[str, type[Method]]:
    """Each `Method` with a name that a module of this folder has."""
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    found = {method.name: method for method in classes if issubclass(method, Method) and hasattr(method, "name")}
    return dict(sorted(found.items()))


METHODS: dict[str, type[Method]] = find_methods()
