"""Configuration of HICTL's models."""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from hf_xlsr.encoders.stock import ATTENTION_DROPOUTS, STATE_DROPOUTS, own_dropout
from hf_xlsr.losses.sparse_targets import LOGITS
from hf_xlsr.utils.errors import XlsrError, nearest
from hf_xlsr.utils.field_types import check_fields

WORD_QUERIES = ("plain", "masked")

# Of the decoder, where the encoder has no table of positions to take the number from.
POSITIONS = 512


@strict
class HictlConfig(PreTrainedConfig):
    """Configuration of `HictlForPreTraining`, `HictlForSequenceClassification` and `HictlForConditionalGeneration`.

    The encoder is any stock Hugging Face encoder, described by `text_config`; without one it has the size of XLM-R base,
    which is the paper's.

    Args:
        text_config: Configuration of the encoder, a config object or a dict with `model_type`.
        sentence_temperature: Divides the cosines of equations 2 and 3. The paper's text has none, which is 1.
        word_temperature: Divides the cosines of equation 5, likewise.
        sampling_temperature: Divides the cosines by which negative words are drawn; the paper draws "according to the
            normalized similarities".
        negative_words: How many negative words each pair draws (m).
        word_query: What the query of the word-level contrast is the first state of. `plain`: the two sentences together,
            as section 3.1 has it, in a pass of its own. `masked`: the input of the language model, whose pass then serves
            both; a quarter to a third of the time is saved.
        lm_weight: Weight of the language model in equation 7.
        sentence_weight: Weight of the sentence-level contrast; 0 leaves it out.
        word_weight: Weight of the word-level contrast; 0 leaves it out.
        mlm_probability: Share of masked pieces, 80/10/10 as in BERT.
        logits_chunk_size: Vocabulary logits held at a time.
        tie_word_embeddings: Whether the language model's decoder is the embedding table.
        classifier_dropout: Before the output layer of `HictlForSequenceClassification`; the encoder's own when absent.
        decoder_layers: Of `HictlForConditionalGeneration`; its width and heads are the encoder's.
        decoder_attention_heads: When they are not the encoder's.
        decoder_ffn_dim: When it is not the encoder's.
        word_similarity: Whether the similarities of the sentence vector and all words are added to the decoder's logits.

    Example:
        >>> config = HictlConfig(text_config={"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4})
        >>> config.hidden_size, config.negative_words
        (64, 512)
    """

    model_type = "hictl"
    sub_configs_defaults = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="xlm-roberta")}
    keys_to_ignore_at_inference = ["losses", "source_embeds", "target_embeds"]

    text_config: PreTrainedConfig | dict | None = None
    sentence_temperature: float = 1.0
    word_temperature: float = 1.0
    sampling_temperature: float = 1.0
    negative_words: int = 512
    word_query: str = "plain"
    lm_weight: float = 1.0
    sentence_weight: float = 1.0
    word_weight: float = 1.0
    mlm_probability: float = 0.15
    logits_chunk_size: int = LOGITS
    tie_word_embeddings: bool = True
    classifier_dropout: float | None = None
    decoder_layers: int = 4
    decoder_attention_heads: int | None = None
    decoder_ffn_dim: int | None = None
    word_similarity: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        if self.text_config is None:
            self.text_config = AutoConfig.for_model(
                "xlm-roberta", vocab_size=250_002, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
            )
        super().__post_init__(**kwargs)
        check_fields(self, HictlConfig)
        if self.word_query not in WORD_QUERIES:
            raise XlsrError(f"word_query is '{self.word_query}'; {nearest(self.word_query, WORD_QUERIES)}")
        for name in ("sentence_temperature", "word_temperature", "sampling_temperature"):
            if getattr(self, name) <= 0:
                raise XlsrError(f"{name} is {getattr(self, name)}; a temperature is above 0.")
        for name in ("lm_weight", "sentence_weight", "word_weight"):
            if getattr(self, name) < 0:
                raise XlsrError(f"{name} is {getattr(self, name)}; a weight is 0 (off) or above.")
        if not any((self.lm_weight, self.sentence_weight, self.word_weight)):
            raise XlsrError("lm_weight, sentence_weight and word_weight are all 0; leave at least one of them on.")
        for name in ("negative_words", "logits_chunk_size", "decoder_layers"):
            if getattr(self, name) < 1:
                raise XlsrError(f"{name} is {getattr(self, name)}; use 1 or more.")
        if not 0 < self.mlm_probability < 1:
            raise XlsrError(f"mlm_probability is {self.mlm_probability}; use a share between 0 and 1.")
        if self.classifier_dropout is not None and not 0 <= self.classifier_dropout < 1:
            raise XlsrError(
                f"classifier_dropout is {self.classifier_dropout}; it is a share, 0 or above and less than 1."
            )

    @property
    def hidden_size(self) -> int:
        """Width of the encoder's states."""
        return self.get_text_config().hidden_size

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """The encoder's configuration; of a translation model with `decoder` the decoder's, for which caches are made."""
        if decoder and not encoder and self.is_encoder_decoder:
            return self.decoder_config()
        return super().get_text_config(decoder, encoder)

    def decoder_config(self, positions: int = POSITIONS) -> PreTrainedConfig:
        """The decoder as a stock configuration: BERT's layers with cross-attention, of the encoder's width.

        Args:
            positions: Longest target, in pieces.

        Example:
            >>> text_config = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
            >>> decoder = HictlConfig(text_config=text_config).decoder_config(40)
            >>> decoder.num_hidden_layers, decoder.num_attention_heads, decoder.intermediate_size
            (4, 2, 16)
        """
        encoder = self.get_text_config()
        same = (
            *("layer_norm_eps", "initializer_range"),
            *("bos_token_id", "eos_token_id", "pad_token_id"),
        )
        # An encoder that has but one of the two kinds of dropout gives it for both.
        of_states = own_dropout(encoder, (*STATE_DROPOUTS, *ATTENTION_DROPOUTS), 0.0)
        of_attention = own_dropout(encoder, (*ATTENTION_DROPOUTS, *STATE_DROPOUTS), 0.0)
        return AutoConfig.for_model(
            "bert",
            vocab_size=encoder.vocab_size,
            type_vocab_size=1,
            hidden_size=encoder.hidden_size,
            num_hidden_layers=self.decoder_layers,
            num_attention_heads=self.decoder_attention_heads or encoder.num_attention_heads,
            intermediate_size=self.decoder_ffn_dim
            or getattr(encoder, "intermediate_size", None)
            or 4 * encoder.hidden_size,
            max_position_embeddings=positions,
            is_decoder=True,
            add_cross_attention=True,
            hidden_dropout_prob=of_states,
            attention_probs_dropout_prob=of_attention,
            **{name: getattr(encoder, name) for name in same if hasattr(encoder, name)},
        )
