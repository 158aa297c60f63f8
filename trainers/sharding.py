"""FSDP2: what training with weights sharded over processes needs beside what accelerate does, and what it refuses."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType
from torch import nn

from hf_xlsr.utils.errors import XlsrError

# Methods of our models that run layers, beside `forward`.
FORWARD_METHODS = ("encode_sentences",)
# The other kinds of state are written, and read, as pickles.
WHOLE_WEIGHTS = "FULL_STATE_DICT"


def sharding_asked(args: Any) -> bool:
    """Whether the launch, or the training arguments, want FSDP.

    Args:
        args: Training arguments.
    """
    return bool(args.fsdp) or os.environ.get("ACCELERATE_USE_FSDP", "false").lower() in ("true", "1")


def check_sharding(args: Any, *, refusal: str = "", adapters: bool = False) -> None:
    """Refuses a launch that would shard weights in a way that does not train, or not shard at all.

    Args:
        args: Training arguments.
        refusal: Why this trainer cannot, the first half of a sentence; empty where it can.
        adapters: Whether adapters are trained.

    Raises:
        XlsrError: as said.
    """
    launched = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in ("true", "1")
    if launched and os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE") == "3":
        raise XlsrError(
            f"{refusal or 'evaluation and export find no whole weights under DeepSpeed ZeRO stage 3'}; use stage 2 or "
            f"less, {'' if refusal else 'FSDP2 '}or plain data parallelism."
        )
    if not sharding_asked(args):
        return
    if refusal:
        raise XlsrError(f"{refusal}; launch it without FSDP, which is plain data parallelism.")
    if adapters:
        raise XlsrError("adapters are not trained under FSDP here; launch without it: they need little memory.")
    given: Mapping[str, Any] = args.fsdp_config if isinstance(args.fsdp_config, dict) else {}
    version = given.get("version", 2) if args.fsdp else os.environ.get("FSDP_VERSION", "1")
    if str(version) != "2":
        raise XlsrError("FSDP of version 1 is not supported; launch with --fsdp_version 2.")
    if PartialState().distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU):
        raise XlsrError(
            "FSDP was asked for, but accelerate shards no weights on a processor, nor in a single process; launch "
            "without it, which is plain data parallelism."
        )


def set_up_sharding(trainer: Any) -> None:
    """Says how weights are sharded and saved, where the launch leaves it open.

    Units are the layers of the encoder: stock architectures also name their embeddings, which accelerate takes apart by
    itself. Checkpoints hold whole weights, which any number of processes can read without a pickle.

    Args:
        trainer: Before its training.
    """
    plugin, model = trainer.accelerator.state.fsdp_plugin, trainer.model
    plugin.state_dict_config = plugin.optim_state_dict_config = None  # else those of another type would stay
    plugin.set_state_dict_type(WHOLE_WEIGHTS)
    if plugin.transformer_cls_names_to_wrap is None:
        plugin.transformer_cls_names_to_wrap = layer_classes(model)


def layer_classes(model: nn.Module) -> list[str]:
    """Names of the classes that a model must not be split inside of, but those that hold embeddings.

    Args:
        model: With `_no_split_modules`, as those of transformers.
    """
    named = set(getattr(model, "_no_split_modules", None) or ())
    layers = [module for module in model.modules() if type(module).__name__ in named]
    tables = {
        type(module).__name__ for module in layers for part in module.modules() if isinstance(part, nn.Embedding)
    }
    return sorted({type(module).__name__ for module in layers} - tables)


def fit_sharded(model: nn.Module, layers: Sequence[str]) -> None:
    """Prepares a model that accelerate has sharded for what our models do with their weights.

    Heads read embedding tables and decoders outside of their own forward, so that these have to be whole from the start
    of the model's forward to the backward pass; and evaluation calls methods that are not `forward`.

    Args:
        model: From `fully_shard`.
        layers: Classes whose weights are gathered for themselves and let go again.
    """
    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

    # fully_shard puts FSDP before the name of a class.
    kept = [
        module
        for module in model.modules()
        if module is not model and isinstance(module, FSDPModule) and type(module).__name__[4:] not in layers
    ]
    for module in kept:
        module.set_reshard_after_forward(False, recurse=False)
    model.register_forward_pre_hook(lambda *_: [module.unshard() for module in kept] and None)
    for name in FORWARD_METHODS:
        if hasattr(model, name):
            register_fsdp_forward_method(model, name)


def gather_model(trainer: Any, whole: Any) -> None:
    """Puts a model with the trained weights, in one piece, in the place of the sharded one; every process has to call.

    Args:
        trainer: At the end of its training.
        whole: A new model of the same configuration. It gets the weights in the main process, which alone exports.
    """
    state = trainer.accelerator.get_state_dict(trainer.model)
    if trainer.accelerator.is_main_process:
        whole.load_state_dict(state)
        trainer.model = trainer.model_wrapped = whole.to(trainer.args.device)
