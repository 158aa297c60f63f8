"""CMLM: masked language modelling of a sentence conditioned on the embedding of its neighbour."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from sentence_transformers.base.modules import Normalize
from torch import nn
from transformers import initialization as init
from transformers.utils.generic import can_return_tuple

from hf_xlsr.encoders.assembly import EncoderPart, SentenceEncoder
from hf_xlsr.encoders.stock import first_position, takes_token_types
from hf_xlsr.losses.additive_margin import additive_margin_loss
from hf_xlsr.losses.combination import encode_in_chunks, matryoshka_mean, weighted_sum
from hf_xlsr.losses.cross_entropy import IGNORE, accumulation_dtype
from hf_xlsr.modeling.base import EncoderWithLmHead, PairOutput
from hf_xlsr.modeling.encoding import (
    encode_by_length,
    encode_negatives,
    full_mask,
    in_order,
    length_chunks,
    without_padding,
)
from hf_xlsr.modeling.heads import LmHead, NliHead
from hf_xlsr.utils.distributed import gather_with_gradient
from hf_xlsr.utils.errors import XlsrError

from .configuration_cmlm import CmlmConfig

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Batch = Mapping[str, Any]


class SentenceProjections(nn.Module):
    r"""N vectors of one sentence embedding of width h: itself and N - 1 projections (appendix C of CMLM).

    ```math
    P_1(v) = v, \quad P_i(v) = W_{i3}\, ReLU(W_{i2}\, ReLU(W_{i1} v + b_{i1}) + b_{i2}) + b_{i3}
    ```

    of widths h, 2h, 2h, h by default. Each one is a separate network; they are computed together.
    """

    def __init__(
        self, width: int, count: int, std: float = 0.02, *, layers: int = 3, hidden: int | None = None
    ) -> None:
        super().__init__()
        self.count = count
        self.std = std
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        if count > 1:
            widths = (width, *[hidden or 2 * width] * (layers - 1), width)
            for inputs, outputs in pairwise(widths):
                self.weights.append(nn.Parameter(torch.empty(count - 1, inputs, outputs)))
                self.biases.append(nn.Parameter(torch.empty(count - 1, 1, outputs)))
        self.initialize()

    def initialize(self) -> None:
        for weight, bias in zip(self.weights, self.biases, strict=True):
            init.normal_(weight, std=self.std)
            init.zeros_(bias)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """`(batch, width)` to `(batch, count, width)`, the sentence embeddings first."""
        first = vectors.unsqueeze(1)
        if self.count == 1:
            return first

        states = vectors.to(self.biases[0].dtype).expand(self.count - 1, *vectors.shape)  # (count - 1, batch, width)
        for number, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if number:
                states = F.relu(states)
            states = torch.baddbmm(bias, states, weight)
        return torch.cat([first, states.transpose(0, 1).to(vectors.dtype)], 1)


class MeanOfProjections(nn.Module):
    """`proj` of table 7 as the last module of a head: the mean of the projected vectors of an embedding."""

    def __init__(self, projections: SentenceProjections) -> None:
        super().__init__()
        self.projections = projections

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        vectors = self.projections(features["sentence_embedding"]).mean(1)
        return {**features, "sentence_embedding": vectors}


class CmlmModel(EncoderWithLmHead):
    r"""Conditional masked language modelling (Yang et al., 2021) on any encoder, with bitext retrieval and inference.

    The embedding `v` of one sentence, pooled from the encoder's states, is projected into N vectors. They precede the
    embeddings of the masked neighbour sentence, whose masked tokens the same encoder predicts; both passes have a
    gradient. Bitext retrieval (`additive_margin_loss`) and natural language inference on `[u, v, |u - v|, u * v]` are
    trained at the same time or afterwards:

    ```math
    L = L_{CMLM} + \alpha L_{br} + \beta L_{nli}
    ```

    The paper does not specify `skip` in detail: here the N vectors are concatenated to each masked state along the
    features, and a linear layer maps the result to the width of the head. The decoder is tied to the embeddings, and only
    masked positions are decoded.

    In the `PairOutput`, `losses` are `cmlm`, `next_sentence`, `retrieval` and `nli`; `statistics` are `nli_accuracy` and
    `next_sentence_accuracy`. The embeddings are those of the retrieval task, not normalised.

    Examples:
        >>> from hf_xlsr.modeling.cmlm import CmlmConfig
        >>> encoder = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...            "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
        >>> model = CmlmModel(CmlmConfig(text_config=encoder, projections=3))
        >>> first, second = torch.tensor([[2, 5, 3], [2, 6, 3]]), torch.tensor([[2, 4, 3], [2, 4, 3]])
        >>> labels = torch.tensor([[-100, 7, -100], [-100, 8, -100]])
        >>> output = model(first, second_input_ids=second, labels=labels)
        >>> list(output.losses), output.loss.item() > 0
        (['cmlm'], True)
    """

    config: CmlmConfig
    config_class = CmlmConfig
    main_input_name = "first_input_ids"
    lm_head: LmHead

    def __init__(self, config: CmlmConfig, given: EncoderPart | None = None) -> None:
        super().__init__(config, given)
        text_config = config.get_text_config()
        width = text_config.hidden_size
        if config.hidden_size != width:
            raise XlsrError(
                f"CmlmModel needs sentence embeddings of the encoder's width {width}, which precede its tokens, got a "
                f"head of width {config.hidden_size}."
            )

        self._takes_positions = "position_ids" in inspect.signature(self.encoder.forward).parameters
        self._takes_types = takes_token_types(self.encoder)

        std = getattr(text_config, "initializer_range", 0.02)
        self.projections = SentenceProjections(
            width, config.projections, std, layers=config.projection_layers, hidden=config.projection_width
        )
        self.skip = nn.Linear((config.projections + 1) * width, width) if config.conditioning == "skip" else None
        self.next_sentence_head = nn.Linear(width, 2) if config.conditioning == "next_sentence" else None
        self.lm_head = self.make_lm_head()
        self.nli_head: Any = NliHead(width, 0, config.nli_labels) if config.nli_labels else None
        self.post_init()

    def encode_sentences(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Sentence embeddings as of `sentence_vector`, `(batch, width)`, float32, not normalised."""
        vectors = self._pooled(input_ids, attention_mask)
        if self.config.sentence_vector == "pooled":
            return vectors
        views: torch.Tensor = self.projections(vectors)
        return views.mean(1)

    def _pooled(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        mask = full_mask(input_ids, attention_mask)
        states = self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
        return self.embed_states(states, input_ids, mask)

    def conditioned_states(
        self, views: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Encoder states of a sentence, `(batch, length, width)`, that the vectors of another one precede.

        `views` are these vectors, `(batch, projections, width)`.
        """
        tokens = self.get_input_embeddings()(input_ids)
        mask = full_mask(input_ids, attention_mask)
        states: torch.Tensor = self.encoder(
            inputs_embeds=torch.cat([views.to(tokens.dtype), tokens], 1),
            attention_mask=torch.cat([mask.new_ones(views.shape[:2]), mask], 1),
        ).last_hidden_state
        return states[:, views.shape[1] :]

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        first_input_ids: torch.Tensor | None = None,
        first_attention_mask: torch.Tensor | None = None,
        second_input_ids: torch.Tensor | None = None,
        second_attention_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        retrieval: Batch | None = None,
        nli: Batch | None = None,
        matryoshka_dims: Sequence[int] | None = None,
        cache_batch_size: int | None = None,
        masked_tokens: torch.Tensor | None = None,
    ) -> PairOutput:
        """Computes the losses of the batch's tasks. `CmlmTrainer` makes the batches.

        For inputs that are not listed see `XlsrPreTrainedModel`.

        Args:
            first_input_ids: The sentences to condition on, `(batch, length)`.
            first_attention_mask: 0 for padding; all ones by default.
            second_input_ids: Their neighbours, masked, `(batch, second_length)`.
            second_attention_mask: Likewise.
            labels: Original tokens at masked positions, -100 elsewhere, `(batch, second_length)`.
            retrieval: `input_ids` and `attention_mask` of sentences stacked on their translations, `(2 * pairs, length)`;
                optionally hard negatives, further candidates of all sentences.
            nli: See `NliHead.loss`.
        """
        config = self.config
        losses: dict[str, torch.Tensor] = {}
        statistics: dict[str, torch.Tensor] = {}
        if first_input_ids is not None and second_input_ids is not None and labels is not None:
            first = first_input_ids, full_mask(first_input_ids, first_attention_mask)
            second = second_input_ids, full_mask(second_input_ids, second_attention_mask)
            losses, statistics = self._text_losses(first, second, labels, cache_batch_size, masked_tokens)

        source = target = None
        encode = encode_by_length(self.encode_sentences, cache_batch_size)
        if retrieval is not None:
            pairs = retrieval["input_ids"], retrieval["attention_mask"]
            source, target = encode(*pairs).chunk(2)
            negatives = encode_negatives(
                encode, pairs, retrieval.get("negative_input_ids"), retrieval.get("negative_attention_mask")
            )
            loss = partial(
                additive_margin_loss,
                margin=config.retrieval_margin,
                scale=config.retrieval_scale,
                normalize=config.retrieval_normalize,
                split_softmax=config.split_softmax,
            )

            sides = gather_with_gradient(source), gather_with_gradient(target)
            losses["retrieval"] = matryoshka_mean(loss, matryoshka_dims, *sides, negatives)

        if nli is not None:
            losses["nli"], statistics["nli_accuracy"] = self.nli_head.loss(encode, nli)

        weights = {
            "cmlm": config.cmlm_weight,
            "next_sentence": config.cmlm_weight,
            "retrieval": config.retrieval_weight,
            "nli": config.nli_weight,
        }
        return PairOutput(
            loss=weighted_sum(losses, weights),
            losses=losses,
            statistics=statistics,
            source_embeds=source,
            target_embeds=target,
        )

    def _text_losses(
        self,
        first: tuple[torch.Tensor, torch.Tensor],
        second: tuple[torch.Tensor, torch.Tensor],
        labels: torch.Tensor,
        cache_batch_size: int | None,
        masked_tokens: torch.Tensor | None,
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Losses and statistics of running text: tokens and masks of first and of masked second sentences."""
        losses: dict[str, torch.Tensor] = {}
        statistics: dict[str, torch.Tensor] = {}
        first_ids, first_mask = first
        if self.next_sentence_head is not None:
            # Every other second sentence follows the first one of the row before.
            rows = torch.arange(len(labels), device=labels.device)
            first_ids = first_ids[rows - rows % 2]
            first_mask = first_mask[rows - rows % 2]

        chunks = length_chunks(second[1], cache_batch_size)
        inputs: list[tuple[torch.Tensor, ...]] = []
        for chunk in chunks:
            first_chunk = without_padding(first_ids[chunk.rows], first_mask[chunk.rows])
            inputs.append((*chunk(labels, *second), *first_chunk))

        if self.next_sentence_head is None:
            encode = encode_in_chunks(self._masked_states, cache_batch_size)
            masked_states = [encode(*chunk_inputs) for chunk_inputs in inputs]
        else:
            encode = encode_in_chunks(self._joint_states, cache_batch_size)
            encoded = [encode(*chunk_inputs) for chunk_inputs in inputs]
            masked_states = [masked for masked, _ in encoded]
            first_states = [first for _, first in encoded]

            logits = self.next_sentence_head(in_order(first_states, chunks))
            follows = 1 - torch.arange(len(logits), device=logits.device) % 2
            losses["next_sentence"] = F.cross_entropy(logits.to(accumulation_dtype(logits)), follows)
            statistics["next_sentence_accuracy"] = (logits.argmax(1) == follows).float().mean()

        masked_labels = [chunk_labels[chunk_labels != IGNORE] for chunk_labels, *_ in inputs]
        losses["cmlm"] = self.lm_head.loss(
            torch.cat(masked_states),
            torch.cat(masked_labels),
            self.get_input_embeddings().weight,
            chunk_size=self.config.logits_chunk_size,
            masked_tokens=masked_tokens,
        )
        return losses, statistics

    def _masked_states(
        self,
        labels: torch.Tensor,
        second_ids: torch.Tensor,
        second_mask: torch.Tensor,
        first_ids: torch.Tensor,
        first_mask: torch.Tensor,
    ) -> torch.Tensor:
        """States of the masked tokens of the second sentences, conditioned on the first, `(tokens, width)`."""
        masked = labels != IGNORE
        if self.config.conditioning == "none":
            own_states: torch.Tensor = self.encoder(input_ids=second_ids, attention_mask=second_mask).last_hidden_state
            return own_states[masked]

        views = self.projections(self._pooled(first_ids, first_mask))
        states = self.conditioned_states(views, second_ids, second_mask)[masked]
        if self.skip is None:
            return states

        rows_of_tokens = masked.nonzero()[:, 0]
        views_of_tokens = views.flatten(1).to(states.dtype)[rows_of_tokens]
        skipped: torch.Tensor = self.skip(torch.cat([states, views_of_tokens], 1))
        return skipped

    def _joint_states(
        self,
        labels: torch.Tensor,
        second_ids: torch.Tensor,
        second_mask: torch.Tensor,
        first_ids: torch.Tensor,
        first_mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Both sentences as one input: states of masked tokens, `(tokens, width)`; first states, `(batch, width)`."""
        first_length = first_ids.shape[1]
        input_ids = torch.cat([first_ids, second_ids], 1)
        mask = torch.cat([first_mask, second_mask], 1)

        options: dict[str, torch.Tensor] = {}
        if self._takes_positions:  # not counting the padding between both
            options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0) + first_position(self.encoder)
        if self._takes_types:
            columns = torch.arange(input_ids.shape[1], device=input_ids.device)
            options["token_type_ids"] = (columns >= first_length).long().expand_as(input_ids)

        states = self.encoder(input_ids=input_ids, attention_mask=mask, **options).last_hidden_state
        second_states = states[:, first_length:]
        return second_states[labels != IGNORE], states[:, 0]

    def sentence_encoder(self, tokenizer: Any) -> SentenceEncoder:
        """As the base; with `sentence_vector` `projected` the head has a module that sentence-transformers lacks."""
        encoder = super().sentence_encoder(tokenizer)
        if self.config.sentence_vector == "pooled":
            return encoder
        part = encoder.single()
        head = list(part.head or ())
        position = len(head)
        if head and isinstance(head[-1], Normalize):
            position -= 1
        head.insert(position, MeanOfProjections(self.projections))
        return replace(encoder, parts={"": replace(part, head=head)})

    def to_sentence_transformer(self, tokenizer: Any) -> SentenceTransformer:
        """As the base, for `sentence_vector` `pooled`."""
        if self.config.sentence_vector == "projected":
            raise XlsrError(
                "sentence_vector 'projected' has no export: no stock module computes it. Set "
                "config.sentence_vector = 'pooled' to export the pooled states."
            )
        return super().to_sentence_transformer(tokenizer)
