"""The head of a sentence encoder: the modules of sentence-transformers that turn token states into an embedding."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import CNN, Dropout, LayerNorm, Pooling, WordWeights
from torch import nn

from hf_xlsr.data.sources import as_list
from hf_xlsr.utils.errors import XlsrError, require_choice

KINDS: dict[str, type[Module]] = {
    kind.__name__: kind for kind in (Pooling, Dense, LayerNorm, Normalize, Dropout, WordWeights, CNN)
}
"""The modules that a head may have, by the name of their class."""

HeadConfig = list[dict[str, Any]]
"""A head as plain values: the `kind` and the options of each module."""


def head_config(head: Sequence[nn.Module]) -> HeadConfig:
    """The configuration of a head, for a model's `config.json`.

    Examples:
        >>> head_config([Pooling(8, pooling_mode="cls"), Normalize()])[0]
        {'kind': 'Pooling', 'embedding_dimension': 8, 'pooling_mode': 'cls', 'include_prompt': True}
    """
    return [{"kind": type(module).__name__, **_options_of(module)} for module in head]


def _options_of(module: Any) -> dict[str, Any]:
    if type(module) not in KINDS.values():
        raise XlsrError(f"A head must have modules of {', '.join(KINDS)}, got {type(module)}.")
    # As JSON gives them back, lists for tuples: a configuration must equal itself after saving and loading.
    options: dict[str, Any] = json.loads(json.dumps(module.get_config_dict()))
    return options


def build_head(config: Sequence[Mapping[str, Any]]) -> nn.ModuleList:
    """A head with new weights, of a configuration that `head_config` made."""
    return nn.ModuleList(_build_module(**entry) for entry in config)


def _build_module(kind: str, **options: Any) -> Module:
    require_choice("kind", kind, KINDS)
    if kind == Dense.__name__:
        options["activation_function"] = _activation(options["activation_function"])
    return KINDS[kind](**options)


def _activation(name: str) -> nn.Module:
    """A function of torch by the path of its class. Any other path would import code that a configuration names."""
    path, _, class_name = name.rpartition(".")
    activation: Any = None
    if path.startswith("torch."):
        activation = getattr(importlib.import_module(path), class_name, None)
    if not (isinstance(activation, type) and issubclass(activation, nn.Module)):
        raise XlsrError(f"The activation of a Dense must be a class of torch.nn, got '{name}'.")
    return activation()


def new_head(
    width: int,
    pooling: Any = "mean",
    *,
    dimension: int = 0,
    bias: bool = False,
    normalize: bool = True,
) -> HeadConfig:
    """The configuration of a head for an encoder without one.

    Args:
        width: Width of the encoder's states.
        pooling: A mode of sentence-transformers' `Pooling`, or several, whose embeddings are concatenated.
        dimension: Width of a linear layer behind the pooling; 0 for none.
        bias: Whether the linear layer has one.
        normalize: Whether embeddings have length 1.

    Examples:
        >>> [module["kind"] for module in new_head(8, dimension=4)]
        ['Pooling', 'Dense', 'Normalize']
    """
    for mode in as_list(pooling):
        require_choice("pooling", mode, Pooling.POOLING_MODES)
    pool = Pooling(width, pooling_mode=pooling)

    config = head_config([pool])
    if dimension:
        config.append(_linear_config(pool.get_embedding_dimension(), dimension, bias=bias))
    return with_normalize(config, normalize)


def check_pooling(pooling: Any) -> None:
    """Raises for a pooling mode that sentence-transformers does not have; None is allowed."""
    if pooling is not None:
        new_head(1, pooling)


def with_pooling(config: HeadConfig, pooling: Any) -> HeadConfig:
    """A head's configuration with another pooling; weights behind it need embeddings of the same width."""
    reads_width = not {entry["kind"] for entry in config} <= {Pooling.__name__, Normalize.__name__}
    changed = []
    for entry in config:
        if entry["kind"] == Pooling.__name__:
            (new_entry,) = new_head(entry["embedding_dimension"], pooling, normalize=False)
            new_entry = {**entry, "pooling_mode": new_entry["pooling_mode"]}
            if reads_width and embedding_width([new_entry]) != embedding_width([entry]):
                raise XlsrError(
                    f"`pooling` {pooling!r} changes the width of embeddings, which modules behind it do not take."
                )
            entry = new_entry
        changed.append(entry)
    return changed


def with_projection(config: HeadConfig, dimension: int) -> HeadConfig:
    """A head's configuration with a linear layer, without bias, in front of a last `Normalize`.

    A head that has a linear layer of this width there stays as it is.
    """
    inner = with_normalize(config, False)
    if inner[-1] == _linear_config(inner[-1].get("in_features", 1), dimension):
        return config
    linear = _linear_config(embedding_width(inner), dimension)
    return with_normalize([*inner, linear], len(inner) < len(config))


def _linear_config(inputs: int, outputs: int, *, bias: bool = False) -> dict[str, Any]:
    with torch.device("meta"):  # a configuration needs no weights, and must not draw random numbers
        linear = Dense(inputs, outputs, bias=bias, activation_function=nn.Identity())
    return head_config([linear])[0]


def with_normalize(config: HeadConfig, normalize: bool) -> HeadConfig:
    """A head's configuration with or without a last module that makes embeddings unit vectors."""
    normalized = bool(config) and config[-1]["kind"] == Normalize.__name__
    inner = config[:-1] if normalized else config
    return [*inner, *head_config([Normalize()])] if normalize else inner


def embedding_width(config: Sequence[Mapping[str, Any]]) -> int:
    """Width of the embeddings that a head makes."""
    width = 0
    with torch.device("meta"):
        head: Any = build_head(config)
    for module in head:
        if hasattr(module, "get_embedding_dimension"):
            width = module.get_embedding_dimension()
    return width


def pooling_name(config: Sequence[Mapping[str, Any]]) -> str:
    """The pooling of a head in words, such as `mean` or `cls+mean`."""
    modes = ["+".join(as_list(entry["pooling_mode"])) for entry in config if entry["kind"] == Pooling.__name__]
    return ", ".join(modes)


def leaves_out_prompt(config: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the tokens of the prompt do not count in the pooling."""
    return any(not entry.get("include_prompt", True) for entry in config)


def run_head(
    head: Sequence[nn.Module],
    features: dict[str, Any],
    *,
    normalize: bool = False,
) -> torch.Tensor:
    """Sentence embeddings, `(batch, width)`, float32 (float64 for float64 states).

    The states are pooled in float32 also under autocast, where sentence-transformers would round the mean.

    Args:
        head: The modules, in order.
        features: `token_embeddings`, `(batch, length, width)`, and `attention_mask`; for some modules `input_ids`, and
            `prompt_length`, the tokens that a pooling with `include_prompt: false` leaves out.
        normalize: Run a last `Normalize` too. Losses compare embeddings in their own way.
    """
    modules = list(head)
    if not normalize and isinstance(modules[-1], Normalize):
        modules.pop()

    features = {**features, "token_embeddings": _exact(features["token_embeddings"])}
    features |= _with_zeros(features["token_embeddings"], features.get("attention_mask"))
    for module in modules:
        name = getattr(module, "module_input_name", "sentence_embedding")
        weight = next(module.parameters(), None)
        if weight is not None and name in features:
            features[name] = features[name].to(weight.dtype)
        features = module(features)
    return _exact(features["sentence_embedding"])


def _with_zeros(states: torch.Tensor, mask: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """States with zeros for padding; a sentence without tokens is pooled from zeros.

    Attention over an empty sentence may give NaN, which a mask of 0 would not remove.
    """
    if mask is None or mask.shape != states.shape[:-1]:
        return {}
    empty = mask.sum(-1, keepdim=True) == 0
    states = states.masked_fill(mask.unsqueeze(-1) == 0, 0.0)
    return {"token_embeddings": states, "attention_mask": mask.masked_fill(empty, 1)}


def _exact(values: torch.Tensor) -> torch.Tensor:
    """Values in float32, or float64 as they are."""
    return values if values.dtype == torch.float64 else values.float()
