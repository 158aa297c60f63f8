"""FSDP2: settings that training with sharded weights needs in addition to those of accelerate."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType, parse_flag_from_env
from torch import nn
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled

from hf_xlsr.utils.errors import XlsrError

# The other state types are pickles.
WHOLE_WEIGHTS = "FULL_STATE_DICT"


def check_sharding(args: Any, *, refusal: str = "", adapters: bool = False) -> None:
    """Checks that weights are sharded in a supported way, or not at all; `refusal` says why a trainer supports none."""
    deepspeed, fsdp = (parse_flag_from_env(f"ACCELERATE_USE_{name}") for name in ("DEEPSPEED", "FSDP"))
    zero3 = deepspeed and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3"
    given: Mapping[str, Any] = args.fsdp_config if isinstance(args.fsdp_config, dict) else {}
    version = given.get("version", 2) if args.fsdp else os.environ.get("FSDP_VERSION", "1")
    reason = ""
    if is_deepspeed_zero3_enabled() or zero3:
        reason = f"{refusal or 'Evaluation and export need whole weights.'} Use DeepSpeed ZeRO stage 2 or less."
    elif args.fsdp or fsdp:
        if refusal or adapters:
            reason = f"{refusal or 'Adapters are not trained under FSDP.'} Launch without FSDP."
        elif str(version) != "2":
            reason = "FSDP of version 1 is not supported. Launch with --fsdp_version 2."
        elif PartialState().distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU):
            reason = "accelerate supports no FSDP on a CPU or in a single process. Launch without FSDP."
    if reason:
        raise XlsrError(reason)


def set_up_sharding(trainer: Any) -> None:
    """Sets how weights are sharded (by layers of the encoder) and saved (whole), unless the launch does."""
    plugin, model = trainer.accelerator.state.fsdp_plugin, trainer.model
    plugin.state_dict_config = plugin.optim_state_dict_config = None  # else those of another type would remain
    plugin.set_state_dict_type(WHOLE_WEIGHTS)
    if plugin.transformer_cls_names_to_wrap is None:
        plugin.transformer_cls_names_to_wrap = layer_classes(model)


def layer_classes(model: nn.Module) -> list[str]:
    """Names of the classes that must not be split, except those that contain embeddings."""
    named = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in named]
    tables = {
        type(module).__name__ for module in layers for part in module.modules() if isinstance(part, nn.Embedding)
    }
    return sorted({type(module).__name__ for module in layers} - tables)


def fit_sharded(model: nn.Module, layers: Sequence[str]) -> None:
    """Prepares a model that accelerate has sharded, where the weights of `layers` are gathered and released one by one.

    Heads read embedding tables and decoders outside of their own forward pass, so these must be whole from the start of
    the model's forward to its backward pass; and evaluation calls methods other than `forward`.
    """
    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

    # fully_shard prepends FSDP to the name of a class.
    kept = [
        module
        for module in model.modules()
        if module is not model and isinstance(module, FSDPModule) and type(module).__name__[4:] not in layers
    ]
    for module in kept:
        module.set_reshard_after_forward(False, recurse=False)
    model.register_forward_pre_hook(lambda *_: [module.unshard() for module in kept] and None)
    if hasattr(model, "encode_sentences"):  # runs layers too
        register_fsdp_forward_method(model, "encode_sentences")


def gather_model(trainer: Any, whole: Any) -> None:
    """Replaces the sharded model by `whole`, which gets the weights on the main process; all processes must call."""
    state = trainer.accelerator.get_state_dict(trainer.model)
    if trainer.accelerator.is_main_process:
        whole.load_state_dict(state)
        trainer.model = trainer.model_wrapped = whole.to(trainer.args.device)
