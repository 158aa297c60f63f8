"""Configuration of the lightweight dual transformer."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from hf_xlsr.losses.similarity import SIMILARITY_REDUCTIONS
from hf_xlsr.losses.sparse_targets import LOGITS
from hf_xlsr.losses.unified_generative import GENERATIVE_TASKS, LABEL_MODES
from hf_xlsr.utils.errors import XlsrError, nearest
from hf_xlsr.utils.field_types import check_fields
from hf_xlsr.utils.pooling import POOLING_MODES

INITIALIZATIONS = ("bert", "released")


def paper_encoder_config(**overrides: Any) -> PreTrainedConfig:
    """The encoder of the paper's section 4.1 as a stock BERT configuration.

    Two layers, width 512, 8 heads, filter size 1,024, dropout 0.1; swish, learned positions and post-layer
    normalisation as in the released code. Position rows exist for 256 pieces, sentences are cut at 200.

    Example:
        >>> paper_encoder_config(num_hidden_layers=1).hidden_size
        512
    """
    values: dict[str, Any] = {
        "vocab_size": 50_000,
        "hidden_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 256,
        "type_vocab_size": 1,
        "pad_token_id": 0,
    }
    return AutoConfig.for_model("bert", **{**values, **overrides})


@strict
class LightweightConfig(PreTrainedConfig):
    """Configuration of `LightweightDualTransformer`.

    The encoder is any Hugging Face encoder, described by `text_config`; without one it is the paper's (see
    `paper_encoder_config`). Values that the released code chose otherwise than the paper's text are named beside it.

    Args:
        text_config: Configuration of the shared encoder, a config object or a dict with `model_type`.
        pooling: `mean` (the paper), `max` or `cls`.
        generative_task: `ugt` (the paper), `smlm`, `xtr`, `mlm`, or `mlm+xtr` (half the token-level masked LM, half
            the reconstruction, as `ugt` halves its two).
        label_mode: `accumulate` (the paper's equations) or `set` (released code).
        mask_punctuation: Whether a piece of punctuation may be the one that is hidden (released code: no).
        mlm_probability: Share of masked pieces for `mlm` (80/10/10 as in BERT).
        alignment_temperature: Divides the similarities of equation 5.
        alignment_normalize: Cosine in equation 5 instead of the paper's inner product.
        similarity_temperature: Divides the similarities of equation 6.
        similarity_normalize: Cosine in equation 6.
        similarity_reduction: `batchmean`, or `sum` (released code).
        similarity_epsilon: Keeps the difference of equation 6 away from 1.
        generative_weight: Weight of equation 2 in equation 7.
        alignment_weight: Weight of equation 5.
        similarity_weight: Weight of equation 6.
        initialization: `bert` (normal, `text_config.initializer_range`) or `released` (PyTorch's defaults: N(0, 1)
            embeddings and Kaiming-uniform linear layers, all layers alike at the start).
        logits_chunk_size: Vocabulary logits held at a time.

    Example:
        >>> encoder = {"model_type": "bert", "hidden_size": 256, "num_attention_heads": 4}
        >>> config = LightweightConfig(text_config=encoder)
        >>> config.hidden_size, config.alignment_weight
        (256, 2.0)
    """

    model_type = "lightweight_dual_transformer"
    sub_configs_defaults = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="bert")}
    keys_to_ignore_at_inference = ["losses", "source_embeds", "target_embeds"]

    text_config: PreTrainedConfig | dict | None = None
    pooling: str = "mean"
    generative_task: str = "ugt"
    label_mode: str = "accumulate"
    mask_punctuation: bool = False
    mlm_probability: float = 0.15
    alignment_temperature: float = 1.0
    alignment_normalize: bool = False
    similarity_temperature: float = 1.0
    similarity_normalize: bool = False
    similarity_reduction: str = "batchmean"
    similarity_epsilon: float = 1e-4
    generative_weight: float = 1.0
    alignment_weight: float = 2.0
    similarity_weight: float = 2.0
    initialization: str = "bert"
    logits_chunk_size: int = LOGITS

    def __post_init__(self, **kwargs: Any) -> None:
        if self.text_config is None:
            self.text_config = paper_encoder_config()
        super().__post_init__(**kwargs)
        check_fields(self, LightweightConfig)
        for name, value, allowed in (
            ("pooling", self.pooling, POOLING_MODES),
            ("generative_task", self.generative_task, GENERATIVE_TASKS),
            ("label_mode", self.label_mode, LABEL_MODES),
            ("similarity_reduction", self.similarity_reduction, SIMILARITY_REDUCTIONS),
            ("initialization", self.initialization, INITIALIZATIONS),
        ):
            if value not in allowed:
                raise XlsrError(f"{name} is '{value}'; {nearest(str(value), allowed)}")
        for name in ("alignment_temperature", "similarity_temperature"):
            if getattr(self, name) <= 0:
                raise XlsrError(f"{name} is {getattr(self, name)}; a temperature is above 0.")
        for name in ("generative_weight", "alignment_weight", "similarity_weight"):
            if getattr(self, name) < 0:
                raise XlsrError(f"{name} is {getattr(self, name)}; a weight is 0 (off) or above.")
        if not 0 < self.mlm_probability < 1:
            raise XlsrError(f"mlm_probability is {self.mlm_probability}; use a share between 0 and 1.")
        if not 1e-6 <= self.similarity_epsilon < 1:
            # Nearer to 1 the cosine is 0 in float32, and the loss is not a number.
            raise XlsrError(f"similarity_epsilon is {self.similarity_epsilon}; use 1e-6 or more, and less than 1.")
        if self.logits_chunk_size < 1:
            raise XlsrError(f"logits_chunk_size is {self.logits_chunk_size}; hold 1 logit or more at a time.")

    @property
    def hidden_size(self) -> int:
        """Width of the sentence vector."""
        return self.get_text_config().hidden_size
