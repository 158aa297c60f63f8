"""HICTL fine-tuned on translation: the pre-trained encoder, a new decoder, and the similarities of sentence and words."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoTokenizer, GenerationMixin
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from hf_xlsr.encoders.stock import check_pieces, encoder_from_config, max_positions, resized_bias
from hf_xlsr.losses.biased_cross_entropy import biased_cross_entropy
from hf_xlsr.losses.masked_lm import IGNORE
from hf_xlsr.modeling.base import XlsrPreTrainedModel
from hf_xlsr.utils.errors import XlsrError

from .configuration_hictl import POSITIONS, HictlConfig
from .modeling_classification import encoder_folder, start_encoder
from .word_similarity import word_similarities


@dataclass
class HictlEncoderOutput(BaseModelOutput):
    """What a source sentence gives to all steps of its decoding.

    Args:
        word_similarities: Cosines of the first state and all words, `(batch, vocabulary)`; None without them.
    """

    word_similarities: torch.Tensor | None = None


@dataclass
class HictlTranslationOutput(Seq2SeqLMOutput):
    """What `HictlForConditionalGeneration` returns.

    Args:
        losses: `translation`, the mean loss a target piece, for logging.
    """

    losses: dict[str, torch.Tensor] | None = None


class _SentenceReader(nn.Module):
    """The encoder as `generate` calls it: once for each sentence, similarities included."""

    def __init__(self, model: HictlForConditionalGeneration) -> None:
        super().__init__()
        self.read = model.encode  # a method, so that the model does not become a part of its own reader

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> HictlEncoderOutput:
        return self.read(input_ids, attention_mask, inputs_embeds, **kwargs)


class OutputBias(nn.Module):
    """What the decoder's logits get beside the products with the embeddings: a bias, and the similarities of a sentence.

    Args:
        vocab_size: Pieces.
    """

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, similarities: torch.Tensor | None = None) -> torch.Tensor:
        """`(vocabulary,)`, or with similarities `(batch, vocabulary)`."""
        return self.bias if similarities is None else self.bias + similarities


class HictlForConditionalGeneration(XlsrPreTrainedModel, GenerationMixin):
    """Translation with a pre-trained encoder and a decoder that is learnt from scratch (section 3.2, figure 2).

    At each step the decoder's logits are `states @ table.T + bias + similarities`. The similarities are the cosines of
    the encoder's first state and all words, computed once for each sentence. The paper leaves open what follows:

    - The first state is taken as it is, without the projection of the sentence-level contrast: the query of the
      word-level contrast, which learns these very cosines, has none either.
    - The cosines are added as they are, to all pieces of the vocabulary, special ones included.
    - The decoder has the encoder's word embeddings for its input and its output: there is one vocabulary of all
      languages. It starts with the piece that begins a sentence (`bos` in figure 2), whatever the target language.
    - Its layers are BERT's with cross-attention; positions are learnt.

    The loss is computed in chunks: the logits of a training batch are never held, and with `labels` none are returned.

    Args:
        config: `HictlConfig`.
        encoder: A pretrained encoder that `config.text_config` describes; a new one when absent.

    Raises:
        XlsrError: the encoder's word embeddings and states differ in width.

    Example:
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
    accepts_loss_kwargs = True  # the loss is a mean over the target pieces of all that one step sees

    def __init__(self, config: HictlConfig, encoder: Any = None) -> None:
        config = copy.deepcopy(config)
        config.is_encoder_decoder = True
        if encoder is not None:
            config.text_config = encoder.config
        super().__init__(config)
        text_config = config.get_text_config()
        self.encoder = encoder_from_config(text_config) if encoder is None else encoder
        width = self.encoder.get_input_embeddings().weight.shape[1]
        if width != text_config.hidden_size:
            raise XlsrError(
                f"text_config '{text_config.model_type}' has embeddings of width {width} and states of width "
                f"{text_config.hidden_size}, but the decoder shares the embeddings; use an encoder where they agree."
            )
        decoder = config.decoder_config(max_positions(self.encoder) or POSITIONS)
        decoder.vocab_size, decoder.pad_token_id = 1, 0  # it reads the encoder's table and has none of its own
        self.decoder = encoder_from_config(decoder, attn_implementation=config._attn_implementation)
        self.decoder.set_input_embeddings(None)
        self.output_bias = OutputBias(text_config.vocab_size)
        self.post_init()

    @classmethod
    def from_pretrained(cls, path: Any, *args: Any, **options: Any) -> Any:  # type: ignore[override]  # they pass through
        """As of any model; folders of before the output's bias had its name of today load as well."""
        options.setdefault("key_mapping", {r"^output\.": "output_bias."})
        return super().from_pretrained(path, *args, **options)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, OutputBias):
            init.zeros_(module.bias)

    @classmethod
    def from_encoder(
        cls,
        path: str | Path,
        *,
        tokenizer: Any = None,
        pieces: Any = None,
        dropout: float | None = None,
        **options: Any,
    ) -> HictlForConditionalGeneration:
        """The pre-trained encoder of a folder with a new decoder.

        Args:
            path: See `start_encoder`: any pretrained encoder, or the checkpoint of a HICTL model, of which nothing else
                is taken.
            tokenizer: Says which pieces begin and end a sentence; that of the folder when absent.
            pieces: Of the vocabulary, those that the model keeps (see `keep_pieces`); all when absent.
            dropout: On the states and attention of encoder and decoder, instead of what the encoder was trained with.
            **options: Values of `HictlConfig`.

        Raises:
            XlsrError: nothing loads from there, or the tokenizer has no such pieces, or more pieces than the encoder.
        """
        encoder = start_encoder(path, dropout=dropout)
        if tokenizer is None:
            tokenizer = AutoTokenizer.from_pretrained(encoder_folder(path))
        check_vocabulary(tokenizer, encoder.config.vocab_size if pieces is None else len(pieces))
        for name, piece in zip(("bos_token_id", "eos_token_id"), sentence_ends(tokenizer), strict=True):
            setattr(encoder.config, name, piece)
        encoder.config.pad_token_id = tokenizer.pad_token_id
        # A new configuration would set that of the encoder inside it to none.
        options.setdefault("attn_implementation", encoder.config._attn_implementation)
        model = cls(HictlConfig(text_config=encoder.config, **options), encoder)
        if pieces is not None:
            model.keep_pieces(pieces)
        return model

    def freeze_encoder(self) -> None:
        """Takes the gradient from the encoder, embeddings included, and keeps its dropout off: step one of the paper."""
        self.encoder.requires_grad_(False)
        self.encoder.eval()

    def train(self, mode: bool = True) -> HictlForConditionalGeneration:
        """Sets the mode; a frozen encoder stays without dropout."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.encoder.parameters()):
            self.encoder.eval()
        return self

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resizes the embeddings and the output's bias; new entries of it start at 0."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.output_bias.bias = resized_bias(self.output_bias.bias, embeddings.num_embeddings)
        return embeddings

    @torch.no_grad()
    def keep_pieces(self, pieces: Sequence[int]) -> None:
        """Cuts the vocabulary: embeddings and the output's bias keep the rows of `pieces`, in that order.

        Args:
            pieces: Ids, as `trim_vocabulary` gives them together with the tokenizer that goes with them.
        """
        old, chosen = self.get_input_embeddings(), torch.as_tensor(pieces, device=self.device)
        new = nn.Embedding(len(chosen), old.weight.shape[1], old.padding_idx, _weight=old.weight[chosen])
        self.set_input_embeddings(new)
        self.output_bias.bias = nn.Parameter(self.output_bias.bias[chosen])
        self.config.get_text_config().vocab_size = len(chosen)

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        """The encoder as `generate` calls it; the stock one is `model.encoder`."""
        return _SentenceReader(self)

    def encode(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> HictlEncoderOutput:
        """Reads the sources: states, `(batch, length, width)`, and similarities, `(batch, vocabulary)`.

        Args:
            input_ids: `(batch, length)`.
            attention_mask: 1 for real pieces; all of them when absent.
            inputs_embeds: Instead of `input_ids`.
            **kwargs: For the encoder, such as `output_attentions`.
        """
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        inputs = {"input_ids": input_ids} if inputs_embeds is None else {"inputs_embeds": inputs_embeds}
        output = self.encoder(**inputs, attention_mask=attention_mask, **kwargs)
        return HictlEncoderOutput(
            last_hidden_state=output.last_hidden_state,
            hidden_states=output.get("hidden_states"),
            attentions=output.get("attentions"),
            word_similarities=self._similarities(output.last_hidden_state),
        )

    def _similarities(self, states: torch.Tensor) -> torch.Tensor | None:
        table = self.get_input_embeddings().weight
        return word_similarities(states[:, 0], table) if self.config.word_similarity else None

    def shift_right(self, labels: torch.Tensor) -> torch.Tensor:
        """What the decoder reads so as to predict `labels`: the start, then all but the last of them.

        Raises:
            XlsrError: the configuration does not say which piece begins a sentence.
        """
        config = self.config.get_text_config()
        if config.bos_token_id is None:
            raise XlsrError(
                "the encoder's configuration has no bos_token_id, with which the decoder starts; give the piece that "
                "begins a sentence, or let from_encoder find it."
            )
        before = labels.roll(1, dims=1).masked_fill(labels.roll(1, dims=1) == IGNORE, config.pad_token_id or 0)
        before[:, 0] = config.bos_token_id
        return before

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        decoder_attention_mask: torch.Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        decoder_inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        label_smoothing: float = 0.0,
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> HictlTranslationOutput:
        """Reads sources and targets; gives the loss with `labels`, otherwise the logits of the next pieces.

        Args:
            input_ids: Sources, `(batch, length)`.
            attention_mask: 1 for real pieces of the sources.
            decoder_input_ids: Targets so far, `(batch, target length)`; made of `labels` when absent.
            decoder_attention_mask: 1 for real pieces of the targets; right padding needs none.
            encoder_outputs: From `encode` or `get_encoder()`, instead of sources.
            past_key_values: Cache of the steps before.
            inputs_embeds: Instead of `input_ids`.
            decoder_inputs_embeds: Instead of `decoder_input_ids`.
            labels: Target pieces with the one that ends a sentence, -100 on padding, `(batch, target length)`.
            use_cache: Return the cache; on when there are no labels.
            label_smoothing: Share of the probability that a label spreads over the vocabulary.
            num_items_in_batch: Target pieces that one step sees in all, by which the loss is divided; those of this batch
                when absent.
            **kwargs: For the decoder; `output_attentions` and `output_hidden_states` for the encoder, too.

        Raises:
            XlsrError: there is nothing to decode.
        """
        if encoder_outputs is None:
            asked = {name: kwargs.get(name) for name in ("output_attentions", "output_hidden_states")}
            encoder_outputs = self.encode(input_ids, attention_mask, inputs_embeds, **asked)
        elif not isinstance(encoder_outputs, dict):
            encoder_outputs = HictlEncoderOutput(*encoder_outputs)
        states = encoder_outputs["last_hidden_state"]
        similarities = encoder_outputs.get("word_similarities")
        if similarities is None:
            similarities = self._similarities(states)
        table = self.get_input_embeddings()
        if decoder_inputs_embeds is None:
            if decoder_input_ids is None and labels is not None:
                decoder_input_ids = self.shift_right(labels)
            if decoder_input_ids is None:
                raise XlsrError("there is nothing to decode; give labels or decoder_input_ids, or call generate.")
            decoder_inputs_embeds = table(decoder_input_ids)
        decoded = self.decoder(
            inputs_embeds=decoder_inputs_embeds,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=states,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            use_cache=labels is None and self.decoder.config.use_cache if use_cache is None else use_cache,
            **{name: value for name, value in kwargs.items() if value is not None},
        )
        hidden = decoded.last_hidden_state
        bias = self.output_bias(similarities)
        logits = loss = mean = None
        if labels is None:
            logits = hidden @ table.weight.T + (bias if similarities is None else bias.unsqueeze(1))
        else:
            mean = biased_cross_entropy(
                hidden,
                labels,
                table.weight,
                bias,
                label_smoothing=label_smoothing,
                chunk_size=self.config.logits_chunk_size,
            )
            loss = mean if num_items_in_batch is None else mean * (labels != IGNORE).sum() / num_items_in_batch
        return HictlTranslationOutput(
            loss=loss,
            losses=None if mean is None else {"translation": mean},
            logits=logits,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=states,
            encoder_hidden_states=encoder_outputs.get("hidden_states"),
            encoder_attentions=encoder_outputs.get("attentions"),
        )


def sentence_ends(tokenizer: Any) -> tuple[int, int]:
    """Ids of the special pieces that a tokenizer puts at the beginning and at the end of a sentence.

    Raises:
        XlsrError: it does not put any there, or cannot pad.
    """
    ids = tokenizer("a")["input_ids"]
    special = set(tokenizer.all_special_ids)
    if len(ids) < 2 or ids[0] not in special or ids[-1] not in special:
        raise XlsrError(
            "the tokenizer puts no special pieces around a sentence, but translation begins and ends with one each; use "
            "one with a post-processor, as those of pretrained encoders have."
        )
    if tokenizer.pad_token_id is None:
        raise XlsrError("the tokenizer has no padding token; give it one.")
    return ids[0], ids[-1]


def check_vocabulary(tokenizer: Any, vocab_size: int) -> None:
    """Refuses a tokenizer with more pieces than the encoder, whose embeddings the decoder shares.

    Raises:
        XlsrError: as said.
    """
    check_pieces(
        tokenizer,
        vocab_size,
        encoder="the encoder, whose vocabulary the decoder shares,",
        mend="use the encoder's own tokenizer for sources and targets",
    )
