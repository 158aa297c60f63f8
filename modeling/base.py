"""What all models of this package have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_xlsr.utils.errors import XlsrError

# Values of `device_map` that leave the choice to the library.
CHOSEN_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


class XlsrPreTrainedModel(PreTrainedModel):
    """A model on stock encoders: loaded from safetensors alone, and whole on one device.

    Losses read the embedding table beside the encoder that holds it, so the parts of a model stay together.
    `device_map="auto"` takes the accelerator, or the CPU where there is none.
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
        """As of any model, but pickled weights are left alone unless `use_safetensors` says otherwise.

        Raises:
            XlsrError: `device_map` puts the parts of the model on several devices, or on disk.
        """
        options.setdefault("use_safetensors", True)
        if options.get("device_map") in CHOSEN_MAPS and not options.get("max_memory"):
            options["device_map"] = {"": _accelerator()}
        loaded: Any = super().from_pretrained(path, *args, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        devices = {str(device) for device in (getattr(model, "hf_device_map", None) or {}).values()}
        if len(devices) > 1 or "disk" in devices:
            raise XlsrError(
                f"device_map puts parts of '{path}' on {', '.join(sorted(devices))}, but they work on one device alone; "
                "give device_map the name of one that has room, such as 'cpu'."
            )
        return loaded

    def starting_weights(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What to start from, of the weights that another training left; see `hf_xlsr.runs.starting.start_from`.

        Args:
            tensors: Those of the other model whose names this one knows.
        """
        return tensors

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:  # type: ignore[override]  # they pass through
        """As of any model, but without what training alone needs; see `push_model`."""
        from hf_xlsr.modeling.hub import push_model

        return push_model(self, repo_id, **options)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)


def _accelerator() -> torch.device:
    """The current accelerator; the CPU where there is none."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.device(str(torch.accelerator.current_accelerator()), torch.accelerator.current_device_index())
