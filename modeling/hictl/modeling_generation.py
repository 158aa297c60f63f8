"""HICTL fine-tuned on translation: the pretrained encoder, a new decoder, and similarities of sentence and words."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize
from transformers import GenerationMixin, PreTrainedConfig
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils.generic import can_return_tuple

from hf_xlsr.encoders.stock import check_token_ids, encoder_from_config, max_positions
from hf_xlsr.losses.cross_entropy import IGNORE, masked_lm_loss
from hf_xlsr.losses.in_batch import row_lengths
from hf_xlsr.modeling.base import Dropout, XlsrPreTrainedModel, attention_of, config_of_encoder
from hf_xlsr.modeling.heads import TokenBias
from hf_xlsr.utils.errors import XlsrError, did_you_mean

from .configuration_hictl import POSITIONS, HictlConfig
from .modeling_classification import start_encoder


@dataclass
class HictlEncoderOutput(BaseModelOutput):
    """Encoder output of a source, with the cosines of its first state and all words, `(batch, vocabulary)`, or None."""

    word_similarities: torch.Tensor | None = None


@dataclass
class HictlTranslationOutput(Seq2SeqLMOutput):
    """`Seq2SeqLMOutput` and `losses`: `translation`, the mean loss per target token, for logging."""

    losses: dict[str, torch.Tensor] | None = None


class _SentenceReader(nn.Module):
    """The encoder as `generate` calls it: once per sentence, with similarities."""

    def __init__(self, model: HictlForConditionalGeneration) -> None:
        super().__init__()
        self.read = model.encode  # a method, so that the model is not a submodule of its own encoder

    def forward(self, *args: Any, **kwargs: Any) -> HictlEncoderOutput:
        return self.read(*args, **kwargs)


class OutputBias(TokenBias):
    """Bias of the decoder's logits, `(vocabulary,)`, plus the similarities of a sentence, `(batch, vocabulary)`."""

    def forward(self, similarities: torch.Tensor | None = None) -> torch.Tensor:
        return self.bias if similarities is None else self.bias + similarities


def reshaped(config: PreTrainedConfig, shape: Mapping[str, Any]) -> PreTrainedConfig:
    """A copy of an encoder's configuration with other values; unknown names are an error."""
    values = config.to_dict()
    for name in shape:
        if name not in values:
            raise XlsrError(f"`shape`: the encoder's configuration has no '{name}'; {did_you_mean(name, values)}")
    return type(config).from_dict({**values, **shape})


class HictlForConditionalGeneration(XlsrPreTrainedModel, GenerationMixin):
    """Translation with a pretrained encoder and a new decoder (section 3.2, figure 2).

    At each step the decoder's logits are `states @ table.T + bias + similarities`. The similarities are the cosines of
    the encoder's first state and all words, computed once per sentence. Choices that the paper leaves open:

    - The first state has no projection: the query of the word-level contrast, which learns these cosines, has none.
    - The cosines are added unscaled, to all tokens of the vocabulary, including special ones.
    - The decoder shares the encoder's word embeddings as input and output: one vocabulary for all languages. It starts
      with the first special token of a sentence (`bos` in figure 2), for every target language.
    - Its layers are BERT's with cross-attention and learned positions.

    The loss is computed in chunks, without the logits of a whole batch; with `labels` no logits are returned.

    Examples:
        >>> encoder = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...            "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16,
        ...            "bos_token_id": 1, "eos_token_id": 2}
        >>> model = HictlForConditionalGeneration(HictlConfig(text_config=encoder, decoder_layers=1)).eval()
        >>> ids = torch.tensor([[1, 5, 6, 2]])
        >>> model(input_ids=ids, labels=torch.tensor([[7, 2]])).loss.shape
        torch.Size([])
        >>> model.generate(input_ids=ids, num_beams=2, max_new_tokens=3).shape[0]
        1
    """

    config: HictlConfig
    config_class = HictlConfig  # postponed annotations hide the type from the line above
    accepts_loss_kwargs = True  # the loss is a mean over all target tokens of a step

    def __init__(self, config: HictlConfig, encoder: Any = None) -> None:
        config = copy.deepcopy(config)
        config.is_encoder_decoder = True
        if encoder is not None:
            config.text_config = encoder.config
        super().__init__(config)
        text_config = config.get_text_config()
        self.encoder = encoder_from_config(text_config) if encoder is None else encoder

        decoder_config = config.decoder_config(max_positions(self.encoder) or POSITIONS)
        decoder_config.vocab_size = 1  # it uses the encoder's table
        decoder_config.pad_token_id = 0
        self.decoder = encoder_from_config(decoder_config, attn_implementation=attention_of(config))
        self.decoder.set_input_embeddings(None)
        self.output_bias = OutputBias(text_config.vocab_size)
        self.post_init()

    @classmethod
    def from_encoder(
        cls,
        encoder: Any,
        *,
        tokenizer: Any = None,
        tokens: Sequence[int] | None = None,
        dropout: Dropout = None,
        random_weights: bool = False,
        shape: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> HictlForConditionalGeneration:
        """A pretrained encoder with a new decoder.

        Args:
            encoder: See `start_encoder`.
            tokenizer: Defines the tokens that begin and end a sentence; by default the encoder's.
            tokens: Ids of the tokens to keep (see `keep_tokens`); all by default.
            dropout: On states and attention of encoder and decoder; by default the encoder's.
            random_weights: Takes the encoder's shape and vocabulary, and new weights: the Transformer of table 4.
            shape: Values of the encoder's configuration that differ from its own; only with `random_weights`.
            **options: Values of `HictlConfig`.
        """
        part = start_encoder(encoder, dropout=dropout)
        started = part.encoder
        if shape and not random_weights:
            raise XlsrError(
                f"`shape` needs `random_weights`, got {dict(shape)}: pretrained weights have their own sizes."
            )
        if random_weights:
            started = encoder_from_config(reshaped(started.config, shape or {}))

        if tokenizer is None:
            tokenizer = part.required_tokenizer()
        check_token_ids(tokenizer, started.config.vocab_size if tokens is None else len(tokens))
        first_token, last_token = sentence_ends(tokenizer)
        started.config.bos_token_id = first_token
        started.config.eos_token_id = last_token
        started.config.pad_token_id = tokenizer.pad_token_id

        model = cls(HictlConfig(**{**config_of_encoder(started), **options}), started)
        model.given_tokenizer = tokenizer
        if tokens is not None:
            model.keep_tokens(tokens)
        return model

    def freeze_encoder(self) -> None:
        """Freezes the encoder, its embeddings included, in evaluation mode: step one of the paper."""
        self.encoder.requires_grad_(False)
        self.encoder.eval()

    def train(self, mode: bool = True) -> HictlForConditionalGeneration:
        """Sets the mode; a frozen encoder stays in evaluation mode."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.encoder.parameters()):
            self.encoder.eval()
        return self

    @torch.no_grad()
    def keep_tokens(self, tokens: Sequence[int]) -> None:
        """Reduces the vocabulary to `tokens`, in that order, which `trim_vocabulary` returns."""
        embeddings = self.get_input_embeddings()
        rows = torch.as_tensor(tokens, device=self.device)
        table = embeddings.weight[rows]
        padding = None if embeddings.padding_idx is None else list(tokens).index(embeddings.padding_idx)
        self.set_input_embeddings(nn.Embedding(len(table), table.shape[1], padding, _weight=table))
        self.output_bias.bias = nn.Parameter(self.output_bias.bias[rows])
        self.config.get_text_config().vocab_size = len(rows)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        """The encoder as `generate` calls it; the stock one is `model.encoder`."""
        return _SentenceReader(self)

    def encode(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None, **_: Any
    ) -> HictlEncoderOutput:
        """Encodes the sources: states, `(batch, length, width)`, and similarities, `(batch, vocabulary)`."""
        if input_ids is not None:
            check_positions("input_ids", input_ids.shape[1], max_positions(self.encoder), "truncate the sources")
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return HictlEncoderOutput(last_hidden_state=states, word_similarities=self._similarities(states))

    def _similarities(self, states: torch.Tensor) -> torch.Tensor | None:
        if not self.config.word_similarity:
            return None
        return word_similarities(states[:, 0], self.get_input_embeddings().weight)

    def shift_right(self, labels: torch.Tensor) -> torch.Tensor:
        """Decoder input that predicts `labels`: the start token and all labels but the last."""
        config = self.config.get_text_config()
        shifted = labels.roll(1, dims=1)
        shifted = shifted.masked_fill(shifted == IGNORE, config.pad_token_id or 0)
        shifted[:, 0] = config.bos_token_id
        return shifted

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        label_smoothing: float = 0.0,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> HictlTranslationOutput:
        """Computes the loss with `labels`, otherwise the logits of the next tokens.

        Args:
            input_ids: Sources, `(batch, length)`.
            attention_mask: 0 for padding of the sources.
            decoder_input_ids: Targets so far, `(batch, target length)`; derived from `labels` by default.
            decoder_attention_mask: 0 for padding of the targets; not needed with right padding.
            encoder_outputs: From `encode` or `get_encoder()`, instead of sources.
            past_key_values: Cache of the previous steps.
            labels: Target tokens with the final special one, -100 on padding, `(batch, target length)`.
            use_cache: Return the cache; by default without labels.
            label_smoothing: Share of a label's probability that is spread over the vocabulary.
            num_items_in_batch: Target tokens in the whole step, which divide the loss; by default those of this batch.
            **kwargs: For the decoder.
        """
        if encoder_outputs is None:
            encoder_outputs = self.encode(input_ids, attention_mask)
        elif not isinstance(encoder_outputs, dict):
            encoder_outputs = HictlEncoderOutput(*encoder_outputs)

        states = encoder_outputs["last_hidden_state"]
        similarities = encoder_outputs.get("word_similarities")
        if similarities is None:
            similarities = self._similarities(states)

        table = self.get_input_embeddings()
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.shift_right(labels)
        if decoder_input_ids is not None:
            past_length = 0 if past_key_values is None else int(past_key_values.get_seq_length())
            length = past_length + decoder_input_ids.shape[1]
            most = self.decoder.config.max_position_embeddings
            check_positions("decoder_input_ids", length, most, "lower max_new_tokens, or truncate the targets")
        if use_cache is None:
            use_cache = labels is None and self.decoder.config.use_cache
        decoded = self.decoder(
            inputs_embeds=table(decoder_input_ids),
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=states,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=use_cache,
            **{name: value for name, value in kwargs.items() if value is not None},
        )

        bias = self.output_bias(similarities)
        logits = loss = losses = None
        if labels is None:
            logits = decoded.last_hidden_state @ table.weight.T + bias.unsqueeze(-2)
        else:
            loss = masked_lm_loss(
                decoded.last_hidden_state,
                labels,
                table.weight,
                bias,
                label_smoothing=label_smoothing,
                chunk_size=self.config.logits_chunk_size,
            )
            losses = {"translation": loss}
            if num_items_in_batch is not None:
                loss = loss * (labels != IGNORE).sum() / num_items_in_batch

        return HictlTranslationOutput(
            loss=loss,
            losses=losses,
            logits=logits,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=states,
        )


def check_positions(name: str, length: int, positions: int | None, fix: str) -> None:
    """Raises for more tokens than a model has positions."""
    if positions is not None and length > positions:
        raise XlsrError(f"`{name}` must have at most {positions} tokens, the model's positions, got {length}; {fix}.")


def word_similarities(queries: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Cosine of each sentence embedding and each row of the embedding table, `(batch, vocabulary)`.

    No normalised copy of the table is made. A row of zeros has similarity 0.
    """
    return normalize(queries, dim=-1).to(table.dtype) @ table.T / row_lengths(table)


def sentence_ends(tokenizer: Any) -> tuple[int, int]:
    """Ids of the special tokens that a tokenizer puts at the beginning and at the end of a sentence."""
    ids = tokenizer("a")["input_ids"]
    special = set(tokenizer.all_special_ids)
    if len(ids) < 2 or ids[0] not in special or ids[-1] not in special:
        raise XlsrError(
            "The tokenizer must put special tokens around a sentence, as that of a pretrained encoder does."
        )
    return ids[0], ids[-1]
