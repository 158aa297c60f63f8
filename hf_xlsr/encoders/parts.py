"""The modules of a sentence-transformers folder, by route."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError

# Class name of a module -> its kind.
_KINDS = {
    "Router": "router",
    "Transformer": "encoder",
    "Pooling": "pooling",
    "Dense": "linear",
    "Normalize": "normalize",
}


@dataclass(frozen=True)
class EncoderPart:
    """One encoder of an export and its tokenizer, in `folder` (empty for the export itself), with the modules after it.

    `layers` are their kinds (`pooling`, `linear`, `normalize`) and folders, in order; `max_length` is None if only the
    tokenizer has a limit.
    """

    folder: str
    layers: tuple[tuple[str, str], ...]
    max_length: int | None = None


def export_parts(export: str | Path) -> dict[str, EncoderPart]:
    """The encoders of a folder of sentence-transformers by route, which is empty for a model without routes."""
    home = Path(export)
    if not (home / "modules.json").is_file():
        raise XlsrError(f"'{export}' must be a folder of sentence-transformers, but it has no modules.json.")
    settings = _json(home / "config_sentence_transformers.json")
    if settings.get("default_prompt_name"):
        prompt = settings["default_prompt_name"]
        raise XlsrError(f"'{export}' must have no default prompt, which ONNX files ignore, got '{prompt}'.")
    modules = [(_kind(module["type"]), _inside(home, module["path"])) for module in _json(home / "modules.json")]
    (first, folder), rest = modules[0], modules[1:]
    if first != "router":
        return {"": _part(home, modules)}
    router = _json(home / folder / "router_config.json")
    return {
        _inside(home, route): _part(
            home, [*((_kind(router["types"][name]), _inside(home, folder, name)) for name in names), *rest]
        )
        for route, names in router["structure"].items()
    }


def _part(home: Path, chain: list[tuple[str, str]]) -> EncoderPart:
    kinds = [kind for kind, _ in chain]
    if kinds[:2] != ["encoder", "pooling"] or not set(kinds[2:]) <= {"linear", "normalize"}:
        raise XlsrError(f"'{home}' must be a Transformer, Pooling, then Dense and Normalize, got {', '.join(kinds)}.")
    transformer = _json(home / chain[0][1] / "sentence_bert_config.json")
    if transformer.get("do_lower_case"):
        raise XlsrError(f"'{home}' must have no do_lower_case, which ONNX files ignore; lower-case by a normalizer.")
    return EncoderPart(chain[0][1], tuple(chain[1:]), transformer.get("max_seq_length"))


def _inside(home: Path, *names: str) -> str:
    """A path inside the export, where files will be written."""
    place = Path(*names)
    if place.is_absolute() or ".." in place.parts:
        raise XlsrError(f"Modules must be inside of '{home}', got '{place}'.")
    return "" if place == Path() else place.as_posix()


def _kind(module_type: str) -> str:
    name = module_type.rpartition(".")[2]
    return _KINDS.get(name, name)


def _json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}
