"""FSDP2: settings that training with sharded weights needs in addition to those of accelerate."""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    zero3 = (
        parse_flag_from_env("ACCELERATE_USE_DEEPSPEED") and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3"
    )
    if zero3 or is_deepspeed_zero3_enabled():
        reason = refusal or "Evaluation and export need whole weights."
        raise XlsrError(f"{reason} Use DeepSpeed ZeRO stage 2 or less.")
    if not args.fsdp and not parse_flag_from_env("ACCELERATE_USE_FSDP"):
        return

    if refusal or adapters:
        raise XlsrError(f"{refusal or 'Adapters are not trained under FSDP.'} Launch without FSDP.")
    version = os.environ.get("FSDP_VERSION", "1")
    if args.fsdp:
        options = args.fsdp_config if isinstance(args.fsdp_config, dict) else {}
        version = options.get("version", 2)

    if str(version) != "2":
        raise XlsrError("FSDP of version 1 is not supported. Launch with --fsdp_version 2.")
    if PartialState().distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU):
        raise XlsrError("accelerate supports no FSDP on a CPU or in a single process. Launch without FSDP.")


def set_up_sharding(trainer: Any) -> None:
    """Sets how weights are sharded (by layers of the encoder) and saved (whole), unless the launch does."""
    plugin = trainer.accelerator.state.fsdp_plugin
    # Else those of another type would remain.
    plugin.state_dict_config = None
    plugin.optim_state_dict_config = None
    plugin.set_state_dict_type(WHOLE_WEIGHTS)
    if plugin.transformer_cls_names_to_wrap is None:
        plugin.transformer_cls_names_to_wrap = layer_classes(trainer.model)


def layer_classes(model: nn.Module) -> list[str]:
    """Names of the classes that must not be split, except those that contain embeddings."""
    unsplit = set(getattr(model, "_no_split_modules", None) or ())
    layers = set()
    layers_with_table = set()
    for module in model.modules():
        name = type(module).__name__
        if name in unsplit:
            layers.add(name)
            if any(isinstance(submodule, nn.Embedding) for submodule in module.modules()):
                layers_with_table.add(name)
    return sorted(layers - layers_with_table)


def fit_sharded(model: nn.Module, layers: Sequence[str]) -> None:
    """Prepares a model that accelerate has sharded, where the weights of `layers` are gathered and released one by one.

    Heads read embedding tables and decoders outside of their own forward pass, so these must be whole from the start of
    the model's forward to its backward pass; and evaluation calls methods other than `forward`.
    """
    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

    whole_modules = []
    for module in model.modules():
        name = type(module).__name__.removeprefix("FSDP")  # which fully_shard prepends
        if isinstance(module, FSDPModule) and module is not model and name not in layers:
            module.set_reshard_after_forward(False, recurse=False)
            whole_modules.append(module)

    def gather_weights(*_: Any) -> None:
        for module in whole_modules:
            module.unshard()

    model.register_forward_pre_hook(gather_weights)
    if hasattr(model, "encode_sentences"):  # runs layers too
        register_fsdp_forward_method(model, "encode_sentences")


def gather_model(trainer: Any, whole: Any) -> None:
    """Replaces the sharded model by `whole`, which gets the weights on the main process; all processes must call."""
    state = trainer.accelerator.get_state_dict(trainer.model)
    if trainer.accelerator.is_main_process:
        whole.load_state_dict(state)
        trainer.model = trainer.model_wrapped = whole.to(trainer.args.device)
