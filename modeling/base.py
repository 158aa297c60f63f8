"""Base class of all models."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

AUTOMATIC_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")  # device maps that transformers computes


class XlsrPreTrainedModel(PreTrainedModel):
    """A model on stock encoders. It loads safetensors only, onto a single device.

    Losses use the embedding table outside of the encoder's forward pass, so all parts must be on one device:
    `device_map="auto"` is the accelerator, or the CPU without one.
    """

    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = False  # the loss is a mean over the batch; Trainer must not rescale it
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    encoder: Any

    @classmethod
    def from_pretrained(cls, path: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # they pass through
        """As `PreTrainedModel.from_pretrained`, but pickled weights load only with `use_safetensors=False`."""
        options.setdefault("use_safetensors", True)
        if options.get("device_map") in AUTOMATIC_MAPS and not options.get("max_memory"):
            options["device_map"] = {"": _accelerator()}
        return super().from_pretrained(path, *args, **options)

    def starting_weights(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Selects the weights to start training from, of those of another model that have a name of this one."""
        return tensors

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:  # type: ignore[override]  # they pass through
        """As `PreTrainedModel.push_to_hub`, without the training state; see `push_model`."""
        from hf_xlsr.modeling.hub import push_model

        return push_model(self, repo_id, **options)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)


def _accelerator() -> torch.device:
    """The current accelerator, or the CPU without one."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.device(str(torch.accelerator.current_accelerator()), torch.accelerator.current_device_index())
