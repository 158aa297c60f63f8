"""Configurations of the lightweight dual transformer, and of a student with its losses."""

from typing import Any, Literal, NamedTuple

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec
from transformers.utils.type_validators import interval

from hf_xlsr.losses.cross_entropy import LOGITS
from hf_xlsr.losses.distillation import TEACHER_LOSSES
from hf_xlsr.modeling.configuration import SentenceEncoderConfig, above_zero, at_least_one, at_least_zero, proper_share

GenerativeTask = Literal["ugt", "smlm", "xtr", "mlm", "mlm+xtr"]


class TaskInputs(NamedTuple):
    """How the tokens of a generative task are masked, see `PairCollator`, and the inputs of `forward` that it needs."""

    masking: Literal["none", "single", "mlm"]
    labels: tuple[str, ...]


TASK_INPUTS: dict[str, TaskInputs] = {
    "ugt": TaskInputs("single", ("masked_ids", "original_ids")),
    "smlm": TaskInputs("single", ("masked_ids",)),
    "xtr": TaskInputs("none", ()),
    "mlm": TaskInputs("mlm", ("mlm_labels",)),
    "mlm+xtr": TaskInputs("mlm", ("mlm_labels", "original_ids")),
}


def paper_encoder_config(**overrides: Any) -> PreTrainedConfig:
    """The encoder of the paper's section 4.1 as a stock BERT configuration.

    Two layers, width 512, 8 heads, filter size 1,024, dropout 0.1; swish, learned positions and post-layer
    normalisation as in the released code. It has 256 positions; sentences are truncated to 200 tokens.
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
class LightweightConfig(SentenceEncoderConfig):
    """Configuration of `LightweightDualTransformer`.

    The encoder is any Hugging Face encoder, described by `text_config`; by default it is the paper's (see
    `paper_encoder_config`). Where the released code differs from the paper's text, both values are available.

    Args:
        text_config: Configuration of the shared encoder, a config object or a dict with `model_type`.
        generative_task: `ugt` (the paper), `smlm`, `xtr`, `mlm`, or `mlm+xtr` (half the token-level masked LM, half
            the reconstruction, as `ugt` halves its two).
        generative_head: The layer in front of the decoder. `linear`: one fully connected layer (the paper), or
            `released`: with swish and layer normalisation (released code).
        label_mode: `accumulate` (the paper's equations) or `set` (released code).
        mask_punctuation: Whether `ugt` and `smlm` may mask a punctuation token (released code: no).
        mlm_probability: Share of masked tokens for `mlm` (80/10/10 as in BERT).
        alignment_temperature: Divides the similarities of equation 5.
        alignment_normalize: Cosine in equation 5 instead of the paper's inner product.
        alignment_mask_duplicates: Whether equation 5 leaves out negatives that share a text with the pair.
        split_softmax: Normalise the hard negatives of equation 5 apart from the batch, see
            `hf_xlsr.losses.in_batch.split_cross_entropy`.
        similarity_temperature: Divides the similarities of equation 6.
        similarity_normalize: Cosine in equation 6.
        similarity_reduction: `batchmean`, or `sum` (released code).
        similarity_epsilon: Keeps the difference of equation 6 away from 1.
        generative_weight: Weight of equation 2 in equation 7.
        alignment_weight: Weight of equation 5.
        similarity_weight: Weight of equation 6.
        initialization: `bert` (normal, `text_config.initializer_range`) or `released` (PyTorch's defaults: N(0, 1)
            embeddings and Kaiming-uniform linear layers, all layers alike at the start).
        logits_chunk_size: Maximum number of vocabulary logits in memory at a time.

    Examples:
        >>> encoder = {"model_type": "bert", "hidden_size": 256, "num_attention_heads": 4}
        >>> config = LightweightConfig(text_config=encoder)
        >>> config.hidden_size, config.alignment_weight
        (256, 2.0)
    """

    model_type = "lightweight_dual_transformer"
    sub_configs_defaults = {"text_config": SubConfigSpec(config_class=AutoConfig, model_type="bert")}
    keys_to_ignore_at_inference = ["losses", "source_embeds", "target_embeds"]

    text_config: PreTrainedConfig | dict[str, Any] | None = None
    generative_task: GenerativeTask = "ugt"
    generative_head: Literal["linear", "released"] = "linear"
    label_mode: Literal["accumulate", "set"] = "accumulate"
    mask_punctuation: bool = False
    mlm_probability: float = proper_share(default=0.15)
    alignment_temperature: float | int = above_zero(default=1.0)
    alignment_normalize: bool = False
    alignment_mask_duplicates: bool = False
    split_softmax: bool = False
    similarity_temperature: float | int = above_zero(default=1.0)
    similarity_normalize: bool = False
    similarity_reduction: Literal["batchmean", "sum"] = "batchmean"
    # Near 1 the cosine is 0 in float32, and the loss is not a number.
    similarity_epsilon: float = interval(min=1e-6, max=1, exclude_max=True)(default=1e-4)
    generative_weight: float | int = at_least_zero(default=1.0)
    alignment_weight: float | int = at_least_zero(default=2.0)
    similarity_weight: float | int = at_least_zero(default=2.0)
    initialization: Literal["bert", "released"] = "bert"
    logits_chunk_size: int = at_least_one(default=LOGITS)

    @property
    def masking(self) -> str:
        """How `PairCollator` masks tokens for the generative task: `none`, `single` or `mlm`."""
        return TASK_INPUTS[self.generative_task].masking if self.generative_weight else "none"

    def __post_init__(self, **kwargs: Any) -> None:
        if self.text_config is None:
            self.text_config = paper_encoder_config()
        super().__post_init__(**kwargs)


@strict
class DistillationConfig(LightweightConfig):
    """Configuration of `DistillationModel`: that of the lightweight model, whose losses it can add, and the teacher's.

    By default the student learns from the teacher's embeddings and by in-batch contrast of translations; the generative
    task and equation 6 of the lightweight model are off.

    Args:
        teacher_dim: Width of the teacher's embeddings. If it is not the student's width, a linear layer is between them,
            which is not exported.
        teacher_loss: `cosine`, `mse` (Reimers and Gurevych, 2020), or the name of a plug-in's loss.
        teacher_weight: Weight of this loss; half of it is for the sources, half for their translations.
        matching_weight: Weight of `hf_xlsr.losses.matching_loss`.
        matching_temperature: Divides its cosines.
        queue_size: Teacher embeddings of earlier sources that are kept as negatives; 0 keeps none.
        queue_weight: Weight of the contrast with them and with those of the batch.
        queue_temperature: Divides its cosines.

    Examples:
        >>> encoder = {"model_type": "bert", "hidden_size": 256, "num_attention_heads": 4}
        >>> config = DistillationConfig(text_config=encoder, teacher_dim=384)
        >>> config.hidden_size, config.teacher_dim, config.generative_weight
        (256, 384, 0.0)
    """

    model_type = "distillation"

    teacher_dim: int | None = None
    teacher_loss: str = "cosine"
    teacher_weight: float | int = at_least_zero(default=1.0)
    matching_weight: float | int = at_least_zero(default=0.0)
    matching_temperature: float | int = above_zero(default=0.05)
    queue_size: int = at_least_zero(default=0)
    queue_weight: float | int = at_least_zero(default=1.0)
    queue_temperature: float | int = above_zero(default=0.05)
    generative_task: GenerativeTask = "xtr"
    alignment_normalize: bool = True
    alignment_mask_duplicates: bool = True
    alignment_temperature: float | int = above_zero(default=0.05)
    generative_weight: float | int = at_least_zero(default=0.0)
    alignment_weight: float | int = at_least_zero(default=1.0)
    similarity_weight: float | int = at_least_zero(default=0.0)

    def validate_teacher_loss(self) -> None:
        """Checks that there is a loss of this name."""
        TEACHER_LOSSES.find("teacher_loss", self.teacher_loss)
