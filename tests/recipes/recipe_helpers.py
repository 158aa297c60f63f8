"""Runs of recipes, shared by tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from conftest import loaded

from hf_xlsr.runs.recipe import recipe_names


def runs_of(method: str) -> list[dict[str, Any]]:
    """Every run of every recipe of a method that brings its data."""
    return [run for name in recipe_names() for run in loaded(name) if run["method"] == method and run["languages"]]


def mostly_slow(runs: Iterable[dict[str, Any]], *fast: str) -> list[Any]:
    """Parameters of which only the named runs are tested without `-m slow`."""
    return [pytest.param(run, id=run["name"], marks=() if run["name"] in fast else pytest.mark.slow) for run in runs]


def value_of(recipe: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        recipe = recipe[part]
    return recipe
