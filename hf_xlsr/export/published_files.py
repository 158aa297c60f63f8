"""Which files of a folder are sent or copied: the only place that decides what leaves it.

A folder of others may hold links to files of the user. They are refused, also in place of the folder itself; what is not
on a list of names stays. Hard links cannot be told from files.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from hf_xlsr.utils.errors import XlsrError

WEIGHTS_AND_SETTINGS = (
    # weights
    "*.safetensors",
    "*.safetensors.index.json",
    "*.onnx",
    "*.onnx.data",
    "*.onnx_data",
    "openvino_model*.xml",
    "openvino_model*.bin",
    # configurations of models and modules
    "config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    *(f"{name}_config.json" for name in ("adapter", "generation", "preprocessor", "processor", "tokenizer")),
    *(f"{name}_config.json" for name in ("cnn", "lstm", "router", "wordembedding", "wordweights")),
    "ov_config.json",
    "idf.json",
    # tokenizers: `vocab_files_names` of transformers
    "tokenizer.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*.j*",
    "vocab.txt",
    *(f"{name}vocab.json" for name in ("", "entity_", "target_")),
    "vocab-*.json",
    "merges.txt",
    "dict.txt",
    "bpe.codes",
    "*.spm",
    *(f"{name}.model" for name in ("sentencepiece", "sentencepiece.bpe", "spiece", "spm", "spm_char")),
    *(f"{name}.json" for name in ("byte_maps", "emoji", "normalizer", "word_pronunciation", "word_shape")),
    "prophetnet.tokenizer",
)
MODEL_FILES = (
    *WEIGHTS_AND_SETTINGS,
    # for people
    "README.md",
    "LICENSE*",
    "NOTICE*",
    "*.png",
    "*.svg",
)
CHECKPOINT_FILES = (
    *MODEL_FILES,
    "trainer_state.json",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
    "rng_state*.pth",
    "optimizer*.bin",
    "pytorch_model_fsdp*.bin",
)


@dataclass(frozen=True)
class Listing:
    """Files by path in a repository or copy, and the paths of those that the list of names leaves out."""

    files: dict[str, Path] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def list_files(
    folder: Path,
    names: Collection[str] = MODEL_FILES,
    *,
    root: Path | None = None,
    prefix: str = "",
) -> Listing:
    """The files of a folder, without hidden ones, whose names match one of the patterns.

    Args:
        folder: A folder of files. In a snapshot of the Hub's cache they are links to files of the same repository there.
        names: Patterns of the names of files.
        root: The folder that a user named, in which `folder` lies.
        prefix: Where the files go.

    Raises:
        XlsrError: The folder, something in it, or a folder between it and `root` is a link or no plain file.
    """
    _check_way(root or folder, folder)
    listing = Listing()
    for place, folders, file_names in os.walk(folder, onerror=_fail):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted([*folders, *file_names]):
            path = Path(place, name)
            if name.startswith("."):
                continue
            if not _is_cached(path, folder):
                _check_no_link(path)
            if name in folders:
                continue
            if not path.is_file():
                raise XlsrError(f"'{path}' must be a plain file. Remove it.")

            target = str(PurePosixPath(prefix, *path.relative_to(folder).parts))
            if any(fnmatchcase(name, pattern) for pattern in names):
                listing.files[target] = path
            else:
                listing.left_out.append(target)
    return listing


def _fail(error: OSError) -> None:
    """Raises the error of a folder that cannot be read, which `os.walk` would treat as empty."""
    raise error


def named_files(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Those of some files, given by path in a folder that a user named, that are there; links are refused."""
    files = {}
    for name in names:
        path = folder / name
        _check_way(folder, path)
        if path.is_file():
            files[name] = path
    return files


def _check_way(root: Path, path: Path) -> None:
    """Raises if a folder, or something on the way from it to a path in it, is a link."""
    _check_no_link(root)
    for part in path.relative_to(root).parts:
        root = root / part
        _check_no_link(root)


def _check_no_link(path: Path) -> None:
    if path.is_symlink():
        raise XlsrError(f"'{path}' is a link, which could publish any file. Replace it by a copy, or remove it.")


def _is_cached(path: Path, snapshot: Path) -> bool:
    """Whether a path in a snapshot of the Hub's cache is a link to a file of the same repository."""
    folder = snapshot.resolve()
    target = path.resolve()  # without links: one in place of `blobs` would lead elsewhere
    return folder.parent.name == "snapshots" and target.parent == folder.parent.parent / "blobs"
