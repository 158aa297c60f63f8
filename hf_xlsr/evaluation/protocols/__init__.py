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
    "tatoeba": ("tatoeba", "tatoeba-laser", "tatoeba-mteb", "tatoeba-xtreme"),
    "transfer": ("nli", "zero-shot"),
    "xsim": ("xsim", "xsim-pp"),
    "xsr": ("xsr",),
}
NAMES = tuple(sorted(name for names in MODULES.values() for name in names))


def load_module(protocol: str) -> ModuleType:
    """Imports the module that declares a protocol."""
    (module,) = (module for module, names in MODULES.items() if protocol in names)
    return import_module(f"{__name__}.{module}")
