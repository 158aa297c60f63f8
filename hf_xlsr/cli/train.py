"""The verbs `train`, `tokenizer`, `recipes` and `corpora`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

Recipe = Annotated[str, typer.Argument(help="Name of a built-in recipe, or path of a YAML file.")]


def train(
    context: typer.Context,
    recipe: Recipe,
    only: Annotated[list[str] | None, typer.Option(help="Only these runs of a list.", metavar="RUN")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the resolved recipe and stop.")] = False,
) -> int:
    """Train by a recipe, evaluate, export, write the card.

    Any key of the recipe may follow as --key value, e.g. --seed 2 or --training.learning_rate 1e-3.
    """
    from hf_xlsr.runs.recipe import load_runs

    runs = load_runs(recipe, context.args, only=only)
    if show:
        import yaml

        print(yaml.safe_dump_all([run.recipe.settings() for run in runs], sort_keys=False, allow_unicode=True), end="")
        return 0
    from hf_xlsr.runs.folder import RunFolder
    from hf_xlsr.runs.inputs import check_inputs
    from hf_xlsr.runs.train import train_recipe

    done = [len(runs) > 1 and RunFolder(run.recipe.output_dir).done(run.recipe.settings()) for run in runs]
    if waiting := [run for run, finished in zip(runs, done, strict=True) if not finished]:
        check_inputs(waiting)
    for run, finished in zip(runs, done, strict=True):
        if finished:
            print(f"{run.recipe.name} is done: {run.recipe.output_dir}")
        elif train_recipe(run).stopped:
            return 130
    return 0


def tokenizer(recipe: Recipe, output: Annotated[str, typer.Option(help="Folder for the tokenizer.")]) -> None:
    """Train the tokenizer of a recipe and save it."""
    from hf_xlsr.runs.recipe import load_runs
    from hf_xlsr.runs.train import train_tokenizer_of
    from hf_xlsr.utils.files import check_writable

    check_writable(output, "--output", folder=True)
    print(train_tokenizer_of(load_runs(recipe)[0], output))


def recipes() -> None:
    """List the recipes."""
    from hf_xlsr.runs.recipe import read_recipe, recipe_names

    found = [read_recipe(name) for name in recipe_names()]
    _print_rows(
        [
            {
                "recipe": recipe["name"],
                "languages": " ".join(recipe.get("languages") or []),
                "runs": len(recipe.get("runs") or []) or 1,
                "description": " ".join(str(recipe.get("description", "")).split()),
            }
            for recipe in found
        ]
    )


def corpora() -> None:
    """List the named corpora."""
    from hf_xlsr.data.corpora.loading import corpora_table

    _print_rows(corpora_table())


def _print_rows(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*rows[0], show_lines=False)
    for row in rows:
        values = (" ".join(map(str, v)) if isinstance(v, (list, tuple)) else str(v or "") for v in row.values())
        table.add_row(*map(escape, values))
    Console().print(table)
