"""The lightweight dual transformer: one shallow encoder for both languages, a generative and two contrastive tasks."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.utils import ModelOutput, can_return_tuple

from hf_xlsr.encoders.stock import encoder_from_config, resized_bias
from hf_xlsr.losses import (
    alignment_loss,
    encode_in_chunks,
    generative_labels,
    generative_loss,
    masked_lm_loss,
    matryoshka_mean,
    similarity_loss,
    weighted_sum,
)
from hf_xlsr.losses.vocabulary import IGNORE
from hf_xlsr.modeling.base import XlsrPreTrainedModel
from hf_xlsr.modeling.encoding import encode_negatives
from hf_xlsr.utils.distributed import gather_rows, gather_with_gradient, scaled_to_mean
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.pooling import pool

from .configuration_lightweight import LightweightConfig

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


LABELS_OF_TASK: dict[str, tuple[str, ...]] = {
    "ugt": ("masked_ids", "original_ids"),
    "smlm": ("masked_ids",),
    "xtr": (),
    "mlm": ("mlm_labels",),
    "mlm+xtr": ("mlm_labels", "original_ids"),
}


@dataclass
class LightweightOutput(ModelOutput):
    """What `LightweightDualTransformer` returns.

    `losses` are the parts of equation 7 before weighting: `generative`, `alignment`, `similarity`. The embeddings are
    those of both halves of the batch, `(batch, width)`, not normalised.
    """

    loss: torch.Tensor | None = None
    losses: dict[str, torch.Tensor] | None = None
    source_embeds: torch.Tensor | None = None
    target_embeds: torch.Tensor | None = None


class GenerativeHead(nn.Module):
    """The fully connected layer between sentence embedding and tied decoder (figure 1, left).

    The `released` kind has swish and layer normalisation behind it.
    """

    def __init__(self, width: int, vocab_size: int, kind: str = "linear") -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        released = kind == "released"
        self.activation = nn.SiLU() if released else nn.Identity()
        self.norm = nn.LayerNorm(width, eps=1e-12) if released else nn.Identity()
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.norm(self.activation(self.dense(states)))


class LightweightDualTransformer(XlsrPreTrainedModel):
    """Two-layer dual transformer with shared weights (Mao et al., 2021).

    "Dual" means that the same weights encode each sentence of a pair separately. A batch is a stack of all source
    sentences and then all target sentences in the same order, so that one pass encodes both languages.

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

    def __init__(self, config: LightweightConfig) -> None:
        super().__init__(config)
        text_config = config.get_text_config()
        self.encoder = encoder_from_config(text_config)
        self.head = GenerativeHead(text_config.hidden_size, text_config.vocab_size, config.generative_head)
        self.post_init()
        if config.initialization == "released":
            self._initialize_like_released_code()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GenerativeHead):
            init.zeros_(module.bias)

    @torch.no_grad()
    def _initialize_like_released_code(self) -> None:
        """PyTorch's default initialisation, padding embeddings of 0, every layer a copy of the first."""
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.LayerNorm, nn.Embedding)):
                module.reset_parameters()
        layers = list(getattr(getattr(self.encoder, "encoder", None), "layer", []))
        for layer in layers[1:]:
            layer.load_state_dict(copy.deepcopy(layers[0].state_dict()))

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resizes the embeddings and the bias of the tied decoder, whose new entries are 0."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.head.bias = resized_bias(self.head.bias, embeddings.num_embeddings)
        return embeddings

    def encode_sentences(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Sentence embeddings, `(batch, width)`, before the fully connected layer and not normalised."""
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self._encode(input_ids, mask)[0]

    def _encode(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, mlm_labels: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sentence embeddings, `(batch, width)`, and states of the masked tokens, `(tokens, width)`."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        masked = states[:0, 0] if mlm_labels is None else states[mlm_labels != IGNORE]
        return pool(states, attention_mask, self.config.pooling), masked

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
    ) -> LightweightOutput:
        """Encodes the stacked pairs and computes equation 7.

        Args:
            input_ids: Tokens after masking, sources stacked on targets, `(2 * batch, length)`.
            attention_mask: 0 for padding.
            original_ids: Tokens before masking, for `ugt` and `mlm+xtr`; `xtr`, which masks nothing, reads `input_ids`.
            masked_ids: The masked token of each row, -100 for rows without one, `(2 * batch,)`.
            mlm_labels: Original tokens at masked positions, -100 elsewhere, `(2 * batch, length)`; for `mlm` and
                `mlm+xtr`.
            mask_token_id: Id of `<mask>`, for label mode `set`.
            negative_input_ids: Hard negatives of the whole batch in the language of the targets,
                `(negatives, negative_length)`: further candidates of all sources in equation 5. The number may differ
                between processes.
            negative_attention_mask: Likewise.
            matryoshka_dims: Widths of truncated embeddings in equations 5 and 6, see `matryoshka_mean`.
            cache_batch_size: Sentences encoded at a time, with the gradient cache, see `encode_in_chunks`.
            masked_tokens: Mean number of masked tokens of a micro-batch and process in the optimiser step.
            identities: Equal numbers for equal texts, `(2, batch)`, for `alignment_mask_duplicates`.
            return_loss: False returns embeddings only.
            **more: Inputs of `extra_losses`.
        """
        encode = encode_in_chunks(self._encode, cache_batch_size)
        pooled, states = encode(input_ids, attention_mask, mlm_labels)
        source, target = pooled.chunk(2)
        if not return_loss:
            return LightweightOutput(source_embeds=source, target_embeds=target)
        config, losses = self.config, {}
        if config.generative_weight:
            given = {"masked_ids": masked_ids, "mlm_labels": mlm_labels, "original_ids": original_ids}
            if missing := [name for name in LABELS_OF_TASK[config.generative_task] if given[name] is None]:
                needed = " and ".join(missing)
                raise XlsrError(f"generative_task '{config.generative_task}' needs {needed}. Use PairCollator.")
            parts = []
            if mlm_labels is not None and config.generative_task.startswith("mlm"):
                parts.append(self._masked_lm(states, mlm_labels[mlm_labels != IGNORE], masked_tokens))
            if config.generative_task != "mlm":
                ids = input_ids if original_ids is None else original_ids
                parts.append(self._generative(pooled, ids, attention_mask, masked_ids, mask_token_id))
            losses["generative"] = torch.stack(parts).mean()
        if config.alignment_weight or config.similarity_weight:
            negatives = None
            if config.alignment_weight:
                negatives = encode_negatives(
                    encode_in_chunks(self.encode_sentences, cache_batch_size),
                    (input_ids, attention_mask),
                    negative_input_ids,
                    negative_attention_mask,
                )
            pairs = gather_with_gradient(source), gather_with_gradient(target)
        if config.alignment_weight:
            alignment = partial(
                alignment_loss,
                temperature=config.alignment_temperature,
                normalize=config.alignment_normalize,
                identities=None if identities is None else gather_rows(identities.T).T,
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
        losses |= self.extra_losses(source, target, matryoshka_dims, **more)
        loss = weighted_sum(losses, self.loss_weights)
        if not config.generative_weight:
            # DDP waits for the gradient of every parameter, including the unused head.
            loss = loss + 0.0 * torch.stack([parameter.sum() for parameter in self.head.parameters()]).sum()
        return LightweightOutput(loss=loss, losses=losses, source_embeds=source, target_embeds=target)

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weight of each loss, by its name."""
        config = self.config
        names = ("generative", "alignment", "similarity")
        return {name: getattr(config, f"{name}_weight") for name in names}

    def extra_losses(
        self, source: torch.Tensor, target: torch.Tensor, matryoshka_dims: Sequence[int] | None
    ) -> dict[str, torch.Tensor]:
        """Losses that a subclass adds, by name, with their weights in `loss_weights`."""
        return {}

    def _masked_lm(
        self, states: torch.Tensor, tokens: torch.Tensor, masked_tokens: torch.Tensor | None
    ) -> torch.Tensor:
        table, size = self.get_input_embeddings().weight, self.config.logits_chunk_size
        loss = masked_lm_loss(states, tokens, table, self.head.bias, transform=self.head, chunk_size=size)
        return scaled_to_mean(loss, torch.tensor(len(tokens), device=states.device), masked_tokens)

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
        states, size = self.head(pooled.to(table.dtype)), self.config.logits_chunk_size
        return generative_loss(states, table, self.head.bias, *labels, chunk_size=size)

    def to_sentence_transformer(self, tokenizer: Any, **kwargs: Any) -> SentenceTransformer:
        """The encoder as a stock sentence-transformers model; see `hf_xlsr.export.to_sentence_transformer`."""
        from hf_xlsr.export import to_sentence_transformer

        return to_sentence_transformer(self.encoder, tokenizer, pooling=self.config.pooling, **kwargs)
