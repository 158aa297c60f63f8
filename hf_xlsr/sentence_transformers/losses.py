"""In-batch losses of sentence pairs for `SentenceTransformerTrainer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import nn

from hf_xlsr.losses import additive_margin_loss, alignment_loss, sentence_contrast_loss, similarity_loss
from hf_xlsr.modeling import citations
from hf_xlsr.utils.distributed import gather_with_gradient

Features = Iterable[dict[str, Any]]
OTHER = "other"  # the term of what has no name


class LossParts(dict[str, torch.Tensor]):
    """A loss as its terms by name, which the trainer sums and logs; in arithmetic it is like the scalar that they sum to.

    What is added to it without a name becomes the term `other`.

    Examples:
        >>> parts = LossParts(alignment=torch.tensor(2.0), similarity=torch.tensor(1.0))
        >>> combined = 0.5 * parts + torch.tensor(4.0)
        >>> sorted(combined), combined.item()
        (['alignment', 'other', 'similarity'], 5.5)
    """

    def total(self) -> torch.Tensor:
        """The scalar."""
        return torch.stack(list(self.values())).sum()

    def __rmul__(self, factor: torch.Tensor | float) -> LossParts:
        return LossParts({name: factor * value for name, value in self.items()})

    __mul__ = __rmul__

    def __truediv__(self, divisor: torch.Tensor | float) -> LossParts:
        return self * (1 / divisor)

    def __neg__(self) -> LossParts:
        return self * -1

    def __add__(self, other: Mapping[str, torch.Tensor] | torch.Tensor | float) -> LossParts:
        terms = other if isinstance(other, Mapping) else {OTHER: torch.as_tensor(other)}
        summed = LossParts(self)
        for name, value in terms.items():
            if name in self:
                value = self[name] + value
            summed[name] = value
        return summed

    def __radd__(self, other: Mapping[str, torch.Tensor] | torch.Tensor | float) -> LossParts:
        if isinstance(other, int | float) and other == 0:  # `sum` begins with it
            return self
        return self + other

    def __sub__(self, other: LossParts | torch.Tensor | float) -> LossParts:
        return self + -1 * other

    def __rsub__(self, other: torch.Tensor | float) -> LossParts:
        return -self + other

    def backward(self, *args: Any, **kwargs: Any) -> None:
        """As of the scalar."""
        self.total().backward(*args, **kwargs)

    def item(self) -> float:
        """As of the scalar."""
        return self.total().item()

    def detach(self) -> torch.Tensor:
        """The scalar without gradient."""
        return self.total().detach()

    def __float__(self) -> float:
        return self.item()


class PairLoss(nn.Module):
    """A loss of the embeddings of translations, with the columns of `MultipleNegativesRankingLoss`."""

    citation: str

    def __init__(self, model: SentenceTransformer, gather_across_devices: bool, **settings: Any) -> None:
        super().__init__()
        self.model = model
        self.gather_across_devices = gather_across_devices
        self.settings = settings

    def embed(self, sentence_features: Features) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Embeddings of the sources and targets, `(batch, width)`, and of all hard negatives, or None."""
        columns = [self.model(features)["sentence_embedding"] for features in sentence_features]
        if self.gather_across_devices:
            columns = [gather_with_gradient(column) for column in columns]
        source, target, *negatives = columns
        return source, target, torch.cat(negatives) if negatives else None

    def get_config_dict(self) -> dict[str, Any]:
        """The arguments of the loss, for the model card."""
        return {"gather_across_devices": self.gather_across_devices, **self.settings}


class AdditiveMarginLoss(PairLoss):
    """Bitext retrieval of CMLM (Yang et al., 2021), section 4.2: see `hf_xlsr.losses.additive_margin_loss`.

    Columns: (source, target), and any number of hard negatives, which are further candidates of all sources.

    Args:
        margin: Subtracted from the similarity of each pair.
        scale: Multiplies similarities and margin. 1 as in the paper; cosines need more, such as 20.
        normalize: Compare by cosine instead of the paper's inner product.
        split_softmax: Normalise hard negatives apart, see `hf_xlsr.losses.in_batch.split_cross_entropy`.
        gather_across_devices: Whether the sentences of all processes are one batch.

    Examples:
        >>> from sentence_transformers.sentence_transformer.modules import StaticEmbedding
        >>> from tokenizers import Tokenizer, models
        >>> words = Tokenizer(models.WordLevel({"one": 0, "two": 1, "un": 2, "deux": 3}, unk_token="one"))
        >>> model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=4)], device="cpu")
        >>> loss = AdditiveMarginLoss(model, scale=20, normalize=True)
        >>> loss([model.preprocess(["one", "two"]), model.preprocess(["un", "deux"])]).shape
        torch.Size([])
    """

    citation = citations.CMLM

    def __init__(
        self,
        model: SentenceTransformer,
        margin: float = 0.3,
        scale: float = 1.0,
        *,
        normalize: bool = False,
        split_softmax: bool = False,
        gather_across_devices: bool = False,
    ) -> None:
        settings = {"margin": margin, "scale": scale, "normalize": normalize, "split_softmax": split_softmax}
        super().__init__(model, gather_across_devices, **settings)

    def forward(self, sentence_features: Features, labels: torch.Tensor | None = None) -> torch.Tensor:
        return additive_margin_loss(*self.embed(sentence_features), **self.settings)


class SentenceContrastLoss(PairLoss):
    """Sentence-level contrast of HICTL (Wei et al., 2021), equations 2 to 4: see `hf_xlsr.losses.sentence_contrast_loss`.

    Columns: (source, target), and any number of hard negatives, which are further candidates of all sentences. The
    `temperature` divides the cosines; the paper has none, which is 1. `split_softmax` normalises hard negatives apart.
    """

    citation = citations.HICTL

    def __init__(
        self,
        model: SentenceTransformer,
        temperature: float = 1.0,
        *,
        split_softmax: bool = False,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(model, gather_across_devices, temperature=temperature, split_softmax=split_softmax)

    def forward(self, sentence_features: Features, labels: torch.Tensor | None = None) -> torch.Tensor:
        return sentence_contrast_loss(*self.embed(sentence_features), **self.settings)


class AlignmentSimilarityLoss(PairLoss):
    """Alignment and similarity of the lightweight dual transformer (Mao et al., 2021), equations 5 to 7.

    See `hf_xlsr.losses.alignment_loss` and `similarity_loss`. Columns: (source, target), and any number of hard
    negatives, which are further candidates of all sources in the alignment.

    Args:
        alignment_weight: Factor of equation 5; 0 disables it.
        similarity_weight: Factor of equation 6; 0 disables it.
        alignment_temperature: Divides the similarities of equation 5.
        similarity_temperature: Divides the similarities of equation 6.
        normalize: Compare by cosine instead of the paper's inner product.
        split_softmax: Normalise hard negatives apart, see `hf_xlsr.losses.in_batch.split_cross_entropy`.
        gather_across_devices: Whether the sentences of all processes are one batch.
    """

    citation = citations.LIGHTWEIGHT

    def __init__(
        self,
        model: SentenceTransformer,
        alignment_weight: float = 2.0,
        similarity_weight: float = 2.0,
        *,
        alignment_temperature: float = 1.0,
        similarity_temperature: float = 1.0,
        normalize: bool = False,
        split_softmax: bool = False,
        gather_across_devices: bool = False,
    ) -> None:
        super().__init__(
            model,
            gather_across_devices,
            alignment_weight=alignment_weight,
            similarity_weight=similarity_weight,
            alignment_temperature=alignment_temperature,
            similarity_temperature=similarity_temperature,
            normalize=normalize,
            split_softmax=split_softmax,
        )

    def forward(self, sentence_features: Features, labels: torch.Tensor | None = None) -> LossParts:
        """The weighted parts by name, whose sum is the loss."""
        source, target, negatives = self.embed(sentence_features)
        normalize = self.settings["normalize"]
        losses = LossParts()

        if self.settings["alignment_weight"]:
            loss = alignment_loss(
                source,
                target,
                negatives,
                temperature=self.settings["alignment_temperature"],
                normalize=normalize,
                split_softmax=self.settings["split_softmax"],
            )
            losses["alignment"] = self.settings["alignment_weight"] * loss

        if self.settings["similarity_weight"]:
            temperature = self.settings["similarity_temperature"]
            loss = similarity_loss(source, target, temperature=temperature, normalize=normalize)
            losses["similarity"] = self.settings["similarity_weight"] * loss
        return losses
