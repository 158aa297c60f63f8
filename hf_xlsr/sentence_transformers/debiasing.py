"""Removal of language bias from a sentence-transformers model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sentence_transformers import SentenceTransformer
from typing_extensions import Unpack

from hf_xlsr.encoders.debias import fit_debias
from hf_xlsr.encoders.encoding import EncodingOptions
from hf_xlsr.export.routed import debias_sentence_transformer


def debias(
    model: SentenceTransformer,
    texts: Mapping[str, Iterable[str]],
    *,
    components: int = 1,
    method: str = "components",
    normalize: bool = False,
    **encoding: Unpack[EncodingOptions],
) -> SentenceTransformer:
    """A model of stock modules that removes the language bias of each text: `model.encode(texts, task="fr")`.

    Removes the first principal components of each language's embeddings (Yang et al., 2021, section 5). Texts without a
    language take the route `und`, which removes nothing.

    Args:
        model: Unchanged; the result shares its weights.
        texts: Language -> its sentences, any iterable. They need not be translations of each other.
        components: Number of principal components to remove of each language, for the `method` `components`. The others
            are `mean`, which subtracts the mean of a language's embeddings, and `whitening`.
        normalize: Rescale to unit length after the removal.

    Examples:
        >>> from sentence_transformers.sentence_transformer.modules import StaticEmbedding
        >>> from tokenizers import Tokenizer, models
        >>> words = Tokenizer(models.WordLevel({"un": 0, "deux": 1, "trois": 2}, unk_token="un"))
        >>> model = SentenceTransformer(modules=[StaticEmbedding(words, embedding_dim=8)], device="cpu")
        >>> debias(model, {"fr": ["un", "deux", "trois"]}).encode(["un", "deux"], task="fr").shape
        (2, 8)
    """
    fitted = fit_debias(model, texts, components=components, method=method, **encoding)
    return debias_sentence_transformer(model, fitted, normalize=normalize)
