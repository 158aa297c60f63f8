"""The lightweight dual transformer: a generative and two contrastive tasks; and a student with the same losses."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize
from transformers.utils import can_return_tuple

from hf_xlsr.encoders.assembly import EncoderPart, SentenceEncoder
from hf_xlsr.encoders.stock import is_causal
from hf_xlsr.losses.alignment import alignment_loss
from hf_xlsr.losses.combination import encode_in_chunks, matryoshka_mean, weighted_sum
from hf_xlsr.losses.cross_entropy import IGNORE
from hf_xlsr.losses.distillation import matching_loss, teacher_loss
from hf_xlsr.losses.generative import generative_loss
from hf_xlsr.losses.queue_info_nce import matching_pairs, queue_info_nce
from hf_xlsr.losses.similarity import similarity_loss
from hf_xlsr.modeling.base import PairOutput, SentenceEncoderModel
from hf_xlsr.modeling.encoding import encode_negatives, full_mask
from hf_xlsr.modeling.heads import LmHead
from hf_xlsr.modeling.memory_queue import MemoryQueue
from hf_xlsr.utils.distributed import gather_rows, gather_with_gradient
from hf_xlsr.utils.errors import XlsrError

from .configuration_lightweight import DistillationConfig, LightweightConfig
from .labels import generative_labels

LABELS_OF_TASK: dict[str, tuple[str, ...]] = {
    "ugt": ("masked_ids", "original_ids"),
    "smlm": ("masked_ids",),
    "xtr": (),
    "mlm": ("mlm_labels",),
    "mlm+xtr": ("mlm_labels", "original_ids"),
}


class LightweightDualTransformer(SentenceEncoderModel):
    """Two-layer dual transformer with shared weights (Mao et al., 2021).

    "Dual" means that the same weights encode each sentence of a pair separately. A batch is a stack of all source
    sentences and then all target sentences in the same order, so that one pass encodes both languages.

    In the `PairOutput`, `losses` are the parts of equation 7: `generative`, `alignment`, `similarity`. The embeddings are
    not normalised.

    Examples:
        >>> from hf_xlsr.modeling.lightweight import LightweightConfig
        >>> encoder = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...            "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
        >>> model = LightweightDualTransformer(LightweightConfig(text_config=encoder, generative_task="xtr"))
        >>> ids = torch.tensor([[3, 4], [5, 6], [7, 8], [9, 10]])  # two pairs: rows 0 and 2, rows 1 and 3
        >>> output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        >>> sorted(output.losses)
        ['alignment', 'generative', 'similarity']
    """

    config: LightweightConfig
    config_class = LightweightConfig  # postponed annotations hide the type from the line above

    def __init__(self, config: LightweightConfig, given: EncoderPart | None = None) -> None:
        super().__init__(config, given)
        text_config = config.get_text_config()
        if config.generative_weight and config.hidden_size != text_config.hidden_size:
            raise XlsrError(
                f"The generative task needs sentence embeddings of the encoder's width {text_config.hidden_size}, got a "
                f"head of width {config.hidden_size}. Set generative_weight to 0."
            )
        released = config.generative_head == "released"
        self.lm_head = LmHead(
            text_config.hidden_size,
            text_config.vocab_size,
            activation="silu" if released else "linear",
            normalize=released,
        )
        self.post_init()
        if config.initialization == "released" and given is None:
            self._initialize_like_released_code()

    def adopt(self, read: SentenceEncoder) -> None:
        """Refuses encoders that the generative task cannot train."""
        if self.config.generative_weight and is_causal(self.encoder):
            raise XlsrError(
                f"The generative task needs an encoder that reads whole sentences, got {type(self.encoder).__name__}, "
                "which is causal. Set generative_weight to 0."
            )

    @torch.no_grad()
    def _initialize_like_released_code(self) -> None:
        """PyTorch's default initialisation, padding embeddings of 0, every layer a copy of the first."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm, nn.Embedding)):
                module.reset_parameters()
        layers = list(getattr(getattr(self.encoder, "encoder", None), "layer", []))
        for layer in layers[1:]:
            layer.load_state_dict(copy.deepcopy(layers[0].state_dict()))

    def encode_sentences(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Sentence embeddings, `(batch, width)`, before the fully connected layer and not normalised."""
        return self._encode(input_ids, full_mask(input_ids, attention_mask))[0]

    def _encode(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, mlm_labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sentence embeddings, `(batch, width)`, and states of the masked tokens, `(tokens, width)`."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        masked = states[:0, 0] if mlm_labels is None else states[mlm_labels != IGNORE]
        return self.embed_states(states, input_ids, attention_mask), masked

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        original_ids: torch.Tensor | None = None,
        masked_ids: torch.Tensor | None = None,
        mlm_labels: torch.Tensor | None = None,
        mask_token_id: int | None = None,
        negative_input_ids: torch.Tensor | None = None,
        negative_attention_mask: torch.Tensor | None = None,
        matryoshka_dims: Sequence[int] | None = None,
        cache_batch_size: int | None = None,
        masked_tokens: torch.Tensor | None = None,
        identities: torch.Tensor | None = None,
        return_loss: bool = True,
        **more: Any,
    ) -> PairOutput:
        """Encodes the stacked pairs and computes equation 7; for inputs that are not listed see `XlsrPreTrainedModel`.

        Hard negatives are further candidates of all sources in equation 5. `matryoshka_dims` are those of equations 5
        and 6.

        Args:
            input_ids: Tokens after masking, sources stacked on targets, `(2 * batch, length)`.
            attention_mask: 0 for padding.
            original_ids: Tokens before masking, for `ugt` and `mlm+xtr`; `xtr`, which masks nothing, reads `input_ids`.
            masked_ids: The masked token of each row, -100 for rows without one, `(2 * batch,)`.
            mlm_labels: Original tokens at masked positions, -100 elsewhere, `(2 * batch, length)`; for `mlm` and
                `mlm+xtr`.
            mask_token_id: Id of `<mask>`, for label mode `set`.
            identities: Equal numbers for equal texts, `(2, batch)`, for `alignment_mask_duplicates`.
            **more: Inputs of `extra_losses`.
        """
        encode = encode_in_chunks(self._encode, cache_batch_size)
        pooled, states = encode(input_ids, attention_mask, mlm_labels)
        source, target = pooled.chunk(2)
        if not return_loss:
            return PairOutput(source_embeds=source, target_embeds=target)
        config, losses = self.config, {}
        if config.generative_weight:
            given = {"masked_ids": masked_ids, "mlm_labels": mlm_labels, "original_ids": original_ids}
            if missing := [name for name in LABELS_OF_TASK[config.generative_task] if given[name] is None]:
                needed = " and ".join(missing)
                raise XlsrError(f"generative_task '{config.generative_task}' needs {needed}. Use PairCollator.")
            parts = []
            if mlm_labels is not None and config.generative_task.startswith("mlm"):
                tokens, table = mlm_labels[mlm_labels != IGNORE], self.get_input_embeddings().weight
                options: dict[str, Any] = {"chunk_size": config.logits_chunk_size, "masked_tokens": masked_tokens}
                parts.append(self.lm_head.loss(states, tokens, table, **options))
            if config.generative_task != "mlm":
                ids = input_ids if original_ids is None else original_ids
                parts.append(self._generative(pooled, ids, attention_mask, masked_ids, mask_token_id))
            losses["generative"] = torch.stack(parts).mean()
        pairs = source, target
        if any(self.loss_weights.get(name) for name in ("alignment", "similarity", "matching")):
            pairs = gather_with_gradient(source), gather_with_gradient(target)  # equally many rows in all processes
        if config.alignment_weight:
            chunked = encode_in_chunks(self.encode_sentences, cache_batch_size)
            hard = negative_input_ids, negative_attention_mask
            negatives = encode_negatives(chunked, (input_ids, attention_mask), *hard)
            known = identities if config.alignment_mask_duplicates else None
            alignment = partial(
                alignment_loss,
                temperature=config.alignment_temperature,
                normalize=config.alignment_normalize,
                identities=None if known is None else gather_rows(known.T).T,
            )
            losses["alignment"] = matryoshka_mean(alignment, matryoshka_dims, *pairs, negatives)
        if config.similarity_weight:
            similarity = partial(
                similarity_loss,
                temperature=config.similarity_temperature,
                normalize=config.similarity_normalize,
                reduction=config.similarity_reduction,
                epsilon=config.similarity_epsilon,
            )
            losses["similarity"] = matryoshka_mean(similarity, matryoshka_dims, *pairs)
        losses |= self.extra_losses(torch.cat([source, target]), pairs, matryoshka_dims, identities=identities, **more)
        loss = weighted_sum(losses, self.loss_weights)
        if not config.generative_weight:
            # DDP waits for the gradient of every parameter, including the unused head.
            loss = loss + 0.0 * torch.stack([parameter.sum() for parameter in self.lm_head.parameters()]).sum()
        return PairOutput(loss=loss, losses=losses, source_embeds=source, target_embeds=target)

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weight of each loss, by its name."""
        return {name: getattr(self.config, f"{name}_weight") for name in ("generative", "alignment", "similarity")}

    def extra_losses(
        self, embeds: torch.Tensor, pairs: tuple[torch.Tensor, ...], matryoshka_dims: Sequence[int] | None, **more: Any
    ) -> dict[str, torch.Tensor]:
        """Losses that a subclass adds, by name, with their weights in `loss_weights`.

        `embeds` are the embeddings of this process, sources over targets, `pairs` the two sides of all processes.
        """
        return {}

    def _generative(
        self,
        pooled: torch.Tensor,
        ids: torch.Tensor,
        attention_mask: torch.Tensor,
        masked_ids: torch.Tensor | None,
        mask_token_id: int | None,
    ) -> torch.Tensor:
        """The sentence-level task, which reads the sentence embedding (figure 1)."""
        task, table = self.config.generative_task, self.get_input_embeddings().weight
        options = {"task": "xtr" if task == "mlm+xtr" else task, "label_mode": self.config.label_mode}
        labels = generative_labels(ids, attention_mask, masked_ids, mask_token_id=mask_token_id, **options)
        states, size = self.lm_head(pooled.to(table.dtype)), self.config.logits_chunk_size
        return generative_loss(states, table, self.lm_head.bias, *labels, chunk_size=size)


class DistillationModel(LightweightDualTransformer):
    """A student of a sentence encoder (Reimers and Gurevych, 2020), with the lightweight model's losses.

    Sources and translations learn the teacher's embedding of the source. In-batch contrast keeps the student from
    collapsing when its languages have few pairs. With `queue_size` the student is contrasted as in dual momentum
    contrast, with the teacher instead of the momentum encoder.

    Examples:
        >>> from hf_xlsr.modeling.lightweight import DistillationConfig
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

    def __init__(self, config: DistillationConfig, given: EncoderPart | None = None) -> None:
        super().__init__(config, given)
        width = config.hidden_size
        other = config.teacher_dim not in (None, width)
        self.teacher_projection = nn.Linear(width, config.teacher_dim or width) if other else nn.Identity()
        self.queue = MemoryQueue(config.queue_size, config.teacher_dim or width) if config.queue_size else None
        self.post_init()

    @property
    def loss_weights(self) -> dict[str, float]:
        names = ("teacher", "matching", "queue")
        return {**super().loss_weights, **{name: getattr(self.config, f"{name}_weight") for name in names}}

    def extra_losses(  # type: ignore[override]  # with inputs of its own
        self,
        embeds: torch.Tensor,
        pairs: tuple[torch.Tensor, ...],
        matryoshka_dims: Sequence[int] | None,
        teacher_embeds: torch.Tensor,
        identities: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """The losses against `teacher_embeds`, the teacher's embeddings of the sources, `(batch, teacher_dim)`.

        Truncation concerns `matching` alone; the others compare whole embeddings with the teacher's.
        """
        config, losses = self.config, {}
        taught = self.teacher_projection(embeds.to(self.lm_head.dense.weight.dtype))
        losses["teacher"] = teacher_loss(taught, teacher_embeds.repeat(2, 1), kind=config.teacher_loss)
        if config.matching_weight:
            loss = partial(matching_loss, teacher=gather_rows(teacher_embeds), temperature=config.matching_temperature)
            losses["matching"] = matryoshka_mean(loss, matryoshka_dims, *pairs)
        if self.queue is not None:
            losses["queue"] = self._queue_loss(self.queue, taught, teacher_embeds, identities)
        return losses

    def _queue_loss(
        self, queue: MemoryQueue, taught: torch.Tensor, teacher_embeds: torch.Tensor, identities: Any
    ) -> torch.Tensor:
        """InfoNCE of both sides with the teacher's embedding of the source; equal sources are no negatives."""
        keys, texts = normalize(teacher_embeds.float(), dim=-1), identities[0]
        known = torch.cat([queue.texts[: queue.count], gather_rows(texts)])
        return queue_info_nce(
            normalize(taught, dim=-1),
            keys.repeat(2, 1),
            queue.keys(),
            temperature=self.config.queue_temperature,
            other_keys=gather_rows(keys),
            masked=matching_pairs(texts.repeat(2), known),
        )

    def enqueue(self, side: str, keys: torch.Tensor, texts: torch.Tensor, examples: torch.Tensor) -> None:
        """Adds the teacher's embeddings of sources to the queue; see `MemoryQueue.enqueue`."""
        if self.queue is not None:
            self.queue.enqueue(normalize(keys, dim=-1), texts, examples)
