"""Static embeddings, a vector for each token, as encoders that the models of this package train.

sentence-transformers' `StaticEmbedding` is at once the table and the mean over it. Here the table is the encoder, and the
mean is a `Pooling` in the head, as of any other encoder. `assemble_static` makes a `StaticEmbedding` of both again.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput

from hf_xlsr.data.sources import as_list
from hf_xlsr.encoders.encoding import LONGEST
from hf_xlsr.utils.errors import XlsrError

NO_FRAME = TemplateProcessing(single="$A", pair="$A $B")


class StaticEmbeddingConfig(PreTrainedConfig):
    """Number and width of the vectors of a `StaticEmbeddingModel`."""

    model_type = "static_embedding"

    vocab_size: int = 0
    hidden_size: int = 0
    num_hidden_layers: int = 0


class TokenTable(nn.Embedding):
    """The vectors of tokens: those of token ids, and as the module of a `StaticEmbedding` the means over texts."""

    def forward(self, input_ids: torch.Tensor, offsets: torch.Tensor | None = None) -> torch.Tensor:
        """Vectors of ids, `(batch, length, width)`; with the offsets of texts in a row of ids means, `(texts, width)`."""
        if offsets is None:
            return super().forward(input_ids)
        return functional.embedding_bag(input_ids, self.weight, offsets, mode="mean")


class StaticEmbeddingModel(PreTrainedModel):
    """An encoder whose state of a token is the token's vector.

    Examples:
        >>> model = StaticEmbeddingModel(StaticEmbeddingConfig(vocab_size=30, hidden_size=8))
        >>> model(input_ids=torch.tensor([[3, 4, 5]])).last_hidden_state.shape
        torch.Size([1, 3, 8])
    """

    config: StaticEmbeddingConfig
    config_class = StaticEmbeddingConfig
    supports_gradient_checkpointing = True
    gradient_checkpointing = False  # transformers sets it; a table has no activations to recompute
    # Without attention each implementation is as good as another.
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True

    def __init__(self, config: StaticEmbeddingConfig) -> None:
        super().__init__(config)
        self.embedding = TokenTable(config.vocab_size, config.hidden_size)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def of_table(cls, table: torch.Tensor) -> StaticEmbeddingModel:
        """An encoder with the vectors `(tokens, width)`, which are not copied."""
        vocab_size, width = table.shape
        with torch.device("meta"):  # draws no random numbers
            encoder = cls(StaticEmbeddingConfig(vocab_size=vocab_size, hidden_size=width))
        embedding: Any = encoder.embedding
        embedding.weight = nn.Parameter(table.detach())
        embedding._is_hf_initialized = True  # noqa: SLF001  # else `post_init` of a model draws it anew
        return encoder

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def set_input_embeddings(self, value: Any) -> None:
        self.embedding = value

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **options: Any
    ) -> BaseModelOutput:
        """The vectors of tokens, `(batch, length, width)`."""
        return BaseModelOutput(last_hidden_state=self.embedding(input_ids))


AutoConfig.register(StaticEmbeddingConfig.model_type, StaticEmbeddingConfig, exist_ok=True)
AutoModel.register(StaticEmbeddingConfig, StaticEmbeddingModel, exist_ok=True)


def tokenizer_of(module: Any) -> Any:
    """The tokenizer of the first module of a model, as one of transformers.

    That of a `StaticEmbedding` puts no tokens around a text, as the module reads it. Its padding and unknown tokens are
    tokens that are special already: a new one would change how texts are split.
    """
    if not isinstance(module, StaticEmbedding):
        return module.tokenizer

    backend = Tokenizer.from_str(module.tokenizer.to_str())
    backend.post_processor = NO_FRAME
    options: dict[str, Any] = {"model_input_names": ["input_ids", "attention_mask"]}
    if backend.truncation is not None:
        options["model_max_length"] = backend.truncation["max_length"]
        options["truncation_side"] = backend.truncation["direction"]
        backend.no_truncation()

    special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    for role, word in (("pad_token", "pad"), ("unk_token", "unk")):
        options[role] = next((token for token in special if word in token.lower()), None)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


def unframed(tokenizer: Any) -> Any:
    """A tokenizer that puts no tokens around a text, as `StaticEmbedding` reads it; a copy of one that puts some."""
    if not getattr(tokenizer, "is_fast", False):
        raise XlsrError(f"A static embedding needs a fast tokenizer, got a {type(tokenizer).__name__}.")
    if not tokenizer("")["input_ids"]:
        return tokenizer
    plain = copy.deepcopy(tokenizer)
    plain.backend_tokenizer.post_processor = NO_FRAME
    return plain


def assemble_static(part: Any) -> StaticEmbedding:
    """A `StaticEmbedding` around the vectors of an `EncoderPart`, which are not copied. Its tokenizer is a copy."""
    tokenizer = part.required_tokenizer()
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    max_length = part.options.get("max_seq_length") or LONGEST
    if max_length < LONGEST:
        backend.enable_truncation(max_length, direction=tokenizer.truncation_side)

    table = part.encoder.embedding
    module = StaticEmbedding(backend, embedding_weights=table.weight.detach())
    module.embedding = table
    return module


def check_static_head(encoder_config: Any, head: list[dict[str, Any]]) -> None:
    """Raises for a head that does not begin with the mean over the tokens, if its encoder is a static embedding."""
    pooling = as_list(head[0].get("pooling_mode"))
    if isinstance(encoder_config, StaticEmbeddingConfig) and pooling != ["mean"]:
        raise XlsrError(f"`pooling` must be 'mean' for a static embedding, got {'+'.join(pooling)}.")


def module_configs(encoder_config: Any, head: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Modules of a head as sentence-transformers has them: the mean of a static embedding is a part of its module."""
    if isinstance(encoder_config, StaticEmbeddingConfig):
        return [{"kind": StaticEmbedding.__name__}, *head[1:]]
    return head
