"""The verb `prepare`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hf_xlsr.cli.train import Recipe


def prepare(
    context: typer.Context,
    recipe: Recipe,
    only: Annotated[list[str] | None, typer.Option(help="Only these runs of a list.", metavar="RUN")] = None,
    num_proc: Annotated[int, typer.Option(help="Number of processes.", min=1)] = 1,
) -> None:
    """Prepare the data of a recipe ahead of its training.

    They go to the cache, where runs find them. A killed call resumes. Any key of the recipe may follow as --key value.
    """
    from hf_xlsr.runs.inputs import check_inputs
    from hf_xlsr.runs.recipe import load_runs
    from hf_xlsr.runs.train import prepare_data

    runs = load_runs(recipe, [*context.args, "--data.num_proc", str(num_proc)], only=only)
    check_inputs(runs)
    for run in runs:
        with tempfile.TemporaryDirectory() as scratch:
            data = prepare_data(run, Path(scratch), run.evaluation_sets())
        print(f"{run.recipe.name}: {run.describe_data(data.report)}")
