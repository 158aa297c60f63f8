"""LoRA adapters through peft, on models whose momentum encoders have to follow them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from hf_xlsr.utils.errors import XlsrError

DEFAULT_MODULES = ("query", "key", "value")
ENCODERS = ("encoder", "encoders", "momentum_encoders")


def base_model(model: Any) -> Any:
    """Our model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def merged(model: Any) -> Any:
    """A model with its adapters merged into its weights and no PEFT wrapper; the model itself where it has none."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def add_adapters(
    model: Any,
    *,
    rank: int = 16,
    alpha: int = 32,
    dropout: float = 0.0,
    modules: Sequence[str] | str = DEFAULT_MODULES,
) -> Any:
    """Puts LoRA adapters on the encoder of a model; projections and heads are trained, and saved with them, as a whole.

    A `DualMomentumModel` gets them on its base encoders and, untrained, on its momentum encoders: the momentum adapters
    start as copies and follow by equation 1; frozen weights are equal on both sides and need no average.

    `save_pretrained` of what comes back writes the adapters and heads alone. `peft.PeftModel.from_pretrained` puts them
    on the model that they were made for.

    Args:
        model: Any of this package's models.
        rank: Rank of the adapters.
        alpha: Their scale is `alpha / rank`.
        dropout: On their input.
        modules: Last part of the names of the linear layers that get one.

    Returns:
        A `peft.PeftModel` for the model's trainer; `merged` gives a plain model back.

    Raises:
        XlsrError: peft is not installed, or no layer bears one of the names.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise XlsrError("adapters need the package peft; install it with `pip install 'hf-xlsr[peft]'`.") from error
    if rank < 1 or not 0 <= dropout < 1:
        raise XlsrError(f"adapters: rank is {rank} and dropout {dropout}; use a rank above 0 and a share below 1.")
    modules = [modules] if isinstance(modules, str) else list(modules)
    pattern = rf"(?:{'|'.join(ENCODERS)})\..*\.(?:{'|'.join(map(re.escape, modules))})"
    if not any(re.fullmatch(pattern, name) for name, _ in model.named_modules()):
        raise XlsrError(
            f"no layer of the encoders is called {' or '.join(modules)}; name their linear layers in modules."
        )
    options: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "lora_dropout": dropout, "bias": "none"}
    adapted = get_peft_model(
        model, LoraConfig(target_modules=pattern, modules_to_save=_heads(model) or None, **options)
    )
    if hasattr(model, "momentum_encoders"):
        model.reset_momentum()
        model.freeze_momentum()
    return adapted


def _heads(model: Any) -> list[str]:
    """The parts that are no encoders, by name; peft takes every module for one of them whose name ends so."""
    heads = []
    for name, part in model.named_children():
        if isinstance(part, nn.ModuleDict):  # which peft does not take as a whole
            parts = {f"{name}.{key}": inside for key, inside in part.items()}
        else:
            parts = {name: part}
        if name not in ENCODERS:
            heads += [name for name, part in parts.items() if list(part.parameters())]
    return heads
