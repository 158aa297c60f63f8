"""HICTL fine-tuned for classification: one output layer on the first state of a sentence or a pair."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from hf_xlsr.encoders.stock import DROPOUTS, encoder_from_config, encoder_from_pretrained, own_dropout
from hf_xlsr.losses.masked_lm import IGNORE
from hf_xlsr.modeling.base import XlsrPreTrainedModel
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.pooling import pool

from .configuration_hictl import HictlConfig


@dataclass
class HictlClassifierOutput(SequenceClassifierOutput):
    """What `HictlForSequenceClassification` returns: `loss`, `logits`, `hidden_states`, `attentions` and one thing more.

    Args:
        losses: The loss by its name, `classification` or `regression`; None without labels.
    """

    losses: dict[str, torch.Tensor] | None = None


class HictlForSequenceClassification(XlsrPreTrainedModel):
    """A stock encoder under one output layer: section 3.2, "[CLS] [...] is fed into an extra output-layer".

    The state of the first piece goes through dropout and one linear layer, for a single sentence as for a pair that the
    tokenizer put into one row. With several labels the loss is cross-entropy; with one it is the mean squared error of a
    number. The paper does not say how dropout is set; here it is the encoder's own unless `classifier_dropout` is given.
    Nor does it say what STS-B is trained with; here, as in BERT, with the squared error on the scores as they are.

    Args:
        config: The configuration; `num_labels` says how many outputs there are.
        encoder: A ready encoder, whose weights are kept; made from the configuration when absent.

    Raises:
        XlsrError: the configuration asks for several labels at once, or for a regression of several numbers.

    Example:
        >>> small = {"model_type": "bert", "vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1,
        ...          "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
        >>> model = HictlForSequenceClassification(HictlConfig(text_config=small, num_labels=3))
        >>> output = model(torch.tensor([[3, 4, 5], [3, 6, 7]]), labels=torch.tensor([2, 0]))
        >>> tuple(output.logits.shape), list(output.losses)
        ((2, 3), ['classification'])
    """

    config: HictlConfig
    config_class = HictlConfig

    def __init__(self, config: HictlConfig, encoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        text_config = config.get_text_config()
        self.num_labels: int = config.num_labels or 1
        wanted = "regression" if self.num_labels == 1 else "single_label_classification"
        if config.problem_type not in (None, wanted):
            raise XlsrError(
                f"problem_type is '{config.problem_type}' with {self.num_labels} labels; this model takes one label a "
                "row, or a number with num_labels 1."
            )
        self.encoder: Any = encoder if encoder is not None else encoder_from_config(text_config)
        self.takes_token_types = (
            "token_type_ids" in inspect.signature(self.encoder.forward).parameters
            and (getattr(text_config, "type_vocab_size", None) or 0) > 1
        )
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.classifier = nn.Linear(text_config.hidden_size, self.num_labels)
        self.post_init()

    @classmethod
    def from_encoder(
        cls,
        path: str | Path,
        *,
        num_labels: int = 2,
        dropout: float | None = None,
        place: str = "the encoder",
        **options: Any,
    ) -> HictlForSequenceClassification:
        """A model with a new output layer on a pretrained encoder.

        Args:
            path: See `start_encoder`.
            num_labels: Outputs; 1 for a regression.
            dropout: On states and attention, instead of what the encoder was trained with.
            place: What error sentences call `path`.
            **options: Values of `HictlConfig`, such as `classifier_dropout`, `id2label` or `problem_type`.

        Raises:
            XlsrError: the encoder does not load, or a value does not fit.
        """
        if num_labels < 1:
            raise XlsrError(f"num_labels is {num_labels}; use 1 for a number and 2 or more for classes.")
        encoder = start_encoder(path, place=place, dropout=dropout)
        options.setdefault("problem_type", "regression" if num_labels == 1 else "single_label_classification")
        # A new configuration would set that of the encoder inside it to none.
        options.setdefault("attn_implementation", encoder.config._attn_implementation)
        options["num_labels"] = num_labels
        return cls(HictlConfig(text_config=encoder.config, **options), encoder)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> HictlClassifierOutput:
        """Logits and, with labels, the loss.

        Args:
            input_ids: Sentences, or pairs in one row each, padded on the right, `(batch, length)`.
            attention_mask: 1 for real pieces, `(batch, length)`; all of them when absent.
            token_type_ids: 0 for the first and 1 for the second sentence; encoders without such types leave them aside.
            inputs_embeds: Instead of `input_ids`, `(batch, length, width)`.
            labels: Numbers of classes (-100 counts for nothing), or for a regression the gold numbers, `(batch,)`.
            output_attentions: As of any model.
            output_hidden_states: As of any model.

        Raises:
            XlsrError: a label is no number of a class.
        """
        if labels is not None and self.num_labels > 1 and not torch.compiler.is_compiling():
            self._check_labels(labels)
        inputs: dict[str, Any] = {
            "input_ids": input_ids,
            "inputs_embeds": inputs_embeds,
            "attention_mask": attention_mask,
        }
        if self.takes_token_types:
            inputs["token_type_ids"] = token_type_ids
        inputs |= {"output_attentions": output_attentions, "output_hidden_states": output_hidden_states}
        outputs = self.encoder(**{name: value for name, value in inputs.items() if value is not None})
        states = outputs.last_hidden_state
        mask = torch.ones_like(states[..., 0]) if attention_mask is None else attention_mask
        logits = self.classifier(self.dropout(pool(states, mask, "cls").to(states.dtype)))
        losses = None
        if labels is not None:
            exact = logits if logits.dtype == torch.float64 else logits.float()
            if self.num_labels == 1:
                losses = {"regression": F.mse_loss(exact.view(-1), labels.view(-1).to(exact.dtype))}
            else:
                # Not torch's mean, which is NaN where no row has a label.
                total = F.cross_entropy(exact, labels.view(-1), ignore_index=IGNORE, reduction="sum")
                losses = {"classification": total / (labels != IGNORE).sum().clamp(min=1)}
        return HictlClassifierOutput(
            loss=next(iter(losses.values())) if losses else None,
            losses=losses,
            logits=logits,
            hidden_states=outputs.get("hidden_states"),
            attentions=outputs.get("attentions"),
        )

    def _check_labels(self, labels: torch.Tensor) -> None:
        """On a GPU a label out of range would end the process instead of naming itself."""
        wrong = labels[(labels != IGNORE) & ((labels < 0) | (labels >= self.num_labels))]
        if wrong.numel():
            raise XlsrError(
                f"a label is {wrong[0].item()} but num_labels is {self.num_labels}; labels are 0 to "
                f"{self.num_labels - 1}, or -100 for none."
            )


def classifier_dropout(config: HictlConfig) -> float:
    """The dropout before the output layer: `classifier_dropout`, else that on the encoder's states.

    Example:
        >>> classifier_dropout(HictlConfig(text_config={"model_type": "distilbert", "dropout": 0.3}))
        0.3
    """
    if config.classifier_dropout is not None:
        return config.classifier_dropout
    return own_dropout(config.get_text_config(), DROPOUTS, 0.0)


def start_encoder(path: str | Path, *, place: str = "the encoder", dropout: float | None = None) -> Any:
    """A pretrained encoder, from whatever kind of folder holds one.

    Args:
        path: Folder or Hub id of an encoder or of a masked language model on it; a folder of any HICTL model, whose
            encoder is taken; a folder of sentence-transformers; or the folder of a run, of whose result the same holds.
        place: What error sentences call the value.
        dropout: On states and attention, instead of what the encoder was trained with.

    Raises:
        XlsrError: the folder holds no single text encoder, weights are missing, or `dropout` is no share.
    """
    folder = encoder_folder(path, place)
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise XlsrError(f"{place} '{path}' holds no encoder that loads; check it.") from error
    if not isinstance(config, HictlConfig):
        return encoder_from_pretrained(folder, place=place, dropout=dropout)
    if dropout is not None and not 0 <= dropout < 1:
        raise XlsrError(f"dropout is {dropout}; it is a share, 0 or above and less than 1.")
    text_config = config.get_text_config()
    for name in DROPOUTS if dropout is not None else ():
        if hasattr(text_config, name):
            setattr(text_config, name, dropout)
    # The output layer is thrown away: one of another size, or none, is as good.
    loaded: Any = HictlForSequenceClassification.from_pretrained(
        folder, config=config, dtype="float32", ignore_mismatched_sizes=True, output_loading_info=True
    )
    model, info = loaded
    if missing := sorted(name for name in info["missing_keys"] if name.startswith("encoder.")):
        raise XlsrError(f"{place} '{path}' lacks weights of the encoder ({missing[0]}, ...); give a whole checkpoint.")
    return model.encoder


def encoder_folder(path: str | Path, place: str = "the encoder") -> str:
    """Where an encoder and its tokenizer lie: inside a run's folder, and there behind what `modules.json` says.

    Args:
        path: See `start_encoder`.
        place: What error sentences call the value.

    Raises:
        XlsrError: the run has not ended, or the folder routes languages to several encoders.
    """
    path = Path(path)
    if (path / "training" / "recipe.json").is_file():
        if not (path / "model").is_dir():
            raise XlsrError(f"{place} '{path}' is a run that has not come to its end; finish it first.")
        path = path / "model"
    modules = path / "modules.json"
    if not modules.is_file():
        return str(path)
    first = json.loads(modules.read_text("utf-8"))[0]
    if not first["type"].endswith(".Transformer"):
        raise XlsrError(
            f"{place} '{path}' holds an encoder for each language ({first['type']}); give the folder of one of them."
        )
    return str(path / first["path"])
