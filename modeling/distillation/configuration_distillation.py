"""Configuration of a student."""

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers.utils.type_validators import interval

from hf_xlsr.modeling.lightweight.configuration_lightweight import LightweightConfig


@strict
class DistillationConfig(LightweightConfig):
    """Configuration of `DistillationModel`: that of the lightweight model, whose losses it can add, and the teacher's.

    By default the student learns from the teacher's embeddings and by in-batch contrast of translations; the generative
    task and equation 6 of the lightweight model are off.

    Args:
        teacher_dim: Width of the teacher's embeddings. If it is not the student's width, a linear layer is between them,
            which is not exported.
        teacher_loss: `cosine`, or `mse` (Reimers and Gurevych, 2020).
        teacher_weight: Weight of this loss; half of it is for the sources, half for their translations.
        matching_weight: Weight of `hf_xlsr.losses.matching_loss`.
        matching_temperature: Divides its cosines.

    Examples:
        >>> encoder = {"model_type": "bert", "hidden_size": 256, "num_attention_heads": 4}
        >>> config = DistillationConfig(text_config=encoder, teacher_dim=384)
        >>> config.hidden_size, config.teacher_dim, config.generative_weight
        (256, 384, 0.0)
    """

    model_type = "distillation"

    teacher_dim: int | None = None
    teacher_loss: Literal["cosine", "mse"] = "cosine"
    teacher_weight: float | int = interval(min=0)(default=1.0)
    matching_weight: float | int = interval(min=0)(default=0.0)
    matching_temperature: float | int = interval(min=0, exclude_min=True)(default=0.05)
    generative_task: Literal["ugt", "smlm", "xtr", "mlm", "mlm+xtr"] = "xtr"
    alignment_normalize: bool = True
    alignment_mask_duplicates: bool = True
    alignment_temperature: float | int = interval(min=0, exclude_min=True)(default=0.05)
    generative_weight: float | int = interval(min=0)(default=0.0)
    alignment_weight: float | int = interval(min=0)(default=1.0)
    similarity_weight: float | int = interval(min=0)(default=0.0)
