"""The lightweight dual transformer: a generative and two contrastive tasks; and a student with the same losses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize
from transformers.utils.generic import can_return_tuple

from hf_xlsr.encoders.assembly import EncoderPart, SentenceEncoder
from hf_xlsr.encoders.stock import one_sided
from hf_xlsr.losses.alignment import alignment_loss
from hf_xlsr.losses.combination import encode_in_chunks, matryoshka_mean, weighted_sum
from hf_xlsr.losses.cross_entropy import IGNORE
from hf_xlsr.losses.distillation import matching_loss, teacher_loss
from hf_xlsr.losses.generative import generative_loss
from hf_xlsr.losses.queue_info_nce import matching_pairs, queue_info_nce
from hf_xlsr.losses.similarity import similarity_loss
from hf_xlsr.modeling.base import PairOutput, SentenceEncoderModel, zero_of
from hf_xlsr.modeling.encoding import encode_negatives, full_mask
from hf_xlsr.modeling.heads import LmHead
from hf_xlsr.modeling.memory_queue import MemoryQueue
from hf_xlsr.utils.distributed import gather_rows, gather_with_gradient
from hf_xlsr.utils.errors import XlsrError

from .configuration_lightweight import TASK_INPUTS, DistillationConfig, LightweightConfig
from .labels import generative_labels

COMPARING_LOSSES = ("alignment", "similarity", "matching")
"""Losses that compare the pairs of all processes."""


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
    loss_names: tuple[str, ...] = ("generative", "alignment", "similarity")
    """Losses that may be trained; the configuration has the weight of each."""

    def __init__(self, config: LightweightConfig, given: EncoderPart | None = None) -> None:
        super().__init__(config, given)
        self.reads_whole_table = config.generative_weight > 0
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
        if not self.config.generative_weight:
            return
        reading = one_sided(self.encoder)
        if reading:
            raise XlsrError(
                f"The generative task needs an encoder that reads whole sentences, got {type(self.encoder).__name__}, "
                f"{reading}. Set generative_weight to 0."
            )

    @torch.no_grad()
    def _initialize_like_released_code(self) -> None:
        """PyTorch's default initialisation, padding embeddings of 0, every layer a copy of the first."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm, nn.Embedding)):
                module.reset_parameters()

        transformer = getattr(self.encoder, "encoder", None)
        layers = list(getattr(transformer, "layer", []))
        for layer in layers[1:]:
            layer.load_state_dict(layers[0].state_dict())

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

    @can_return_tuple  # type: ignore[untyped-decorator]
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
        **extra_inputs: Any,
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
            **extra_inputs: Inputs of `extra_losses`.
        """
        encode = encode_in_chunks(self._encode, cache_batch_size)
        embeddings, masked_states = encode(input_ids, attention_mask, mlm_labels)
        source, target = embeddings.chunk(2)
        if not return_loss:
            return PairOutput(source_embeds=source, target_embeds=target)

        losses: dict[str, torch.Tensor] = {}
        if self.config.generative_weight:
            task = self.config.generative_task
            self._check_labels(masked_ids=masked_ids, mlm_labels=mlm_labels, original_ids=original_ids)
            generative_losses = []
            if mlm_labels is not None and task.startswith("mlm"):
                generative_losses.append(self._token_loss(masked_states, mlm_labels, masked_tokens))
            if task != "mlm":
                ids = input_ids if original_ids is None else original_ids
                sentence_loss = self._sentence_loss(embeddings, ids, attention_mask, masked_ids, mask_token_id)
                generative_losses.append(sentence_loss)
            losses["generative"] = torch.stack(generative_losses).mean()

        pairs = (source, target)
        if any(weight for name, weight in self.loss_weights.items() if name in COMPARING_LOSSES):
            pairs = (gather_with_gradient(source), gather_with_gradient(target))  # equally many rows in all processes
        if self.config.alignment_weight:
            chunked = encode_in_chunks(self.encode_sentences, cache_batch_size)
            sentences = input_ids, attention_mask
            negatives = encode_negatives(chunked, sentences, negative_input_ids, negative_attention_mask)
            losses["alignment"] = self._alignment_loss(pairs, negatives, identities, matryoshka_dims)
        if self.config.similarity_weight:
            losses["similarity"] = self._similarity_loss(pairs, matryoshka_dims)

        both_sides = torch.cat([source, target])
        losses |= self.extra_losses(both_sides, pairs, matryoshka_dims, identities=identities, **extra_inputs)

        loss = weighted_sum(losses, self.loss_weights)
        if not self.config.generative_weight:
            loss = loss + zero_of(self.lm_head)
        return PairOutput(loss=loss, losses=losses, source_embeds=source, target_embeds=target)

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weight of each loss, by its name."""
        return {name: getattr(self.config, f"{name}_weight") for name in self.loss_names}

    def extra_losses(
        self,
        embeds: torch.Tensor,
        pairs: tuple[torch.Tensor, ...],
        matryoshka_dims: Sequence[int] | None,
        **inputs: Any,
    ) -> dict[str, torch.Tensor]:
        """Losses that a subclass adds, by name, with their names in `loss_names`.

        `embeds` are the embeddings of this process, sources over targets, `pairs` the two sides of all processes.
        """
        return {}

    def _check_labels(self, **labels: torch.Tensor | None) -> None:
        """Checks that the batch has the labels of the generative task."""
        task = self.config.generative_task
        missing = [name for name in TASK_INPUTS[task].labels if labels[name] is None]
        if missing:
            raise XlsrError(f"generative_task '{task}' needs {' and '.join(missing)}. Use PairCollator.")

    def _token_loss(
        self, masked_states: torch.Tensor, mlm_labels: torch.Tensor, masked_tokens: torch.Tensor | None
    ) -> torch.Tensor:
        """Masked language modelling from the states of the masked tokens."""
        loss: torch.Tensor = self.lm_head.loss(
            masked_states,
            mlm_labels[mlm_labels != IGNORE],
            self.get_input_embeddings().weight,
            chunk_size=self.config.logits_chunk_size,
            masked_tokens=masked_tokens,
        )
        return loss

    def _sentence_loss(
        self,
        embeddings: torch.Tensor,
        ids: torch.Tensor,
        attention_mask: torch.Tensor,
        masked_ids: torch.Tensor | None,
        mask_token_id: int | None,
    ) -> torch.Tensor:
        """The sentence-level task, which reads the sentence embedding (figure 1)."""
        task = self.config.generative_task
        labels = generative_labels(
            ids,
            attention_mask,
            masked_ids,
            task="xtr" if task == "mlm+xtr" else task,
            label_mode=self.config.label_mode,
            mask_token_id=mask_token_id,
        )

        table = self.get_input_embeddings().weight
        states = self.lm_head(embeddings.to(table.dtype))
        return generative_loss(states, table, self.lm_head.bias, *labels, chunk_size=self.config.logits_chunk_size)

    def _alignment_loss(
        self,
        pairs: tuple[torch.Tensor, ...],
        negatives: torch.Tensor | None,
        identities: torch.Tensor | None,
        matryoshka_dims: Sequence[int] | None,
    ) -> torch.Tensor:
        """Equation 5, with hard negatives as further candidates."""
        all_identities = None
        if identities is not None and self.config.alignment_mask_duplicates:
            all_identities = gather_rows(identities.T).T

        loss = partial(
            alignment_loss,
            temperature=self.config.alignment_temperature,
            normalize=self.config.alignment_normalize,
            identities=all_identities,
            split_softmax=self.config.split_softmax,
        )
        return matryoshka_mean(loss, matryoshka_dims, *pairs, negatives)

    def _similarity_loss(self, pairs: tuple[torch.Tensor, ...], matryoshka_dims: Sequence[int] | None) -> torch.Tensor:
        """Equation 6."""
        loss = partial(
            similarity_loss,
            temperature=self.config.similarity_temperature,
            normalize=self.config.similarity_normalize,
            reduction=self.config.similarity_reduction,
            epsilon=self.config.similarity_epsilon,
        )
        return matryoshka_mean(loss, matryoshka_dims, *pairs)


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
    loss_names = (*LightweightDualTransformer.loss_names, "teacher", "matching", "queue")

    def __init__(self, config: DistillationConfig, given: EncoderPart | None = None) -> None:
        super().__init__(config, given)
        width = config.hidden_size
        teacher_width = config.teacher_dim or width
        self.teacher_projection: nn.Module = nn.Identity()
        if teacher_width != width:
            self.teacher_projection = nn.Linear(width, teacher_width)
        self.queue = MemoryQueue(config.queue_size, teacher_width) if config.queue_size else None
        self.post_init()

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
        student = self.teacher_projection(embeds.to(self.lm_head.dense.weight.dtype))
        losses = {"teacher": teacher_loss(student, teacher_embeds.repeat(2, 1), kind=self.config.teacher_loss)}
        if self.config.matching_weight:
            teacher = gather_rows(teacher_embeds)
            loss = partial(matching_loss, teacher=teacher, temperature=self.config.matching_temperature)
            losses["matching"] = matryoshka_mean(loss, matryoshka_dims, *pairs)
        if self.queue is not None:
            queue = self.queue if self.training else None  # evaluation measures the model, not the state of the queue
            losses["queue"] = self._queue_loss(queue, student, teacher_embeds, identities)
        return losses

    def _queue_loss(
        self, queue: MemoryQueue | None, student: torch.Tensor, teacher_embeds: torch.Tensor, identities: Any
    ) -> torch.Tensor:
        """InfoNCE of both sides with the teacher's embedding of the source; equal sources are no negatives.

        Negatives are the sources of the batch, and those in the queue if there is one.
        """
        keys = normalize(teacher_embeds.float(), dim=-1)
        texts = identities[0]
        queue_keys: Any = keys[:0]
        candidate_texts = gather_rows(texts)
        if queue is not None:
            queue_keys = queue.keys()
            candidate_texts = torch.cat([queue.texts[: queue.count], candidate_texts])
        return queue_info_nce(
            normalize(student, dim=-1),
            keys.repeat(2, 1),
            queue_keys,
            temperature=self.config.queue_temperature,
            other_keys=gather_rows(keys),
            masked=matching_pairs(texts.repeat(2), candidate_texts),
        )

    def enqueue(self, side: str, keys: torch.Tensor, texts: torch.Tensor, examples: torch.Tensor) -> None:
        """Adds the teacher's embeddings of sources to the queue; see `MemoryQueue.enqueue`."""
        if self.queue is not None:
            self.queue.enqueue(normalize(keys, dim=-1), texts, examples)
