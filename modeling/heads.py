"""Masked-LM head for any encoder, and the classifier of natural language inference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForMaskedLM
from transformers import initialization as init
from transformers.activations import ACT2FN

from hf_xlsr.losses.cross_entropy import IGNORE, accumulation_dtype, masked_lm_loss
from hf_xlsr.utils.auto_classes import load_auto, quiet_loading
from hf_xlsr.utils.distributed import scaled_to_mean

NLI_LABELS = 3
"""Classes of natural language inference: entailment, neutral and contradiction."""

PAIR_WIDTHS = 4
"""Embeddings in the features of a pair."""

# Names of dense layer, normalisation and decoder bias, by architecture.
_HEAD_NAMES = (
    ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    ("head.dense", "head.norm", "decoder.bias"),  # ModernBERT
)


class TokenBias(nn.Module):
    """A module with a bias of each token, which follows the size of the embedding table."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def initialize(self) -> None:
        init.zeros_(self.bias)


class LmHead(TokenBias):
    """Dense layer, activation and normalisation in front of a decoder.

    As in BERT: `decoder(norm(act(dense(states)))) + bias`. The decoder is the embedding table, which is not a part of
    the head.
    """

    def __init__(
        self, width: int, vocab_size: int, *, activation: str = "gelu", normalize: bool = True, eps: float = 1e-12
    ) -> None:
        super().__init__(vocab_size)
        self.dense = nn.Linear(width, width)
        self.activation = ACT2FN[activation]
        self.norm = nn.LayerNorm(width, eps=eps) if normalize else nn.Identity()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Input of the decoder: `(rows, width)` to `(rows, width)`."""
        states = self.activation(self.dense(states))
        normalized: torch.Tensor = self.norm(states)
        return normalized

    def loss(
        self,
        states: torch.Tensor,
        labels: torch.Tensor,
        table: torch.Tensor,
        *,
        chunk_size: int,
        masked_tokens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mean negative log-likelihood of the masked tokens of all processes.

        `states` and `labels` (-100 where nothing is masked) are `(batch, length, width)` and `(batch, length)`, or
        those of the masked tokens alone. For `masked_tokens` see `scaled_to_mean`. The average of the scalar over
        processes is the mean over all masked tokens.
        """
        loss = masked_lm_loss(states, labels, table, self.bias, transform=self, chunk_size=chunk_size)
        return scaled_to_mean(loss, (labels != IGNORE).sum(), masked_tokens)

    @torch.no_grad()
    def load_pretrained(self, path: str) -> bool:
        """Loads the masked-LM head of a checkpoint; False if it has none of this form."""
        try:
            with quiet_loading():
                model, info = load_auto(
                    AutoModelForMaskedLM, path, dtype="float32", use_safetensors=True, output_loading_info=True
                )
        except (OSError, ValueError):  # a folder with routes, or an architecture without masked LM
            return False

        stored = model.state_dict()
        missing = set(info["missing_keys"])
        for dense, norm, bias in _HEAD_NAMES:
            names = {
                "dense.weight": f"{dense}.weight",
                "dense.bias": f"{dense}.bias",
                "norm.weight": f"{norm}.weight",
                "norm.bias": f"{norm}.bias",
                "bias": bias,
            }
            # A layer without bias has a bias of zeros.
            weights = dict.fromkeys(("dense.bias", "norm.bias"), torch.zeros(self.dense.out_features))
            weights |= {name: stored[name_there] for name, name_there in names.items() if name_there in stored}

            if weights.keys() == names.keys() and missing.isdisjoint(names.values()):
                self.load_state_dict(weights)
                return True
        return False


def pair_features(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """`[u, v, |u - v|, u * v]` of the embeddings of pairs, `(batch, 4 * width)`."""
    return torch.cat([first, second, (first - second).abs(), first * second], dim=-1)


class NliHead(nn.Module):
    """A classifier on `[u, v, |u - v|, u * v]` of the embeddings of premise and hypothesis, `(batch, width)` each.

    This is CMLM's combination (section 4.3), without a hidden layer (`hidden_size` 0). Dual momentum contrast does not
    specify one (appendix B); its baselines use this one.
    """

    def __init__(self, width: int, hidden_size: int = 256, labels: int = NLI_LABELS, dropout: float = 0.1) -> None:
        super().__init__()
        self.hidden = nn.Linear(PAIR_WIDTHS * width, hidden_size) if hidden_size else None
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(hidden_size or PAIR_WIDTHS * width, labels)

    def forward(self, premise: torch.Tensor, hypothesis: torch.Tensor) -> torch.Tensor:
        """Logits of the classes, `(batch, labels)`."""
        u = premise.to(self.output.weight.dtype)
        v = hypothesis.to(self.output.weight.dtype)
        features = pair_features(u, v)
        if self.hidden is not None:
            features = self.dropout(F.relu(self.hidden(features)))
        logits: torch.Tensor = self.output(features)
        return logits

    def loss(
        self, encode: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], batch: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropy and accuracy.

        The batch has `premise_input_ids`, `premise_attention_mask`, likewise for `hypothesis`, and `labels`.
        """
        premise = encode(batch["premise_input_ids"], batch["premise_attention_mask"])
        hypothesis = encode(batch["hypothesis_input_ids"], batch["hypothesis_attention_mask"])
        logits = self(premise, hypothesis)
        logits = logits.to(accumulation_dtype(logits))

        labels = batch["labels"]
        accuracy = (logits.argmax(1) == labels).float().mean()
        return F.cross_entropy(logits, labels), accuracy
