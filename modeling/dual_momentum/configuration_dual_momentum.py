"""Configuration of dual momentum contrast."""

from __future__ import annotations

import math
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import AutoConfig, PreTrainedConfig

from hf_xlsr.losses.row_storage import STORAGES
from hf_xlsr.utils.errors import XlsrError, nearest
from hf_xlsr.utils.field_types import check_fields
from hf_xlsr.utils.pooling import POOLING_MODES

SHARED = "shared"


@strict
class DualMomentumConfig(PreTrainedConfig):
    """Configuration of `DualMomentumModel`; the defaults are the paper's (its table 9).

    Args:
        languages: Language codes, two or more; each has a memory queue.
        encoder_configs: Configuration of each language's encoder, by language: config objects, or dicts with
            `model_type`. One entry named `shared` is one multilingual encoder for all languages.
        pooling: `mean` (the paper), `max` or `cls`.
        projection_dim: Width of the sentence vector behind a linear projection for each encoder; 0 takes the
            encoders' own width, which they must then agree on.
        queue_size: Keys kept for each language; 0 leaves the queues out.
        queue_storage: How keys are stored: `float32`, `bfloat16` or `int8` (a scale for each row).
        temperature: Divides the similarities in equation 2.
        momentum: The share of a momentum encoder's weights that a step keeps, equation 1.
        use_momentum: False takes the base encoder's own vectors, without gradient, as keys (the paper's table 5).
        key_encoder_dropout: Whether momentum encoders run with dropout. The paper does not say; here they do not.
        in_batch_negatives: Adds the other keys of the batch, over all processes, to the negatives of the queue.
        mask_stale_keys: Leaves a query's own translation, still in the queue from an earlier epoch, out of its
            negatives. The paper keeps it.
        mask_duplicates: Likewise for keys of other pairs whose text is exactly the translation's.
        nli_labels: Classes of the auxiliary task; 0 leaves its head out.
        nli_hidden_size: Hidden units of the head (appendix B).
        nli_dropout: Dropout on them.
        nli_weight: The factor of equation 5.

    Raises:
        XlsrError: a value is out of its range, or encoders, languages and widths do not go together.

    Example:
        >>> small = {"model_type": "bert", "hidden_size": 32, "num_attention_heads": 2}
        >>> config = DualMomentumConfig(languages=["en", "zh"], encoder_configs={"en": small, "zh": small})
        >>> config.hidden_size, config.momentum
        (32, 0.999)
    """

    model_type = "dual_momentum"
    keys_to_ignore_at_inference = ["losses", "statistics", "source_keys", "target_keys"]

    languages: list[str] | None = None
    encoder_configs: dict[str, Any] | None = None
    pooling: str = "mean"
    projection_dim: int = 0
    queue_size: int = 409_600
    queue_storage: str = "float32"
    temperature: float = 0.04
    momentum: float = 0.999
    use_momentum: bool = True
    key_encoder_dropout: bool = False
    in_batch_negatives: bool = False
    mask_stale_keys: bool = False
    mask_duplicates: bool = False
    nli_labels: int = 0
    nli_hidden_size: int = 256
    nli_dropout: float = 0.1
    nli_weight: float = 0.1

    def __post_init__(self, **kwargs: Any) -> None:
        if self.languages is None:
            self.languages = ["en", "zh"]
        given = self.encoder_configs or {language: {"model_type": "bert"} for language in self.languages}
        self.encoder_configs = {name: _as_config(name, value) for name, value in given.items()}
        super().__post_init__(**kwargs)
        check_fields(self, DualMomentumConfig)
        self._check_encoders()
        self._check_values()

    def _check_encoders(self) -> None:
        languages, encoders = self.languages or [], self.encoder_configs or {}
        if len(set(languages)) < 2 or len(set(languages)) < len(languages):
            raise XlsrError(f"languages is {languages}; dual momentum contrast needs two or more different ones.")
        for language in languages:
            if "." in language or hasattr(nn.Module, language):
                raise XlsrError(
                    f"languages has '{language}', which torch cannot take for the name of a module; use another code of "
                    "the language, for example its ISO 639-3 one."
                )
        if set(encoders) != {SHARED} and set(encoders) != set(languages):
            raise XlsrError(
                f"encoder_configs has {', '.join(encoders)} but languages is {languages}; give one for each language, "
                f"or a single one named '{SHARED}'."
            )
        widths = {name: config.hidden_size for name, config in encoders.items()}
        if not self.projection_dim and len(set(widths.values())) > 1:
            given = ", ".join(f"{name} {width}" for name, width in widths.items())
            raise XlsrError(f"the encoders are of different width ({given}); set projection_dim to project them.")

    def _check_values(self) -> None:
        for name, value, allowed in (
            ("pooling", self.pooling, POOLING_MODES),
            ("queue_storage", self.queue_storage, STORAGES),
        ):
            if value not in allowed:
                raise XlsrError(f"{name} is '{value}'; {nearest(str(value), allowed)}")
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise XlsrError(f"temperature is {self.temperature}; it is a number above 0.")
        if not 0 <= self.momentum <= 1:
            raise XlsrError(f"momentum is {self.momentum}; it is the share of the old weights kept, 0 to 1.")
        if min(self.queue_size, self.projection_dim, self.nli_labels) < 0 or self.nli_hidden_size < 1:
            raise XlsrError(
                "queue_size, projection_dim, nli_labels and nli_hidden_size are counts; mend the negative."
            )
        if not self.queue_size and not self.in_batch_negatives:
            raise XlsrError("queue_size is 0 and in_batch_negatives is false; one of them has to give negatives.")
        if not 0 <= self.nli_dropout < 1 or self.nli_weight < 0:
            raise XlsrError("nli_dropout is a share below 1 and nli_weight a factor of 0 or above; mend them.")

    @property
    def hidden_size(self) -> int:
        """Width of the sentence vector."""
        encoders = self.encoder_configs or {}
        return self.projection_dim or next(iter(encoders.values())).hidden_size

    def encoder_of(self, language: str) -> str:
        """The name of a language's encoder: the language, or `shared`.

        Raises:
            XlsrError: no encoder takes the language.
        """
        if language not in (self.languages or ()):
            raise XlsrError(f"language '{language}' has no encoder here; {nearest(language, self.languages or ())}")
        return SHARED if SHARED in (self.encoder_configs or {}) else language

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON takes it, those of the encoders inside."""
        output = super().to_dict()
        nested = {name: config.to_dict() for name, config in (self.encoder_configs or {}).items()}
        for values in nested.values():
            values.pop("transformers_version", None)
        return {**output, "encoder_configs": nested}


def _as_config(name: str, value: Any) -> PreTrainedConfig:
    if isinstance(value, PreTrainedConfig):
        return value
    if not isinstance(value, dict) or "model_type" not in value:
        raise XlsrError(f"encoder_configs '{name}' is {value!r}; give a configuration, or a dict with model_type.")
    options = dict(value)
    return AutoConfig.for_model(options.pop("model_type"), **options)
