"""What a sentence-transformers folder is made of: for each route an encoder, a pooling, perhaps a projection."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.pooling import POOLING_MODES

# Class of a module -> what it is here; its last name alone, as the package that it comes from may be the folder itself.
_KINDS = {
    "Router": "router",
    "LanguageRouter": "router",
    "Transformer": "encoder",
    "Pooling": "pooling",
    "Dense": "linear",
    "ProjectedMean": "mean",
    "Normalize": "normalize",
}
_SHAPES = (["encoder", "pooling"], ["encoder", "pooling", "linear"], ["encoder", "pooling", "mean"])


@dataclass(frozen=True)
class EncoderPart:
    """One encoder of an export.

    Args:
        folder: Of the encoder and its tokenizer, in the export; empty for the export itself.
        section: How a vector comes from its states; see `SentenceEncoder`.
        max_length: Where sentence-transformers cuts, in pieces; None where the tokenizer alone says so.
    """

    folder: str
    section: dict[str, Any]
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
        >>> export_parts("model")[""].section
        {'pooling': 'cls', 'normalize': True, 'projection': None}
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
    normalize = modules[-1][0] == "normalize"
    rest = modules[:-1] if normalize else modules
    if [kind for kind, _ in rest] == ["router"]:
        router = _json(home / rest[0][1] / "router_config.json")
        routes = {
            _inside(home, route): [(_kind(router["types"][name]), _inside(home, rest[0][1], name)) for name in names]
            for route, names in router["structure"].items()
        }
    else:
        routes = {"": rest}
    return {route: _part(home, chain, normalize) for route, chain in routes.items()}


def _part(home: Path, chain: list[tuple[str, str]], normalize: bool) -> EncoderPart:
    from sentence_transformers.sentence_transformer.modules import Pooling  # seconds, for those who need it

    kinds = [kind for kind, _ in chain]
    if kinds not in _SHAPES:
        raise XlsrError(
            f"'{home}' is made of {', '.join(kinds)}; ONNX and AutoModel take an encoder, a pooling, perhaps a linear "
            "layer or CMLM's projections, and normalisation."
        )
    # Their own reader knows what older versions wrote.
    pooling = Pooling.load_config(str(home), subfolder=chain[1][1])["pooling_mode"]
    if pooling not in POOLING_MODES:
        raise XlsrError(f"'{home}' has pooling {pooling}; ONNX and AutoModel take one of {', '.join(POOLING_MODES)}.")
    projection = None
    if len(chain) == 3:
        kind, folder = chain[2]
        values = _json(home / folder / "config.json")
        activation = str(values.get("activation_function", "Identity"))
        if activation.rpartition(".")[2] != "Identity":
            raise XlsrError(f"'{home}' has a layer with {activation} behind the pooling; a linear one is taken.")
        sizes = ("in_features", "out_features", "bias") if kind == "linear" else ("width", "count")
        projection = {"kind": kind, "folder": folder, **{name: values[name] for name in sizes}}
    section = {"pooling": pooling, "normalize": normalize, "projection": projection}
    transformer = _json(home / chain[0][1] / "sentence_bert_config.json")
    if transformer.get("do_lower_case"):
        raise XlsrError(
            f"'{home}' lowers all letters before its tokenizer (do_lower_case), which ONNX and AutoModel would not; give "
            "the tokenizer a normalizer that does, and take do_lower_case out of sentence_bert_config.json."
        )
    return EncoderPart(chain[0][1], section, transformer.get("max_seq_length"))


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
