"""Export to sentence-transformers: stock modules around a stock architecture, so that it loads without this package."""

from __future__ import annotations

import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import PreTrainedModel


def _loading_options(encoder: PreTrainedModel) -> dict[str, Any]:
    """Our encoders carry no pooler; without this its weights would be made up at random on loading."""
    takes_it = "add_pooling_layer" in inspect.signature(type(encoder)).parameters
    return {"add_pooling_layer": False} if takes_it and getattr(encoder, "pooler", None) is None else {}


def to_sentence_transformer(
    encoder: PreTrainedModel, tokenizer: Any, *, pooling: str = "mean", normalize: bool = True, max_length: int = 200
) -> SentenceTransformer:
    """Wraps a plain encoder as `Transformer + Pooling (+ Normalize)`.

    Args:
        encoder: A stock Hugging Face encoder, for example `model.encoder`.
        tokenizer: Its fast tokenizer.
        pooling: `mean`, `max` or `cls`.
        normalize: Give unit vectors.
        max_length: Longest sentence, in pieces.

    Returns:
        The model, on the processor; its weights are copies.
    """
    with tempfile.TemporaryDirectory() as folder:
        encoder.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        transformer = Transformer(folder, max_seq_length=max_length, model_kwargs=_loading_options(encoder))
    modules: list[Any] = [transformer, Pooling(encoder.config.hidden_size, pooling_mode=pooling)]
    return SentenceTransformer(modules=[*modules, *([Normalize()] if normalize else [])], device="cpu")


def export_sentence_transformer(
    encoder: PreTrainedModel, tokenizer: Any, path: str | Path, **options: Any
) -> SentenceTransformer:
    """Writes a folder that `SentenceTransformer(path)` loads, without this package and without trusted code.

    Args:
        encoder: See `to_sentence_transformer`.
        tokenizer: Likewise.
        path: The folder; it is made.
        **options: As for `to_sentence_transformer`.

    Returns:
        The model as the folder gives it.
    """
    to_sentence_transformer(encoder, tokenizer, **options).save(str(path), create_model_card=False)
    loading = _loading_options(encoder)
    if loading:
        file = Path(path) / "sentence_bert_config.json"
        settings = json.loads(file.read_text("utf-8"))
        file.write_text(json.dumps({**settings, "model_kwargs": loading}, indent=2), "utf-8")
    return SentenceTransformer(str(path), device="cpu")
