"""Configuration of dual momentum contrast."""

from collections.abc import Mapping
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils.type_validators import interval

from hf_xlsr.encoders.assembly import EncoderSettings
from hf_xlsr.encoders.heads import check_pooling, embedding_width, new_head, with_projection
from hf_xlsr.modeling.configuration import changed_head
from hf_xlsr.utils.errors import XlsrError, did_you_mean

SHARED = "shared"


@strict
class DualMomentumConfig(PreTrainedConfig):
    """Configuration of `DualMomentumModel`; the defaults are the paper's (table 9).

    Args:
        languages: Language codes, two or more; each has a memory queue.
        encoder_configs: Configuration of each language's encoder, by language: config objects, or dicts with
            `model_type`. A single entry named `shared` is one multilingual encoder for all languages.
        heads: Modules of sentence-transformers behind each encoder, by the encoder's name, see
            `hf_xlsr.encoders.heads.head_config`; a model fills them in when it is made.
        pooling: A mode of sentence-transformers' `Pooling` for all encoders, or a list of them; by default those of
            `heads`, and for an encoder without one `mean` (the paper).
        normalize: Whether the exported encoder gives unit vectors; by default as `heads` do, and for new heads true.
        train_head: Whether the weights of the heads are trained.
        projection_dim: Width of sentence embeddings after a linear projection of each encoder, a part of its head; 0
            for no projection: all encoders must then have the same width.
        transformer_options: What sentence-transformers' `Transformer` stores of each encoder, by its name.
        encoder_settings: Prompts, similarity and truncation, see `hf_xlsr.encoders.assembly.EncoderSettings`.
        queue_size: Keys kept for each language; 0 disables the queues.
        queue_storage: How keys are stored: `float32`, `bfloat16` or `int8` (with a scale for each row).
        temperature: Divides the similarities in equation 2.
        momentum: Share of a momentum encoder's weights that a step keeps, equation 1.
        use_momentum: If False, keys are the base encoder's own embeddings, without gradient (the paper's table 5).
        in_batch_negatives: Add the other keys of the batch, over all processes, to the negatives of the queue.
        mask_stale_keys: Remove a query's own translation, still in the queue from an earlier epoch, from its
            negatives. The paper keeps it.
        mask_duplicates: Likewise for keys of other pairs with exactly the translation's text.
        nli_labels: Classes of the auxiliary task; 0 for no classifier.
        nli_hidden_size: Hidden units of the classifier (appendix B).
        nli_dropout: Dropout on them.
        nli_weight: The factor of equation 5.

    Examples:
        >>> small = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2}
        >>> config = DualMomentumConfig(languages=["en", "zh"], encoder_configs={"en": small, "zh": small})
        >>> config.hidden_size, config.momentum
        (32, 0.999)
    """

    model_type = "dual_momentum"
    keys_to_ignore_at_inference = ["losses", "statistics", "source_keys", "target_keys"]

    languages: list[str] | None = None
    encoder_configs: dict[str, Any] | None = None
    heads: dict[str, Any] | None = None
    pooling: str | list | None = None
    normalize: bool | None = None
    train_head: bool = True
    transformer_options: dict | None = None
    encoder_settings: dict | None = None
    projection_dim: int = interval(min=0)(default=0)
    queue_size: int = interval(min=0)(default=409_600)
    queue_storage: Literal["float32", "bfloat16", "int8"] = "float32"
    temperature: float | int = interval(min=0, exclude_min=True)(default=0.04)
    momentum: float | int = interval(min=0, max=1)(default=0.999)
    use_momentum: bool = True
    in_batch_negatives: bool = False
    mask_stale_keys: bool = False
    mask_duplicates: bool = False
    nli_labels: int = interval(min=0)(default=0)
    nli_hidden_size: int = interval(min=1)(default=256)
    nli_dropout: float | int = interval(min=0, max=1, exclude_max=True)(default=0.1)
    nli_weight: float | int = interval(min=0)(default=0.1)

    def __post_init__(self, **kwargs: Any) -> None:
        if self.languages is None:
            self.languages = ["en", "zh"]
        given = self.encoder_configs or {language: {"model_type": "bert"} for language in self.languages}
        self.encoder_configs = {
            name: value if isinstance(value, PreTrainedConfig) else AutoConfig.for_model(**value)
            for name, value in given.items()
        }
        super().__post_init__(**kwargs)

    def validate_encoders(self) -> None:
        """Checks that each language has an encoder and that all sentence embeddings have one width."""
        languages, encoders = self.languages or [], self.encoder_configs or {}
        if len(languages) < 2 or len(set(languages)) < len(languages):
            raise ValueError(f"`languages` must be two or more different languages, got {languages}.")
        if set(encoders) not in ({SHARED}, set(languages)):
            raise ValueError(
                f"`encoder_configs` must have an entry for each of {', '.join(languages)}, or a single one named "
                f"'{SHARED}', got {', '.join(encoders)}."
            )
        widths = set(self.embedding_widths())
        if not self.projection_dim and len(widths) > 1:
            raise ValueError(f"`projection_dim` must be above 0 for encoders of different widths {sorted(widths)}.")

    def embedding_widths(self) -> list[int]:
        """Widths of the embeddings of each encoder's head, or of its states where it has none yet."""
        heads = self.heads or {}
        return [
            embedding_width(heads[name]) if name in heads else config.hidden_size
            for name, config in (self.encoder_configs or {}).items()
        ]

    def validate_pooling(self) -> None:
        check_pooling(self.pooling)

    def validate_negatives(self) -> None:
        """Checks that there are negatives: the loss would be 0."""
        if not self.queue_size and not self.in_batch_negatives:
            raise ValueError("`queue_size` is 0 and `in_batch_negatives` is False, so there are no negatives.")

    @property
    def hidden_size(self) -> int:
        """Width of a sentence embedding."""
        return self.projection_dim or self.embedding_widths()[0]

    @property
    def settings(self) -> EncoderSettings:
        """Prompts, similarity and truncation."""
        return EncoderSettings.from_dict(self.encoder_settings)

    def fill_in_heads(self) -> None:
        """Sets `heads`, with `pooling`, `normalize` and the projection in them."""
        given = self.heads or {}
        heads = {}
        for name, config in (self.encoder_configs or {}).items():
            head = changed_head(given.get(name) or new_head(config.hidden_size), self.pooling, self.normalize)
            heads[name] = with_projection(head, self.projection_dim) if self.projection_dim else head
        self.heads = heads
        self.pooling = self.normalize = None

    def encoder_of(self, language: str) -> str:
        """The name of a language's encoder: the language, or `shared`."""
        if language not in (self.languages or ()):
            raise XlsrError(f"Unknown language '{language}'; {did_you_mean(language, self.languages or ())}")
        return SHARED if SHARED in (self.encoder_configs or {}) else language

    def to_dict(self) -> dict[str, Any]:
        """The configuration, with those of the encoders, as JSON-serialisable values."""
        output = super().to_dict()
        nested = {name: config.to_dict() for name, config in (self.encoder_configs or {}).items()}
        for values in nested.values():
            values.pop("transformers_version", None)
        return {**output, "encoder_configs": nested}


def check_same(place: str, stored: Mapping[str, Any], expected: Any) -> None:
    """Checks that a configuration, or options of `from_pretrained`, has the settings of saved weights."""
    for name, saved in stored.items():
        value = expected.get(name, saved) if isinstance(expected, Mapping) else getattr(expected, name)
        if saved != value:
            raise XlsrError(
                f"`{name}` must be {saved}, as in '{place}', got {value}. To change it, start a new run from the "
                "encoders (DualMomentumModel.from_encoders)."
            )
