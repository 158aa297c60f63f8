"""`push_to_hub` of models, without momentum encoders and queues."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from hf_xlsr.export.hub import TAG, hub_errors

# Values of `DualMomentumConfig` for a model without training state.
INFERENCE = {"queue_size": 0, "use_momentum": False, "in_batch_negatives": True, "nli_labels": 0}


def push_model(model: PreTrainedModel, repo_id: str, **options: Any) -> Any:
    """`PreTrainedModel.push_to_hub` of the weights that encode sentences."""
    options["tags"] = [*(options.get("tags") or []), TAG]
    with hub_errors(repo_id), without_training_state(model):
        return PreTrainedModel.push_to_hub(model, repo_id, **options)


@contextmanager
def without_training_state(model: Any) -> Iterator[None]:
    """Makes `model.save_pretrained` omit the training state inside a `with` block.

    The saved configuration has no queues either, so that the model loads without them.
    """
    if not hasattr(model, "inference_state_dict"):
        yield
        return
    config, save = model.config, model.save_pretrained

    def save_inference(folder: Any, **options: Any) -> Any:
        return save(folder, **{"state_dict": model.inference_state_dict(), **options})

    model.config = copy.deepcopy(config)
    for name, value in INFERENCE.items():
        setattr(model.config, name, value)
    model.save_pretrained = save_inference
    try:
        yield
    finally:
        model.config = config
        del model.save_pretrained
