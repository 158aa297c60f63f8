"""What a training by a recipe sends to other machines: nothing that the user has not allowed on the command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_xlsr.data.sources import as_list
from hf_xlsr.runs.sections import Recipe
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import read_json

# Values of `report_to` that keep everything on this machine.
LOCAL_REPORTERS = ("none", "tensorboard")
# Sections of a DeepSpeed configuration that report to services.
DEEPSPEED_REPORTERS = ("wandb", "comet")


def pushed_to(recipe: Recipe) -> str:
    """The repository that a training pushes to; empty if it does not push."""
    training = recipe.training
    if training.get("push_to_hub") in (None, False):
        return ""
    return str(training.get("hub_model_id") or Path(recipe.output_dir).name)


def check_push(recipes: Iterable[Recipe], allowed: bool) -> None:
    """Raises for a recipe that would push without `--push`, or for `--push` without anything to push."""
    repos = {recipe.name: pushed_to(recipe) for recipe in recipes}
    for name, repo in repos.items():
        if repo and not allowed:
            raise XlsrError(f"recipe '{name}' pushes to '{repo}' (training.push_to_hub). Add --push to allow it.")
    if allowed and not any(repos.values()):
        raise XlsrError("--push: the recipe pushes nothing; set training.push_to_hub and training.hub_model_id.")


def reporters(training: Mapping[str, Any]) -> Iterator[str]:
    """The services that a section `training` reports to."""
    for name in as_list(training.get("report_to")):
        if name not in LOCAL_REPORTERS:
            yield str(name)
    for key, value in training.items():
        if key.startswith("trackio_"):
            yield f"trackio {value}"

    settings = training.get("deepspeed")
    if isinstance(settings, str) and Path(settings).is_file():
        settings = read_json(settings)
    if isinstance(settings, Mapping):
        yield from (f"deepspeed.{name}" for name in DEEPSPEED_REPORTERS if name in settings)


def check_reporters(name: str, training: Mapping[str, Any], typed: Mapping[str, Any]) -> None:
    """Raises for services in the section of a recipe, unless the user `typed` the key on the command."""
    for reporter in reporters({key: value for key, value in training.items() if key not in typed}):
        raise XlsrError(
            f"recipe '{name}' reports to the service '{reporter}'. A recipe cannot choose one: remove the key, and add "
            "it to the command, as --report_to."
        )


def describe_sending(recipe: Recipe) -> str:
    """What a training sends, in words; empty for nothing."""
    destinations = [f"reports to {name}" for name in reporters(recipe.training)]
    repo = pushed_to(recipe)
    if repo:
        destinations.append(f"the model to {repo} on the Hub")
    return f"Sends {', '.join(destinations)}." if destinations else ""
