"""Sections of a recipe made from the fields of a configuration or of training arguments."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Collection
from functools import cache
from typing import Any, Literal

import torch
from pydantic import Field, create_model
from transformers import PreTrainedConfig, TrainingArguments

from hf_xlsr.trainers.arguments import REFUSED
from hf_xlsr.utils.validation import Section

# Bounds that transformers checks late or not at all.
BOUNDS: dict[str, dict[str, float]] = {
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size", "save_total_limit"), {"ge": 1}),
    **dict.fromkeys(("learning_rate", "warmup_steps", "weight_decay", "max_grad_norm", "eval_delay"), {"ge": 0}),
    **dict.fromkeys(("dataloader_num_workers", "label_smoothing_factor"), {"ge": 0}),
    **dict.fromkeys(("num_train_epochs", "logging_steps", "save_steps", "eval_steps", "adam_epsilon"), {"gt": 0}),
    **dict.fromkeys(("adam_beta1", "adam_beta2"), {"ge": 0, "le": 1}),
    "gradient_accumulation_steps": {"ge": 1},
    "max_steps": {"ge": -1},
}
# Training arguments with another place in a recipe, or that have no effect on prepared data.
ELSEWHERE: dict[str, str] = {
    "output_dir": "write it at the top of the recipe",
    "seed": "write it at the top of the recipe",
    "bf16": "set training.precision instead",
    "fp16": "set training.precision instead",
    "max_length": "set data.max_length instead",
    "num_proc": "set data.num_proc instead",
    "prompts": "set data.prompt instead",
    "shuffle_buffer_size": "the data of recipes are not streamed; remove it",
    "hub_token": "it would be stored in the run's folder; log in with `hf auth login`, or set HF_TOKEN",
    "resume_from_checkpoint": "a run resumes from its last checkpoint by itself; remove it",
}
PROTOCOL_BATCH = {"per_device_eval_batch_size": "protocols evaluate; set evaluation.batch_size instead"}


def section_of(
    owner: type, *, without: Collection[str] = (), only: Collection[str] = (), **more: Any
) -> type[Section]:
    """A section whose keys are the fields of a dataclass, each optional, and `more` as `(type, Field(...))`."""
    hints, texts = typing.get_type_hints(owner, localns={"torch": torch}), argument_help(owner)
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    keys: dict[str, Any] = {}
    fields = [field for field in dataclasses.fields(owner) if field.init and field.name not in {*common, *without}]
    for field in sorted(fields, key=lambda field: field.name not in texts):
        if only and field.name not in only:
            continue
        choices = field.metadata.get("choices")
        hint = Literal[tuple(choices)] if choices else hints[field.name]
        default = None if field.default is dataclasses.MISSING else getattr(field.default, "value", field.default)
        text = texts.get(field.name) or " ".join(str(field.metadata.get("help") or "").split())
        bounds: dict[str, Any] = dict(BOUNDS.get(field.name, {}))
        keys[field.name] = (hint | None, Field(default, description=text, **bounds))
    return create_model(owner.__name__, __base__=Section, __module__=__name__, **keys, **more)


@cache
def training_section(arguments: type[TrainingArguments]) -> type[Section]:
    """The section `training` for an arguments class: all of its fields but the refused ones."""
    fsdp = (str | bool | None, Field(None, description="sharding of weights; launch with accelerate"))
    return section_of(arguments, without={*refused(arguments), "fsdp"}, fsdp=fsdp)


def refused(arguments: Any) -> dict[str, str]:
    """Training arguments that recipes refuse -> the fix."""
    absent = () if arguments.trains_embeddings else ("matryoshka_dims", "cache_batch_size")
    embeddings = dict.fromkeys(absent, "it has no effect on this loss; remove it")
    return {**REFUSED, **ELSEWHERE, **embeddings, **({} if arguments.evaluates_rows else PROTOCOL_BATCH)}


def argument_help(owner: type) -> dict[str, str]:
    """The text of `Args:` in the docstrings of a class and its bases in this package, by argument."""
    found: dict[str, str] = {}
    for part in reversed(owner.__mro__):
        if part.__module__.startswith("hf_xlsr."):
            block = re.search(r"^Args:\n((?:    .*\n|\n)+)", inspect.cleandoc(part.__doc__ or "") + "\n", re.MULTILINE)
            for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", block[1] if block else "", re.MULTILINE):
                found[name] = " ".join(text.split())
    return found
