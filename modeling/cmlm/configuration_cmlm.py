"""Configuration of CMLM."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from hf_xlsr.losses.sparse_targets import LOGITS
from hf_xlsr.utils.errors import XlsrError, nearest
from hf_xlsr.utils.field_types import check_fields
from hf_xlsr.utils.pooling import POOLING_MODES

CONDITIONINGS = ("input", "skip", "none")
SENTENCE_VECTORS = ("pooled", "projected")
PREFIX_POSITIONS = ("counted", "first")


@strict
class CmlmConfig(PreTrainedConfig):
    """Configuration of `CmlmModel`.

    The encoder is any stock Hugging Face encoder, described by `text_config`; without one it has the size of BERT base,
    which is the paper's.

    Args:
        text_config: Configuration of the encoder, a config object or a dict with `model_type`.
        pooling: `mean` (the paper), `max` or `cls`.
        projections: Vectors that stand for the first sentence (N), its own among them.
        conditioning: How the second sentence sees the first. `input`: the vectors stand before its embeddings. `skip`:
            besides, they meet the states of the masked pieces once more before these are decoded (table 7). `none`: not
            at all, which is plain masked language modelling of the second sentence, for comparison.
        sentence_vector: What represents a sentence: the `pooled` states, or the mean of the `projected` vectors
            (`proj` in table 7).
        prefix_positions: Position numbers of the vectors before the second sentence. `counted`: they take the first
            ones, and the sentence those behind, as the concatenation has it; the encoder then needs room for both.
            `first`: all of them take the first one, and the sentence is numbered as if it stood alone.
        prefix_length: Places before the second sentence; those that no vector fills are masked. With it, models with
            different numbers of projections number the sentence alike. The number of projections when absent.
        prefix_token_type: Token type of those places, in an encoder that has token types.
        mlm_probability: Share of the pieces of the second sentence that are masked, exact for each sentence: 80 of 256.
            80 % of them become the mask, 10 % a random piece, 10 % stay.
        logits_chunk_size: Vocabulary logits held at a time.
        tie_word_embeddings: Whether the language model's decoder is the embedding table.
        cmlm_weight: Weight of conditional masked language modelling; 0 leaves it out.
        retrieval_weight: Weight of bitext retrieval (alpha); 0 leaves it out.
        nli_weight: Weight of natural language inference, of which the paper says nothing; 0 leaves it out.
        retrieval_margin: Additive margin (m).
        retrieval_scale: Multiplies similarities and margin; the paper's text has none, which is 1.
        retrieval_normalize: Compare translations by cosine; the paper's text has the inner product.
        nli_labels: Classes of natural language inference; 0 for a model without its classifier.

    Example:
        >>> CmlmConfig(text_config={"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4}).prefix_places
        15
    """

    model_type = "cmlm"
    sub_configs_defaults = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="bert")}
    keys_to_ignore_at_inference = ["losses", "statistics", "source_embeds", "target_embeds"]

    text_config: PreTrainedConfig | dict | None = None
    pooling: str = "mean"
    projections: int = 15
    conditioning: str = "input"
    sentence_vector: str = "pooled"
    prefix_positions: str = "counted"
    prefix_length: int | None = None
    prefix_token_type: int = 0
    mlm_probability: float = 80 / 256
    logits_chunk_size: int = LOGITS
    tie_word_embeddings: bool = True
    cmlm_weight: float = 1.0
    retrieval_weight: float = 0.2
    nli_weight: float = 1.0
    retrieval_margin: float = 0.3
    retrieval_scale: float = 1.0
    retrieval_normalize: bool = False
    nli_labels: int = 0

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_fields(self, CmlmConfig)
        for name, known in (
            ("pooling", POOLING_MODES),
            ("conditioning", CONDITIONINGS),
            ("sentence_vector", SENTENCE_VECTORS),
            ("prefix_positions", PREFIX_POSITIONS),
        ):
            if getattr(self, name) not in known:
                raise XlsrError(f"{name} is '{getattr(self, name)}'; {nearest(getattr(self, name), known)}")
        if self.projections < 1:
            raise XlsrError(
                f"projections is {self.projections}; the sentence's own vector is one of them: use 1 or more, or "
                "conditioning none for plain masked language modelling."
            )
        if self.prefix_length is not None and self.prefix_length < self.projections:
            raise XlsrError(
                f"prefix_length is {self.prefix_length}, fewer places than the {self.projections} projections; raise it, "
                "or leave it out."
            )
        types = getattr(self.get_text_config(), "type_vocab_size", None) or 1
        if not 0 <= self.prefix_token_type < types:
            raise XlsrError(
                f"prefix_token_type is {self.prefix_token_type} but the encoder has {types} token type(s), numbered from "
                "0; use one of them."
            )
        if not 0 < self.mlm_probability < 1:
            raise XlsrError(f"mlm_probability is {self.mlm_probability}; use a share between 0 and 1, such as 0.3125.")
        for name in ("cmlm_weight", "retrieval_weight", "nli_weight", "retrieval_margin"):
            if getattr(self, name) < 0:
                raise XlsrError(f"{name} is {getattr(self, name)}; use 0 (off) or more.")
        if not any((self.cmlm_weight, self.retrieval_weight, self.nli_weight)):
            raise XlsrError("cmlm_weight, retrieval_weight and nli_weight are all 0; leave at least one of them on.")
        if self.retrieval_scale <= 0:
            raise XlsrError(f"retrieval_scale is {self.retrieval_scale}; use a number above 0.")
        if self.logits_chunk_size < 1:
            raise XlsrError(f"logits_chunk_size is {self.logits_chunk_size}; use 1 or more.")
        if self.nli_labels < 0 or self.nli_labels == 1:
            raise XlsrError(f"nli_labels is {self.nli_labels}; use 3, or 0 for no classifier.")

    @property
    def hidden_size(self) -> int:
        """Width of the encoder's states and of sentence vectors."""
        return self.get_text_config().hidden_size

    @property
    def prefix_places(self) -> int:
        """Places before the second sentence, with those that are masked."""
        if self.conditioning == "none":
            return 0
        return self.projections if self.prefix_length is None else self.prefix_length

    @property
    def positions_before(self) -> int:
        """Positions that the encoder needs beside those of a sentence."""
        return self.prefix_places if self.prefix_positions == "counted" else 0
