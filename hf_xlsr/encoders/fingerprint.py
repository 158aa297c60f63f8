"""Hash of all that determines an encoder's embeddings, for mteb's revisions and for finished stages of mining."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import torch

from hf_xlsr.encoders.reading import find_model
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.hashing import update_from_file

IGNORED_FILES = (".md", ".png", ".jpg", ".jpeg", ".svg", ".pdf")
LICENSES = ("LICENSE", "LICENCE")
SETTINGS = ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name")
# A model's origin and version do not affect its embeddings. Each call of `encode` sets truncation and padding.
UNHASHED_CONFIG = ("_name_or_path", "transformers_version")
UNHASHED_TOKENIZER = ("truncation", "padding")


def content_hash(model: str | os.PathLike[str] | Any) -> str:
    """SHA-256 of what determines a model's embeddings, 64 hexadecimal digits; the model's revision for mteb.

    Of a folder, or of a Hub id in the local cache: names and content of all files but cards, pictures, licences and
    hidden ones. Of a loaded `SentenceTransformer`: its weights, its modules' and tokenizers' configuration, and its
    prompts. The two hashes of one model differ; weights that the files lack (BERT's unused pooler) change the second.
    """
    if not isinstance(model, (str, os.PathLike)):
        return loaded_hash(model)
    path = find_model(os.fspath(model)).path
    folder = Path(path)
    if not folder.is_dir():
        folder = _cached_folder(path)

    files: dict[str, Path] = {}
    for file in folder.rglob("*"):
        name = file.relative_to(folder)
        if file.is_file() and _is_hashed(name):
            files[name.as_posix()] = file

    digest = hashlib.sha256()
    for posix_name in sorted(files):
        file = files[posix_name]
        digest.update(f"{posix_name}\0{file.stat().st_size}\0".encode())
        update_from_file(digest, file)
    return digest.hexdigest()


def hub_revision(model: str) -> str | None:
    """The commit of a model of the Hub in the local cache; None for a folder."""
    path = find_model(model).path
    return None if Path(path).is_dir() else _cached_folder(path).name


def _cached_folder(model: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as error:
        raise XlsrError(f"Model '{model}' is neither a folder nor in the local cache of the Hub.") from error


def _is_hashed(path: Path) -> bool:
    """Whether a file of a model's folder may determine its embeddings."""
    if any(name.startswith(".") for name in path.parts):
        return False
    return path.suffix.lower() not in IGNORED_FILES and not path.name.upper().startswith(LICENSES)


def loaded_hash(model: Any, *, poolers: bool = True) -> str:
    """`content_hash` of a loaded model, with or without poolers, whose weights may be random after each load."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if not poolers and ".pooler." in name:
            continue
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        values = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(values.view(torch.uint8).numpy())

    settings = {name: getattr(model, name, None) for name in SETTINGS}
    modules = {name: _facts(module) for name, module in model.named_modules(remove_duplicate=False)}
    facts = json.dumps([settings, modules], sort_keys=True, default=str)
    digest.update(facts.encode())
    return digest.hexdigest()


def _facts(module: Any) -> dict[str, Any]:
    """What determines the output of a module besides its weights."""
    facts: dict[str, Any] = {"class": type(module).__name__}
    if hasattr(module, "get_config_dict"):
        options = module.get_config_dict()
        if options.get("route_mappings"):  # of a Router, whose keys are tuples
            options = {**options, "route_mappings": sorted(map(str, options["route_mappings"].items()))}
        facts["options"] = options
        facts["max_seq_length"] = getattr(module, "max_seq_length", None)

    config: Any = getattr(module, "config", None)
    if hasattr(config, "to_dict"):
        facts["config"] = _without(config.to_dict(), UNHASHED_CONFIG)

    tokenizer: Any = getattr(module, "tokenizer", None)
    tokenizer = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(tokenizer, "to_str"):
        facts["tokenizer"] = _without(json.loads(tokenizer.to_str()), UNHASHED_TOKENIZER)
    elif hasattr(tokenizer, "get_vocab"):
        facts["tokenizer"] = tokenizer.get_vocab()
    return facts


def _without(values: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}
