"""Sizes in configurations of others, compared with the stored weights before a model is built."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME
from transformers.utils.hub import cached_file, get_checkpoint_shard_files

from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.files import read_json

Shapes = list[tuple[int, ...]]

LABEL_WORD = "label"
LAYER_WORDS = ("layer", "block", "depth", "expert", "stage")
SIZE_WORDS = ("size", "dim", "position", "width", "channel", "feature", "head", LABEL_WORD, *LAYER_WORDS)
MOST_LAYERS = 1024  # of a new model, or where layers share their tensors, as in ALBERT
LARGEST_SIZE = 1 << 24
MOST_LABELS = 1 << 20  # a configuration has the name of each
UNSTORED = 1 << 28  # values that a model may have beyond those that are stored
UNSTORED_IN_MODULE = 1 << 28
BYTES = 4  # of a float32
# The most tokens besides those of a tokenizer's model, as loading takes time that grows with their square.
MOST_SPECIAL = {"additional_special_tokens": 4_000, "extra_special_tokens": 4_000}
MOST_ADDED = {
    "tokenizer.json": {"added_tokens": 20_000},
    "tokenizer_config.json": {"added_tokens_decoder": 20_000, **MOST_SPECIAL},
    "special_tokens_map.json": MOST_SPECIAL,
}


def stored_shapes(path: str, **hub_options: Any) -> Shapes:
    """Shapes of all tensors in the safetensors of a folder or Hub id, from the headers; empty without any.

    `hub_options` are those of `from_pretrained` that say where on the Hub, such as `revision` and `subfolder`.
    """
    folder = Path(path, hub_options.get("subfolder", ""))
    files = [str(file) for file in folder.glob("*.safetensors")]
    if not Path(path).is_dir():
        options: dict[str, Any] = {"_raise_exceptions_for_missing_entries": False, **hub_options}
        whole = cached_file(path, SAFE_WEIGHTS_NAME, **options)
        index = None if whole else cached_file(path, SAFE_WEIGHTS_INDEX_NAME, **options)
        files = [whole] if whole else []
        if index:
            files = get_checkpoint_shard_files(path, index, **hub_options)[0]

    shapes: Shapes = []
    for file in files:
        try:
            with safe_open(file, "pt") as content:
                shapes += [tuple(content.get_slice(name).get_shape()) for name in content.keys()]  # noqa: SIM118
        except (OSError, SafetensorError):
            continue  # a damaged file is named where it is loaded
    return shapes


def check_config_sizes(config: Any, place: str, shapes: Shapes) -> None:
    """Raises for numbers in a configuration that no model with these stored tensors can have.

    Args:
        config: A configuration, or a mapping of its values.
        place: The configuration's name in errors.
        shapes: Those of the stored tensors; empty for a new model.
    """
    most_layers = max(MOST_LAYERS, len(shapes))
    most = max(LARGEST_SIZE, sum(map(math.prod, shapes)))
    for name, value in _numbers(config):
        limit = most
        if LABEL_WORD in name:
            limit = MOST_LABELS
        elif any(word in name for word in LAYER_WORDS):
            limit = most_layers
        if value > limit:
            raise XlsrError(f"{place}: `{name}` must be at most {limit:,} for the stored weights, got {value:,}.")


def check_config_file(path: str, **hub_options: Any) -> None:
    """`check_config_sizes` before a configuration is made, as it may make a name for each label or layer."""
    values, _ = PreTrainedConfig.get_config_dict(path, **hub_options)
    check_config_sizes(values, f"'{path}'", [])


def check_tokenizer_files(path: str, **hub_options: Any) -> None:
    """Raises for a tokenizer with so many added tokens that loading it would not end."""
    for file, limits in MOST_ADDED.items():
        place = cached_file(path, file, _raise_exceptions_for_missing_entries=False, **hub_options)
        content = read_json(place) if place else {}
        for key, limit in limits.items():
            tokens = content.get(key) or ()
            if len(tokens) > limit:
                raise XlsrError(f"'{place}' must have at most {limit:,} tokens in `{key}`, got {len(tokens):,}.")


def check_model_sizes(
    build: Callable[[Any], nn.Module],
    config: Any,
    place: str,
    shapes: Shapes | None,
) -> None:
    """Raises for a configuration whose model has far more values than are stored, or than the memory holds.

    Args:
        build: Makes the model of a configuration; it is called without memory for weights.
        config: The configuration.
        place: Its name in errors.
        shapes: Those of the stored tensors; None for a new model.
    """
    check_config_sizes(config, place, shapes or [])
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            model = build(copy.deepcopy(config))
    except XlsrError:
        raise
    except Exception as error:  # architectures raise errors of many types for what cannot be
        raise XlsrError(
            f"{place}: the configuration describes no possible model ({error_line(error, 100)})."
        ) from error

    tensors = [*model.parameters(), *model.buffers()]
    size = sum(tensor.numel() for tensor in tensors)
    if shapes is None:
        limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // BYTES
        reason = f"this machine holds {limit:,}"
    else:
        limit = max(UNSTORED, 4 * sum(map(math.prod, shapes)))
        reason = f"its stored weights allow {limit:,}"
    if size > limit:
        raise XlsrError(f"{place}: the configuration describes {size:,} values, but {reason}.")


def check_module_sizes(options: Mapping[str, Any], place: str, shapes: Callable[[], Shapes]) -> None:
    """Raises for a module of sentence-transformers whose weights would be larger than those that are stored.

    The two largest numbers of its options are those of its largest matrix. `shapes` reads the stored ones.
    """
    largest = sorted((value for _, value in _numbers(options, every=True)), reverse=True)[:2]
    if math.prod(largest) <= UNSTORED_IN_MODULE:
        return
    limit = max(UNSTORED_IN_MODULE, sum(map(math.prod, shapes())))
    if math.prod(largest) > limit:
        sizes = " x ".join(f"{value:,}" for value in largest)
        raise XlsrError(f"{place}: a module of {sizes} values is larger than its stored weights allow, {limit:,}.")


def _numbers(values: Any, name: str = "", *, every: bool = False) -> Iterator[tuple[str, int]]:
    """Names and values of the sizes in a configuration, at every depth; `every` gives all integers."""
    if hasattr(values, "to_dict"):
        values = values.to_dict()
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _numbers(value, str(key), every=every)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _numbers(value, name, every=every)
    elif isinstance(values, int) and not isinstance(values, bool):
        is_token_id = name.endswith("token_id")
        if every or (not is_token_id and any(word in name for word in SIZE_WORDS)):
            yield name, values
