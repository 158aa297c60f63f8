"""The methods of recipes: how each is prepared, built, trained and exported."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from inspect import isabstract

from hf_xlsr.runs.methods.base import Method


def find_methods() -> dict[str, type[Method]]:
    """Each concrete `Method` that a module of this folder defines, by its name."""
    modules = (import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {
        method.name: method
        for module in modules
        for method in vars(module).values()
        if isinstance(method, type) and issubclass(method, Method) and method.__module__ == module.__name__
        if not isabstract(method)
    }


METHODS: dict[str, type[Method]] = find_methods()

__all__ = ["METHODS", "Method"]
