"""The verbs `train`, `prepare`, `recipes` and `corpora`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from hf_xlsr.utils.tasks import import_ahead

WIDTH, SHOWN_LANGUAGES = 80, 15
Word = Annotated[str | None, typer.Argument(help="Only entries that contain this text.")]
Recipe = Annotated[str, typer.Argument(help="Name of a built-in recipe, or path of a YAML file.")]
Only = Annotated[list[str] | None, typer.Option(help="Only these runs of a list.", metavar="RUN")]


def train(
    context: typer.Context,
    recipe: Recipe,
    only: Only = None,
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


def prepare(
    context: typer.Context,
    recipe: Recipe,
    only: Only = None,
    num_proc: Annotated[int, typer.Option(help="Number of processes.", min=1)] = 1,
) -> None:
    """Prepare the data of a recipe ahead of its training.

    They go to the cache, where runs find them. A killed call resumes. Any key of the recipe may follow as --key value.
    """
    if num_proc > 1:
        import_ahead("transformers", "hf_xlsr.data.conversion", "hf_xlsr.data.preparation")
    from hf_xlsr.runs.inputs import check_inputs
    from hf_xlsr.runs.recipe import load_runs
    from hf_xlsr.runs.train import prepare_recipe

    runs = load_runs(recipe, [*context.args, "--data.num_proc", str(num_proc)], only=only)
    check_inputs(runs)
    for run in runs:
        run.check_complete()
        print(f"{run.recipe.name}: {run.describe_data(prepare_recipe(run))}")


def recipes(word: Word = None) -> None:
    """List the recipes by method, with what they read."""
    from hf_xlsr.runs.inputs import needs
    from hf_xlsr.runs.recipe import load_runs, read_recipe, recipe_names

    found: dict[str, dict[str, list[str]]] = {}
    for name in recipe_names():
        recipe, runs = read_recipe(name), load_runs(name)
        languages = recipe.get("languages") or ["any language"]
        facts = [" ".join(languages) if len(languages) <= SHOWN_LANGUAGES else f"{len(languages)} languages"]
        facts += [f"{len(runs)} runs"] if len(runs) > 1 else []
        inputs = dict.fromkeys(part for run in runs for part in needs(run.recipe))
        texts = [str(recipe.get("description", "")), f"{', '.join(facts)}; needs {', '.join(inputs)}"]
        found.setdefault(runs[0].name, {})[name] = texts
    _print_groups(found, word)


def corpora(word: Word = None) -> None:
    """List the named corpora by kind."""
    from hf_xlsr.data.corpora.loading import corpora_table

    found: dict[str, dict[str, list[str]]] = {}
    for row in corpora_table():
        origin = row["source"] if row["hub_id"] == "-" else f"{row['source']}, {row['hub_id']}"
        texts = [f"{row['languages']}; {row['size']}; splits {row['splits']}", f"{origin}; licence: {row['licence']}"]
        found.setdefault(row["kind"], {})[row["name"]] = [*texts, *([row["note"]] if row["note"] != "-" else [])]
    _print_groups(found, word)


def _print_groups(groups: Mapping[str, Mapping[str, Sequence[str]]], word: str | None) -> None:
    """Prints names with indented texts below, in groups; with a word, those that contain it."""
    shown = 0
    for group, entries in groups.items():
        chosen = {
            name: texts
            for name, texts in entries.items()
            if (word or "").casefold() in " ".join((group, name, *texts)).casefold()
        }
        if chosen:
            print(f"{chr(10) if shown else ''}{group}")
        for name, texts in chosen.items():
            print(f"  {name}")
            for text in texts:
                layout = textwrap.TextWrapper(WIDTH, break_on_hyphens=False, break_long_words=False)
                layout.initial_indent = layout.subsequent_indent = " " * 6
                print(layout.fill(" ".join(text.split())))
        shown += len(chosen)
    if not shown:
        print(f"nothing found for '{word}'")
