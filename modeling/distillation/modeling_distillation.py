"""A student: the lightweight model with losses against a teacher's embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from hf_xlsr.losses import matching_loss, matryoshka_mean, teacher_loss
from hf_xlsr.modeling.lightweight.modeling_lightweight import LightweightDualTransformer
from hf_xlsr.utils.distributed import gather_rows, gather_with_gradient
from hf_xlsr.utils.errors import XlsrError

from .configuration_distillation import DistillationConfig


class DistillationModel(LightweightDualTransformer):
    """A student of a sentence encoder (Reimers and Gurevych, 2020), with the lightweight model's losses.

    Sources and translations learn the teacher's embedding of the source. In-batch contrast separates what the teacher
    holds alike in different languages; it also keeps the student from collapsing when its languages have few pairs.

    Examples:
        >>> from hf_xlsr.modeling.distillation import DistillationConfig
        >>> encoder = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...            "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
        >>> model = DistillationModel(DistillationConfig(text_config=encoder, teacher_dim=6, matching_weight=1.0))
        >>> ids = torch.tensor([[3, 4], [5, 6], [7, 8], [9, 10]])  # two pairs: rows 0 and 2, rows 1 and 3
        >>> output = model(input_ids=ids, attention_mask=torch.ones_like(ids), teacher_embeds=torch.randn(2, 6))
        >>> sorted(output.losses)
        ['alignment', 'matching', 'teacher']
    """

    config: DistillationConfig
    config_class = DistillationConfig

    def __init__(self, config: DistillationConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        other = config.teacher_dim not in (None, width)
        self.teacher_projection = nn.Linear(width, config.teacher_dim or width) if other else nn.Identity()
        self.post_init()

    @property
    def loss_weights(self) -> dict[str, float]:
        config = self.config
        return {**super().loss_weights, "teacher": config.teacher_weight, "matching": config.matching_weight}

    def extra_losses(
        self,
        source: torch.Tensor,
        target: torch.Tensor,
        matryoshka_dims: Sequence[int] | None,
        teacher_embeds: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The losses against `teacher_embeds`, the teacher's embeddings of the sources, `(batch, teacher_dim)`.

        Truncation concerns `matching` alone; `teacher` compares whole embeddings.
        """
        if teacher_embeds is None:
            raise XlsrError("`teacher_embeds` is missing. Use DistillationTrainer.")
        config, losses = self.config, {}
        taught = self.teacher_projection(torch.cat([source, target]).to(self.head.dense.weight.dtype))
        losses["teacher"] = teacher_loss(taught, teacher_embeds.repeat(2, 1), kind=config.teacher_loss)
        if config.matching_weight:
            loss = partial(matching_loss, teacher=gather_rows(teacher_embeds), temperature=config.matching_temperature)
            sides = gather_with_gradient(source), gather_with_gradient(target)
            losses["matching"] = matryoshka_mean(loss, matryoshka_dims, *sides)
        return losses
