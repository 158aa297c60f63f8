"""Loading the model that a user names for encoding, and facts about it for files of results."""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from sentence_transformers.util import get_device_name

from hf_xlsr.encoders.assembly import load_sentence_transformer
from hf_xlsr.encoders.encoding import embed, routes_of
from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.encoders.graph_sessions import FORMATS
from hf_xlsr.encoders.graphs import GraphEncoder
from hf_xlsr.encoders.reading import find_model, read_saved
from hf_xlsr.utils.devices import choose_precision, resolve_device
from hf_xlsr.utils.errors import XlsrError, error_line, require_choice
from hf_xlsr.utils.files import torn_json
from hf_xlsr.utils.memory import require_memory_for_weights

DTYPES = ("float32", "bfloat16", "float16", *FORMATS, "auto")
# What `auto` measures: 96 sentences of 5 to 16 words.
SENTENCE = "the quick brown fox jumps over a lazy dog and runs home through deep cold rivers"
TEXTS = [f"{number}: {' '.join(SENTENCE.split()[: 4 + number % 12])}" for number in range(96)]
MIN_COSINE = 0.999


def load_encoder(
    model: str,
    device: str | None = None,
    dtype: str | None = None,
    truncate_dim: int | None = None,
) -> Any:
    """Loads a model by sentence-transformers, or its graphs of ONNX or OpenVINO.

    Args:
        model: Folder of a run, a saved model or an export, or a Hub id, see `find_model`.
        device: For instance `cpu` or `cuda:1`; chosen by sentence-transformers if None.
        dtype: Precision of the weights, `float32`, `bfloat16` or `float16`; as stored if None. bfloat16 is about twice
            as fast on hardware that supports it; cosines change by some thousandths. `onnx`, `onnx-int8`, `openvino`
            and `openvino-int8` are the files written by `hf-xlsr export --onnx --openvino --int8`, on the CPU. `auto`
            is the fastest one by a short measurement, see `fastest_dtype`.
        truncate_dim: Number of leading dimensions of embeddings that are kept; as stored if None.
    """
    check_choice(model, device, dtype)
    if dtype == "auto":
        dtype = fastest_dtype(model, device)
    model_place = find_model(model)
    if dtype in FORMATS:
        return _truncated(GraphEncoder(model_place.path, dtype), truncate_dim)

    require_memory_for_weights(model_place.path)
    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    try:
        if model_place.model_type:
            loaded = read_saved(model_place).detached().assemble().to(device or get_device_name())
        else:
            loaded = load_sentence_transformer(model_place.path, device, **options)
        if dtype in ("bfloat16", "float16"):
            # sentence-transformers leaves a Dense inside a Router in float32.
            loaded = loaded.to(getattr(torch, dtype))
    except Exception as error:  # a damaged folder raises errors of many types
        torn = torn_json(model_place.path)
        where = f"'{torn}': " if torn else ""
        raise XlsrError(f"Model '{model}' cannot be loaded: {where}{error_line(error, 200)}") from error

    return _truncated(loaded, truncate_dim)


def _truncated(encoder: Any, truncate_dim: int | None) -> Any:
    """The encoder, which from now on truncates its embeddings to this width."""
    if truncate_dim is None:
        return encoder
    encoder.truncate_dim = None
    width = encoder.get_embedding_dimension()
    if width is not None and not 1 <= truncate_dim <= width:
        raise XlsrError(f"`truncate_dim` must be 1 to {width}, the width of the embeddings, got {truncate_dim}.")
    encoder.truncate_dim = truncate_dim
    return encoder


def check_choice(
    model: str,
    device: str | None = None,
    dtype: str | None = None,
) -> None:
    """Raises for arguments that `load_encoder` would refuse, before data are read."""
    if dtype is not None:
        require_choice("dtype", dtype, DTYPES)
    if device is not None:
        resolve_device(device)
    path = find_model(model).path
    is_hub_id = path.count("/") == 1 and not path.startswith((".", "/", "~"))
    if not is_hub_id and not Path(path).is_dir():
        raise XlsrError(f"Model folder '{model}' is missing. Give a folder or a Hub id (owner/name).")


def fastest_dtype(model: str, device: str | None = None) -> str:
    """The `dtype` of `load_encoder` that encodes some sentences in the shortest time.

    Tried are `float32`, `bfloat16` where the hardware computes it, and on the CPU every graph of which the folder has
    the file and whose library is installed. One whose embeddings have a cosine below 0.999 with those of `float32` is
    not chosen.
    """
    on_cpu = (device or get_device_name()).startswith("cpu")
    candidates = []
    if choose_precision(cpu=on_cpu) == "bfloat16":
        candidates.append("bfloat16")
    home = Path(find_model(model).path)
    for dtype, graph in FORMATS.items():
        if on_cpu and find_spec(graph.package) and any((home / graph.folder).rglob(graph.file)):
            candidates.append(dtype)

    fastest = "float32"
    if candidates:
        exact, fewest_seconds = _timed(load_encoder(model, device, fastest))
    for dtype in candidates:
        vectors, seconds = _timed(load_encoder(model, device, dtype))
        if seconds < fewest_seconds and (vectors * exact).sum(1).min() >= MIN_COSINE:
            fastest = dtype
            fewest_seconds = seconds
    return fastest


def _timed(encoder: Any) -> tuple[np.ndarray, float]:
    """The embeddings of some sentences, and the seconds that they took."""
    language = next(iter(routes_of(encoder)), None)
    embed(encoder, TEXTS[:16], language=language)
    start = perf_counter()
    vectors = embed(encoder, TEXTS, language=language)
    return vectors, perf_counter() - start


def encoder_facts(encoder: Any, model: str | None = None) -> dict[str, Any]:
    """An encoder's device, precision, maximum length, width where it truncates and, of `model`, hash, for results."""
    facts: dict[str, Any] = {}
    if model is not None:
        facts["content_sha256"] = content_hash(model)
    if hasattr(encoder, "device"):
        facts["device"] = str(encoder.device)
    if hasattr(encoder, "parameters"):
        facts["precision"] = sorted({str(weight.dtype).removeprefix("torch.") for weight in encoder.parameters()})
    elif hasattr(encoder, "precision"):
        facts["precision"] = [encoder.precision]
    length = finite_length(encoder)
    if length is not None:
        facts["max_length"] = length
    width = getattr(encoder, "truncate_dim", None)
    if width is not None:
        facts["truncate_dim"] = width
    return facts


def finite_length(encoder: Any) -> int | None:
    """Number of tokens that an encoder truncates texts to; None if unknown or, as for a static model, unlimited."""
    length = getattr(encoder, "max_seq_length", None)
    return int(length) if length and math.isfinite(length) else None
