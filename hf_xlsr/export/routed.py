"""sentence-transformers models that route texts by `task`, their language: to its own encoder, or to its bias removal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from torch import nn
from transformers import PreTrainedModel

from hf_xlsr.data.encoding import UNDETERMINED
from hf_xlsr.encoders.debias import Debias
from hf_xlsr.encoders.encoding import route_of, routes_of
from hf_xlsr.encoders.loading import MAX_LENGTH
from hf_xlsr.export.sentence_transformer import dense, encoder_modules, settings_of, to_sentence_transformer
from hf_xlsr.utils.errors import XlsrError, require_choice


def to_routed_sentence_transformer(
    encoders: Mapping[str, PreTrainedModel],
    tokenizers: Mapping[str, Any],
    projections: Mapping[str, nn.Linear] | None = None,
    *,
    pooling: str = "mean",
    normalize: bool = True,
    max_length: int = MAX_LENGTH,
) -> SentenceTransformer:
    """Joins encoders as `Router({language: [Transformer, Pooling (, Dense)]}) (+ Normalize)`, on the CPU in float32.

    The language is given as `task`: `model.encode(texts, task="zh")`. Without it `encode` raises a `ValueError` with the
    routes; `encode_query` and `encode_document` use the first of `encoders`.

    If all languages share one encoder, tokenizer and projection, the result is that of `to_sentence_transformer`, which
    ignores `task`. Objects that some languages share are exported once.

    Args:
        encoders: Language -> a stock Hugging Face encoder.
        tokenizers: Language -> the encoder's fast tokenizer.
        projections: Language -> a linear layer applied to the pooled embeddings; languages may be missing.
        pooling: As for `to_sentence_transformer`, as the options after it.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> texts = ["the red house", "the blue river", "la maison rouge", "la rivière bleue"]
        >>> tokenizer = train_tokenizer(texts, vocab_size=40, algorithm="bpe", max_length=16)
        >>> size = BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> encoders = {"en": BertModel(size), "fr": BertModel(size)}
        >>> model = to_routed_sentence_transformer(encoders, {"en": tokenizer, "fr": tokenizer}, max_length=16)
        >>> model.encode(texts[:3], task="fr").shape
        (3, 8)
    """
    projections = projections or {}
    parts = {name: (encoder, tokenizers[name], projections.get(name)) for name, encoder in encoders.items()}
    first = next(iter(parts))
    if len({tuple(map(id, part)) for part in parts.values()}) == 1:
        encoder, tokenizer, projection = parts[first]
        return to_sentence_transformer(
            encoder, tokenizer, projection=projection, pooling=pooling, normalize=normalize, max_length=max_length
        )
    shared: dict[tuple[int, ...], list[Any]] = {}
    routes: dict[str, list[Any]] = {}
    for name, (encoder, tokenizer, projection) in parts.items():
        key, last = (id(encoder), id(tokenizer)), (id(projection),)
        if key not in shared:
            shared[key] = encoder_modules(encoder, tokenizer, pooling=pooling, max_length=max_length)
        if last not in shared:
            shared[last] = [] if projection is None else [dense(projection.weight, projection.bias)]
        routes[name] = shared[key] + shared[last]
    return SentenceTransformer(modules=_router(routes, first, normalize), device="cpu")


def _router(routes: dict[str, list[Any]], first: str, normalize: bool, default: str | None = None) -> list[nn.Module]:
    """`Router (+ Normalize)`; queries and documents without a language take the route `first`."""
    without_language: Any = {("query", None): first, ("document", None): first}
    router = Router(routes, default_route=default, allow_empty_key=False, route_mappings=without_language)
    return [router, *([Normalize()] if normalize else [])]


def single_route(model: SentenceTransformer, route: str) -> SentenceTransformer:
    """The encoder of one route of a model with a `Router` as a model without routes, which shares its weights."""
    require_choice("route", route, routes_of(model))
    return SentenceTransformer(modules=_modules_of(model, route), device="cpu", **settings_of(model))


def _modules_of(model: SentenceTransformer, route: str | None) -> list[Any]:
    """The modules that texts go through; `route` is None for a model without routes."""
    modules: list[Any] = list(model.children())
    return modules if route is None else [*modules[0].sub_modules[route], *modules[1:]]


def debias_sentence_transformer(
    model: SentenceTransformer, debias: Debias, *, normalize: bool = False
) -> SentenceTransformer:
    """A model that removes the language bias of each text: `model.encode(texts, task="fr")`.

    The result is `Router({language: [modules of the model, Dense]}) (+ Normalize)` of stock modules, with prompts and
    similarity function of the original. All routes share its encoder. Texts without a language take the route `und`,
    which removes nothing.

    Args:
        model: The model that `debias` was fitted on.
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
    width, truncate = model.get_embedding_dimension(), model.truncate_dim
    if truncate is not None or width not in (None, debias.dimension):
        raise XlsrError(
            f"The model must have the width {debias.dimension} that debias was fitted on, and no truncate_dim, got width "
            f"{width} and truncate_dim {truncate}. Set truncate_dim on the result."
        )
    names = routes_of(model)
    routes = {
        language: [*_modules_of(model, route_of(model, language) if names else None), _removal(debias, language)]
        for language in debias.languages
    }
    first: Any = next(model.children())
    routes[UNDETERMINED] = _modules_of(model, (first.default_route or names[0]) if names else None)
    modules = _router(routes, UNDETERMINED, normalize, default=UNDETERMINED)
    return SentenceTransformer(modules=modules, device=str(model.device), **settings_of(model))


def _removal(debias: Debias, language: str) -> Dense:
    """The removal for one language as an affine layer: `x (I - C C^T)` or `x - m`."""
    offset = debias.apply(np.zeros(debias.dimension), language)
    weight = debias.apply(np.eye(debias.dimension), language) - offset
    return dense(torch.from_numpy(weight.T), torch.from_numpy(offset) if offset.any() else None)
