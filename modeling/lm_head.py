"""The masked-LM head before its decoder, of any encoder."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoModelForMaskedLM
from transformers import initialization as init
from transformers.activations import ACT2FN

from hf_xlsr.losses.masked_lm import IGNORE, masked_lm_loss
from hf_xlsr.utils.distributed import scaled_to_mean

# What the architectures call the dense layer, its normalisation, the decoder's bias and the decoder.
_KNOWN_HEADS = (
    (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
        "cls.predictions.decoder",
    ),
    ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias", "lm_head.decoder"),
    ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "vocab_projector"),
    ("head.dense", "head.norm", "decoder.bias", "decoder"),  # ModernBERT
)


class LmHead(nn.Module):
    """Dense layer, activation and normalisation in front of a decoder.

    As in BERT and its kin: `decoder(norm(act(dense(states)))) + bias`. The decoder is the embedding table, and no part
    of the head, unless it is to be a matrix of its own.

    Args:
        width: Of the encoder's states and word embeddings.
        vocab_size: Pieces.
        activation: Name, as in transformers.
        eps: Of the normalisation.
        own_decoder: Whether the decoder is a matrix of the head.
    """

    def __init__(
        self, width: int, vocab_size: int, *, activation: str = "gelu", eps: float = 1e-12, own_decoder: bool = False
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.activation = ACT2FN[activation]
        self.norm = nn.LayerNorm(width, eps=eps)
        self.decoder = nn.Linear(width, vocab_size, bias=False) if own_decoder else None
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """What the decoder multiplies: `(rows, width)` to `(rows, width)`."""
        return self.norm(self.activation(self.dense(states)))

    def loss(
        self, states: torch.Tensor, labels: torch.Tensor, table: torch.Tensor, *, chunk_size: int
    ) -> torch.Tensor:
        """Mean negative log-likelihood of the masked pieces of all processes, whatever share of them is here.

        Args:
            states: Of the encoder, `(batch, length, width)`.
            labels: The hidden pieces, -100 elsewhere, `(batch, length)`.
            table: The embedding table, `(vocabulary, width)`, which decodes where the head has no decoder of its own.
            chunk_size: Logits held at a time.

        Returns:
            A scalar, so scaled that the average over processes is the mean.
        """
        weight = table if self.decoder is None else self.decoder.weight
        loss = masked_lm_loss(states, labels, weight, self.bias, transform=self, chunk_size=chunk_size)
        return scaled_to_mean(loss, (labels != IGNORE).sum())

    def initialize(self) -> None:
        """Sets what a model's `_init_weights` does not know."""
        init.zeros_(self.bias)

    @torch.no_grad()
    def take_over(self, path: str) -> bool:
        """Takes the weights of the masked-LM head that a checkpoint has, if it has one of this form.

        Args:
            path: Folder or Hub id of a pretrained encoder.

        Returns:
            Whether it had one.
        """
        try:
            model, info = AutoModelForMaskedLM.from_pretrained(
                path, dtype="float32", use_safetensors=True, output_loading_info=True
            )
        except ValueError:  # no masked LM of the architecture
            return False
        there: dict[str, Any] = model.state_dict()
        for dense, norm, bias, decoder in _KNOWN_HEADS:
            names = {
                "dense.weight": f"{dense}.weight",
                "dense.bias": f"{dense}.bias",
                "norm.weight": f"{norm}.weight",
                "norm.bias": f"{norm}.bias",
                "bias": bias,
                **({} if self.decoder is None else {"decoder.weight": f"{decoder}.weight"}),
            }
            # Layers without biases add nothing: so do ours with a bias of zeros.
            absent = {own for own in ("dense.bias", "norm.bias") if names[own] not in there}
            found = {own: there.get(name) for own, name in names.items() if own not in absent}
            if all(value is not None for value in found.values()) and not set(names.values()) & set(
                info["missing_keys"]
            ):
                zeros = {own: torch.zeros_like(self.get_parameter(own)) for own in absent}
                self.load_state_dict({**found, **zeros}, strict=False)
                return True
        return False
