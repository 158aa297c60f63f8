"""A key of a recipe: what it takes, its default, its meaning. Checks, help and reference are made of it."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hf_xlsr.utils.errors import did_you_mean

KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}
# What a value may be, in words.
WORDS = {**KINDS, "list": "a list", "mapping": "keys with values", "source": "a source or a list of sources"}
# Bounds of stock training arguments, which transformers finds out late or not at all.
STOCK_BOUNDS: dict[str, dict[str, float]] = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size"), {"least": 1}),
    **dict.fromkeys(("gradient_accumulation_steps", "save_total_limit"), {"least": 1}),
    **dict.fromkeys(("learning_rate", "warmup_steps", "weight_decay", "max_grad_norm", "eval_delay"), {"least": 0}),
    **dict.fromkeys(("dataloader_num_workers", "label_smoothing_factor"), {"least": 0}),
    **dict.fromkeys(("num_train_epochs", "logging_steps", "save_steps", "eval_steps", "adam_epsilon"), {"above": 0}),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), {"least": 0, "most": 1}),
    "max_steps": {"least": -1},
}


@dataclass(frozen=True)
class Key:
    """What a key of a recipe takes.

    Args:
        default: Its value where the recipe has none.
        help: What it means.
        kinds: Of `WORDS`, one of which a value has to be; `any` takes everything. That of the default when absent.
        choices: The words it may be.
        least: Its smallest value.
        above: A value that it has to be above.
        most: Its largest value.
        null: Whether null is a value; it is where it is the default.

    Example:
        >>> Key(200, "sentences are cut here", least=1).mend("long"), Key(200, least=1).mend(-3), Key(200).mend(64)
        ('it takes a whole number.', 'use 1 or more.', None)
    """

    default: Any = None
    help: str = ""
    kinds: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    null: bool = False

    def __post_init__(self) -> None:
        if not self.kinds:
            object.__setattr__(self, "kinds", (_kind_of(self.default),))

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        if self.choices:
            return " or ".join(self.choices) if len(self.choices) < 3 else f"one of {', '.join(self.choices)}"
        words = [WORDS[kind] for kind in self.kinds if kind in WORDS]
        return " or ".join(words) or "any value"

    def mend(self, value: Any) -> str | None:
        """The end of an error sentence about a value that does not fit; None for one that does.

        Args:
            value: As a recipe has it.
        """
        if value is None:
            return None if self.null or self.default is None else f"it takes {self.takes}."
        if not any(_fits(value, kind) for kind in self.kinds):
            return f"it takes {self.takes}."
        if self.choices and isinstance(value, str) and value not in self.choices:
            return did_you_mean(value, self.choices) if len(self.choices) > 2 else f"use {self.takes}."
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.least is not None and value < self.least:
                return f"use {self.least:g} or more."
            if self.above is not None and value <= self.above:
                return f"use a value above {self.above:g}."
            if self.most is not None and value > self.most:
                return f"use {self.most:g} or less."
        return None


def _kind_of(value: Any) -> str:
    kinds = {bool: "bool", int: "int", float: "float", str: "str", list: "list", dict: "mapping"}
    return kinds.get(type(value), "any")


def _fits(value: Any, kind: str) -> bool:
    if kind in ("bool", "str"):
        return isinstance(value, bool if kind == "bool" else str)
    if kind in ("int", "float"):
        return isinstance(value, int if kind == "int" else (int, float)) and not isinstance(value, bool)
    if kind == "list":
        return isinstance(value, (list, tuple))
    if kind == "mapping":
        return isinstance(value, Mapping)
    if kind == "source":
        parts = value if isinstance(value, (list, tuple)) else [value]
        return all(isinstance(part, (str, Mapping)) for part in parts)
    return True


def argument_help(owner: type) -> dict[str, str]:
    """What the docstrings of a class, and of those of this package above it, say of their arguments.

    Args:
        owner: With a docstring that has `Args:`.

    Returns:
        Meaning by name, on one line.

    Example:
        >>> argument_help(Key)["help"]
        'What it means.'
    """
    found: dict[str, str] = {}
    for part in reversed(owner.__mro__):
        if not part.__module__.startswith("hf_xlsr."):
            continue
        block = re.search(r"^Args:\n((?:    .*\n|\n)+)", inspect.cleandoc(part.__doc__ or "") + "\n", re.MULTILINE)
        name = ""
        for line in block[1].splitlines() if block else ():
            if match := re.match(r" {4}(\w+): (.*)", line):
                name = match[1]
                found[name] = match[2]
            elif name and line.strip():
                found[name] += f" {line.strip()}"
    return found


def hinted(hint: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The kinds and the choices that a type hint allows.

    Example:
        >>> hinted(int | str | None), hinted(dict[str, int])
        ((('int', 'str'), ()), (('mapping',), ()))
    """
    kinds: list[str] = []
    choices: list[str] = []
    united = typing.get_origin(hint) in (typing.Union, types.UnionType)
    for part in typing.get_args(hint) if united else [hint]:
        plain = typing.get_origin(part) or part
        if plain is type(None):
            continue
        if isinstance(plain, type) and issubclass(plain, enum.Enum):
            kinds.append("str")
            choices += [str(member.value) for member in plain]
        elif plain is typing.Literal:
            kinds += [_kind_of(value) for value in typing.get_args(part)]
            choices += [value for value in typing.get_args(part) if isinstance(value, str)]
        else:
            names = {int: "int", float: "float", bool: "bool", str: "str", dict: "mapping", list: "list"}
            kinds.append(names.get(plain, "any"))
    if "float" in kinds:  # `float | int` is a number
        kinds = [kind for kind in kinds if kind != "int"]
    return tuple(dict.fromkeys(kinds)) or ("any",), tuple(choices)


def _hint_of(owner: type, name: str) -> Any:
    """The type of one field; of others, a stock configuration may name types that only checkers see."""
    for part in owner.__mro__:
        hint = vars(part).get("__annotations__", {}).get(name)
        if isinstance(hint, str):
            try:
                return eval(hint, vars(sys.modules[part.__module__]))
            except (NameError, TypeError):
                return Any
        if hint is not None:
            return hint
    return Any


def config_keys(config: Any, names: Iterable[str]) -> dict[str, Key]:
    """Keys that are fields of a configuration.

    Args:
        config: An instance, for defaults, or a dataclass.
        names: Of its fields.
    """
    owner = config if isinstance(config, type) else type(config)
    texts, keys = argument_help(owner), {}
    for name in names:
        kinds, choices = hinted(_hint_of(owner, name))
        default = getattr(config, name, None)
        keys[name] = Key(default, texts.get(name, ""), kinds, choices, null=default is None)
    return keys


@cache
def training_keys(arguments_class: type, without: frozenset[str] = frozenset()) -> dict[str, Key]:
    """Keys that are training arguments; those of our own first, then those of transformers.

    Null is always a value: the default is meant.

    Args:
        arguments_class: A dataclass derived from `transformers.TrainingArguments`.
        without: Names to leave out.
    """
    hints, texts, keys = typing.get_type_hints(arguments_class), argument_help(arguments_class), {}
    fields = {field.name: field for field in dataclasses.fields(arguments_class)}
    for name in sorted(fields.keys() - set(without), key=lambda name: (name not in texts, name)):
        field = fields[name]
        kinds, choices = hinted(hints[name])
        if name == "fsdp":
            kinds = ("str", "bool")  # transformers takes both, and is about to drop the words
        default = None if field.default is dataclasses.MISSING else getattr(field.default, "value", field.default)
        text = texts.get(name) or " ".join(str(field.metadata.get("help") or "").split())
        chosen = tuple(field.metadata.get("choices") or choices)
        keys[name] = Key(default, text, kinds, chosen, null=True, **STOCK_BOUNDS.get(name, {}))
    return keys
