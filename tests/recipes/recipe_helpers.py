"""Runs of recipes, shared by tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from conftest import loaded

from hf_xlsr.runs.recipe import recipe_names

# Two steps of a training.
TWO_STEPS: dict[str, Any] = {
    "max_steps": 2,
    "per_device_train_batch_size": 8,
    "logging_steps": 1,
    "eval_steps": 2,
    "save_steps": 2,
    "dataloader_num_workers": 0,
    "precision": "float32",
    "disable_tqdm": True,
}


def runs_of(method: str) -> list[dict[str, Any]]:
    """Every run of every recipe of a method that brings its data."""
    return [run for name in recipe_names() for run in loaded(name) if run["method"] == method and run["languages"]]


def assert_values(run: dict[str, Any], values: Mapping[str, Any]) -> None:
    """A run has values by dotted key."""
    for key, value in values.items():
        actual = run
        for name in key.split("."):
            actual = actual[name]
        assert actual == (pytest.approx(value) if isinstance(value, float) else value), (run["name"], key)
