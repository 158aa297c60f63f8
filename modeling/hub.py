"""`push_to_hub` of models: what encodes sentences, without momentum encoders and queues."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from hf_xlsr.export.hub_errors import hub_errors
from hf_xlsr.export.hub_names import TAG

# Of a `DualMomentumConfig`, for a model without what only training needs.
SLIM = {"queue_size": 0, "use_momentum": False, "in_batch_negatives": True, "nli_labels": 0}


def push_model(model: PreTrainedModel, repo_id: str, **options: Any) -> Any:
    """`PreTrainedModel.push_to_hub` of what a model needs to encode sentences.

    Args:
        model: Any of this package's models.
        repo_id: OWNER/NAME.
        **options: As for `PreTrainedModel.push_to_hub`.

    Returns:
        What that returns.

    Raises:
        XlsrError: the Hub cannot be reached or refuses.
    """
    options["tags"] = [*(options.get("tags") or []), TAG]
    with hub_errors(repo_id), without_training_state(model):
        return PreTrainedModel.push_to_hub(model, repo_id, **options)


@contextmanager
def without_training_state(model: Any) -> Iterator[None]:
    """Has `model.save_pretrained` leave out, for a while, what the model has for training alone.

    A model whose configuration knows queues is saved with a configuration that has none, so that it loads without them.
    """
    if not hasattr(model, "inference_state_dict"):
        yield
        return
    whole, save = model.config, model.save_pretrained

    def save_slim(folder: Any, **options: Any) -> Any:
        return save(folder, **{"state_dict": model.inference_state_dict(), **options})

    model.config = copy.deepcopy(whole)
    for name, value in SLIM.items():
        setattr(model.config, name, value)
    model.save_pretrained = save_slim
    try:
        yield
    finally:
        model.config = whole
        del model.save_pretrained
