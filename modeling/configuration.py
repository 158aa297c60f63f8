"""What the configurations of all sentence encoders have in common."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.utils.type_validators import interval

from hf_xlsr.encoders.assembly import EncoderSettings
from hf_xlsr.encoders.heads import HeadConfig, check_pooling, embedding_width, new_head, with_normalize, with_pooling
from hf_xlsr.encoders.static import check_static_head
from hf_xlsr.utils.auto_classes import forget_code

# Fields of a configuration whose values have bounds.
at_least_zero = interval(min=0)
at_least_one = interval(min=1)
above_zero = interval(min=0, exclude_min=True)
share = interval(min=0, max=1)
proper_share = interval(min=0, max=1, exclude_min=True, exclude_max=True)


@strict
class EncoderSettingsConfig(PreTrainedConfig):
    """How the sentence encoders of a model pool, and the settings of sentence-transformers that they keep.

    Args:
        pooling: A mode of sentence-transformers' `Pooling`, or a list of them; by default that of the encoder, and for
            an encoder without one `mean`.
        normalize: Whether the exported encoder gives unit vectors; by default as the encoder does, and for an encoder
            without a head true.
        train_head: Whether the weights of the modules behind the encoder are trained.
        transformer_options: What sentence-transformers' `Transformer` stores, such as `max_seq_length`.
        encoder_settings: Prompts, similarity and truncation, see `hf_xlsr.encoders.assembly.EncoderSettings`.
    """

    pooling: str | list[str] | None = None
    normalize: bool | None = None
    train_head: bool = True
    transformer_options: dict[str, Any] | None = None
    encoder_settings: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        forget_code(self)

    @property
    def settings(self) -> EncoderSettings:
        """Prompts, similarity and truncation."""
        return EncoderSettings.from_dict(self.encoder_settings)

    def validate_pooling(self) -> None:
        """Checks that sentence-transformers has this pooling."""
        check_pooling(self.pooling)

    def configured_head(self, head: HeadConfig, encoder_config: Any) -> HeadConfig:
        """The head of an encoder with `pooling` and `normalize` in it, where they are set."""
        if self.pooling is not None:
            head = with_pooling(head, self.pooling)
        if self.normalize is not None:
            head = with_normalize(head, self.normalize)
        check_static_head(encoder_config, head)
        return head


@strict
class SentenceEncoderConfig(EncoderSettingsConfig):
    """Configuration of a model with one sentence encoder: its head, and the settings of sentence-transformers.

    A model fills in `head` when it is made, with the modules of a given encoder or with a new head; `pooling` and
    `normalize` then become a part of it.

    Args:
        head: Modules of sentence-transformers behind the encoder, see `hf_xlsr.encoders.heads.head_config`.
    """

    head: list[Any] | None = None

    @property
    def hidden_size(self) -> int:
        """Width of a sentence embedding."""
        return embedding_width(self.head) if self.head else self.get_text_config().hidden_size

    def default_head(self) -> HeadConfig:
        """The head of an encoder without one."""
        return new_head(self.get_text_config().hidden_size)

    def fill_in_head(self) -> None:
        """Sets `head`, with `pooling` and `normalize` in it."""
        self.head = self.configured_head(self.head or self.default_head(), self.get_text_config())
        self.pooling = None
        self.normalize = None
