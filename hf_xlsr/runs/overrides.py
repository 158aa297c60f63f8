"""Keys of a recipe that a command line sets: `--training.learning_rate 1e-3`, or shorter `--learning_rate 1e-3`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.own_data import OWN_OPTIONS
from hf_xlsr.runs.sections import dotted_keys, training_section
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.yaml import parse_yaml

# What other tools call an argument of training. These names are suggestions: no value is set by one of them.
USUAL_NAMES = {
    "batch_size": "training.per_device_train_batch_size",
    "epochs": "training.num_train_epochs",
    "lr": "training.learning_rate",
    "steps": "training.max_steps",
}

CLOSE = 0.75  # similarity of spelling, between 0 and 1, from which on a key is suggested


def parse_arguments(arguments: Sequence[str]) -> list[tuple[str, str]]:
    """Key and value of each `--key value` or `--key=value`.

    Examples:
        >>> parse_arguments(["--learning_rate", "1e-3", "--bucket-by-length=false"])
        [('learning_rate', '1e-3'), ('bucket_by_length', 'false')]
    """
    options = []
    words = iter(arguments)
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            value = next(words, "--")
        # At the end, or in front of another option, a value is missing.
        if not key.startswith("--") or (value.startswith("--") and not equals):
            raise XlsrError(f"overrides must be --key value, e.g. --seed 2, got '{word}'.")
        options.append((key.removeprefix("--").replace("-", "_"), value))
    return options


def parse_overrides(
    options: Iterable[tuple[str, str]],
    recipe: Mapping[str, Any],
    method: type[Method],
) -> dict[str, Any]:
    """Nested keys of a recipe, from options such as `data.train.path` or `learning_rate` with values in YAML."""
    keys = recipe_keys(recipe, method)
    overrides: dict[str, Any] = {}
    for name, text in options:
        *sections, last = full_key(name, keys).split(".")
        target = overrides
        for section in sections:
            target = target.setdefault(section, {})
        # A prompt such as `query: ` would be a mapping in YAML.
        target[last] = text if text.rstrip().endswith(":") else parse_yaml(text, f"--{name}")
    return overrides


def recipe_keys(recipe: Mapping[str, Any], method: type[Method]) -> list[str]:
    """Every dotted key that a recipe of a method may set."""
    return [
        *dotted_keys(method.recipe_class, recipe),
        *dotted_keys(method.model_section, None, "model."),
        *method.nested_keys(recipe),
        *dotted_keys(training_section(method.arguments_class), None, "training."),
    ]


def full_key(name: str, keys: Sequence[str]) -> str:
    """The dotted key that `--name` sets: of the top, else of `training`, else the only one that ends in the name.

    Raises:
        XlsrError: for a name that several keys or none end in, with the names to write instead; also for a name of
            `USUAL_NAMES`, which people expect to mean training.

    Examples:
        >>> keys = ["seed", "evaluation.batch_size", "training.seed", "training.learning_rate"]
        >>> full_key("learning_rate", keys), full_key("seed", keys)
        ('training.learning_rate', 'seed')
        >>> full_key("epochs", [*keys, "training.num_train_epochs"])
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: unknown option --epochs; did you mean --num_train_epochs?
    """
    for key in (name, f"training.{name}"):
        if key in keys:
            return key

    matches = [key for key in keys if key.endswith(f".{name}") and not key.startswith("data.train.")]
    fewest_dots = min((key.count(".") for key in matches), default=0)
    candidates = [key for key in matches if key.count(".") == fewest_dots]
    usual = USUAL_NAMES.get(name, "")
    if usual in keys:
        candidates.insert(0, usual)
    elif len(candidates) == 1:
        return candidates[0]

    if len(candidates) > 1:
        raise XlsrError(f"--{name} is ambiguous; write {_shown(candidates)}.")
    close = candidates or _close_keys(name, [*OWN_OPTIONS, *keys])
    hint = f"did you mean {_shown(close)}?" if close else "docs/recipes.md lists the keys of recipes."
    raise XlsrError(f"unknown option --{name}; {hint}")


def _close_keys(name: str, keys: Sequence[str]) -> list[str]:
    """The keys that are spelled most like a name; a name without a dot is compared with their last parts."""
    spellings: dict[str, str] = {}
    for key in keys:
        last_part = key.rpartition(".")[2]
        spellings.setdefault(key if "." in name else last_part, key)
    close = difflib.get_close_matches(name, spellings, cutoff=CLOSE)
    return [spellings[spelling] for spelling in close]


def _shown(keys: Sequence[str]) -> str:
    return " or ".join("--" + key.removeprefix("training.") for key in keys)
