"""Compares a paper's training settings with those of a run here, which are read from resolved recipes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from benchmarks.papers.tables import ROOT, Strict, Table
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.recipe import load_runs

NOT_SET = "-"
# Settings of papers.yaml by the method of a recipe, for a table of several methods.
OF_METHOD = {
    "dual_momentum": "dual-momentum",
    "lightweight": "lightweight",
    "hictl": "hictl",
    "cmlm": "cmlm-bitext",
}


class Setting(Strict):
    """A setting of a paper's training; the head of `papers.yaml` explains the keys."""

    what: str
    key: str
    paper: Any = None
    says: str = ""
    words: Mapping[str, str] = {}
    loss: bool = False

    def shown(self, value: Any) -> str:
        """A value in words."""
        if isinstance(value, Mapping):
            return " and ".join(_name(path) for path in dict.fromkeys(value.values()))
        text = _text(value)
        return self.words.get(text, text)


class PaperTable(Strict):
    """A table or figure of a paper, with the recipes and the small tables that repeat it."""

    paper: str
    what: str
    about: str
    full: tuple[str, ...]
    small: tuple[str, ...] = ()
    note: str = ""


class Page(Strict):
    """A page that is written by hand, about trainings of some recipes."""

    method: str
    recipes: tuple[str, ...]
    options: tuple[str, ...] = ()

    def methods(self) -> list[Method]:
        return [run for recipe in self.recipes for run in load_runs(recipe, self.options)]


class Papers(Strict):
    settings: Mapping[str, tuple[Setting, ...]]
    pages: Mapping[str, Page]
    tables: tuple[PaperTable, ...]


def read_papers() -> Papers:
    return Papers.model_validate(yaml.safe_load((ROOT / "benchmarks/papers/papers.yaml").read_text("utf-8")))


def resolved_rows(table: Table) -> dict[str, Method]:
    """The last training of each row, as its recipe resolves; without rows that no recipe trains."""
    methods = {}
    for row in table.rows:
        if row.encoder or row.control:
            continue
        options = table.filled((*table.options, *row.options), 1, Path("outputs/papers"))
        runs = load_runs(row.recipe or table.recipe, options, [row.run] if row.run else None)
        if row.stage:
            runs = [run for run in runs if run.recipe.name.split("/")[-1] == row.stage]
        methods[row.name] = runs[-1]
    return methods


def steps_of(methods: Mapping[str, Method]) -> dict[str, int]:
    """Optimiser steps of each row whose recipe gives their number."""
    numbers = {name: int(method.recipe.training.get("max_steps") or 0) for name, method in methods.items()}
    return {name: number for name, number in numbers.items() if number > 0}


def recipe_value(method: Method, key: str) -> Any:
    """The value of a dotted key of a recipe, or its default."""
    section, _, name = key.partition(".")
    value: Any = getattr(method.recipe, section, None)
    for part in name.split("."):
        if not isinstance(value, Mapping):
            value = getattr(value, part, None)
            continue
        value = value.get(part)
    if value is not None:
        return value
    if section == "training":
        defaults = {field.name: field for field in fields(method.arguments_class)}
        default = defaults[name].default if name in defaults else None
        return None if default is MISSING else default
    if section != "model":
        return None
    section_of_encoder = getattr(method, "encoder_section", None)
    if name.startswith("encoder.") and section_of_encoder is not None and not section_of_encoder.get("path"):
        return getattr(_new_encoder(method), name.removeprefix("encoder."), None)
    return getattr(method.config, name, None)


def _new_encoder(method: Any) -> Any:
    """The configuration of the new encoder that a recipe describes."""
    values = method.encoder_section
    return method.new_config(values.pop("model_type", None) or method.default_type, **values)


def texts_of(setting: Setting, methods: Iterable[Method]) -> list[str]:
    """The different values of a setting in some trainings, in words."""
    return list(dict.fromkeys(setting.shown(recipe_value(method, setting.key)) for method in methods))


def setting_rows(settings: Iterable[Setting], methods: Collection[Method]) -> Iterator[tuple[str, str, str, bool]]:
    """A setting, what the paper says, what the trainings have, and whether the paper's value is missing there."""
    for setting in settings:
        texts = texts_of(setting, methods)
        if texts == [NOT_SET]:
            continue
        paper = setting.says or setting.shown(setting.paper)
        yield setting.what, paper, ", ".join(texts), not setting.says and paper not in texts


def by_method(methods: Iterable[Method]) -> dict[str, list[Method]]:
    """Trainings by the settings of `papers.yaml` that are theirs."""
    groups: dict[str, list[Method]] = {}
    for method in methods:
        groups.setdefault(OF_METHOD[method.name], []).append(method)
    return groups


def is_literal(settings: Iterable[Setting], methods: Collection[Method]) -> bool:
    """Whether trainings have the paper's loss, head, weights and optimiser, or vary them around the paper's value."""
    of_loss = [setting for setting in settings if setting.loss]
    return all(setting.shown(setting.paper) in texts_of(setting, methods) for setting in of_loss)


def _name(path: Any) -> str:
    return re.sub(r"(/(model|seed-\d+))+$", "", str(path).rstrip("/")).rsplit("/", 1)[-1]


def _text(value: Any) -> str:
    """A value as a page shows it."""
    if value is None:
        return NOT_SET
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = getattr(value, "value", value)
        return _name(text) if isinstance(text, str) and "/" in text else str(text)
    if isinstance(value, int) and abs(value) >= 1000:
        return f"{value:,}"
    return f"{value:g}".replace("e-0", "e-")
