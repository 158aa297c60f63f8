"""The methods of recipes: how each is prepared, built, trained and exported."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from inspect import isabstract

from hf_xlsr.runs.methods.base import Method
from hf_xlsr.utils.errors import XlsrError, did_you_mean


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


def get_method(name: object) -> type[Method]:
    """A method by its name."""
    if str(name) not in METHODS:
        raise XlsrError(f"`method` is '{name}'; {did_you_mean(str(name), METHODS)}")
    return METHODS[str(name)]


__all__ = ["METHODS", "Method", "get_method"]
