"""Evaluation protocols; `NAMES` are their names in commands and metric keys."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

MODULES = {
    "bucc": ("bucc", "mining"),
    "language_bias": ("language-bias",),
    "mteb": ("mteb",),
    "pair_similarity": ("pair-classification", "sts"),
    "search": ("search",),
    "senteval": ("senteval",),
    "tatoeba": ("tatoeba", "tatoeba-laser", "tatoeba-mteb", "tatoeba-xtreme", "xsr"),
    "transfer": ("nli", "zero-shot"),
    "xsim": ("xsim", "xsim-pp"),
}
MODULE_OF = {name: module for module, names in MODULES.items() for name in names}
NAMES = tuple(sorted(MODULE_OF))


def load_module(protocol: str) -> ModuleType:
    """Imports the module that declares a protocol."""
    return import_module(f"{__name__}.{MODULE_OF[protocol]}")
