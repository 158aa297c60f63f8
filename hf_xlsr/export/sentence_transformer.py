"""Export to sentence-transformers: stock modules and a stock architecture, which load without this package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.assembly import EncoderPart, SentenceEncoder, load_sentence_transformer
from hf_xlsr.encoders.heads import build_head, new_head
from hf_xlsr.encoders.stock import usable_length
from hf_xlsr.export.old_names import add_old_names
from hf_xlsr.utils.files import atomic_folder, read_json, write_json


def to_sentence_transformer(
    encoder: Any,
    tokenizer: Any,
    *,
    pooling: Any = "mean",
    normalize: bool = True,
    max_length: int | None = None,
) -> SentenceTransformer:
    """Wraps plain encoders as `Transformer + Pooling (+ Normalize)`, on the CPU in float32.

    Encoders by language become the routes of a `Router`: `model.encode(texts, task="zh")`. Without a task `encode` raises
    a `ValueError` with the routes; `encode_query` and `encode_document` use the first. Objects that some languages share
    are exported once, and a single encoder and tokenizer for all languages has no routes.

    Args:
        encoder: A stock Hugging Face encoder, or one by language; the result has copies of their weights.
        tokenizer: Its tokenizer, or one by language.
        pooling: A mode of sentence-transformers' `Pooling`, or several.
        normalize: Normalise embeddings to length 1.
        max_length: Number of tokens that sentences are truncated to; by default the tokenizer's.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> texts = ["the red house", "the blue river", "la maison rouge", "la rivière bleue"]
        >>> tokenizer = train_tokenizer(texts, vocab_size=40, algorithm="bpe", max_length=16)
        >>> size = BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> encoders = {"en": BertModel(size), "fr": BertModel(size)}
        >>> model = to_sentence_transformer(encoders, {"en": tokenizer, "fr": tokenizer})
        >>> model.encode(texts[:3], task="fr").shape
        (3, 8)
    """
    encoders = encoder if isinstance(encoder, Mapping) else {"": encoder}
    tokenizers = tokenizer if isinstance(tokenizer, Mapping) else dict.fromkeys(encoders, tokenizer)
    heads: dict[int, list[Any]] = {}  # of an encoder that languages share, one head
    parts: dict[str, EncoderPart] = {}
    objects = set()
    for route, route_encoder in encoders.items():
        route_tokenizer = tokenizers[route]
        config = new_head(route_encoder.config.hidden_size, pooling, normalize=normalize)
        head = heads.setdefault(id(route_encoder), list(build_head(config)))
        length = usable_length([route_encoder], route_tokenizer.model_max_length, max_length)
        parts[route] = EncoderPart(route_encoder, route_tokenizer, head, {"max_seq_length": length})
        objects.add((id(route_encoder), id(route_tokenizer)))

    if len(objects) == 1:
        parts = {"": parts.popitem()[1]}
    return SentenceEncoder(parts).detached().assemble()


def save_export(model: SentenceTransformer, path: str | Path) -> SentenceTransformer:
    """Writes a model of stock modules to a folder, and loads it: `SentenceTransformer(path)` needs no hf-xlsr.

    It has the names of older versions too, see `add_old_names`. Files take their names when all are written; others
    in the folder stay.
    """
    with atomic_folder(path, merge=True) as partial:
        write_export(model, partial)
    return load_sentence_transformer(str(path), "cpu")


def write_export(model: SentenceTransformer, folder: Path) -> None:
    """As `save_export`, into a folder that has no name yet."""
    model.save(str(folder), create_model_card=False)
    if any(getattr(module, "do_lower_case", False) for module in model.modules()):
        _keep_lower_case(folder)
    add_old_names(folder)


def _keep_lower_case(folder: Path) -> None:
    """Writes that texts are lower-cased: XLMRobertaTokenizer and others make their normalisation anew, without it."""
    for file in folder.rglob("sentence_bert_config.json"):
        tokenizer = read_json(file.with_name("tokenizer.json"))
        if "Lowercase" in str(tokenizer["normalizer"]):
            write_json(file, {**read_json(file), "do_lower_case": True})
