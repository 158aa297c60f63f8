"""The sentence-transformers model of a run or of a saved model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hf_xlsr.data.pairs import load_tokenizer
from hf_xlsr.encoders.places import ModelPlace
from hf_xlsr.encoders.stock import max_positions
from hf_xlsr.utils.errors import XlsrError, error_line

MAX_LENGTH = 200


def trained_sentence_transformer(
    place: ModelPlace, *, tokenizer: str | Mapping[str, str] | None = None, max_length: int | None = None
) -> Any:
    """The sentence-transformers model, on the CPU, of a saved model of this package.

    The recipe of its run gives `max_length`, the prompt, and whether embeddings are normalised. The tokenizer, or one for
    each language, is by default that of the run, or the one in the folder.
    """
    import hf_xlsr

    weights, model_class = Path(place.path), getattr(hf_xlsr, place.architecture)
    if not hasattr(model_class, "to_sentence_transformer"):
        raise XlsrError(f"'{weights}' holds a {place.architecture}, which is not a sentence encoder.")
    try:
        model = model_class.from_pretrained(weights, dtype="float32")
    except (SafetensorError, RuntimeError) as error:
        raise XlsrError(f"The model in '{weights}' cannot be loaded ({error_line(error, 200)}).") from error
    training = place.training or weights.parent
    recipe = json.loads((training / "recipe.json").read_text("utf-8")) if place.training else {}
    given = _tokenizers(model, weights, training, tokenizer)
    data = recipe.get("data") or {}
    limit = _max_length(model, given, max_length, data.get("max_length"))
    exported = model.to_sentence_transformer(given, max_length=limit, **recipe.get("export", {}))
    if prompt := data.get("prompt"):
        # `encode_query` and `encode_document` take prompts of their own.
        exported.prompts |= dict.fromkeys(("default", "query", "document"), prompt)
        exported.default_prompt_name = "default"
    return exported


def _tokenizers(model: Any, weights: Path, training: Path, given: str | Mapping[str, str] | None) -> Any:
    """The tokenizer, or one for each language of a model with several encoders."""
    languages = list(model.config.languages) if hasattr(model, "routes") else []
    if isinstance(given, str):
        return load_tokenizer(given, "--tokenizer")
    if given and languages:
        return {language: load_tokenizer(path, f"--tokenizer of {language}") for language, path in given.items()}
    kept = {language: training / "tokenizer" / language for language in languages}
    if kept and all(path.is_dir() for path in kept.values()):
        # One object for languages that share a file: a shared encoder is then exported once.
        shared: dict[bytes, Any] = {}
        return {
            language: shared.setdefault((path / "tokenizer.json").read_bytes(), load_tokenizer(str(path), "tokenizer"))
            for language, path in kept.items()
        }
    for folder in (weights, training / "final", training / "tokenizer") if not given else ():
        if (folder / "tokenizer.json").is_file():
            return load_tokenizer(str(folder), "tokenizer")
    each = f", or {' '.join(f'{language}=FOLDER' for language in languages)}" if languages else ""
    raise XlsrError(f"'{weights}' needs --tokenizer FOLDER{each}.")


def _max_length(model: Any, tokenizers: Any, given: int | None, trained: int | None) -> int:
    encoders = model.encoders.values() if hasattr(model, "routes") else [model.encoder]
    several = tokenizers.values() if isinstance(tokenizers, Mapping) else [tokenizers]
    positions = min((count for count in map(max_positions, encoders) if count is not None), default=None)
    if given is not None and not 1 < given <= (positions or given):
        raise XlsrError(f"--max-length must be 2 to {positions}, the positions of the encoder, got {given}.")
    return given or trained or min([MAX_LENGTH, positions or MAX_LENGTH, *(one.model_max_length for one in several)])
