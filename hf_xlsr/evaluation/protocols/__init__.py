"""Evaluation protocols, one module each; `NAMES` are their names in commands and metric keys."""

from __future__ import annotations

import pkgutil

NAMES = tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))
