"""Loading an encoder, and what results say about it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hf_xlsr.errors import XlsrError, nearest

DTYPES = ("float32", "bfloat16", "float16")
OUR_MODULES = {"hf_xlsr.export.language_router.LanguageRouter", "hf_xlsr.debias.module.DebiasModule"}


def load_encoder(model: str, device: str | None = None, dtype: str | None = None) -> Any:
    """Loads whatever sentence-transformers loads.

    Args:
        model: Folder, or id of the Hub.
        device: Where it runs, for instance `cpu` or `cuda:1`; sentence-transformers chooses when absent.
        dtype: Precision of the weights, `float32`, `bfloat16` or `float16`; as the files hold them when absent. Where
            the processor has bfloat16 it encodes about twice as fast; cosines move by some thousandths.

    Raises:
        XlsrError: the model cannot be loaded, the device is not there, or the dtype is unknown.
    """
    check_model_place(model)
    from sentence_transformers import SentenceTransformer

    if dtype is not None and dtype not in DTYPES:
        raise XlsrError(f"dtype is '{dtype}'; {nearest(dtype, DTYPES)}")
    options: dict[str, Any] = {} if dtype is None else {"model_kwargs": {"dtype": dtype}}
    if _only_ours(model):
        options["trust_remote_code"] = True
    try:
        return SentenceTransformer(model, device=None if device is None else _known_device(device), **options)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, XlsrError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise XlsrError(f"model '{model}' cannot be loaded by sentence-transformers: {reason}") from error


def _only_ours(model: str) -> bool:
    """Whether a folder's modules are stock ones, and some that this package itself brings.

    sentence-transformers wants trust for every class from outside itself, also from an installed package. With a
    folder's own code trust would be another matter: then the user has to load the model.
    """
    file = Path(model) / "modules.json"
    if not file.is_file() or any(Path(model).glob("**/*.py")):
        return False
    outside = {
        module["type"]
        for module in json.loads(file.read_text("utf-8"))
        if not module["type"].startswith("sentence_transformers.")
    }
    return bool(outside) and outside <= OUR_MODULES


def check_model_place(model: str) -> None:
    """Tells a mistyped folder before anything is read.

    Raises:
        XlsrError: it is no folder and no id of the Hub.

    Example:
        >>> check_model_place("intfloat/multilingual-e5-small")
    """
    if not Path(model).is_dir() and (model.startswith((".", "/", "~")) or model.count("/") != 1):
        raise XlsrError(f"model folder '{model}' does not exist; give a folder or an id of the Hub (owner/name).")


def encoder_facts(encoder: Any, model: str | None = None) -> dict[str, Any]:
    """What a results file tells of an encoder: device, precision of its weights, length of its inputs, hash.

    Args:
        encoder: As `load_encoder` gave it; facts that it does not tell are left out.
        model: Where it was loaded from, for `content_hash`.
    """
    from hf_xlsr.evaluation.content_hash import content_hash

    facts: dict[str, Any] = {} if model is None else {"content_sha256": content_hash(model)}
    if hasattr(encoder, "device"):
        facts["device"] = str(encoder.device)
    if hasattr(encoder, "parameters"):
        facts["precision"] = sorted({str(weight.dtype).removeprefix("torch.") for weight in encoder.parameters()})
    if getattr(encoder, "max_seq_length", None):
        facts["max_length"] = int(encoder.max_seq_length)
    return facts


def _known_device(name: str) -> str:
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise XlsrError(f"device '{name}' cannot be used ({reason}); try cpu.") from error
    return name
