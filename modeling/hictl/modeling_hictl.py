"""HICTL: contrastive learning of sentences and words, with a masked language model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from transformers.utils.generic import can_return_tuple

from hf_xlsr.encoders.assembly import EncoderPart
from hf_xlsr.losses.combination import encode_in_chunks, matryoshka_mean, weighted_sum
from hf_xlsr.losses.cross_entropy import IGNORE
from hf_xlsr.losses.sentence_contrast import sentence_contrast_loss
from hf_xlsr.losses.word_contrast import bags_of_words, draw_negative_words, hard_word_share, word_contrast_loss
from hf_xlsr.modeling.base import EncoderWithLmHead, PairOutput, zero_of
from hf_xlsr.modeling.encoding import encode_by_length, encode_negatives, full_mask, in_order, length_chunks
from hf_xlsr.utils.distributed import gather_with_gradient
from hf_xlsr.utils.errors import XlsrError

from .configuration_hictl import HictlConfig

WATCHED_PAIRS = 8  # of a batch, in the statistic of negative words


class HictlForPreTraining(EncoderWithLmHead):
    """Hierarchical contrastive learning (Wei et al., 2021) on any encoder.

    ```math
    L = L_{LM} + L_S + L_W
    ```

    (equation 7): a masked language model over pairs (TLM) or sentences (MLM); the contrast of the two sentences of a
    pair with all others of the batch (equations 2-4); and the contrast of a pair's words with other words of the
    vocabulary (equations 5, 6).

    Choices that the paper leaves open: the sentence embedding is a linear projection of the first state, of the same
    width (a given encoder keeps its own head instead); the query of the word level is the first state itself, since it
    is compared with word embeddings; a bag of words contains tokens, each once, without special ones; negative words are
    sampled without replacement from the softmax of their cosines with the query. The language model's decoder is tied to
    the embeddings, and only masked positions are decoded.

    In the `PairOutput`, `losses` are the parts of equation 7: `lm`, `sentence`, `word`. `statistics` are `hard_words`:
    the share of negative words among the 1 % most similar to the pair, of a few pairs. Embeddings are not normalised.

    Examples:
        >>> from hf_xlsr.modeling.hictl import HictlConfig
        >>> encoder = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...            "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
        >>> model = HictlForPreTraining(HictlConfig(text_config=encoder, negative_words=4))
        >>> ids = torch.tensor([[2, 5, 3], [2, 6, 3], [2, 7, 3], [2, 8, 3]])  # two pairs: rows 0 and 2, rows 1 and 3
        >>> joint = torch.tensor([[2, 5, 3, 7, 3], [2, 6, 3, 8, 3]])
        >>> masked = torch.tensor([[2, 4, 3, 7, 3], [2, 4, 3, 8, 3]])
        >>> labels = torch.where(masked == joint, -100, joint)
        >>> output = model(ids, lm_input_ids=masked, lm_labels=labels, joint_input_ids=joint,
        ...                special_ids=torch.tensor([0, 2, 3, 4]))
        >>> sorted(output.losses)
        ['lm', 'sentence', 'word']
    """

    config: HictlConfig
    config_class = HictlConfig

    def __init__(self, config: HictlConfig, given: EncoderPart | None = None) -> None:
        super().__init__(config, given)
        self.lm_head = self.make_lm_head() if config.lm_weight else None
        self.post_init()

    def first_states(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """The encoder's state of the first token, `(batch, width)`."""
        return self._states(input_ids, attention_mask)[:, 0]

    def _states(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        mask = full_mask(input_ids, attention_mask)
        states: torch.Tensor = self.encoder(input_ids=input_ids, attention_mask=mask).last_hidden_state
        return states

    def _masked_states(
        self, labels: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """First states, `(batch, width)`, and states of the masked tokens, `(tokens, width)`."""
        states = self._states(input_ids, attention_mask)
        return states[:, 0], states[labels != IGNORE]

    def encode_sentences(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Sentence embeddings r, `(batch, width)`, not normalised: of the paper's head the projected first state."""
        mask = full_mask(input_ids, attention_mask)
        return self.embed_states(self._states(input_ids, mask), input_ids, mask)

    @can_return_tuple  # type: ignore[untyped-decorator]
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
        negative_input_ids: torch.Tensor | None = None,
        negative_attention_mask: torch.Tensor | None = None,
        matryoshka_dims: Sequence[int] | None = None,
        cache_batch_size: int | None = None,
        positive_probability: float = 0.0,
        masked_tokens: torch.Tensor | None = None,
        return_loss: bool = True,
    ) -> PairOutput:
        """Encodes stacked pairs and computes equation 7. `HictlCollator` makes the batches.

        Hard negatives are further candidates of all sentences. For inputs that are not listed see `XlsrPreTrainedModel`.

        Args:
            input_ids: Sentences x stacked on their y, `(2 * batch, length)`.
            attention_mask: 0 for padding.
            lm_input_ids: Masked input of the language model, `(batch, lm_length)`.
            lm_attention_mask: Likewise.
            lm_labels: Original tokens at masked positions, -100 elsewhere, `(batch, lm_length)`.
            joint_input_ids: Both sentences, unmasked, whose tokens are the pair's bag of words, `(batch, joint_length)`;
                with `word_query` `plain` their first state is the query.
            joint_attention_mask: Likewise.
            special_ids: Tokens that are not words, `(count,)`.
            positive_probability: Mean probability that the contrast of sentences gave to translations in the last steps,
                which `HictlTrainer` counts: times `negative_interpolation`, it is the hardness of negative sentences.
        """
        encode = encode_by_length(self.encode_sentences, cache_batch_size)
        source: torch.Tensor | None = None
        target: torch.Tensor | None = None
        query: torch.Tensor | None = None
        if not return_loss:
            source, target = encode(input_ids, attention_mask).chunk(2)
            return PairOutput(source_embeds=source, target_embeds=target)

        config = self.config
        self._check_inputs(
            lm_input_ids=lm_input_ids, lm_labels=lm_labels, joint_input_ids=joint_input_ids, special_ids=special_ids
        )

        losses: dict[str, torch.Tensor] = {}
        statistics: dict[str, torch.Tensor] = {}
        if config.sentence_weight:
            source, target = encode(input_ids, attention_mask).chunk(2)
            chunked = encode_in_chunks(self.encode_sentences, cache_batch_size)
            sentences = input_ids, attention_mask
            negatives = encode_negatives(chunked, sentences, negative_input_ids, negative_attention_mask)
            contrast = partial(
                sentence_contrast_loss,
                temperature=config.sentence_temperature,
                hardness=config.negative_interpolation * positive_probability,
                split_softmax=config.split_softmax,
            )
            pairs = gather_with_gradient(source), gather_with_gradient(target)
            losses["sentence"] = matryoshka_mean(contrast, matryoshka_dims, *pairs, negatives)

        if config.reads_masked_input and lm_input_ids is not None and lm_labels is not None:
            masked_input = lm_input_ids, full_mask(lm_input_ids, lm_attention_mask)
            query, lm_loss = self._masked_input_loss(masked_input, lm_labels, cache_batch_size, masked_tokens)
            if lm_loss is not None:
                losses["lm"] = lm_loss

        if config.word_weight and joint_input_ids is not None and special_ids is not None:
            joint = joint_input_ids, full_mask(joint_input_ids, joint_attention_mask)
            if config.word_query == "plain":
                query = encode_in_chunks(self.first_states, cache_batch_size)(*joint)
            if query is not None:
                losses["word"], statistics["hard_words"] = self._word_loss(query, *joint, special_ids)

        weights = {"lm": config.lm_weight, "sentence": config.sentence_weight, "word": config.word_weight}
        loss = weighted_sum(losses, weights)
        if source is None:
            loss = loss + zero_of(self.head)
        return PairOutput(loss=loss, losses=losses, statistics=statistics, source_embeds=source, target_embeds=target)

    def _check_inputs(self, **inputs: torch.Tensor | None) -> None:
        """Checks that the batch has what the losses with a weight need."""
        needed: list[str] = []
        if self.config.word_weight:
            needed += ["joint_input_ids", "special_ids"]
        if self.config.reads_masked_input:
            needed += ["lm_input_ids", "lm_labels"]

        missing = [name for name in needed if inputs[name] is None]
        if missing:
            raise XlsrError(f"Missing inputs: {', '.join(missing)}. Use HictlCollator.")

    def _masked_input_loss(
        self,
        masked_input: tuple[torch.Tensor, torch.Tensor],
        labels: torch.Tensor,
        cache_batch_size: int | None,
        masked_tokens: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """First states of the masked input, `(batch, width)`, and the loss of the language model, if it is trained."""
        encode = encode_in_chunks(self._masked_states, cache_batch_size)
        chunks = length_chunks(masked_input[1], cache_batch_size)

        first_states = []
        masked_states = []
        masked_labels = []
        for chunk in chunks:
            chunk_labels, *chunk_input = chunk(labels, *masked_input)
            chunk_first_states, chunk_masked_states = encode(chunk_labels, *chunk_input)
            first_states.append(chunk_first_states)
            masked_states.append(chunk_masked_states)
            masked_labels.append(chunk_labels[chunk_labels != IGNORE])

        query = in_order(first_states, chunks)
        if self.lm_head is None:
            return query, None

        loss = self.lm_head.loss(
            torch.cat(masked_states),
            torch.cat(masked_labels),
            self.get_input_embeddings().weight,
            chunk_size=self.config.logits_chunk_size,
            masked_tokens=masked_tokens,
        )
        return query, loss

    def _word_loss(
        self, query: torch.Tensor, joint_ids: torch.Tensor, mask: torch.Tensor, special_ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The word-level loss, and the share of hard negatives among the drawn words of some pairs."""
        table = self.get_input_embeddings().weight
        bags = bags_of_words(joint_ids, mask, special_ids)

        negatives = draw_negative_words(
            query,
            table,
            bags,
            special_ids=special_ids,
            count=self.config.negative_words,
            temperature=self.config.sampling_temperature,
        )

        loss = word_contrast_loss(query, table, bags, negatives, temperature=self.config.word_temperature)
        return loss, hard_word_share(query[:WATCHED_PAIRS], table, negatives[:WATCHED_PAIRS])
