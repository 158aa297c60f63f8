"""Finding and loading the model that a user names, and facts about it for files of results."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from safetensors import SafetensorError

from hf_xlsr.data.pairs import load_tokenizer
from hf_xlsr.data.sources import expand
from hf_xlsr.encoders.encoding import embed, routes_of
from hf_xlsr.encoders.stock import max_positions
from hf_xlsr.utils.devices import choose_precision, resolve_device
from hf_xlsr.utils.errors import XlsrError, error_line, require_choice

ADAPTERS = "adapter_model.safetensors"
MAX_LENGTH = 200
DTYPES = ("float32", "bfloat16", "float16", "onnx", "onnx-int8", "auto")
# What `auto` measures: 96 sentences of 5 to 16 words.
WORDS = "the quick brown fox jumps over a lazy dog and runs home through deep cold rivers".split()
TEXTS = [f"{number}: {' '.join(WORDS[: 4 + number % 12])}" for number in range(96)]
MIN_COSINE = 0.999


@dataclass(frozen=True)
class ModelPlace:
    """A model that a user named."""

    path: str  # its folder, or its id on the Hub
    architecture: str = ""  # class of this package that was saved; empty for what sentence-transformers loads
    training: Path | None = None  # folder of the run that a saved model is from


def find_model(name: str | Path, *, trained: bool = False) -> ModelPlace:
    """Finds a model by the folder of a run, a checkpoint, a saved model or an export, or by its id on the Hub.

    Environment variables are expanded. Of a run it is the export, or the weights before that is written; with
    `trained`, the weights, unless only the export is left.
    """
    home = Path(expand(name)).expanduser()
    of_run = (home / "training" / "recipe.json").is_file()
    if not (trained and of_run):
        for export in (home, home / "model"):
            if (export / "modules.json").is_file():
                return ModelPlace(str(export))
    folder = weights_folder(home) if of_run or (home / ADAPTERS).is_file() else home
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        architecture = (config.get("architectures") or [""])[0]
    except (OSError, ValueError, AttributeError):
        return ModelPlace(str(folder) if home.is_dir() else str(name))
    import hf_xlsr

    if architecture not in hf_xlsr.__all__:
        return ModelPlace(str(folder))
    return ModelPlace(str(folder), architecture, folder.parent if (folder.parent / "recipe.json").is_file() else None)


def weights_folder(path: str | Path) -> Path:
    """The folder that holds the weights of a finished run, with adapters merged, or of a saved model."""
    home = Path(expand(path))
    folders = (home / "training" / "merged", home / "training" / "final", home)
    for folder in folders:
        if any(folder.glob("model*.safetensors")):
            return folder
    adapters = any((folder / ADAPTERS).is_file() for folder in folders)
    found = "only adapters, without the encoder" if adapters else "no weights"
    raise XlsrError(f"'{home}' holds {found}; expected a finished run, one of its checkpoints, or a saved model.")


def trained_sentence_transformer(place: ModelPlace, *, tokenizer: str | Mapping[str, str] | None = None) -> Any:
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
    tokenizers = _tokenizers(model, weights, training, tokenizer)
    data = recipe.get("data") or {}
    limit = data.get("max_length") or _max_length(model, tokenizers)
    exported = model.to_sentence_transformer(tokenizers, max_length=limit, **recipe.get("export", {}))
    if prompt := data.get("prompt"):
        # `encode_query` and `encode_document` take prompts of their own.
        exported.prompts |= dict.fromkeys(("default", "query", "document"), prompt)
        exported.default_prompt_name = "default"
    return exported


def _tokenizers(model: Any, weights: Path, training: Path, given: str | Mapping[str, str] | None) -> Any:
    """The tokenizer, or one for each language of a model with several encoders."""
    languages = list(model.config.languages) if hasattr(model, "encoders") else []
    if isinstance(given, str):
        return load_tokenizer(given, "--tokenizer")
    if languages and given and set(given) >= set(languages):
        return {language: load_tokenizer(given[language], f"--tokenizer of {language}") for language in languages}
    kept = {language: training / "tokenizer" / language for language in languages if not given}
    if (own := weights / "tokenizers").is_dir():  # of a trainer in Python
        kept = {language: own / model.config.encoder_of(language) for language in kept}
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


def _max_length(model: Any, tokenizers: Any) -> int:
    encoders = model.encoders.values() if hasattr(model, "encoders") else [model.encoder]
    several = tokenizers.values() if isinstance(tokenizers, Mapping) else [tokenizers]
    positions = min((count for count in map(max_positions, encoders) if count is not None), default=None)
    return min([MAX_LENGTH, positions or MAX_LENGTH, *(one.model_max_length for one in several)])


def load_encoder(model: str, device: str | None = None, dtype: str | None = None) -> Any:
    """Loads a model by sentence-transformers, or its ONNX files.

    Args:
        model: Folder of a run, a saved model or an export, or a Hub id, see `find_model`.
        device: For instance `cpu` or `cuda:1`; chosen by sentence-transformers if None.
        dtype: Precision of the weights, `float32`, `bfloat16` or `float16`; as stored if None. bfloat16 is about twice
            as fast on hardware that supports it; cosines change by some thousandths. `onnx` and `onnx-int8` are the
            files written by `hf-xlsr export --onnx --int8`, on the CPU. `auto` is the fastest one by a short measurement,
            see `fastest_dtype`.
    """
    check_choice(model, device, dtype)
    dtype = fastest_dtype(model, device) if dtype == "auto" else dtype
    place = find_model(model)
    if dtype is not None and dtype.startswith("onnx"):
        from hf_xlsr.encoders.onnx import OnnxEncoder

        return OnnxEncoder(place.path, int8=dtype == "onnx-int8")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import get_device_name

    options: dict[str, Any] = {} if dtype is None else {"model_kwargs": {"dtype": dtype}}
    try:
        if place.architecture:
            loaded = trained_sentence_transformer(place).to(device or get_device_name())
        else:
            loaded = SentenceTransformer(place.path, device=device, trust_remote_code=False, **options)
        # sentence-transformers leaves a Dense inside a Router in float32.
        return loaded.to(getattr(torch, dtype)) if dtype in ("bfloat16", "float16") else loaded
    except Exception as error:  # a damaged folder raises errors of many types
        reason = error_line(error, 200) or type(error).__name__
        raise XlsrError(f"Model '{model}' cannot be loaded by sentence-transformers: {reason}") from error


def check_choice(model: str, device: str | None = None, dtype: str | None = None) -> None:
    """Raises for arguments that `load_encoder` would refuse, before data are read."""
    if dtype is not None:
        require_choice("dtype", dtype, DTYPES)
    if device is not None:
        resolve_device(device)
    path = find_model(model).path
    if not Path(path).is_dir() and (path.startswith((".", "/", "~")) or path.count("/") != 1):
        raise XlsrError(f"Model folder '{model}' is missing. Give a folder or a Hub id (owner/name).")


def fastest_dtype(model: str, device: str | None = None) -> str:
    """The `dtype` of `load_encoder` that encodes some sentences in the shortest time.

    Tried are `float32`, `bfloat16` where the hardware computes it, and `onnx` where the folder has the file. One whose
    embeddings have a cosine below 0.999 with those of `float32` is not chosen.
    """
    from sentence_transformers.util import get_device_name

    from hf_xlsr.encoders.onnx import FLOAT_FILE

    cpu = (device or get_device_name()).startswith("cpu")
    choices = ["float32"]
    if choose_precision(cpu=cpu) == "bfloat16":
        choices.append("bfloat16")
    if cpu and find_spec("onnxruntime") and any((Path(find_model(model).path) / "onnx").rglob(FLOAT_FILE)):
        choices.append("onnx")
    if len(choices) == 1:
        return choices[0]
    seconds: dict[str, float] = {}
    exact: Any = None
    for choice in choices:
        encoder = load_encoder(model, device, choice)
        language = next(iter(routes_of(encoder)), None)
        embed(encoder, TEXTS[:16], language=language)
        start = perf_counter()
        vectors = embed(encoder, TEXTS, language=language)
        took = perf_counter() - start
        exact = vectors if exact is None else exact
        if float((vectors * exact).sum(1).min()) >= MIN_COSINE:
            seconds[choice] = took
    return min(seconds, key=seconds.__getitem__)


def encoder_facts(encoder: Any, model: str | None = None) -> dict[str, Any]:
    """An encoder's device, precision, maximum length and, of `model`, hash, for files of results."""
    from hf_xlsr.encoders.fingerprint import content_hash

    facts: dict[str, Any] = {} if model is None else {"content_sha256": content_hash(model)}
    if hasattr(encoder, "device"):
        facts["device"] = str(encoder.device)
    if hasattr(encoder, "parameters"):
        facts["precision"] = sorted({str(weight.dtype).removeprefix("torch.") for weight in encoder.parameters()})
    elif hasattr(encoder, "precision"):
        facts["precision"] = [encoder.precision]
    if (length := finite_length(encoder)) is not None:
        facts["max_length"] = length
    return facts


def finite_length(encoder: Any) -> int | None:
    """Number of tokens that an encoder truncates texts to; None if unknown or, as for a static model, unlimited."""
    length = getattr(encoder, "max_seq_length", None)
    return int(length) if length and math.isfinite(length) else None
