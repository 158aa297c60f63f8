"""Patterns over texts of others take time that grows with the text's length."""

from __future__ import annotations

import importlib
import pkgutil
import re
from time import perf_counter
from typing import Any

import pytest

import hf_xlsr

SIZE = 8_000  # characters; a quadratic pattern takes seconds
UNITS = [
    "a",
    "1",
    " ",
    "\n",
    "-",
    "*",
    "`",
    "{a,",
    "[",
    "<",
    "&#",
    "\\",
    "ab ",
    "Aa ",
    "a-",
    "${",
    ".",
    "./",
    "中",
    "'a",
]
FULL = {"_BRACES", "_LOCAL", "_HUB_ID", "_ID", "_MODULE", "MODULE_NAME", "BOOLEAN", "SCIENTIFIC", "_TWO", "AVERAGE"}
"""Names of patterns that are used by `fullmatch` and `match` alone."""


def patterns() -> dict[str, Any]:
    """The patterns of the package's modules by name."""
    by_name = {}
    for module in pkgutil.walk_packages(hf_xlsr.__path__, "hf_xlsr."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                    by_name[f"{module.name}.{name}"] = value
    return by_name


@pytest.mark.parametrize("unit", UNITS, ids=ascii)
def test_hostile_texts(unit):
    slow = []
    text = unit * (SIZE // len(unit)) + "!"
    for name, pattern in patterns().items():
        start = perf_counter()
        pattern.fullmatch(text)
        if name.rpartition(".")[2] not in FULL:
            pattern.sub("", text)
        if perf_counter() - start > 0.5:
            slow.append(name)
    assert slow == []
