"""What every key of a recipe takes, for people: the page `docs/recipes.md` and `hf-xlsr train --help`."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_xlsr.data.sources import SOURCE_KEYS
from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe import read_recipe, recipe_names
from hf_xlsr.runs.recipe_check import BEFORE, SECTIONS, TOP_LEVEL, recipe_keys, refused_training_keys
from hf_xlsr.runs.recipe_keys import Key, training_keys
from hf_xlsr.trainers.arguments import XlsrTrainingArguments
from hf_xlsr.utils.errors import XlsrError, did_you_mean

COMMAND = "python -m hf_xlsr.runs.reference docs/recipes.md"
INTRODUCTION = f"""# Keys of recipes

Written by `{COMMAND}` from the code that checks recipes; change it there.

A recipe is a YAML file; [train.md](train.md) shows some. Any key may stand on the command line as `--section.key value`,
or by its last part where that is unique. An unknown key, or a value that a key does not take, is refused before anything
starts. `hf-xlsr train METHOD --help` shows one method's keys.
What stands under a method is what it adds, or has another default for."""
WIDTH = 100


def reference() -> str:
    """The page of all keys, in Markdown.

    Example:
        >>> reference().splitlines()[0]
        '# Keys of recipes'
    """
    base = training_keys(XlsrTrainingArguments, frozenset(refused_training_keys(XlsrTrainingArguments)))
    stock = {name: key for name, key in base.items() if name in _stock_names()}
    ours = {name: key for name, key in base.items() if name not in stock}
    parts = [INTRODUCTION, "## Every recipe", _table({**BEFORE, **TOP_LEVEL})]
    for section, keys in SECTIONS.items():
        parts += [f"## `{section}` of every recipe", _table(keys)]
    parts += ["## A source", "| key | meaning |\n|---|---|\n" + _rows((f"`{k}`", v) for k, v in SOURCE_KEYS.items())]
    parts += ["## `training` of every recipe", _table(ours)]
    for name, method in METHODS.items():
        parts += [f"## Method `{name}`", method.paper]
        for section, keys in _own(name, {**SECTIONS, "training": base}).items():
            parts += [f"### `{section}`", _table(keys)]
    parts += ["## `training`, arguments of transformers", _table(stock, first_sentence=True)]
    return "\n\n".join(parts) + "\n"


def keys_help(name: str | None = None) -> str:
    """The keys of a method's recipes, as text for a terminal.

    Args:
        name: A method, or a recipe by name or path; without one, the keys of every recipe.

    Raises:
        XlsrError: it is none of them.

    Example:
        >>> [line for line in keys_help("hictl").splitlines() if "sentence_temperature" in line]
        ['  sentence_temperature (a number; 1.0)']
    """
    if name is None:
        lines = list(_lines("recipe", {**BEFORE, **TOP_LEVEL}))
        for section, keys in SECTIONS.items():
            lines += _lines(section, keys)
        methods = ", ".join(METHODS)
        more = f"The keys of a method ({methods}) or of a recipe: hf-xlsr train NAME --help."
        return "\n".join([*lines, "", more])
    lines = []
    for section, keys in recipe_keys(_recipe_of(name)).items():
        if section != "model.encoder":  # the values of a stock configuration explain themselves elsewhere
            lines += _lines(section or "recipe", {**BEFORE, **keys} if not section else keys)
    return "\n".join(lines)


def _recipe_of(name: str) -> Mapping[str, Any]:
    if name in METHODS:
        return {"method": name}
    if Path(name).suffix in (".yaml", ".yml") or name in recipe_names():
        return read_recipe(name)
    raise XlsrError(f"'{name}' is no method and no recipe; {did_you_mean(name, [*METHODS, *recipe_names()])}")


def _own(name: str, common: Mapping[str, Mapping[str, Key]]) -> dict[str, dict[str, Key]]:
    """The keys that a method adds to the common ones, or gives another default or meaning."""
    sections = recipe_keys({"method": name})
    for section in ("", "model.encoder", "model.encoders"):
        sections.pop(section, None)
    own = {
        section: {key: value for key, value in keys.items() if common.get(section, {}).get(key) != value}
        for section, keys in sections.items()
    }
    return {section: keys for section, keys in own.items() if keys}


def _stock_names() -> set[str]:
    ours = {
        name
        for part in XlsrTrainingArguments.__mro__
        if part.__module__.startswith("hf_xlsr.")
        for name in vars(part).get("__annotations__", {})
    }
    return set(XlsrTrainingArguments.__dataclass_fields__) - ours


def _default(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False).replace('"', "")


def _table(keys: Mapping[str, Key], first_sentence: bool = False) -> str:
    rows = (
        (
            f"`{name}`",
            key.takes,
            f"`{_default(key.default)}`" if _default(key.default) else "",
            key.help.split(". ")[0].rstrip(".") if first_sentence else key.help,
        )
        for name, key in keys.items()
    )
    return "| key | takes | default | meaning |\n|---|---|---|---|\n" + _rows(rows)


def _rows(rows: Any) -> str:
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _lines(section: str, keys: Mapping[str, Key]) -> Iterator[str]:
    yield f"{section}:"
    for name, key in keys.items():
        default = _default(key.default)
        yield f"  {name} ({key.takes}{f'; {default}' if default else ''})"
        yield from textwrap.wrap(key.help, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)


def main(arguments: list[str]) -> int:
    """Writes the page into the file that is named, or prints it."""
    if arguments:
        Path(arguments[0]).write_text(reference(), "utf-8")
    else:
        print(reference(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
