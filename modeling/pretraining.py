"""Base class of models that train a stock encoder with a masked-LM head and other losses."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import torch
from torch import nn

from hf_xlsr.encoders.stock import encoder_from_config, encoder_from_pretrained, resized_bias
from hf_xlsr.modeling.base import XlsrPreTrainedModel
from hf_xlsr.modeling.heads import LmHead

logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound="EncoderWithLmHead")


class EncoderWithLmHead(XlsrPreTrainedModel):
    """A stock encoder as `encoder`, and a masked-LM head tied to its embeddings, or None, as `lm_head`.

    Subclasses set `lm_head` by `make_lm_head` and call `post_init`. Without `encoder` there is a new one of
    `config.text_config`.
    """

    config: Any
    lm_head: LmHead | None

    def __init__(self, config: Any, encoder: Any = None) -> None:
        super().__init__(config)
        attention = {"attn_implementation": config._attn_implementation} if config._attn_implementation else {}
        self.encoder = encoder if encoder is not None else encoder_from_config(config.get_text_config(), **attention)

    def make_lm_head(self) -> LmHead:
        """A new head with the encoder's width, vocabulary and activation."""
        text_config = self.config.get_text_config()
        eps = getattr(text_config, "layer_norm_eps", getattr(text_config, "norm_eps", 1e-12))
        return LmHead(
            text_config.hidden_size,
            text_config.vocab_size,
            activation=getattr(text_config, "hidden_act", "gelu"),
            eps=eps,
            own_decoder=not self.config.tie_word_embeddings,
        )

    @classmethod
    def from_encoder(cls: type[Model], path: str, *, dropout: float | None = None, **options: Any) -> Model:
        """A model on a pretrained encoder, with the masked-LM head of the checkpoint if it has one.

        `dropout` is that on states and attention, by default the encoder's; `options` are values of the configuration.
        """
        encoder = encoder_from_pretrained(path, dropout=dropout)
        # A new configuration would reset that of the encoder inside it.
        options.setdefault("attn_implementation", encoder.config._attn_implementation)
        config_class: Any = cls.config_class
        model = cls(config_class(text_config=encoder.config, **options), encoder)
        if model.lm_head is not None and not model.lm_head.load_pretrained(path):
            logger.warning("'%s' has no masked-LM head of a known form; this model's head is new.", path)
        return model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, LmHead):
            module.initialize()

    def get_output_embeddings(self) -> nn.Linear | None:
        """The language model's decoder; None where it is the embedding table, which then counts once."""
        return None if self.lm_head is None else self.lm_head.decoder

    def set_output_embeddings(self, value: nn.Linear) -> None:
        if self.lm_head is not None:
            self.lm_head.decoder = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        if self.lm_head is not None:
            self.lm_head.bias = resized_bias(self.lm_head.bias, embeddings.num_embeddings)
        return embeddings
