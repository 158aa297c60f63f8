"""sentence-transformers models that route texts by `task`, their language, to its bias removal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from torch import nn

from hf_xlsr.data.encoding import UNDETERMINED
from hf_xlsr.encoders.assembly import modules_by_route, router_modules, with_modules
from hf_xlsr.encoders.debias import Debias
from hf_xlsr.encoders.encoding import route_of
from hf_xlsr.utils.errors import XlsrError


def debias_sentence_transformer(
    model: SentenceTransformer,
    debias: Debias,
    *,
    normalize: bool = False,
) -> SentenceTransformer:
    """A model that removes the language bias of each text: `model.encode(texts, task="fr")`.

    The result is `Router({language: [modules of the model, Dense]}) (+ Normalize)` of stock modules, with prompts and
    similarity function of the original. All routes share its encoder. Texts without a language take the route `und`,
    which removes nothing.

    Args:
        model: The model that `debias` was fitted on. Where it truncates embeddings (`truncate_dim`) and `debias` was
            fitted on those, the removal truncates; where it was fitted on whole ones, they are truncated afterwards.
        debias: What is removed, by language.
        normalize: Rescale to unit length after the removal. The authors' notebook does not: embeddings of unit length
            become shorter, which changes dot products and leaves cosines as they are.

    Examples:
        >>> from sentence_transformers.sentence_transformer.modules import StaticEmbedding
        >>> from tokenizers import Tokenizer, models
        >>> words = Tokenizer(models.WordLevel({"un": 0, "deux": 1, "trois": 2}, unk_token="un"))
        >>> model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=8)], device="cpu")
        >>> from hf_xlsr.encoders.debias import fit_debias
        >>> debias = fit_debias(model, {"fr": ["un", "deux", "trois"]})
        >>> embeddings = debias_sentence_transformer(model, debias).encode(["un", "deux"], task="fr")
        >>> bool(np.abs(embeddings @ debias.fitted["fr"]).max() < 1e-5)
        True
    """
    modules = modules_by_route(model)
    default_route = getattr(model[0], "default_route", None) or next(iter(modules))
    width = _width(modules[default_route]) or debias.dimension
    if debias.dimension not in (width, model.get_embedding_dimension()):
        raise XlsrError(
            f"The model has embeddings of the width {model.get_embedding_dimension()}, and debias was fitted on "
            f"{debias.dimension}. Fit it on this model, with this truncate_dim."
        )

    routes = {}
    for language in debias.languages:
        route = route_of(model, language) or ""
        routes[language] = [*modules[route], _removal(debias, language, width)]
    routes[UNDETERMINED] = modules[default_route]
    if debias.dimension < width:
        identity = np.eye(debias.dimension)
        routes[UNDETERMINED] = [*modules[default_route], _affine(identity, identity[0] * 0, width)]
    return with_modules(model, router_modules(routes, UNDETERMINED, normalize=normalize, default=UNDETERMINED))


def _width(modules: Sequence[Any]) -> int | None:
    """The width of the embeddings that modules make, before `encode` truncates them; None if unknown."""
    for module in reversed(modules):
        if hasattr(module, "get_embedding_dimension"):
            return int(module.get_embedding_dimension())
    return None


def _removal(debias: Debias, language: str, width: int) -> Dense:
    """The removal for one language as an affine layer: `x (I - C C^T)` or `x - m`."""
    offset = debias.apply(np.zeros(debias.dimension), language)
    weight = debias.apply(np.eye(debias.dimension), language) - offset
    return _affine(weight, offset, width)


def _affine(weight: np.ndarray, offset: np.ndarray, width: int) -> Dense:
    """`x W + b` of the first dimensions of embeddings; `W` is square, `width` that of the embeddings."""
    has_bias = bool(offset.any())
    dropped = np.zeros((width - len(weight), len(weight)))
    whole_weight = np.concatenate([weight, dropped])
    return Dense(
        width,
        len(weight),
        bias=has_bias,
        activation_function=nn.Identity(),
        init_weight=torch.from_numpy(whole_weight.T).float(),
        init_bias=torch.from_numpy(offset).float() if has_bias else None,
    )
