"""Loading an encoder, and what results say about it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from hf_xlsr.utils.devices import resolve_device
from hf_xlsr.utils.errors import XlsrError, did_you_mean, error_line

DTYPES = ("float32", "bfloat16", "float16", "onnx", "onnx-int8")


def load_encoder(model: str, device: str | None = None, dtype: str | None = None) -> Any:
    """Loads whatever sentence-transformers loads.

    Args:
        model: Folder, or id of the Hub.
        device: Where it runs, for instance `cpu` or `cuda:1`; sentence-transformers chooses when absent.
        dtype: Precision of the weights, `float32`, `bfloat16` or `float16`; as the files hold them when absent. Where
            the processor has bfloat16 it encodes about twice as fast; cosines move by some thousandths. `onnx` and
            `onnx-int8` are the files that `hf-xlsr export --onnx --int8` writes, on the processor.

    Raises:
        XlsrError: the model cannot be loaded, the device is not there, or the dtype is unknown.
    """
    check_choice(model, device, dtype)
    _refuse_training_model(Path(model))
    from sentence_transformers import SentenceTransformer

    if dtype is not None and dtype.startswith("onnx"):
        from hf_xlsr.encoders.onnx import OnnxEncoder

        return OnnxEncoder(model, int8=dtype == "onnx-int8")
    options: dict[str, Any] = {} if dtype is None else {"model_kwargs": {"dtype": dtype}}
    try:
        loaded = SentenceTransformer(model, device=device, trust_remote_code=False, **options)
        # sentence-transformers leaves a Dense inside a Router in float32.
        return loaded.to(getattr(torch, dtype)) if dtype in ("bfloat16", "float16") else loaded
    except Exception as error:  # a damaged folder fails in as many ways as there are files in it
        reason = error_line(error, 200) or type(error).__name__
        raise XlsrError(f"model '{model}' cannot be loaded by sentence-transformers: {reason}") from error


def _refuse_training_model(folder: Path) -> None:
    """Refuses what training leaves beside the export: a model with heads, which sentence-transformers cannot tell."""
    config = folder / "config.json"
    if (folder / "modules.json").is_file() or not config.is_file():
        return
    import hf_xlsr

    try:
        name = (json.loads(config.read_text("utf-8")).get("architectures") or [""])[0]
    except (ValueError, AttributeError):
        return  # sentence-transformers says what is wrong with it
    if name in hf_xlsr.__all__:
        raise XlsrError(
            f"model '{folder}' is a {name} as training left it; give the folder 'model' of its run, or what "
            f"`hf-xlsr export {folder} --output FOLDER` makes of it."
        )


def check_dtype(dtype: str | None) -> None:
    """Refuses a precision of weights that `load_encoder` does not know.

    Raises:
        XlsrError: as said.

    Example:
        >>> check_dtype("bf16")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: dtype is 'bf16'; did you mean 'bfloat16'?
    """
    if dtype is not None and dtype not in DTYPES:
        raise XlsrError(f"dtype is '{dtype}'; {did_you_mean(dtype, DTYPES)}")


def check_choice(model: str, device: str | None = None, dtype: str | None = None) -> None:
    """Tells a mistyped folder, device or dtype before anything is read.

    Args:
        model: See `load_encoder`, as are the others.
        device: Where it is to run.
        dtype: Precision of the weights.

    Raises:
        XlsrError: the model is no folder and no id of the Hub, torch cannot use the device, or the dtype is unknown or
            not for the device.

    Example:
        >>> check_choice("intfloat/multilingual-e5-small", "cpu", "bfloat16")
        >>> check_choice("intfloat/multilingual-e5-small", "cuda", "onnx")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: device is 'cuda' but onnx runs on the processor; leave the device out.
    """
    check_dtype(dtype)
    if dtype is not None and dtype.startswith("onnx") and device not in (None, "cpu"):
        raise XlsrError(f"device is '{device}' but {dtype} runs on the processor; leave the device out.")
    if device is not None:
        resolve_device(device)
    if not Path(model).is_dir() and (model.startswith((".", "/", "~")) or model.count("/") != 1):
        raise XlsrError(f"model folder '{model}' does not exist; give a folder or an id of the Hub (owner/name).")


def encoder_facts(encoder: Any, model: str | None = None) -> dict[str, Any]:
    """What a results file tells of an encoder: device, precision of its weights, length of its inputs, hash.

    Args:
        encoder: As `load_encoder` gave it; facts that it does not tell are left out.
        model: Where it was loaded from, for `content_hash`.
    """
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
    """Where an encoder cuts texts, in pieces; None where it does not say so or, as a static model, does not cut."""
    length = getattr(encoder, "max_seq_length", None)
    return int(length) if length and math.isfinite(length) else None
