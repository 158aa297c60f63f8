"""Public names of a package, imported on first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package whose names are imported on first use."""
    module_of_name: dict[str, str] = {}
    for module, names in modules.items():
        module_of_name.update(dict.fromkeys(names, f"{package}.{module}"))
    all_names = sorted(module_of_name)

    def get(name: str) -> Any:
        if name not in module_of_name:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(module_of_name[name]), name)

    return get, all_names.copy, all_names
