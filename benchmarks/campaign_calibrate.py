"""How many steps a recipe's training gets out of so many seconds of processor time on this machine.

Prepares the recipe's data in a folder of its own, takes 14 steps, of which the first 4 do not tell what a step takes, and
writes the number of steps. What a training does before its first step, such as filling its queues, is part of its time;
the preparation of data is not. Processor time, because other jobs beside lengthen the wall's.

usage: python benchmarks/campaign_calibrate.py RECIPE [--only RUN] --seconds 300 --file steps.json
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
from pathlib import Path

from rich.console import Console
from single_run import the_run
from transformers import logging as transformers_logging
from turns import StopWatch

from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods import get_method
from hf_xlsr.runs.train import build_trainer, prepare_data
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import atomic_write

WARM_UP, COUNTED = 4, 10


def watched(recipe: dict[str, object], folder: Path) -> StopWatch:
    """Times of a training in `folder` that keeps nothing."""
    method = get_method(str(recipe["method"]))
    sets = method.evaluation_sets(recipe)
    place = RunFolder(folder)
    place.training.mkdir(parents=True)
    trainer = build_trainer(recipe, place, prepare_data(recipe, place.training, sets), sets)
    watch = StopWatch()
    trainer.add_callback(watch)
    trainer.train()
    if trainer.stopped_early:  # a campaign's deadline: too few steps tell nothing
        raise SystemExit(128 + signal.SIGTERM)
    return watch


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--only")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--file", type=Path, required=True)
    options, more = parser.parse_known_args()
    transformers_logging.set_verbosity_error()
    fixed = ["--max_steps", str(WARM_UP + COUNTED), "--eval_strategy", '"no"', "--save_strategy", '"no"']
    try:
        recipe = the_run(options.recipe, [*more, *fixed], options.only)
        with tempfile.TemporaryDirectory() as scratch:
            watch = watched(recipe, Path(scratch) / "run")
    except XlsrError as error:
        raise SystemExit(f"campaign_calibrate: {error}") from None
    found = {
        "steps": watch.steps_within(options.seconds, WARM_UP),
        "seconds_before": watch.seconds_before(),
        "seconds_per_step": watch.seconds_per_step(WARM_UP),
        "seconds": options.seconds,
    }
    options.file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(options.file) as file:
        file.write_text(json.dumps(found), "utf-8")
    step, before = found["seconds_per_step"], found["seconds_before"]
    Console(soft_wrap=True).print(
        f"{found['steps']:,} steps of {step:.2f} s, {before:.0f} s before, in {options.seconds:g} s"
    )


if __name__ == "__main__":
    main()
