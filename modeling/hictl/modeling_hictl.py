"""HICTL: an encoder trained by contrast of sentences, contrast of words, and language modelling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers.utils import ModelOutput, can_return_tuple

from hf_xlsr.losses import (
    bags_of_words,
    draw_negative_words,
    sentence_contrast_loss,
    weighted_sum,
    word_contrast_loss,
)
from hf_xlsr.modeling.pretraining import EncoderWithLmHead
from hf_xlsr.utils.distributed import gather_with_gradient
from hf_xlsr.utils.errors import XlsrError

from .configuration_hictl import HictlConfig

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass
class HictlOutput(ModelOutput):
    """What `HictlForPreTraining` returns.

    Args:
        loss: Equation 7, a scalar.
        losses: Its parts by name, before weighting: `lm`, `sentence`, `word`.
        source_embeds: Projected first states of the first half of the batch, `(batch, width)`, not normalised.
        target_embeds: Those of the second half, `(batch, width)`.
    """

    loss: torch.Tensor | None = None
    losses: dict[str, torch.Tensor] | None = None
    source_embeds: torch.Tensor | None = None
    target_embeds: torch.Tensor | None = None


class HictlForPreTraining(EncoderWithLmHead):
    """Hierarchical contrastive learning (Wei et al., 2021) on any encoder.

    .. math:: L = L_{LM} + L_S + L_W

    (equation 7): a masked language model over pairs (TLM) or sentences (MLM); the contrast of the two sentences of a
    pair with all others of the batch (equations 2-4); and the contrast of a pair's words with other words of the
    vocabulary (equations 5, 6).

    What the paper leaves open: the sentence vector is a linear projection of the first state, as wide as the state; the
    query of the word level is the first state itself, since word embeddings are compared with it; a bag of words holds
    pieces, each once, without the special ones; negative words are drawn without repetition from the softmax of their
    cosines with the query. The language model's decoder is tied to the embeddings, and only masked positions are
    decoded.

    Example:
        >>> from hf_xlsr.modeling.hictl import HictlConfig
        >>> encoder = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...            "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
        >>> model = HictlForPreTraining(HictlConfig(text_config=encoder, negative_words=4))
        >>> ids = torch.tensor([[2, 5, 3], [2, 6, 3], [2, 7, 3], [2, 8, 3]])  # two pairs: rows 0 and 2, rows 1 and 3
        >>> both = torch.tensor([[2, 5, 3, 7, 3], [2, 6, 3, 8, 3]])
        >>> masked, labels = both.clone(), torch.full_like(both, -100)
        >>> masked[:, 1], labels[:, 1] = 4, both[:, 1]
        >>> output = model(ids, lm_input_ids=masked, lm_labels=labels, joint_input_ids=both,
        ...                special_ids=torch.tensor([0, 2, 3, 4]))
        >>> sorted(output.losses)
        ['lm', 'sentence', 'word']
    """

    config: HictlConfig
    config_class = HictlConfig

    def __init__(self, config: HictlConfig, encoder: Any = None) -> None:
        super().__init__(config, encoder)
        text_config = config.get_text_config()
        table_width = self.encoder.get_input_embeddings().weight.shape[1]
        if table_width != text_config.hidden_size and (config.word_weight or config.lm_weight):
            raise XlsrError(
                f"text_config '{text_config.model_type}' has embeddings of width {table_width} and states of width "
                f"{text_config.hidden_size}, but words and language model are compared with the states; use an encoder "
                "where they agree, or lm_weight 0 and word_weight 0."
            )
        self.projection = nn.Linear(text_config.hidden_size, text_config.hidden_size)
        self.lm_head = self.make_lm_head() if config.lm_weight else None
        self.post_init()

    def first_states(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The encoder's state of the first piece, `(batch, width)`.

        Args:
            input_ids: `(batch, length)`.
            attention_mask: 1 for real pieces, `(batch, length)`; all of them when absent.
        """
        return self._states(input_ids, attention_mask)[:, 0]

    def _states(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state

    def encode_sentences(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Sentence vectors r, `(batch, width)`: the projected first state, not normalised.

        Args:
            input_ids: `(batch, length)`.
            attention_mask: 1 for real pieces, `(batch, length)`; all of them when absent.
        """
        return self.projection(self.first_states(input_ids, attention_mask))

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        lm_input_ids: torch.Tensor | None = None,
        lm_attention_mask: torch.Tensor | None = None,
        lm_labels: torch.Tensor | None = None,
        joint_input_ids: torch.Tensor | None = None,
        joint_attention_mask: torch.Tensor | None = None,
        special_ids: torch.Tensor | None = None,
        return_loss: bool = True,
    ) -> HictlOutput:
        """Encodes stacked pairs and, unless told not to, computes equation 7. `HictlCollator` makes the batches.

        Args:
            input_ids: Sentences x over their y, `(2 * batch, length)`.
            attention_mask: 1 for real pieces, `(2 * batch, length)`.
            lm_input_ids: Masked input of the language model, `(batch, lm_length)`.
            lm_attention_mask: Likewise.
            lm_labels: The hidden pieces, -100 elsewhere, `(batch, lm_length)`.
            joint_input_ids: Both sentences, unmasked, whose pieces are the pair's bag of words, `(batch, joint_length)`;
                for `word_query` `plain` their first state is the query.
            joint_attention_mask: Likewise.
            special_ids: Pieces that are no words, `(count,)`.
            return_loss: Compute the losses.

        Raises:
            XlsrError: the number of rows is odd, a part of the loss misses its input, or no pair has a word.
        """
        if len(input_ids) % 2:
            raise XlsrError(f"the batch has {len(input_ids)} rows; stack the sentences over as many counterparts.")
        config = self.config
        needed = {"joint_input_ids": joint_input_ids, "special_ids": special_ids} if config.word_weight else {}
        if config.lm_weight or (config.word_weight and config.word_query == "masked"):
            needed |= {"lm_input_ids": lm_input_ids, "lm_labels": lm_labels}
        lacking = [name for name, value in needed.items() if value is None]
        if return_loss and lacking:
            raise XlsrError(f"the batch lacks {', '.join(lacking)}; use HictlCollator.")
        losses: dict[str, torch.Tensor] = {}
        source = target = None
        if config.sentence_weight or not return_loss:
            source, target = self.encode_sentences(input_ids, attention_mask).chunk(2)
        if not return_loss:
            return HictlOutput(source_embeds=source, target_embeds=target)
        if source is not None and target is not None:
            losses["sentence"] = sentence_contrast_loss(
                gather_with_gradient(source), gather_with_gradient(target), temperature=config.sentence_temperature
            )
        query = None
        if lm_input_ids is not None and lm_labels is not None and "lm_labels" in needed:
            states = self._states(lm_input_ids, lm_attention_mask)
            query = states[:, 0]
            if self.lm_head is not None:
                table, size = self.get_input_embeddings().weight, config.logits_chunk_size
                losses["lm"] = self.lm_head.loss(states, lm_labels, table, chunk_size=size)
        if config.word_weight and joint_input_ids is not None and special_ids is not None:
            if config.word_query == "plain":
                query = self.first_states(joint_input_ids, joint_attention_mask)
            if query is not None:
                losses["word"] = self._word_loss(query, joint_input_ids, joint_attention_mask, special_ids)
        weights = {"lm": config.lm_weight, "sentence": config.sentence_weight, "word": config.word_weight}
        loss = weighted_sum(losses, weights)
        if source is None:
            # DDP waits for the gradient of every parameter, of the idle projection too.
            loss = loss + 0.0 * sum(parameter.sum() for parameter in self.projection.parameters())
        return HictlOutput(loss=loss, losses=losses, source_embeds=source, target_embeds=target)

    def _word_loss(
        self,
        query: torch.Tensor,
        joint_input_ids: torch.Tensor,
        joint_attention_mask: torch.Tensor | None,
        special_ids: torch.Tensor,
    ) -> torch.Tensor:
        config, table = self.config, self.get_input_embeddings().weight
        mask = torch.ones_like(joint_input_ids) if joint_attention_mask is None else joint_attention_mask
        bags = bags_of_words(joint_input_ids, mask, special_ids)
        if not len(bags[0]):
            raise XlsrError(
                "no pair of the batch has a word: all of their pieces are special ones; check that the tokenizer knows "
                "the script of the text, or set word_weight to 0."
            )
        negatives = draw_negative_words(
            query,
            table,
            bags,
            count=config.negative_words,
            special_ids=special_ids,
            temperature=config.sampling_temperature,
        )
        return word_contrast_loss(query, table, bags, negatives, temperature=config.word_temperature)

    def to_sentence_transformer(self, tokenizer: Any, **options: Any) -> SentenceTransformer:
        """The encoder as a stock sentence-transformers model: first state, projection, unit length.

        Args:
            tokenizer: Of the encoder.
            **options: See `hf_xlsr.export.to_sentence_transformer`.
        """
        from hf_xlsr.export import to_sentence_transformer

        return to_sentence_transformer(self.encoder, tokenizer, projection=self.projection, pooling="cls", **options)
