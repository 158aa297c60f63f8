"""The sentence-transformers model of a run or of a saved model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedConfig

from hf_xlsr.data.pairs import load_tokenizer
from hf_xlsr.encoders.stock import max_positions
from hf_xlsr.export.sentence_transformer import MAX_LENGTH
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.recipe import read_run
from hf_xlsr.runs.starting import weights_folder
from hf_xlsr.utils.errors import XlsrError, error_line


def trained_sentence_transformer(
    place: str | Path,
    *,
    tokenizer: str | Mapping[str, str] | None = None,
    max_length: int | None = None,
) -> Any:
    """The sentence-transformers model of a run or of a saved model.

    The recipe of a run, also for a checkpoint in its folder, gives `max_length` and whether embeddings are normalised.

    Args:
        place: `output_dir` of a finished run, one of its checkpoints, or a folder that `save_pretrained` of one of this
            package's models wrote.
        tokenizer: Folder or id, or one for each language; by default that of the run, or the one in the folder.
        max_length: Maximum number of tokens, instead of the recipe's.

    Returns:
        A `SentenceTransformer`, on the CPU.

    Raises:
        XlsrError: the weights or the tokenizer are missing or invalid, or the model is not a sentence encoder.

    Example:
        >>> from hf_xlsr import LightweightConfig, LightweightDualTransformer
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["a red house", "a blue river"], vocab_size=30, algorithm="bpe", max_length=16)
        >>> encoder = {"model_type": "bert", "vocab_size": len(tokenizer), "hidden_size": 8, "num_attention_heads": 1}
        >>> LightweightDualTransformer(LightweightConfig(text_config=encoder)).save_pretrained("saved")
        >>> _ = tokenizer.save_pretrained("saved")
        >>> trained_sentence_transformer("saved").encode(["a red river"]).shape
        (1, 8)
    """
    weights, run = weights_folder(place), RunFolder(place)
    training = run.training if run.recipe.is_file() else run.path.parent
    model = _load(weights)
    recipe = read_run(RunFolder(training.parent)).recipe if (training / "recipe.json").is_file() else None
    given = _tokenizers(model, weights, training, tokenizer)
    limit = _max_length(model, given, max_length, recipe.data.max_length if recipe else None)
    return model.to_sentence_transformer(given, max_length=limit, **(recipe.export.model_dump() if recipe else {}))


def _load(folder: Path) -> Any:
    import hf_xlsr

    name = (PreTrainedConfig.get_config_dict(folder)[0].get("architectures") or [""])[0]
    model_class = getattr(hf_xlsr, name) if name in hf_xlsr.__all__ else None
    if not hasattr(model_class, "to_sentence_transformer"):
        raise XlsrError(f"'{folder}' holds a model of class '{name}', which is not a sentence encoder of hf-xlsr.")
    try:
        return model_class.from_pretrained(folder, dtype="float32")  # type: ignore[union-attr]
    except (SafetensorError, RuntimeError) as error:
        raise XlsrError(f"The model in '{folder}' cannot be loaded ({error_line(error, 200)}).") from error


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
