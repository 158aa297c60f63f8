"""Configuration of dual momentum contrast."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.utils.type_validators import interval

from hf_xlsr.encoders.heads import embedding_width, new_head, with_projection
from hf_xlsr.losses.queue_info_nce import TEMPERATURE
from hf_xlsr.modeling.configuration import EncoderSettingsConfig, above_zero, at_least_one, at_least_zero, share
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.files import path_name

SHARED = "shared"
QUEUE_SIZE = 4096
MOMENTUM = 0.99


@strict
class DualMomentumConfig(EncoderSettingsConfig):
    """Configuration of `DualMomentumModel`.

    The defaults suit some thousands of translation pairs. The paper's values, for millions (table 9), are in the recipe
    `moco_bert_en_zh`.

    Args:
        languages: Language codes, two or more; each has a memory queue.
        encoder_configs: Configuration of each language's encoder, by language: config objects, or dicts with
            `model_type`. A single entry named `shared` is one multilingual encoder for all languages.
        heads: Modules of sentence-transformers behind each encoder, by the encoder's name, see
            `hf_xlsr.encoders.heads.head_config`; a model fills them in when it is made.
        projection_dim: Width of sentence embeddings after a linear projection of each encoder, a part of its head; 0
            for no projection: all encoders must then have the same width.
        transformer_options: What sentence-transformers' `Transformer` stores of each encoder, by its name.
        queue_size: Keys kept for each language, 409,600 in the paper; 0 disables the queues.
        queue_storage: How keys are stored: `float32`, `bfloat16` or `int8` (with a scale for each row).
        temperature: Divides the similarities in equation 2.
        momentum: Share of a momentum encoder's weights that a step keeps, equation 1; 0.999
            in the paper.
        use_momentum: If False, keys are the base encoder's own embeddings, without gradient (the paper's table 5).
        in_batch_negatives: Add the other keys of the batch, over all processes, to the negatives of the queue. The
            paper has the queue alone.
        mask_stale_keys: Remove a query's own translation, still in the queue from an earlier epoch, from its
            negatives. The paper keeps it.
        mask_duplicates: Likewise for keys of other pairs with exactly the translation's text.
        split_softmax: Normalise hard negatives apart from queue and batch: the loss of the sources is then the sum of
            the loss without them and of that of the translation among them alone, as the split softmax of
            Omnilingual SONAR.
        nli_labels: Classes of the auxiliary task; 0 for no classifier.
        nli_hidden_size: Hidden units of the classifier (appendix B).
        nli_dropout: Dropout on them.
        nli_weight: The factor of equation 5.

    Examples:
        >>> small = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2}
        >>> config = DualMomentumConfig(languages=["en", "zh"], encoder_configs={"en": small, "zh": small})
        >>> config.hidden_size, config.momentum
        (32, 0.99)
    """

    model_type = "dual_momentum"
    keys_to_ignore_at_inference = ["losses", "statistics", "source_keys", "target_keys"]

    languages: list[str] = field(default_factory=lambda: ["en", "zh"])
    encoder_configs: dict[str, Any] = field(default_factory=dict)
    heads: dict[str, Any] | None = None
    projection_dim: int = at_least_zero(default=0)
    queue_size: int = at_least_zero(default=QUEUE_SIZE)
    queue_storage: Literal["float32", "bfloat16", "int8"] = "float32"
    temperature: float | int = above_zero(default=TEMPERATURE)
    momentum: float | int = share(default=MOMENTUM)
    use_momentum: bool = True
    in_batch_negatives: bool = True
    mask_stale_keys: bool = True
    mask_duplicates: bool = True
    split_softmax: bool = False
    nli_labels: int = at_least_zero(default=0)
    nli_hidden_size: int = at_least_one(default=256)
    nli_dropout: float | int = interval(min=0, max=1, exclude_max=True)(default=0.1)
    nli_weight: float | int = at_least_zero(default=0.1)

    def __post_init__(self, **kwargs: Any) -> None:
        encoder_configs = dict(self.encoder_configs or dict.fromkeys(self.languages, {"model_type": "bert"}))
        for name, config in encoder_configs.items():
            if not isinstance(config, PreTrainedConfig):
                encoder_configs[name] = AutoConfig.for_model(**config)
        self.encoder_configs = encoder_configs
        super().__post_init__(**kwargs)

    def validate_encoders(self) -> None:
        """Checks that each language has an encoder and that all sentence embeddings have one width."""
        languages = [path_name(language, "language") for language in self.languages]
        encoders = self.encoder_configs
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
        widths = []
        for name, config in self.encoder_configs.items():
            widths.append(embedding_width(heads[name]) if name in heads else config.hidden_size)
        return widths

    def validate_negatives(self) -> None:
        """Checks that there are negatives: the loss would be 0."""
        if not self.queue_size and not self.in_batch_negatives:
            raise ValueError("`queue_size` is 0 and `in_batch_negatives` is False, so there are no negatives.")

    @property
    def hidden_size(self) -> int:
        """Width of a sentence embedding."""
        return self.projection_dim or self.embedding_widths()[0]

    def fill_in_heads(self) -> None:
        """Sets `heads`, with `pooling`, `normalize` and the projection in them."""
        stored_heads = self.heads or {}
        heads = {}
        for name, config in self.encoder_configs.items():
            head = self.configured_head(stored_heads.get(name) or new_head(config.hidden_size), config)
            if self.projection_dim:
                head = with_projection(head, self.projection_dim)
            heads[name] = head
        self.heads = heads
        self.pooling = None
        self.normalize = None

    def encoder_of(self, language: str) -> str:
        """The name of a language's encoder: the language, or `shared`."""
        if language not in self.languages:
            raise XlsrError(f"Unknown language '{language}'; {did_you_mean(language, self.languages)}")
        return SHARED if SHARED in self.encoder_configs else language

    def to_dict(self) -> dict[str, Any]:
        """The configuration, with those of the encoders, as JSON-serialisable values."""
        encoder_configs = {name: config.to_dict() for name, config in self.encoder_configs.items()}
        for values in encoder_configs.values():
            values.pop("transformers_version", None)
        return {**super().to_dict(), "encoder_configs": encoder_configs}


def check_same(folder: str, stored: Mapping[str, Any], expected: Any) -> None:
    """Checks that a configuration, or options of `from_pretrained`, has the settings of saved weights."""
    values = expected if isinstance(expected, Mapping) else vars(expected)
    for name, stored_value in stored.items():
        value = values.get(name, stored_value)
        if stored_value != value:
            raise XlsrError(
                f"`{name}` must be {stored_value}, as in '{folder}', got {value}. To change it, start a new run from "
                "the encoders (DualMomentumModel.from_encoders)."
            )
