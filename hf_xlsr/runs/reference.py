"""Every key of a recipe with its type, default and meaning: `docs/recipes.md`."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from transformers import TrainingArguments

from hf_xlsr.data.sources import Source
from hf_xlsr.runs.methods import METHODS, Method
from hf_xlsr.runs.sections import DataSection, Recipe, holds_sources, training_section
from hf_xlsr.trainers.arguments import XlsrTrainingArguments
from hf_xlsr.utils.validation import Section

COMMAND = "python -m hf_xlsr.runs.reference docs/recipes.md"
INTRODUCTION = f"""# Keys of recipes

`{COMMAND}` writes this page from the code that validates recipes.

A recipe is a YAML file; [train.md](train.md) shows some. Every key is also an option of the command line, as
`--section.key value`, or by its last part if that is unique. An unknown key or an invalid value is an error before
anything starts. The section of a method lists the keys that it adds, or whose type or default it changes."""
STOCK = """These mean what they mean in
[TrainingArguments](https://huggingface.co/docs/transformers/main_classes/trainer):"""
WIDTH = 120
EVERY = ("adapters", "card")  # sections that are the same for every method
Row = tuple[str, str, str, str]
# Keys that a loaded recipe no longer has.
LOADING: list[Row] = [
    ("base", "str", "", "name or path of the recipe that this one extends"),
    ("data_from", "str", "", "name or path of a recipe, of any method, whose `data` this one extends"),
    ("runs", "list", "", "independent runs, each with a `name` and the keys that it changes in `set`"),
    ("stages", "list", "", "runs with `name` and `set`, each from the weights of the one before"),
]


def reference() -> str:
    """The page of all keys, in Markdown."""
    training = training_section(XlsrTrainingArguments)
    of_stock, of_ours = (
        {field.name: field.default for field in dataclasses.fields(kind)}
        for kind in (TrainingArguments, XlsrTrainingArguments)
    )
    stock = {name for name, default in of_stock.items() if of_ours.get(name) == default}
    rows = list(_rows(training))
    ours = [row for row in rows if row[0] not in stock]
    common = {"": set(_rows(Recipe)), "data": set(_rows(DataSection)), "training": set(rows)}
    parts = [INTRODUCTION, "## Every recipe", _table([*LOADING, *_rows(Recipe)])]
    for section in ("data", *EVERY):
        parts += [f"## `{section}` of every recipe", _table(_rows(_section(Recipe, section)))]
    parts += ["## A source", _table(_rows(Source)), "## `training` of every recipe", _table(ours)]
    users: dict[tuple[str, str], list[str]] = {}  # title and table -> methods
    for name, method in METHODS.items():
        for section, keys in _sections(method).items():
            if section not in EVERY and (own := [row for row in keys if row not in common.get(section, ())]):
                users.setdefault((f"`{section}`" if section else "Top level", _table(own)), []).append(name)
    for (title, table), methods in users.items():
        parts += [f"## {title} of {', '.join(f'`{name}`' for name in methods)}", table] if len(methods) > 1 else []
    for name, method in METHODS.items():
        own_tables = [(title, table) for (title, table), methods in users.items() if methods == [name]]
        parts += [f"## Method `{name}`", method.paper, *(f"### {title}\n\n{table}" for title, table in own_tables)]
    names = ", ".join(f"`{row[0]}`" for row in rows if row[0] in stock)
    parts += ["## `training`, arguments of transformers", f"{STOCK}\n{textwrap.fill(names, WIDTH)}."]
    return "\n\n".join(parts) + "\n"


def _section(recipe: type[BaseModel], key: str) -> type[Section] | None:
    found = recipe.model_fields[key].annotation
    return found if isinstance(found, type) and issubclass(found, Section) and found.model_fields else None


def _sections(method: type[Method]) -> dict[str, list[Row]]:
    """The keys of a method by section; those of the top under an empty name."""
    recipe = method.recipe_class
    inside = {key: section for key in recipe.model_fields if (section := _section(recipe, key))}
    top = [row for row in _rows(recipe) if row[0] not in {*inside, "model", "training", "method"}]
    sections = {**inside, "model": method.model_section, "training": training_section(method.arguments_class)}
    return {"": top, **{key: list(_rows(section)) for key, section in sections.items()}}


def _rows(section: type[BaseModel] | None) -> Iterator[Row]:
    for name, field in section.model_fields.items() if section else ():
        default = "" if field.is_required() else _shown_default(field.default)
        yield name, shown_type(field), default, field.description or ""


def _shown_default(value: Any) -> str:
    if value is None or isinstance(value, BaseModel) or value in ("", {}, []):
        return ""
    return json.dumps(value, ensure_ascii=False, default=str).replace('"', "")


def shown_type(field: FieldInfo) -> str:
    """The type of a key with its bounds.

    Examples:
        >>> shown_type(DataSection.model_fields["limit"]), shown_type(DataSection.model_fields["train"])
        ('int >= 1', 'source or list of sources')
    """
    if holds_sources(field):
        return "source or list of sources"
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
        return "mapping"
    return _shown_hint(field.annotation) + _shown_bounds(field.metadata)


def _shown_bounds(metadata: Iterable[Any]) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = [(sign, getattr(part, key, None)) for part in metadata for key, sign in signs.items()]
    return ",".join(f" {sign} {bound:g}" for sign, bound in bounds if bound is not None)


def _shown_hint(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _shown_hint(parts[0]) + _shown_bounds(parts[1:])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(_shown_hint(part) for part in parts if part is not type(None)))
    if origin is typing.Literal:
        return " | ".join(json.dumps(part) for part in parts)
    if members := getattr(hint, "__members__", None):
        return " | ".join(json.dumps(member.value) for member in members.values())
    return getattr(origin or hint, "__name__", str(hint))


def _table(rows: Iterable[Row]) -> str:
    cells = ((f"`{key}`", f"`{kind}`", f"`{default}`" if default else "", text) for key, kind, default, text in rows)
    lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells)
    return "| key | type | default | meaning |\n|---|---|---|---|\n" + "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Writes the page into the file that is named."""
    Path(arguments[0]).write_text(reference(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
