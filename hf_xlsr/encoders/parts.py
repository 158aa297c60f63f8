"""The modules of a sentence-transformers folder, by route."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError

# Class name of a module -> what it is here.
_KINDS = {
    "Router": "router",
    "Transformer": "encoder",
    "Pooling": "pooling",
    "Dense": "linear",
    "Normalize": "normalize",
}


@dataclass(frozen=True)
class EncoderPart:
    """One encoder of an export, with the modules behind it.

    Args:
        folder: Folder of the encoder and its tokenizer inside the export; empty for the export itself.
        layers: Kind (`pooling`, `linear`, `normalize`) and folder of each module behind the encoder, in order.
        max_length: Tokens that sentence-transformers truncates to; None where only the tokenizer knows.
    """

    folder: str
    layers: tuple[tuple[str, str], ...]
    max_length: int | None = None


def export_parts(export: str | Path) -> dict[str, EncoderPart]:
    """The encoders of an export by route; under an empty name that of a model without routes.

    Args:
        export: A folder that sentence-transformers has written.

    Raises:
        XlsrError: there is no such folder, its modules are others than this package writes, or one lies outside of it.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> from hf_xlsr.export import export_sentence_transformer
        >>> tokenizer = train_tokenizer(["a red house", "a blue river"], vocab_size=30, algorithm="bpe", max_length=16)
        >>> size = BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> _ = export_sentence_transformer(BertModel(size), tokenizer, "model", pooling="cls", max_length=16)
        >>> export_parts("model")[""].layers
        (('pooling', '1_Pooling'), ('normalize', '2_Normalize'))
    """
    home = Path(export)
    if not (home / "modules.json").is_file():
        raise XlsrError(f"'{export}' is no sentence-transformers folder; give the folder of an export.")
    settings = _json(home / "config_sentence_transformers.json")
    if settings.get("default_prompt_name"):
        raise XlsrError(
            f"'{export}' puts the prompt '{settings['default_prompt_name']}' before every text by itself, which ONNX and "
            "AutoModel would not; remove default_prompt_name from config_sentence_transformers.json."
        )
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
        raise XlsrError(
            f"'{home}' has the modules {', '.join(kinds)}; ONNX files need a Transformer and a Pooling, then Dense and "
            "Normalize modules."
        )
    transformer = _json(home / chain[0][1] / "sentence_bert_config.json")
    if transformer.get("do_lower_case"):
        raise XlsrError(
            f"'{home}' lower-cases texts before its tokenizer (do_lower_case), which ONNX files would not. Give the "
            "tokenizer a lower-casing normalizer, and remove do_lower_case from sentence_bert_config.json."
        )
    return EncoderPart(chain[0][1], tuple(chain[1:]), transformer.get("max_seq_length"))


def _inside(home: Path, *names: str) -> str:
    """A place inside the export: files are going to be written there."""
    place = Path(*names)
    if place.is_absolute() or ".." in place.parts:
        raise XlsrError(f"'{home}' names a module '{place}', outside of its folder; it is no export to be trusted.")
    return "" if place == Path() else place.as_posix()


def _kind(module_type: str) -> str:
    name = module_type.rpartition(".")[2]
    return _KINDS.get(name, name)


def _json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}
