"""Configuration of CMLM."""

from typing import Any, Literal

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from hf_xlsr.losses.cross_entropy import LOGITS
from hf_xlsr.modeling.configuration import SentenceEncoderConfig, above_zero, at_least_one, at_least_zero, proper_share


@strict
class CmlmConfig(SentenceEncoderConfig):
    """Configuration of `CmlmModel`.

    The encoder is any stock Hugging Face encoder, described by `text_config`; by default it has the size of BERT base,
    as in the paper.

    Args:
        text_config: Configuration of the encoder, a config object or a dict with `model_type`.
        projections: Number of vectors that represent the first sentence (N), the sentence embedding included.
        projection_layers: Layers of each projection; the paper has 3, and tried 1 and more.
        projection_width: Width between these layers; defaults to twice the encoder's.
        conditioning: How the second sentence sees the first. `input`: the N vectors precede its embeddings. `skip`: in
            addition, they are concatenated with the states of the masked tokens before decoding (table 7). `none`: not
            at all, which is plain masked language modelling of the second sentence, for comparison. `next_sentence`: the
            encoder reads both sentences as one input, and every other first sentence is that of another row, which a
            classifier of the first state has to tell (Devlin et al., 2019), for comparison.
        sentence_vector: The sentence embedding: the `pooled` states, or the mean of the `projected` vectors (`proj` in
            table 7).
        mlm_probability: Share of the second sentence's tokens that are masked, exact for each sentence: 80 of 256.
            80 % of them become the mask token, 10 % a random token, 10 % stay.
        logits_chunk_size: Maximum number of vocabulary logits in memory at a time.
        cmlm_weight: Weight of conditional masked language modelling; 0 disables it.
        retrieval_weight: Weight of bitext retrieval (alpha); 0 disables it.
        nli_weight: Weight of natural language inference, which the paper does not give; 0 disables it.
        retrieval_margin: Additive margin (m).
        retrieval_scale: Multiplies similarities and margin; 1, as in the paper's text, has no effect.
        retrieval_normalize: Compare translations by cosine; the paper's text has the inner product.
        split_softmax: Normalise hard negatives apart from the batch, see `hf_xlsr.losses.in_batch.split_cross_entropy`.
        nli_labels: Classes of natural language inference; 0 for a model without a classifier.

    Examples:
        >>> CmlmConfig(text_config={"model_type": "bert", "hidden_size": 64, "num_attention_heads": 4}).hidden_size
        64
    """

    model_type = "cmlm"
    sub_configs_defaults = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="bert")}
    keys_to_ignore_at_inference = ["losses", "statistics", "source_embeds", "target_embeds"]

    text_config: PreTrainedConfig | dict[str, Any] | None = None
    projections: int = at_least_one(default=15)
    projection_layers: int = at_least_one(default=3)
    projection_width: int | None = None
    conditioning: Literal["input", "skip", "none", "next_sentence"] = "input"
    sentence_vector: Literal["pooled", "projected"] = "pooled"
    mlm_probability: float = proper_share(default=80 / 256)
    logits_chunk_size: int = at_least_one(default=LOGITS)
    cmlm_weight: float | int = at_least_zero(default=1.0)
    retrieval_weight: float | int = at_least_zero(default=0.2)
    nli_weight: float | int = at_least_zero(default=1.0)
    retrieval_margin: float | int = at_least_zero(default=0.3)
    retrieval_scale: float | int = above_zero(default=1.0)
    retrieval_normalize: bool = False
    split_softmax: bool = False
    nli_labels: int = at_least_zero(default=0)

    @property
    def conditioned(self) -> bool:
        """Whether vectors of the first sentence precede the second."""
        return self.conditioning in ("input", "skip")

    def room(self, positions: int) -> int:
        """Positions of a sentence in an input of conditional masked language modelling that has `positions`."""
        if self.conditioning == "next_sentence":
            return positions // 2
        return positions - self.projections if self.conditioned else positions
