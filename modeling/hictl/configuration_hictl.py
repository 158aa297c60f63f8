"""Configuration of HICTL's models."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from hf_xlsr.encoders.heads import HeadConfig, new_head
from hf_xlsr.encoders.stock import ATTENTION_DROPOUTS, STATE_DROPOUTS, own_dropout
from hf_xlsr.losses.cross_entropy import LOGITS
from hf_xlsr.modeling.configuration import (
    SentenceEncoderConfig,
    above_zero,
    at_least_one,
    at_least_zero,
    proper_share,
    share,
)
from hf_xlsr.utils.errors import XlsrError

POSITIONS = 512  # of the decoder, for encoders without a table of positions


@strict
class HictlConfig(SentenceEncoderConfig):
    """Configuration of `HictlForPreTraining`, `HictlForSequenceClassification` and `HictlForConditionalGeneration`.

    The encoder is any stock Hugging Face encoder, described by `text_config`; by default it has the size of XLM-R base,
    as in the paper.

    Args:
        text_config: Configuration of the encoder, a config object or a dict with `model_type`.
        sentence_temperature: Divides the cosines of equations 2 and 3. The paper's text has none, which is 1.
        negative_interpolation: How far negative sentences move towards a sentence as the contrast gets easier: the ζ of
            the published version, which has 0.9; see `sentence_contrast_loss`. 0 (the earlier text) leaves them. At a
            `sentence_temperature` of 1 they move by about 1 %: the contrast stays hard.
        split_softmax: Normalise hard negatives apart from the batch, see `hf_xlsr.losses.in_batch.split_cross_entropy`.
        word_temperature: Divides the cosines of equation 5, likewise.
        sampling_temperature: Divides the cosines that are the sampling weights of negative words; the paper samples
            "according to the normalized similarities".
        negative_words: Negative words sampled for each pair (m).
        word_query: The query of the word-level contrast is the first state of this input. `plain`: both sentences, as
            in section 3.1, in a pass of their own. `masked`: the language model's input, so that one pass serves both;
            it saves a quarter to a third of the time.
        lm_weight: Weight of the language model in equation 7.
        sentence_weight: Weight of the sentence-level contrast; 0 disables it.
        word_weight: Weight of the word-level contrast; 0 disables it.
        mlm_probability: Share of masked tokens, 80/10/10 as in BERT.
        logits_chunk_size: Maximum number of vocabulary logits in memory at a time.
        classifier_dropout: Before the output layer of `HictlForSequenceClassification`; defaults to the encoder's.
        classifier_input: What that layer reads. `first_state`: of a sentence, or of a pair in one row, as in the paper.
            `embedding`: the sentence embedding that `head` makes. `embedding_pair`: `[u, v, |u - v|, u * v]` of the
            embeddings of both texts of a row, the second of which has the token type 1.
        prompt_length: Tokens of the prompt before these texts, which a pooling with `include_prompt: false` leaves out.
        keep_end: Whether a truncated text of such a pair keeps its last token, because the tokenizer ends texts with one.
        decoder_layers: Layers of `HictlForConditionalGeneration`'s decoder, which has the encoder's other sizes.
        word_similarity: Whether the similarities of sentence embedding and words are added to the decoder's logits.

    Examples:
        >>> config = HictlConfig(text_config={"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4})
        >>> config.hidden_size, config.negative_words
        (64, 512)
    """

    model_type = "hictl"
    sub_configs_defaults = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="xlm-roberta")}
    keys_to_ignore_at_inference = ["losses", "source_embeds", "target_embeds"]

    text_config: PreTrainedConfig | dict[str, Any] | None = None
    sentence_temperature: float | int = above_zero(default=1.0)
    negative_interpolation: float | int = share(default=0.0)
    split_softmax: bool = False
    word_temperature: float | int = above_zero(default=1.0)
    sampling_temperature: float | int = above_zero(default=1.0)
    negative_words: int = at_least_one(default=512)
    word_query: Literal["plain", "masked"] = "plain"
    lm_weight: float | int = at_least_zero(default=1.0)
    sentence_weight: float | int = at_least_zero(default=1.0)
    word_weight: float | int = at_least_zero(default=1.0)
    mlm_probability: float = proper_share(default=0.15)
    logits_chunk_size: int = at_least_one(default=LOGITS)
    classifier_dropout: float | int | None = None
    classifier_input: Literal["first_state", "embedding", "embedding_pair"] = "first_state"
    prompt_length: int = at_least_zero(default=0)
    keep_end: bool = True
    decoder_layers: int = at_least_one(default=4)
    word_similarity: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        num_labels = kwargs.get("num_labels")
        for name in ("id2label", "label2id"):
            labels = getattr(self, name)
            # transformers would replace the names.
            if labels and num_labels is not None and len(labels) != num_labels:
                raise XlsrError(
                    f"`num_labels` must be {len(labels)}, the number of names in `{name}`, got {num_labels}."
                )
        if self.label2id and not self.id2label:
            self.id2label = {int(number): str(label) for label, number in self.label2id.items()}
        if self.text_config is None:
            self.text_config = AutoConfig.for_model(
                "xlm-roberta", vocab_size=250_002, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5
            )
        super().__post_init__(**kwargs)

    @property
    def reads_masked_input(self) -> bool:
        """Whether a loss needs the language model's input: its own, or the contrast of words with a masked query."""
        masked_query = self.word_weight > 0 and self.word_query == "masked"
        return self.lm_weight > 0 or masked_query

    def default_head(self) -> HeadConfig:
        """The paper's: a linear projection of the first state, of the same width."""
        width = self.get_text_config().hidden_size
        return new_head(width, "cls", dimension=width, bias=True)

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> PreTrainedConfig:
        """The encoder's configuration; with `decoder`, that of a translation model's decoder, which sizes caches."""
        if decoder and not encoder and self.is_encoder_decoder:
            return self.decoder_config()
        return super().get_text_config(decoder, encoder)

    def decoder_config(self, positions: int = POSITIONS) -> PreTrainedConfig:
        """Stock configuration of the decoder: BERT layers with cross-attention, of the encoder's width."""
        encoder = self.get_text_config()
        names = ("layer_norm_eps", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id")
        same = {name: getattr(encoder, name) for name in names if hasattr(encoder, name)}

        # An encoder with only one of the two kinds of dropout sets both.
        of_states = own_dropout(encoder, (*STATE_DROPOUTS, *ATTENTION_DROPOUTS), 0.0)
        of_attention = own_dropout(encoder, (*ATTENTION_DROPOUTS, *STATE_DROPOUTS), 0.0)

        return AutoConfig.for_model(
            "bert",
            vocab_size=encoder.vocab_size,
            type_vocab_size=1,
            hidden_size=encoder.hidden_size,
            num_hidden_layers=self.decoder_layers,
            num_attention_heads=encoder.num_attention_heads,
            intermediate_size=getattr(encoder, "intermediate_size", None) or 4 * encoder.hidden_size,
            max_position_embeddings=positions,
            is_decoder=True,
            add_cross_attention=True,
            hidden_dropout_prob=of_states,
            attention_probs_dropout_prob=of_attention,
            **same,
        )
