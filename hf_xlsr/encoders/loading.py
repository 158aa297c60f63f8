"""Loading encoders, and facts about them for files of results."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from hf_xlsr.encoders.places import find_model
from hf_xlsr.encoders.trained import trained_sentence_transformer
from hf_xlsr.utils.devices import resolve_device
from hf_xlsr.utils.errors import XlsrError, error_line, require_choice

DTYPES = ("float32", "bfloat16", "float16", "onnx", "onnx-int8", "auto")


def load_encoder(model: str, device: str | None = None, dtype: str | None = None) -> Any:
    """Loads a model by sentence-transformers, or its ONNX files.

    Args:
        model: Folder of a run, a saved model or an export, or a Hub id, see `find_model`.
        device: For instance `cpu` or `cuda:1`; chosen by sentence-transformers if None.
        dtype: Precision of the weights, `float32`, `bfloat16` or `float16`; as stored if None. bfloat16 is about twice
            as fast on hardware that supports it; cosines change by some thousandths. `onnx` and `onnx-int8` are the
            files written by `hf-xlsr export --onnx --int8`, on the CPU. `auto` is the fastest one by a short measurement,
            see `hf_xlsr.encoders.calibration.fastest_dtype`.

    Raises:
        XlsrError: the model cannot be loaded, the device is unavailable, or the dtype is unknown.
    """
    check_choice(model, device, dtype)
    if dtype == "auto":
        from hf_xlsr.encoders.calibration import fastest_dtype

        dtype = fastest_dtype(model, device)
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
    except XlsrError:
        raise
    except Exception as error:  # a damaged folder raises errors of many types
        reason = error_line(error, 200) or type(error).__name__
        raise XlsrError(f"Model '{model}' cannot be loaded by sentence-transformers: {reason}") from error


def check_dtype(dtype: str | None) -> None:
    if dtype is not None:
        require_choice("dtype", dtype, DTYPES)


def check_choice(model: str, device: str | None = None, dtype: str | None = None) -> None:
    """Raises for arguments that `load_encoder` would refuse, before data are read."""
    check_dtype(dtype)
    if dtype is not None and dtype.startswith("onnx") and device not in (None, "cpu"):
        raise XlsrError(f"`device` must be cpu for {dtype}, got '{device}'.")
    if device is not None:
        resolve_device(device)
    path = find_model(model).path
    if not Path(path).is_dir() and (path.startswith((".", "/", "~")) or path.count("/") != 1):
        raise XlsrError(f"Model folder '{model}' is missing. Give a folder or a Hub id (owner/name).")


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
