"""Evaluation protocols; `NAMES` are their names in commands and metric keys."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

MODULES = {
    "bucc": ("bucc", "mining"),
    "mteb": ("mteb",),
    "parallel": ("language-bias", "search"),
    "pair_similarity": ("pair-classification", "sts"),
    "senteval": ("senteval",),
    "tatoeba": ("tatoeba", "tatoeba-laser", "tatoeba-mteb", "tatoeba-xtreme", "xsr"),
    "transfer": ("nli", "zero-shot"),
    "xsim": ("xsim", "xsim-pp"),
}
NAMES = tuple(sorted(name for names in MODULES.values() for name in names))


def load_module(protocol: str) -> ModuleType:
    """Imports the module that declares a protocol."""
    (module,) = (module for module, names in MODULES.items() if protocol in names)
    return import_module(f"{__name__}.{module}")
