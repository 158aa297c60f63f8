"""Hash of all that determines an encoder's embeddings, for mteb's revisions and for finished stages of mining."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch

from hf_xlsr.encoders.reading import find_model
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import update_from_file

NO_PART_OF_A_MODEL = (".md", ".png", ".jpg", ".jpeg", ".svg", ".pdf")


def content_hash(model: str | os.PathLike[str] | Any) -> str:
    """SHA-256 of what determines a model's embeddings, 64 hexadecimal digits; the model's revision for mteb.

    Of a folder, or of a Hub id in the local cache: names and content of all files but cards, pictures, licences and
    hidden ones. Of a loaded `SentenceTransformer`: its weights, its modules' and tokenizers' configuration, and its
    prompts. The two hashes of one model differ; weights that the files lack (BERT's unused pooler) change the second.
    """
    if not isinstance(model, (str, os.PathLike)):
        return loaded_hash(model)
    found = find_model(os.fspath(model)).path
    folder = Path(found) if Path(found).is_dir() else _cached_folder(found)
    files = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.is_file() and _is_of_the_model(path.relative_to(folder))
    }
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0{path.stat().st_size}\0".encode())
        update_from_file(digest, path)
    return digest.hexdigest()


def _cached_folder(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as error:
        raise XlsrError(f"Model '{model}' is neither a folder nor in the local cache of the Hub.") from error


def _is_of_the_model(path: Path) -> bool:
    if any(part.startswith(".") for part in path.parts):
        return False
    return path.suffix.lower() not in NO_PART_OF_A_MODEL and not path.name.upper().startswith(("LICENSE", "LICENCE"))


def loaded_hash(model: Any, *, poolers: bool = True) -> str:
    """`content_hash` of a loaded model, with or without poolers, whose weights may be random after each load."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if not poolers and ".pooler." in name:
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    options = ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name")
    settings = {option: getattr(model, option, None) for option in options}
    parts = {name: _configuration(module) for name, module in model.named_modules(remove_duplicate=False)}
    digest.update(json.dumps([settings, parts], sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _configuration(module: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"class": type(module).__name__}
    if hasattr(module, "get_config_dict"):
        options = module.get_config_dict()
        if options.get("route_mappings"):  # of a Router, whose keys are tuples
            options = {**options, "route_mappings": sorted(map(str, options["route_mappings"].items()))}
        found["options"] = options
        found["max_seq_length"] = getattr(module, "max_seq_length", None)
    if hasattr(getattr(module, "config", None), "to_dict"):
        # The model's origin and version do not affect its embeddings.
        told = {"_name_or_path", "transformers_version"}
        found["config"] = {key: value for key, value in module.config.to_dict().items() if key not in told}
    tokenizer: Any = getattr(module, "tokenizer", None)
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(tokenizer, "to_str"):
        state = json.loads(tokenizer.to_str())
        # These two are set by each call of `encode`.
        found["tokenizer"] = {key: value for key, value in state.items() if key not in ("truncation", "padding")}
    elif hasattr(tokenizer, "get_vocab"):
        found["tokenizer"] = tokenizer.get_vocab()
    return found
