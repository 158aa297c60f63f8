"""LoRA adapters by peft, also on the momentum encoders that follow them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from hf_xlsr.utils.extras import require_package

DEFAULT_MODULES = ("query", "key", "value")
ENCODERS = ("encoder", "encoders", "momentum_encoders")


def base_model(model: Any) -> Any:
    """Our model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def merged(model: Any) -> Any:
    """The model with its adapters merged into its weights; the model itself without adapters."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def add_adapters(
    model: Any,
    *,
    rank: int = 16,
    alpha: int = 32,
    dropout: float = 0.0,
    modules: Sequence[str] | str = DEFAULT_MODULES,
) -> Any:
    """Adds LoRA adapters to the encoder of a model; projections and heads are trained and saved as a whole.

    A `DualMomentumModel` gets them on its base encoders and, as copies that follow by equation 1, on its momentum
    encoders. `save_pretrained` of the result writes adapters and heads only; `merged` turns it into a plain model.

    Args:
        model: Any of this package's models.
        rank: Rank of the adapters.
        alpha: Their scale is `alpha / rank`.
        dropout: On their input.
        modules: Last part of the names of the linear layers that get adapters.
    """
    require_package("peft")
    from peft import LoraConfig, get_peft_model

    modules = [modules] if isinstance(modules, str) else list(modules)
    pattern = rf"(?:{'|'.join(ENCODERS)})\..*\.(?:{'|'.join(map(re.escape, modules))})"
    options: dict[str, Any] = {"r": rank, "lora_alpha": alpha, "lora_dropout": dropout, "bias": "none"}
    lora = LoraConfig(target_modules=pattern, modules_to_save=_heads(model) or None, **options)
    adapted = get_peft_model(model, lora)
    if hasattr(model, "momentum_encoders"):
        model.reset_momentum()
        model.freeze_momentum()
    return adapted


def _heads(model: Any) -> list[str]:
    """Names of the parts that are not encoders; peft matches every module whose name ends with one."""
    heads = []
    for name, part in model.named_children():
        if isinstance(part, nn.ModuleDict):  # peft does not support it as a whole
            parts = {f"{name}.{key}": inside for key, inside in part.items()}
        else:
            parts = {name: part}
        if name not in ENCODERS:
            heads += [name for name, part in parts.items() if list(part.parameters())]
    return heads
