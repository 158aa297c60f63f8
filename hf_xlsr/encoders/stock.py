"""Stock Hugging Face encoders: creation, loading, sizes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    PreTrainedConfig,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES, MODEL_MAPPING_NAMES

from hf_xlsr.encoders.encoding import LONGEST
from hf_xlsr.encoders.static import StaticEmbeddingModel
from hf_xlsr.utils.auto_classes import load_auto, new_model, quiet_loading
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.memory import require_memory_for_weights

logger = logging.getLogger(__name__)


def auto_encoder(config: PreTrainedConfig) -> Any:
    """The Auto class of an encoder of text: of T5 and its relatives it loads the encoder without the decoder."""
    return AutoModelForTextEncoding if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING else AutoModel


def has_decoder(model_type: str) -> bool:
    """Whether `AutoModel` loads a decoder with the encoder of this architecture, such as T5."""
    text_encoder = MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.get(model_type)
    return text_encoder not in (None, MODEL_MAPPING_NAMES.get(model_type))


def encoder_class(config: PreTrainedConfig) -> Any:
    """The class that `auto_encoder` makes; None for an architecture that transformers does not know."""
    return MODEL_FOR_TEXT_ENCODING_MAPPING.get(type(config), None) or MODEL_MAPPING.get(type(config), None)


def no_pooler(config: PreTrainedConfig) -> dict[str, bool]:
    """Option that leaves out an encoder's pooler, for architectures with one.

    Heads pool by their own modules, and DDP would wait for gradients of the unused pooler.
    """
    architecture = encoder_class(config)
    if isinstance(architecture, type) and "add_pooling_layer" in inspect.signature(architecture).parameters:
        return {"add_pooling_layer": False}
    return {}


@torch.no_grad()
def add_pooler(encoder: Any) -> None:
    """Gives an encoder the pooler of its architecture, if it lacks it: `tanh` of the first state.

    With it the encoder loads without warnings, and checkpoints of sentence-transformers' trainer resume. Embeddings do
    not depend on it.
    """
    if not no_pooler(encoder.config) or getattr(encoder, "pooler", None) is not None:
        return

    with torch.device("meta"):
        whole = new_model(auto_encoder(encoder.config), encoder.config)
    pooler = whole.pooler.to_empty(device=encoder.device)
    for weight in pooler.parameters():
        initialise = nn.init.eye_ if weight.dim() == 2 else nn.init.zeros_
        initialise(weight)
    encoder.pooler = pooler
    if hasattr(whole, "pooler_activation"):  # ALBERT's pooler is the linear layer alone
        encoder.pooler_activation = whole.pooler_activation


def encoder_from_config(config: PreTrainedConfig, **options: Any) -> Any:
    """A new encoder with random weights, without a pooler; `sdpa` becomes `eager` for an architecture without it."""
    if options.get("attn_implementation") == "sdpa" and not getattr(encoder_class(config), "_supports_sdpa", True):
        options["attn_implementation"] = "eager"
    # The precision that weights were stored in must not decide that of new ones.
    options = {"dtype": torch.get_default_dtype(), **options}
    return new_model(auto_encoder(config), config, **no_pooler(config), **options)


def resized_bias(bias: nn.Parameter, size: int) -> nn.Parameter:
    """A decoder's bias for another vocabulary size; new entries are 0."""
    if size == len(bias):
        return bias
    resized = nn.functional.pad(bias.detach(), (0, size - len(bias)))
    return nn.Parameter(resized, requires_grad=bias.requires_grad)


def vocab_size_of(encoder: Any) -> int | None:
    """Number of an encoder's token embeddings; None without a table of them (CANINE hashes characters)."""
    try:
        return len(encoder.get_input_embeddings().weight)  # adapters pass it on
    except (NotImplementedError, AttributeError):
        return None


def check_token_ids(
    tokenizer: Any,
    vocab_size: int | None,
    *,
    of: str = "",
) -> None:
    """Raises if an encoder lacks embeddings of tokens; a GPU would fail in the middle of training."""
    if vocab_size is not None and len(tokenizer) > vocab_size:
        raise XlsrError(
            f"the tokenizer{of} has more tokens than the encoder has embeddings ({vocab_size:,}). Use the encoder's own "
            "tokenizer, or resize its embeddings (resize_token_embeddings)."
        )


def missing_weights(info: Mapping[str, Any]) -> list[str]:
    """Names of the weights that a loaded encoder lacks, of its `loading_info`. Nothing reads the pooler."""
    return sorted(name for name in info["missing_keys"] if "pooler." not in name)


def set_pad_token(tokenizer: Any, encoder: Any) -> None:
    """Gives a tokenizer without a padding token its end-of-sequence token, as transformers recommends.

    A static embedding needs none: `pad_rows` pads with any token, which the mask hides.
    """
    if tokenizer is None or tokenizer.pad_token_id is not None or isinstance(encoder, StaticEmbeddingModel):
        return
    tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token_id is None:
        raise XlsrError("The tokenizer has no padding token, and no end-of-sequence token to take instead. Set one.")
    if getattr(encoder.config, "pad_token_id", None) is None:
        encoder.config.pad_token_id = tokenizer.pad_token_id


def takes_token_types(encoder: Any) -> bool:
    """Whether an encoder distinguishes the first and the second sentence of an input."""
    token_types = getattr(encoder.config, "type_vocab_size", None) or 0
    return token_types > 1 and "token_type_ids" in inspect.signature(encoder.forward).parameters


@torch.no_grad()
def one_sided(encoder: Any) -> str:
    """How an encoder reads, in words, if a token's state does not depend on the tokens behind it; found by trying."""
    if isinstance(encoder, StaticEmbeddingModel):
        return "which reads each token alone"
    was_training = encoder.training
    encoder.eval()

    last = int(encoder.config.get_text_config().vocab_size) - 1
    ids = torch.tensor([[last, last], [last, max(0, last - 1)]], device=encoder.device)
    states = encoder(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    encoder.train(was_training)
    return "which is causal" if torch.equal(states[0, 0], states[1, 0]) else ""


def max_positions(encoder: Any) -> int | None:
    """Most tokens that an encoder takes; None without a table of positions.

    RoBERTa and its relatives number positions from after the padding id, and so take fewer than their configuration says.
    """
    count = getattr(encoder.config, "max_position_embeddings", None)
    return None if count is None else count - first_position(encoder)


def longest_text(encoders: Iterable[Any], *lengths: int | None) -> int | None:
    """Number of tokens that texts are truncated to: the smallest of some lengths and of the positions of encoders.

    Lengths that are None or 0 do not count; None without any.
    """
    limits = [*lengths, *map(max_positions, encoders)]
    return min(filter(None, limits), default=None)


def longest_text_of(path: str, *lengths: int | None) -> int | None:
    """`longest_text` of some lengths and of the encoder in a folder, of which only the configuration is read."""
    config = load_auto(AutoConfig, path)
    with torch.device("meta"):
        encoder = encoder_from_config(config)
    return longest_text([encoder], *lengths)


def usable_length(
    encoders: Iterable[Any],
    default: int,
    max_length: int | None = None,
    *,
    room: Callable[[int], int] | None = None,
) -> int:
    """Number of tokens that texts are truncated to: `max_length`, or without it the encoders' `default`.

    It is lowered, with a logged line, to the positions that all encoders have. `room` gives the positions of a text, of
    those of an input that holds more.
    """
    positions = longest_text(encoders) or LONGEST
    if room is not None:
        positions = room(positions)
    if max_length is None:
        max_length = int(min(default, positions, LONGEST))
    if max_length > positions:
        logger.warning(
            "max_length is lowered from %d to %d, the positions that the encoder has.", max_length, positions
        )

    return min(max_length, positions)


def first_position(encoder: Any) -> int:
    """Number of an encoder's first position: after the padding id for RoBERTa and its relatives, else 0."""
    positions = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    padding = getattr(positions, "padding_idx", None)
    return 0 if padding is None else padding + 1


# Names of the dropout on states and on attention in configurations.
STATE_DROPOUTS = ("hidden_dropout_prob", "dropout", "mlp_dropout", "embedding_dropout")
ATTENTION_DROPOUTS = ("attention_probs_dropout_prob", "attention_dropout")
DROPOUTS = STATE_DROPOUTS + ATTENTION_DROPOUTS


def own_dropout(
    config: PreTrainedConfig,
    names: tuple[str, ...],
    otherwise: float,
) -> float:
    """The first of some dropouts that a configuration has; `otherwise` if none."""
    for name in names:
        if hasattr(config, name):
            dropout: float = getattr(config, name)
            return dropout
    return otherwise


def set_dropout(
    config: PreTrainedConfig,
    dropout: float | None,
    *,
    without: Container[str] = (),
) -> None:
    """Sets all dropouts on states and attention that a configuration has, unless `dropout` is None."""
    if dropout is None:
        return
    for name in DROPOUTS:
        if hasattr(config, name) and name not in without:
            setattr(config, name, dropout)


def encoder_from_pretrained(
    path: str,
    *,
    place: str = "encoder",
    **options: Any,
) -> Any:
    """A pretrained encoder without its pooler, with float32 weights; `place` names the value in errors."""
    require_memory_for_weights(path)
    try:
        config = load_auto(AutoConfig, path)
        options = {"dtype": "float32", "use_safetensors": True, **no_pooler(config), **options}
        with quiet_loading():
            encoder, info = load_auto(auto_encoder(config), path, config=config, output_loading_info=True, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise XlsrError(f"{place} '{path}' cannot be loaded from safetensors: {error_line(error, 200)}") from error

    missing = missing_weights(info)
    if missing:
        raise XlsrError(f"{place} must be a plain encoder, but '{path}' lacks weights: {missing[0]}, ...")
    return encoder
