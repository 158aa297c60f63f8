"""From what training left, a run or a saved model, to the sentence-transformers model that users get."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from hf_xlsr.data.pairs import load_tokenizer
from hf_xlsr.encoders.stock import max_positions
from hf_xlsr.export.sentence_transformer import MAX_LENGTH
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods.sentence_encoder import SentenceEncoderMethod
from hf_xlsr.runs.recipe import read_run
from hf_xlsr.runs.starting import ADAPTERS
from hf_xlsr.utils.errors import XlsrError, did_you_mean, error_line


def trained_sentence_transformer(
    place: str | Path,
    *,
    tokenizer: str | Mapping[str, str] | None = None,
    max_length: int | None = None,
) -> Any:
    """The sentence-transformers model of a run, or of a model that was saved by itself.

    The recipe of a run, also for a checkpoint in its folder, says `max_length` and whether embeddings are normalised.

    Args:
        place: `output_dir` of a run that has ended, one of its checkpoints, or a folder that `save_pretrained` of one of
            this package's models wrote.
        tokenizer: Folder or id, or one for each language; by default that of the run, or the one in the folder.
        max_length: Longest sentence, in pieces, instead of the recipe's.

    Returns:
        A `SentenceTransformer`, on the processor.

    Raises:
        XlsrError: there is no such model, it is no sentence encoder, or its tokenizer is not known.

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
    home = Path(place)
    if not home.is_dir():
        raise XlsrError(f"'{place}' is no folder; give the output folder of a run, or a saved model.")
    run = RunFolder(home)
    weights, training = (_weights(run), run.training) if run.recipe.is_file() else (home, home.parent)
    recipe = None
    if (training / "recipe.json").is_file():
        method = read_run(RunFolder(training.parent))
        if not isinstance(method, SentenceEncoderMethod):
            raise XlsrError(_no_encoder(place, f"a run of {method.name}"))
        recipe = method.recipe
    model = _load(weights)
    given = _tokenizers(model, weights, training, tokenizer)
    options: dict[str, Any] = recipe.export.model_dump() if recipe else {}
    limit = _max_length(model, given, max_length, recipe.data.max_length if recipe else None)
    return model.to_sentence_transformer(given, max_length=limit, **options)


def _weights(run: RunFolder) -> Path:
    """Where the weights of a run lie, adapters merged."""
    for folder in (run.merged, run.final):
        if _has_weights(folder):
            return folder
    checkpoints = sorted(run.training.glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)
    mend = f"give its checkpoint '{checkpoints[-1]}'" if checkpoints else "train it to its end"
    raise XlsrError(f"run '{run.path}' has no finished training; {mend}.")


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("model*.safetensors"))


def _no_encoder(place: str | Path, what: str) -> str:
    return (
        f"'{place}' is {what}, which makes no sentence encoder, so there is nothing to export; its folder loads with "
        "transformers as it is."
    )


def _load(folder: Path) -> Any:
    import hf_xlsr

    config = _json(folder / "config.json")
    if not _has_weights(folder):
        if (folder / ADAPTERS).is_file():
            raise XlsrError(
                f"'{folder}' holds adapters alone, without the weights that they belong to; give the folder of the run "
                "when it has ended, or merge them (hf_xlsr.trainers.adapters.merged) and save the model."
            )
        raise XlsrError(f"'{folder}' holds no trained model; give the output folder of a run, or a saved model.")
    name = (config.get("architectures") or [""])[0]
    model_class = getattr(hf_xlsr, name, None) if name in hf_xlsr.__all__ else None
    if model_class is None:
        known = [other for other in hf_xlsr.__all__ if hasattr(getattr(hf_xlsr, other), "to_sentence_transformer")]
        raise XlsrError(
            f"'{folder}' holds a model of class '{name}', which is not exported here; {did_you_mean(name, known)}"
        )
    if not hasattr(model_class, "to_sentence_transformer"):
        raise XlsrError(_no_encoder(folder, f"a {name}"))
    try:
        return model_class.from_pretrained(folder, dtype="float32")
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if isinstance(error, XlsrError):
            raise
        reason = error_line(error, 200)
        raise XlsrError(f"the model in '{folder}' does not load ({reason}); copy it again.") from error


def _tokenizers(model: Any, weights: Path, training: Path, given: str | Mapping[str, str] | None) -> Any:
    """The tokenizer, or one for each language of a model with several encoders."""
    if given and not isinstance(given, str) and not hasattr(model, "routes"):
        raise XlsrError(f"'{weights}' has one encoder for all languages; give --tokenizer one folder.")
    if isinstance(given, str):
        return load_tokenizer(given, "--tokenizer")
    if given:
        return {language: load_tokenizer(path, f"--tokenizer of {language}") for language, path in given.items()}
    languages = list(model.config.languages) if hasattr(model, "routes") else []
    kept = {language: training / "tokenizer" / language for language in languages}
    if kept and all(path.is_dir() for path in kept.values()):
        # One object for languages that share a file: a shared encoder is then exported once.
        shared: dict[bytes, Any] = {}
        return {
            language: shared.setdefault((path / "tokenizer.json").read_bytes(), load_tokenizer(str(path), "tokenizer"))
            for language, path in kept.items()
        }
    for folder in (weights, training / "final", training / "tokenizer"):
        if (folder / "tokenizer.json").is_file():
            return load_tokenizer(str(folder), "tokenizer")
    each = f"; one for each language: {' '.join(f'{code}=FOLDER' for code in languages)}" if len(languages) > 1 else ""
    raise XlsrError(f"'{weights}' has no tokenizer beside it; name its folder with --tokenizer{each}.")


def _max_length(model: Any, tokenizers: Any, given: int | None, trained: int | None) -> int:
    encoders = model.encoders.values() if hasattr(model, "routes") else [model.encoder]
    several = tokenizers.values() if isinstance(tokenizers, Mapping) else [tokenizers]
    positions = min((count for count in map(max_positions, encoders) if count is not None), default=None)
    if given is not None and not 1 < given <= (positions or given):
        raise XlsrError(
            f"--max-length is {given}; use 2 or more, and no more than the encoder's {positions} positions."
        )
    return given or trained or min([MAX_LENGTH, positions or MAX_LENGTH, *(one.model_max_length for one in several)])


def _json(file: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise XlsrError(f"{file} does not read as JSON ({error}); copy it again.") from None
    return content
