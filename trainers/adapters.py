"""LoRA adapters by peft, also on the momentum encoders that follow them."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

# Names of the linear layers that attention reads its input by, of all architectures.
ATTENTION_INPUTS = (
    *("query", "key", "value"),  # BERT, RoBERTa, ELECTRA
    *("q_proj", "k_proj", "v_proj"),  # Qwen, Gemma, Llama, Mistral
    *("q", "k", "v"),  # T5, MPNet
    *("q_lin", "k_lin", "v_lin"),  # DistilBERT
    *("query_proj", "key_proj", "value_proj"),  # DeBERTa
    *("Wqkv", "qkv_proj", "qkv", "c_attn"),  # ModernBERT, Phi, GPT-2: all in one
)
ENCODERS = ("encoder", "encoders", "momentum_encoders")
SENTENCE_HEADS = ("head", "heads", "momentum_heads")


def base_model(model: Any) -> Any:
    """Our model inside a PEFT wrapper, or the model itself."""
    if hasattr(model, "get_base_model"):
        return model.get_base_model()
    return model


def without_task(model: Any) -> Any:
    """A model with adapters whose forward pass takes the inputs of our model, as those of a `task_type` do not.

    It shares weights and adapters with the given model, which stays as it is.
    """
    if type(model).__name__ == "PeftModel" or not hasattr(model, "get_base_model"):
        return model
    from peft import PeftModel

    plain = copy.copy(model)
    plain.__class__ = PeftModel
    return plain


def check_checkpointing(model: Any, args: Any) -> None:
    """Checks that gradient checkpointing is not reentrant, for models whose frozen layers would get wrong gradients."""
    ways: list[Mapping[str, Any]] = []
    if args.gradient_checkpointing:
        ways.append(args.gradient_checkpointing_kwargs or {})
    else:  # a user may have switched it on in the model
        functions = [getattr(module, "_gradient_checkpointing_func", None) for module in model.modules()]
        ways += [function.keywords for function in functions if isinstance(function, partial)]
    if any(way.get("use_reentrant") for way in ways):
        raise XlsrError(
            "`use_reentrant` of gradient checkpointing must be False: with frozen layers or adapters, gradients would be "
            "wrong. Remove it."
        )


def merged(model: Any) -> Any:
    """The model with its adapters merged into its weights; the model itself without adapters."""
    if hasattr(model, "merge_and_unload"):
        return model.merge_and_unload()
    return model


def add_adapters(
    model: Any,
    *,
    rank: int = 16,
    alpha: int = 32,
    dropout: float = 0.0,
    modules: Sequence[str] | str | None = None,
) -> Any:
    """Adds LoRA adapters to the encoder of a model; projections and heads are trained and saved as a whole.

    A `DualMomentumModel` gets them on its base encoders and, as copies that follow by equation 1, on its momentum
    encoders. `save_pretrained` of the result writes adapters and heads only; `merged` turns it into a plain model.

    Args:
        model: Any of this package's models.
        rank: Rank of the adapters.
        alpha: Their scale is `alpha / rank`.
        dropout: On their input.
        modules: Last part of the names of the linear layers that get adapters; by default those of queries, keys and
            values.
    """
    require_package("peft")
    from peft import LoraConfig, get_peft_model

    if isinstance(modules, str):
        modules = [modules]
    encoders = "|".join(ENCODERS)
    layers = "|".join(map(re.escape, modules or attention_layers(model)))
    lora = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        bias="none",
        target_modules=rf"(?:{encoders})\..*\.(?:{layers})",
        modules_to_save=_trained_heads(model) or None,
    )
    adapted = get_peft_model(model, lora)

    if hasattr(model, "momentum_encoders"):
        model.reset_momentum()
        model.freeze_momentum()
    return adapted


def attention_layers(model: Any) -> list[str]:
    """The names of the layers of `ATTENTION_INPUTS` that the encoders of a model have."""
    layers = set()
    for path, module in model.named_modules():
        names = path.split(".")
        if names[0] in ENCODERS and isinstance(module, nn.Linear | Conv1D):
            layers.add(names[-1])
    if not layers:
        raise XlsrError("Adapters need an encoder with linear layers, got one without. Train it without adapters.")
    attention = [name for name in ATTENTION_INPUTS if name in layers]
    if not attention:
        raise XlsrError(
            f"Name the layers that get adapters in `modules`; the encoder has {', '.join(sorted(layers))}."
        )
    return attention


def _trained_heads(model: Any) -> list[str]:
    """Names of the trained parts that are not encoders, and of their copies; peft matches the ends of names."""
    names = []
    for name, child in model.named_children():
        frozen = name in SENTENCE_HEADS and not getattr(model.config, "train_head", True)
        if name not in ENCODERS and not frozen:
            names += _weighted_modules(name, child)
    return names


def _weighted_modules(name: str, module: nn.Module) -> list[str]:
    """The names of the modules with weights in a part of a model; peft does not take containers."""
    if not isinstance(module, nn.ModuleDict | nn.ModuleList):
        return [name] if list(module.parameters()) else []
    names = []
    for key, child in module.named_children():
        names += _weighted_modules(f"{name}.{key}", child)
    return names
