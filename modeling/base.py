"""Base classes of the models."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from hf_xlsr.encoders.stock import encoder_from_config, encoder_from_pretrained, resized_bias
from hf_xlsr.modeling.heads import LmHead, TokenBias

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)


@dataclass
class PairOutput(ModelOutput):
    """What the models of sentence pairs return.

    `losses` are the parts of the loss before weighting, `statistics` other numbers to log; each model names them. The
    embeddings are those of both sides, `(batch, width)`; dual momentum contrast also has keys, without gradient.
    """

    loss: torch.Tensor | None = None
    losses: dict[str, torch.Tensor] | None = None
    statistics: dict[str, torch.Tensor] | None = None
    source_embeds: torch.Tensor | None = None
    target_embeds: torch.Tensor | None = None
    source_keys: torch.Tensor | None = None
    target_keys: torch.Tensor | None = None


class XlsrPreTrainedModel(PreTrainedModel):
    """A model on stock encoders. It loads safetensors only, onto a single device.

    Losses use the embedding table outside of the encoder's forward pass, so all parts must be on one device. Models of
    sentence pairs share these inputs of `forward`:

    - `negative_input_ids` and `negative_attention_mask`: hard negatives of the whole batch in the language of the
      targets, `(negatives, negative_length)`. Their number may differ between processes.
    - `matryoshka_dims`: widths of truncated embeddings in contrastive losses, see `matryoshka_mean`.
    - `cache_batch_size`: sentences encoded at a time, with the gradient cache, see `encode_in_chunks`.
    - `masked_tokens`: mean number of masked tokens of a micro-batch and process in the optimiser step.
    - `return_loss`: False returns embeddings only.
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
        return super().from_pretrained(path, *args, **options)

    def starting_weights(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Selects the weights to start training from, of those of another model that have a name of this one."""
        return tensors

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        own: Any = getattr(module, "initialize", None)  # of modules of this package
        if own is not None:
            own()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resizes the embeddings and the biases of their tokens, whose new entries are 0."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        for module in self.modules():
            if isinstance(module, TokenBias):
                module.bias = resized_bias(module.bias, embeddings.num_embeddings)
        return embeddings


class SentenceEncoderModel(XlsrPreTrainedModel):
    """A model that trains one encoder of sentences."""

    @property
    def export_options(self) -> dict[str, Any]:
        """How the encoder's states become embeddings, as options of `hf_xlsr.export.to_sentence_transformer`."""
        return {"pooling": self.config.pooling}

    def to_sentence_transformer(self, tokenizer: Any, **options: Any) -> SentenceTransformer:
        """The encoder as a stock sentence-transformers model, with embeddings of unit length.

        For `options` see `hf_xlsr.export.to_sentence_transformer`.
        """
        from hf_xlsr.export import to_sentence_transformer

        return to_sentence_transformer(self.encoder, tokenizer, **{**self.export_options, **options})


class EncoderWithLmHead(SentenceEncoderModel):
    """A stock encoder as `encoder`, and a masked-LM head tied to its embeddings, or None, as `lm_head`.

    Subclasses set `lm_head` by `make_lm_head` and call `post_init`. Without `encoder` there is a new one of
    `config.text_config`.
    """

    config: Any
    lm_head: LmHead | None

    def __init__(self, config: Any, encoder: Any = None) -> None:
        super().__init__(config)
        attention = {"attn_implementation": config._attn_implementation}
        self.encoder = encoder if encoder is not None else encoder_from_config(config.get_text_config(), **attention)

    def make_lm_head(self) -> LmHead:
        """A new head with the encoder's width, vocabulary and activation."""
        text_config = self.config.get_text_config()
        return LmHead(
            text_config.hidden_size,
            text_config.vocab_size,
            activation=getattr(text_config, "hidden_act", "gelu"),
            eps=getattr(text_config, "layer_norm_eps", getattr(text_config, "norm_eps", 1e-12)),
        )

    @classmethod
    def from_encoder(cls, path: str, *, dropout: float | None = None, **options: Any) -> Any:
        """A model on a pretrained encoder, with the masked-LM head of the checkpoint if it has one.

        `dropout` is that on states and attention, by default the encoder's; `options` are values of the configuration.
        """
        encoder = encoder_from_pretrained(path, dropout=dropout)
        config_class: Any = cls.config_class
        model = cls(config_class(**{**config_of_encoder(encoder), **options}), encoder)
        if model.lm_head is not None and not model.lm_head.load_pretrained(path):
            logger.warning("'%s' has no masked-LM head of a known form; this model's head is new.", path)
        return model

    def get_output_embeddings(self) -> None:
        """None: the language model's decoder is the embedding table, which counts once."""


def config_of_encoder(encoder: Any) -> dict[str, Any]:
    """Values of a configuration for a loaded encoder, whose attention a new configuration would reset."""
    return {"text_config": encoder.config, "attn_implementation": encoder.config._attn_implementation}
