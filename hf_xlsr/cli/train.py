"""The verbs `train`, `prepare`, `recipes` and `corpora`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hf_xlsr.cli.options import WorkerOptions
from hf_xlsr.cli.report import in_words, print_facts
from hf_xlsr.runs.own_data import OwnData
from hf_xlsr.utils.console import say
from hf_xlsr.utils.tasks import import_ahead

if TYPE_CHECKING:
    from hf_xlsr.runs.methods import Method

SHOWN_LANGUAGES = 15
# Name -> text, by the group of the name.
Groups = dict[str, dict[str, str]]


@dataclass(kw_only=True)
class RecipeOptions(OwnData):
    """A recipe with what is changed of it."""

    recipe: Annotated[str, typer.Argument(help="Name of a built-in recipe, or path of a YAML file.")]
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="--KEY VALUE",
            help="Any key of the recipe: --seed 2, --data.max_length 64. Keys of training and keys whose last part "
            "is unique need no section: --learning_rate 1e-3, --pooling cls. docs/recipes.md lists all keys.",
            show_default=False,
        ),
    ] = None
    known: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Pairs that are known to be good, to measure what cleaning costs."),
    ] = None
    only: Annotated[list[str] | None, typer.Option(help="Only these runs of a list.", metavar="RUN")] = None
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Hash all data files again: one may have changed with equal size and time."),
    ] = False

    def runs(self) -> "list[Method]":
        """The runs of the recipe, with what is changed of it."""
        from hf_xlsr.runs.recipe import load_runs

        overrides = list(self.overrides or ())
        if self.known:
            overrides += ["--data.known", json.dumps(self.known)]
        return load_runs(self.recipe, overrides, self.only, own_data=self)

    def check(self, runs: "Sequence[Method]") -> None:
        """Raises for missing inputs; with `--verify`, hashes the data files anew."""
        from hf_xlsr.runs.inputs import check_inputs, verify_inputs

        check_inputs(runs)
        if self.verify:
            verify_inputs(runs)


@dataclass(kw_only=True)
class TrainOptions(RecipeOptions):
    """Options of `hf-xlsr train`."""

    show: Annotated[bool, typer.Option("--show", help="Print the resolved recipe and stop.")] = False
    push: Annotated[
        bool,
        typer.Option("--push", help="Let the recipe push to the Hub (training.push_to_hub); by default an error."),
    ] = False


def train(options: TrainOptions) -> int:
    """Train by a recipe, evaluate, export, write the card.

    Example: hf-xlsr train finetune --encoder intfloat/multilingual-e5-small --train pairs.tsv --languages en,de
    """
    runs = options.runs()
    if options.show:
        import yaml

        settings = [run.recipe.settings() for run in runs]
        say(yaml.safe_dump_all(settings, sort_keys=False, allow_unicode=True), end="")
        return 0

    from hf_xlsr.runs.folder import RunFolder
    from hf_xlsr.runs.sending import check_push
    from hf_xlsr.runs.train import train_recipe

    check_push([run.recipe for run in runs], options.push)
    waiting = list(runs)
    if len(runs) > 1:
        waiting = [run for run in runs if not RunFolder(run.recipe.output_dir).done(run.recipe.settings())]
    if waiting:
        options.check(waiting)
    for run in runs:
        if run not in waiting:
            say(f"{run.recipe.name} is done: {run.recipe.output_dir}")
            continue
        result = train_recipe(run, push=options.push)
        if result.stopped:
            return 128 + result.stopped
    return 0


@dataclass(kw_only=True)
class PrepareOptions(RecipeOptions, WorkerOptions):
    """Options of `hf-xlsr prepare`."""


def prepare(options: PrepareOptions) -> None:
    """Prepare the data of a recipe ahead of its training.

    They go to the cache, where runs find them. A killed call resumes.

    Example: hf-xlsr prepare finetune --encoder MODEL --train pairs.tsv --languages en,de --num-proc 2
    """
    if options.num_proc > 1:
        import_ahead("transformers", "hf_xlsr.data.conversion", "hf_xlsr.data.preparation")
    from hf_xlsr.data.cleaning.cost import cost_table
    from hf_xlsr.runs.train import prepare_recipe

    runs = options.runs()
    for run in runs:
        run.processes = options.processes
    options.check(runs)
    for run in runs:
        run.check_complete()
        report = prepare_recipe(run)
        say(f"{run.recipe.name}: {run.describe_data(report)}")
        if "cleaning_cost" in report:
            say("What each cleaning step removes of the known pairs, and of bad pairs made from them:\n")
            say("\n".join(cost_table(report["cleaning_cost"])))


@dataclass(kw_only=True)
class ListOptions:
    """Options of `hf-xlsr recipes` and `hf-xlsr corpora`."""

    word: Annotated[str | None, typer.Argument(help="Only entries that contain this text.")] = None


def recipes(options: ListOptions) -> None:
    """List the recipes by method, with what they read.

    Example: hf-xlsr recipes moco
    """
    from hf_xlsr.runs.inputs import needs
    from hf_xlsr.runs.recipe import load_runs, read_recipe, recipe_names

    groups: Groups = {}
    for name in recipe_names():
        recipe = read_recipe(name)
        runs = load_runs(name)
        languages = recipe.get("languages") or ["any language"]
        facts = " ".join(languages)
        if len(languages) > SHOWN_LANGUAGES:
            facts = f"{len(languages)} languages"
        if len(runs) > 1:
            facts += f", {len(runs)} runs"

        inputs: dict[str, None] = {}
        for run in runs:
            inputs |= dict.fromkeys(needs(run.recipe))
        text = f"{recipe.get('description', '')}\n{facts}; needs {', '.join(inputs)}"
        groups.setdefault(runs[0].name, {})[name] = text
    _print_groups(groups, options.word or "")


def corpora(options: ListOptions) -> None:
    """List the named corpora by kind.

    Example: hf-xlsr corpora news
    """
    from hf_xlsr.data.corpora.loading import corpora_table

    groups: Groups = {}
    for row in corpora_table():
        facts = {key: row[key] for key in ("size", "splits", "source", "hub_id", "licence", "note") if row[key] != "-"}
        groups.setdefault(row["kind"], {})[row["name"]] = f"{row['languages']}\n{in_words(facts)}"
    _print_groups(groups, options.word or "")


def _print_groups(groups: Groups, word: str) -> None:
    """Prints a table of each group, with the entries that contain the word."""
    for group, entries in groups.items():
        matches = {}
        for name, text in entries.items():
            searched = f"{group} {name} {text}"
            if word.casefold() in searched.casefold():
                matches[name] = text
        if matches:
            say(group)
            print_facts(matches)
