"""What the configurations of all sentence encoders have in common."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from hf_xlsr.encoders.assembly import EncoderSettings
from hf_xlsr.encoders.heads import HeadConfig, check_pooling, embedding_width, new_head, with_normalize, with_pooling


@strict
class SentenceEncoderConfig(PreTrainedConfig):
    """Configuration of a model with sentence encoders: their heads, and the settings of sentence-transformers.

    A model fills in `head` when it is made, with the modules of a given encoder or with a new head; `pooling` and
    `normalize` then become a part of it.

    Args:
        head: Modules of sentence-transformers behind the encoder, see `hf_xlsr.encoders.heads.head_config`.
        pooling: A mode of sentence-transformers' `Pooling`, or a list of them; by default that of `head`, and for an
            encoder without one `mean`.
        normalize: Whether the exported encoder gives unit vectors; by default as `head` does, and for an encoder
            without one true.
        train_head: Whether the weights of the head are trained.
        transformer_options: What sentence-transformers' `Transformer` stores, such as `max_seq_length`.
        encoder_settings: Prompts, similarity and truncation, see `hf_xlsr.encoders.assembly.EncoderSettings`.
    """

    head: list | None = None
    pooling: str | list | None = None
    normalize: bool | None = None
    train_head: bool = True
    transformer_options: dict | None = None
    encoder_settings: dict | None = None

    @property
    def hidden_size(self) -> int:
        """Width of a sentence embedding."""
        return embedding_width(self.head) if self.head else self.get_text_config().hidden_size

    @property
    def settings(self) -> EncoderSettings:
        """Prompts, similarity and truncation."""
        return EncoderSettings.from_dict(self.encoder_settings)

    def validate_pooling(self) -> None:
        check_pooling(self.pooling)

    def default_head(self) -> HeadConfig:
        """The head of an encoder without one."""
        return new_head(self.get_text_config().hidden_size)

    def fill_in_head(self) -> None:
        """Sets `head`, with `pooling` and `normalize` in it."""
        self.head = changed_head(self.head or self.default_head(), self.pooling, self.normalize)
        self.pooling = self.normalize = None


def changed_head(head: HeadConfig, pooling: Any, normalize: bool | None) -> HeadConfig:
    """A head with another pooling, and with or without unit vectors at its end; None leaves it as it is."""
    if pooling is not None:
        head = with_pooling(head, pooling)
    return head if normalize is None else with_normalize(head, normalize)
