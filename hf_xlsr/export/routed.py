"""Export of one encoder per language as one sentence-transformers model, which routes by `task`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router
from sentence_transformers.base.modules.module import Module
from torch import nn
from transformers import PreTrainedModel

from hf_xlsr.encoders.routing import routes_of
from hf_xlsr.encoders.trained import MAX_LENGTH
from hf_xlsr.export.sentence_transformer import (
    encoder_modules,
    projection_module,
    save_export,
    to_sentence_transformer,
)
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

    The language is given as `task`: `model.encode(texts, task="zh")`. Without it:

    - `encode(texts)` raises a `ValueError` that lists the routes.
    - `encode_query` and `encode_document`, which the model cards and retrieval evaluators of sentence-transformers call
      without a language, use the first of `encoders`. For retrieval in another language, or across two, call `encode`
      with the task of each side.

    If all languages share one encoder, tokenizer and projection, the result is that of `to_sentence_transformer`, which
    ignores `task`. Objects that some languages share are exported once.

    Args:
        encoders: Language -> a stock Hugging Face encoder.
        tokenizers: Language -> the encoder's fast tokenizer.
        projections: Language -> a linear layer applied to the pooled embeddings; languages may be missing.
        pooling: `mean`, `max` or `cls`.
        normalize: Normalise embeddings to length 1.
        max_length: Number of tokens that sentences are truncated to.

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
    if not encoders or set(tokenizers) != set(encoders) or not set(projections) <= set(encoders):
        given = ", ".join(str(sorted(names)) for names in (encoders, tokenizers, projections))
        raise XlsrError(f"`encoders`, `tokenizers` and `projections` must have the same languages, got {given}.")
    parts = {name: (encoder, tokenizers[name], projections.get(name)) for name, encoder in encoders.items()}
    first = next(iter(parts))
    if len({tuple(map(id, part)) for part in parts.values()}) == 1:
        encoder, tokenizer, projection = parts[first]
        return to_sentence_transformer(
            encoder, tokenizer, projection=projection, pooling=pooling, normalize=normalize, max_length=max_length
        )
    shared: dict[tuple[int, ...], list[Module]] = {}
    routes: dict[str, list[Module]] = {}
    for name, (encoder, tokenizer, projection) in parts.items():
        key = id(encoder), id(tokenizer)
        if key not in shared:
            shared[key] = encoder_modules(encoder, tokenizer, pooling=pooling, max_length=max_length)
        if projection is not None and (id(projection),) not in shared:
            shared[id(projection),] = [projection_module(projection)]
        routes[name] = shared[key] + ([] if projection is None else shared[id(projection),])
    without_language: Any = {("query", None): first, ("document", None): first}
    router = Router(routes, allow_empty_key=False, route_mappings=without_language)
    return SentenceTransformer(modules=[router, *([Normalize()] if normalize else [])], device="cpu")


def export_routed_sentence_transformer(
    encoders: Mapping[str, PreTrainedModel], tokenizers: Mapping[str, Any], path: str | Path, **options: Any
) -> SentenceTransformer:
    """Saves the model of `to_routed_sentence_transformer` and loads it: `SentenceTransformer(path)` needs no hf-xlsr."""
    return save_export(to_routed_sentence_transformer(encoders, tokenizers, **options), path)


def single_route(model: SentenceTransformer, route: str) -> SentenceTransformer:
    """The encoder of one route of a model with a `Router` as a model without routes, which shares its weights."""
    require_choice("route", route, routes_of(model))
    router: Any = model[0]
    modules = [*router.sub_modules[route], *list(model)[1:]]
    single = SentenceTransformer(modules=modules, device="cpu")
    single.prompts, single.default_prompt_name = dict(model.prompts), model.default_prompt_name
    return single
