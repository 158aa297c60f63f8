"""Stock Hugging Face encoders: creation, loading, sizes."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, PreTrainedConfig

from hf_xlsr.utils.auto_classes import load_auto, quiet_loading
from hf_xlsr.utils.errors import XlsrError, error_line

logger = logging.getLogger(__name__)


def no_pooler(config: PreTrainedConfig) -> dict[str, bool]:
    """Option that leaves out an encoder's pooler, for architectures with one.

    We pool by our own code, and DDP would wait for gradients of the unused pooler.
    """
    encoder_class = MODEL_MAPPING.get(type(config), None)
    takes_it = isinstance(encoder_class, type) and "add_pooling_layer" in inspect.signature(encoder_class).parameters
    return {"add_pooling_layer": False} if takes_it else {}


def new_pooler(config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    """Weights of the pooler that an architecture has, by name: `tanh` of the first state; empty without a pooler."""
    if not no_pooler(config):
        return {}
    with torch.device("meta"):
        names = AutoModel.from_config(config).state_dict()
    shapes = {name: value.shape for name, value in names.items() if name.startswith("pooler.")}
    return {name: torch.eye(*shape) if len(shape) == 2 else torch.zeros(shape) for name, shape in shapes.items()}


def stored_pooling(model: str) -> dict[str, str]:
    """The value `pooling` of a folder or Hub repository of sentence-transformers; empty for other encoders."""
    from sentence_transformers.sentence_transformer.modules import Pooling
    from sentence_transformers.util import load_file_path

    file = load_file_path(model, "modules.json")
    modules = json.loads(Path(file).read_text("utf-8")) if file else []
    places = {module["type"].rpartition(".")[2]: module["path"] for module in modules}
    if ignored := [name for name in places if name not in ("Transformer", "Pooling", "Normalize")]:
        logger.warning("%s is not trained: of '%s' only the Transformer and its pooling are used.", ignored[0], model)
    return {"pooling": Pooling.load_config(model, places["Pooling"])["pooling_mode"]} if "Pooling" in places else {}


def encoder_from_config(config: PreTrainedConfig, **options: Any) -> Any:
    """A new encoder with random weights, without a pooler; `sdpa` becomes `eager` for an architecture without it."""
    encoder_class = MODEL_MAPPING.get(type(config), None)
    if options.get("attn_implementation") == "sdpa" and not getattr(encoder_class, "_supports_sdpa", True):
        options["attn_implementation"] = "eager"
    # The precision that weights were stored in must not decide that of new ones.
    options = {"dtype": torch.get_default_dtype(), **options}
    return AutoModel.from_config(config, **no_pooler(config), **options)


def resized_bias(bias: nn.Parameter, size: int) -> nn.Parameter:
    """A decoder's bias for another vocabulary size; new entries are 0."""
    if size == len(bias):
        return bias
    resized = bias.new_zeros(size)
    resized[: min(size, len(bias))] = bias.detach()[:size]
    return nn.Parameter(resized, requires_grad=bias.requires_grad)


def vocab_size_of(encoder: Any) -> int | None:
    """Number of an encoder's token embeddings; None without a table of them (CANINE hashes characters)."""
    try:
        table = encoder.get_input_embeddings()
    except NotImplementedError:
        return None
    weight = getattr(table, "weight", None)  # adapters pass it on
    return None if weight is None else len(weight)


def check_token_ids(tokenizer: Any, vocab_size: int | None, *, of: str = "") -> None:
    """Raises if an encoder lacks embeddings of tokens; a GPU would fail in the middle of training."""
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise XlsrError(
            f"the tokenizer{of} has {len(tokenizer):,} tokens, but the encoder has {vocab_size:,} embeddings. Use the "
            "encoder's own tokenizer, or resize its embeddings (resize_token_embeddings)."
        )


def max_positions(encoder: Any) -> int | None:
    """Most tokens that an encoder takes; None without a table of positions.

    RoBERTa and its relatives number positions from after the padding id, and so take fewer than their configuration says.
    """
    count = getattr(encoder.config, "max_position_embeddings", None)
    return None if count is None else count - first_position(encoder)


def first_position(encoder: Any) -> int:
    """Number of an encoder's first position: after the padding id for RoBERTa and its relatives, else 0."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return 0 if padding is None else padding + 1


# Names of the dropout on states and on attention in configurations.
STATE_DROPOUTS = ("hidden_dropout_prob", "dropout", "mlp_dropout", "embedding_dropout")
ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")
DROPOUTS = STATE_DROPOUTS + ATTENTION_DROPOUTS


def own_dropout(config: PreTrainedConfig, names: tuple[str, ...], otherwise: float) -> float:
    """The first of some dropouts that a configuration has; `otherwise` if none."""
    return next((getattr(config, name) for name in names if hasattr(config, name)), otherwise)


def set_dropout(config: PreTrainedConfig, dropout: float | None, *, without: Container[str] = ()) -> None:
    """Sets all dropouts on states and attention that a configuration has, unless `dropout` is None."""
    for name in DROPOUTS:
        if dropout is not None and hasattr(config, name) and name not in without:
            setattr(config, name, dropout)


def encoder_from_pretrained(path: str, *, place: str = "encoder", dropout: float | None = None, **options: Any) -> Any:
    """A pretrained encoder without its pooler, with float32 weights.

    `place` names the value in errors; `dropout` on states and attention replaces that of its configuration.
    """
    try:
        config = load_auto(AutoConfig, path)
        set_dropout(config, dropout)
        with quiet_loading():
            encoder, info = load_auto(
                AutoModel,
                path,
                config=config,
                **{"dtype": "float32", "use_safetensors": True, **no_pooler(config), **options},
                output_loading_info=True,
            )
    except (OSError, ValueError) as error:
        raise XlsrError(f"{place} '{path}' cannot be loaded from safetensors: {error_line(error, 200)}") from error
    missing = sorted(info["missing_keys"])
    if missing or type(encoder).__module__.startswith("hf_xlsr.modeling."):
        lacks = f"lacks weights: {missing[0]}, ..." if missing else f"is a {config.model_type}"
        raise XlsrError(f"{place} must be a plain encoder, but '{path}' {lacks}.")
    return encoder
