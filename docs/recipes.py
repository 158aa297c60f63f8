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

COMMAND = "python -m docs.recipes docs/recipes.md"
INTRODUCTION = f"""# Keys of recipes

`{COMMAND}` writes this page from the code that validates recipes.

A recipe is a YAML file; [train.md](train.md) shows some. Every key is also an option of the command line, as
`--section.key value`. A key of `training` needs no section (`--learning_rate`), nor does another one whose last part is
unique (`--pooling`). An unknown key or an invalid value is an error before
anything starts. The section of a method lists the keys that it adds, or whose type or default it changes."""
STOCK = """These mean what they mean in
[TrainingArguments](https://huggingface.co/docs/transformers/main_classes/trainer):"""
WIDTH = 120
EVERY = ("adapters", "card")  # sections that are the same for every method
BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
# Name, type, default and meaning of a key or an option.
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
    training = list(_rows(training_section(XlsrTrainingArguments)))
    stock = _stock_arguments()
    stock_names = []
    added = []
    for row in training:
        if row[0] in stock:
            stock_names.append(f"`{row[0]}`")
        else:
            added.append(row)
    tables = _tables_of_methods(training)

    page = [INTRODUCTION, "## Every recipe", table([*LOADING, *_rows(Recipe)])]
    for section in ("data", *EVERY):
        page += [f"## `{section}` of every recipe", table(_rows(_section(Recipe, section)))]
    page += ["## A source", table(_rows(Source)), "## `training` of every recipe", table(added)]

    for (title, keys), methods in tables.items():
        if len(methods) > 1:
            page += [f"## {title} of {', '.join(f'`{name}`' for name in methods)}", keys]
    for name, method in METHODS.built_in.items():
        page += [f"## Method `{name}`", method.trainer_class.method.paper]
        for (title, keys), methods in tables.items():
            if methods == [name]:
                page += [f"### {title}", keys]

    names = textwrap.fill(", ".join(stock_names), WIDTH)
    page += ["## `training`, arguments of transformers", f"{STOCK}\n{names}."]
    return "\n\n".join(page) + "\n"


def _stock_arguments() -> set[str]:
    """Training arguments of transformers whose defaults our arguments keep."""
    ours = {field.name: field.default for field in dataclasses.fields(XlsrTrainingArguments)}
    return {field.name for field in dataclasses.fields(TrainingArguments) if ours.get(field.name) == field.default}


def _tables_of_methods(training: Iterable[Row]) -> dict[tuple[str, str], list[str]]:
    """Title and table of the keys that methods add or change -> the methods that have this table."""
    common = {"": set(_rows(Recipe)), "data": set(_rows(DataSection)), "training": set(training)}
    methods_of_table: dict[tuple[str, str], list[str]] = {}
    for name, method in METHODS.built_in.items():
        for section, rows in _sections(method).items():
            changed = [row for row in rows if row not in common.get(section, ())]
            if changed and section not in EVERY:
                title = f"`{section}`" if section else "Top level"
                methods_of_table.setdefault((title, table(changed)), []).append(name)
    return methods_of_table


def _section(recipe: type[BaseModel], key: str) -> type[Section] | None:
    """The section of a key; None for other keys and for sections without keys."""
    annotation = recipe.model_fields[key].annotation
    if isinstance(annotation, type) and issubclass(annotation, Section) and annotation.model_fields:
        return annotation
    return None


def _sections(method: type[Method]) -> dict[str, list[Row]]:
    """The keys of a method by section; those of the top under an empty name."""
    recipe = method.recipe_class
    sections: dict[str, Any] = {}
    for key in recipe.model_fields:
        section = _section(recipe, key)
        if section:
            sections[key] = section
    top = [row for row in _rows(recipe) if row[0] not in {*sections, "model", "training", "method"}]
    sections |= {"model": method.model_section, "training": training_section(method.arguments_class)}
    return {"": top} | {key: list(_rows(section)) for key, section in sections.items()}


def _rows(section: type[BaseModel] | None) -> Iterator[Row]:
    if section is None:
        return
    for name, field in section.model_fields.items():
        default = "" if field.is_required() else shown_default(field.default)
        yield name, shown_type(field), default, field.description or ""


def shown_default(value: Any) -> str:
    """A default in the spelling of YAML; empty for none.

    Examples:
        >>> shown_default(0.5), shown_default(["a", 1]), shown_default(None)
        ('0.5', '[a, 1]', '')
    """
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
    return shown_hint(field.annotation) + _shown_bounds(field.metadata)


def _shown_bounds(metadata: Iterable[Any]) -> str:
    bounds = []
    for constraint in metadata:
        for attribute, sign in BOUNDS.items():
            bound = getattr(constraint, attribute, None)
            if bound is not None:
                bounds.append(f" {sign} {bound:g}")
    return ",".join(bounds)


def shown_hint(hint: Any) -> str:
    """The name of a type, without None; of several, of literals and of enumerations, all with `|` between.

    Examples:
        >>> shown_hint(int | None), shown_hint(typing.Literal["a", "b"]), shown_hint(list[str])
        ('int', '"a" | "b"', 'list')
    """
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        return shown_hint(arguments[0]) + _shown_bounds(arguments[1:])
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(shown_hint(argument) for argument in arguments if argument is not type(None)))
    if origin is typing.Literal:
        return " | ".join(map(json.dumps, arguments))
    members = getattr(hint, "__members__", None)
    if members:
        return " | ".join(json.dumps(member.value) for member in members.values())
    return getattr(origin or hint, "__name__", str(hint))


def table(rows: Iterable[Row], heading: str = "key") -> str:
    """A table of keys or options in Markdown."""
    lines = [f"| {heading} | type | default | meaning |", "|---|---|---|---|"]
    for key, kind, default, meaning in rows:
        cells = (f"`{key}`", f"`{kind}`", f"`{default}`" if default else "", meaning)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Writes the page into the file that is named."""
    Path(arguments[0]).write_text(reference(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
