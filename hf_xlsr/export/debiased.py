"""Removal of language bias inside an exported model: a `Dense` per language behind a stock `Router`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router
from torch import nn

from hf_xlsr.encoders.debias import Debias
from hf_xlsr.encoders.routing import route_of, routes_of
from hf_xlsr.utils.errors import XlsrError

# The BCP-47 tag of an undetermined language: the route of texts without one, which removes nothing.
UNDETERMINED = "und"


def removal_module(debias: Debias, language: str) -> Dense:
    """The removal for one language as an affine layer: `x (I - C C^T)`, `x - m`, or `(x - m) W`."""
    offset = debias.apply(np.zeros(debias.dimension), language)
    weight = debias.apply(np.eye(debias.dimension), language) - offset
    return Dense(
        debias.dimension,
        debias.dimension,
        bias=bool(offset.any()),
        activation_function=nn.Identity(),
        init_weight=torch.from_numpy(weight.T).float(),
        init_bias=torch.from_numpy(offset).float() if offset.any() else None,
    )


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
        >>> bool(np.abs(embeddings @ debias.components["fr"]).max() < 1e-5)
        True
    """
    if model.truncate_dim is not None:
        raise XlsrError(
            f"truncate_dim is {model.truncate_dim}, which truncates after all modules. Load the model without it, and "
            "set it on the result."
        )
    width = model.get_embedding_dimension()
    if width is not None and width != debias.dimension:
        raise XlsrError(
            f"the model's embeddings have width {width}, but debias was fitted on width {debias.dimension}."
        )
    routes: dict[str, list[Any]] = {
        language: [*_route_modules(model, language), removal_module(debias, language)] for language in debias.languages
    }
    routes[UNDETERMINED] = _route_modules(model, None)
    without_language: Any = {("query", None): UNDETERMINED, ("document", None): UNDETERMINED}
    router = Router(routes, default_route=UNDETERMINED, allow_empty_key=False, route_mappings=without_language)
    prompts: Any = model.prompts
    return SentenceTransformer(
        modules=[router, *([Normalize()] if normalize else [])],
        device=str(model.device),
        prompts=prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
    )


def _route_modules(model: SentenceTransformer, language: str | None) -> list[Any]:
    """The modules that texts of a language go through; those of the default or first route for texts without one."""
    first, *rest = model.children()
    if not routes_of(model):
        return [first, *rest]
    router: Any = first
    default = router.default_route or next(iter(router.sub_modules))
    route = default if language is None else route_of(model, language)
    return [*router.sub_modules[route], *rest]
