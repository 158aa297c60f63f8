"""HICTL fine-tuned for classification: an output layer on the first state, or on sentence embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from hf_xlsr.encoders.assembly import EncoderPart
from hf_xlsr.encoders.heads import run_head
from hf_xlsr.encoders.reading import find_model, optional_tokenizer, read_encoder
from hf_xlsr.encoders.stock import DROPOUTS, encoder_from_config, one_sided, own_dropout, takes_token_types
from hf_xlsr.losses.cross_entropy import IGNORE, accumulation_dtype
from hf_xlsr.modeling.base import (
    Dropout,
    XlsrPreTrainedModel,
    adopted_head,
    config_of_encoder,
    head_inputs,
    with_dropout,
)
from hf_xlsr.modeling.heads import PAIR_WIDTHS, pair_features
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError

from .configuration_hictl import HictlConfig

REGRESSION = "regression"
SINGLE = "single_label_classification"


@dataclass
class HictlClassifierOutput(SequenceClassifierOutput):
    """`SequenceClassifierOutput` and `losses`: `classification` or `regression`; None without labels."""

    losses: dict[str, torch.Tensor] | None = None


class HictlForSequenceClassification(XlsrPreTrainedModel):
    """An output layer on a stock encoder (section 3.2: the [CLS] state "is fed into an extra output-layer").

    The state of the first token of a sentence, or of a pair in one row, passes dropout (by default the encoder's) and one
    linear layer. With several labels the loss is cross-entropy; with one it is, as in BERT, the mean squared error. The
    configuration's `problem_type` chooses the loss as in transformers: several classes of a row (BCE), several scores.
    `classifier_input` of the configuration may name sentence embeddings instead, see `hf_xlsr.fit_classifier`.

    Examples:
        >>> small = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...          "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
        >>> model = HictlForSequenceClassification(HictlConfig(text_config=small, num_labels=3))
        >>> output = model(torch.tensor([[3, 4, 5], [3, 6, 7]]), labels=torch.tensor([2, 0]))
        >>> tuple(output.logits.shape), list(output.losses)
        ((2, 3), ['classification'])
    """

    config: HictlConfig
    config_class = HictlConfig
    reads_whole_table = False

    def __init__(
        self, config: HictlConfig, encoder: PreTrainedModel | None = None, head: list[nn.Module] | None = None
    ) -> None:
        super().__init__(config)
        text_config = config.get_text_config()
        self.num_labels: int = config.num_labels or 1
        inferred = REGRESSION if self.num_labels == 1 else SINGLE
        self.problem_type = config.problem_type or inferred
        self.encoder: Any = encoder_from_config(text_config) if encoder is None else encoder

        self.takes_token_types = takes_token_types(self.encoder)

        dropout = config.classifier_dropout
        if dropout is None:
            dropout = own_dropout(text_config, DROPOUTS, 0.0)
        self.dropout = nn.Dropout(dropout)

        width = text_config.hidden_size
        if config.classifier_input != "first_state":
            config.fill_in_head()
            self.head: Any = adopted_head(config.head or [], head)
            width = min(config.hidden_size, config.settings.truncate_dim or config.hidden_size)
            width *= PAIR_WIDTHS if config.classifier_input == "embedding_pair" else 1
        self.classifier = nn.Linear(width, self.num_labels)
        self.post_init()

    @classmethod
    def from_encoder(
        cls,
        encoder: Any,
        *,
        num_labels: int | None = None,
        dropout: Dropout = None,
        place: str = "the encoder",
        **options: Any,
    ) -> HictlForSequenceClassification:
        """A model with a new output layer on a pretrained encoder.

        Args:
            encoder: See `start_encoder`.
            num_labels: Outputs; 1 for a regression. By default as many as `id2label` has names, else 2.
            dropout: On states and attention; by default the encoder's.
            place: Name of `encoder` in error messages.
            **options: Values of `HictlConfig`, such as `classifier_dropout` or `id2label`.
        """
        if num_labels is None:
            num_labels = len(options.get("id2label") or options.get("label2id") or ("no", "yes"))
        part = start_encoder(encoder, place=place, dropout=dropout)
        values = {
            **config_of_encoder(part.encoder),
            "num_labels": num_labels,
            "problem_type": "regression" if num_labels == 1 else "single_label_classification",
        }
        model = cls(HictlConfig(**{**values, **options}), part.encoder)
        model.given_tokenizer = part.tokenizer
        return model

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> HictlClassifierOutput:
        """Logits and, with labels, the loss.

        Args:
            input_ids: Sentences, or pairs in one row each, padded on the right, `(batch, length)`.
            attention_mask: 0 for padding; all ones by default.
            token_type_ids: 0 for the first and 1 for the second sentence; encoders without token types ignore them.
            labels: Class indices (-100 is ignored), or the scores of a regression, `(batch,)`; of `problem_type`
                `multi_label_classification` 1 for each class of a row, else 0, `(batch, classes)` (-100 is ignored).
            **kwargs: `output_attentions` and `output_hidden_states`, as of any model.
        """
        if self.config.classifier_input == "embedding_pair":
            max_length = (self.config.transformer_options or {}).get("max_seq_length")
            batch = (input_ids, attention_mask, token_type_ids)
            input_ids, attention_mask = texts_of_pairs(*batch, max_length, keep_end=self.config.keep_end)
            token_type_ids = None
        if self.takes_token_types:
            kwargs["token_type_ids"] = token_type_ids
        outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        features = self._features(outputs.last_hidden_state, input_ids, attention_mask)
        logits = self.classifier(self.dropout(features.to(self.classifier.weight.dtype)))

        loss = losses = None
        if labels is not None:
            loss = self._loss(logits.to(accumulation_dtype(logits)), labels)
            losses = {"regression" if self.problem_type == REGRESSION else "classification": loss}

        return HictlClassifierOutput(
            loss=loss,
            losses=losses,
            logits=logits,
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )

    def _features(
        self, states: torch.Tensor, input_ids: torch.Tensor, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        """The input of the output layer, `(batch, width)`."""
        if self.config.classifier_input == "first_state":
            return states[:, 0]

        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        inputs = head_inputs(states, input_ids, attention_mask, self.config.prompt_length)
        embeddings = run_head(self.head, inputs, normalize=True)[:, : self.config.settings.truncate_dim]
        if self.config.classifier_input == "embedding":
            return embeddings
        return pair_features(*embeddings.chunk(2))

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # torch's means are NaN if no row has a label.
        count = (labels != IGNORE).sum().clamp(min=1)
        if self.problem_type == SINGLE:
            return F.cross_entropy(logits, labels.view(-1), ignore_index=IGNORE, reduction="sum") / count

        if labels.numel() != logits.numel():
            raise XlsrError(
                f"`labels` must be {tuple(logits.shape)}, a number for each output, got {tuple(labels.shape)}; "
                f"`problem_type` is {self.problem_type}."
            )
        targets = labels.view_as(logits).to(logits.dtype)
        if self.problem_type == REGRESSION:
            return F.mse_loss(logits, targets)
        weights = (targets != IGNORE).to(logits.dtype)
        return F.binary_cross_entropy_with_logits(logits, targets, weights, reduction="sum") / count


def texts_of_pairs(
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor | None,
    max_length: int | None = None,
    *,
    keep_end: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first texts of all rows, then the second ones, which have the token type 1, `(2 * batch, length)`.

    Each text begins at the first position. With `keep_end`, one of more than `max_length` tokens keeps its last one.
    """
    if attention_mask is None:
        attention_mask = torch.ones_like(input_ids)
    if token_type_ids is None or not token_type_ids.any(dim=1).all():
        raise XlsrError("`token_type_ids` must be 1 for the second text of each row. Give pairs: text and text_pair.")

    ids = []
    masks = []
    for token_type in (0, 1):
        mask = attention_mask * (token_type_ids == token_type)
        order = mask.argsort(dim=1, descending=True, stable=True)
        ids.append(input_ids.gather(1, order))
        masks.append(mask.gather(1, order))
    text_ids = torch.cat(ids)
    text_mask = torch.cat(masks)
    if max_length is None or text_ids.shape[1] <= max_length:
        return text_ids, text_mask

    lengths = text_mask.sum(1, keepdim=True)
    ends = text_ids.gather(1, (lengths - 1).clamp(min=0))
    text_ids = text_ids[:, :max_length]
    if keep_end:
        text_ids[:, -1:] = torch.where(lengths > max_length, ends, text_ids[:, -1:])
    return text_ids, text_mask[:, :max_length]


def start_encoder(given: Any, *, place: str = "the encoder", dropout: Dropout = None) -> EncoderPart:
    """A pretrained encoder and its tokenizer, without what is behind it.

    `given` is anything that `hf_xlsr.encoders.reading.read_encoder` reads, or the place of any HICTL model. `place` is
    its name in error messages.
    """
    saved = find_model(given) if isinstance(given, str | Path) else None
    if saved is None or saved.model_type != HictlConfig.model_type:
        part = read_encoder(given, place).single(place)
        reading = one_sided(part.encoder)
        if reading:
            kind = type(part.encoder).__name__
            raise XlsrError(f"{place} must read whole sentences in its first state, got a {kind}, {reading}.")
        return EncoderPart(with_dropout(part.encoder, dropout), part.tokenizer)

    # The output layer is not used, so its size does not matter.
    options = {"dtype": "float32", "ignore_mismatched_sizes": True}
    loaded: Any = load_auto(HictlForSequenceClassification, saved.path, output_loading_info=True, **options)
    model, info = loaded
    missing = sorted(name for name in info["missing_keys"] if name.startswith("encoder."))
    if missing:
        raise XlsrError(f"{place} '{given}': missing weights ({missing[0]}, ...).")
    return EncoderPart(with_dropout(model.encoder, dropout), optional_tokenizer(saved.path))
