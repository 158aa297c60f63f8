"""Code inside an export: modules of this package for sentence-transformers, and a model class for `AutoModel`."""

from __future__ import annotations

import importlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from hf_xlsr.encoders.parts import export_parts
from hf_xlsr.export.standalone import PACKAGE, standalone_source

MODULES_FILE = "sentence_modules"
MODEL_FILE = "modeling_sentence_encoder"
STOCK = "sentence_transformers."
# The classes of ours that modules.json may name, and where they are defined.
MODULE_CLASSES = {
    "DebiasModule": "hf_xlsr.export.debias_module",
    "LanguageRouter": "hf_xlsr.export.language_router",
    "ProjectedMean": "hf_xlsr.export.projected",
}


def carry_modules(export: str | Path) -> bool:
    """Puts the code of this package's modules into an export that has some, so that it loads without the package.

    `SentenceTransformer(export, trust_remote_code=True)` then takes them from there. A folder of stock modules stays as
    it is.

    Args:
        export: A folder that sentence-transformers has written.

    Returns:
        Whether the export had modules whose code it lacked.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> from hf_xlsr.export import export_sentence_transformer
        >>> tokenizer = train_tokenizer(["a red house", "a blue river"], vocab_size=30, algorithm="bpe", max_length=16)
        >>> size = BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> from hf_xlsr.modeling.cmlm.projections import SentenceProjections
        >>> model = BertModel(size)
        >>> _ = export_sentence_transformer(model, tokenizer, "projected", projection=SentenceProjections(8, 3))
        >>> (Path("projected") / "sentence_modules.py").is_file()  # the export calls this itself
        True
        >>> carry_modules("projected")
        False
    """
    listing = Path(export) / "modules.json"
    modules = json.loads(listing.read_text("utf-8"))
    fresh = [module for module in modules if module["type"].startswith(f"{PACKAGE}.")]
    for module in fresh:
        module["type"] = f"{MODULES_FILE}.{module['type'].rpartition('.')[2]}"
    if fresh:
        # With those that the file has held before: modules of an export may have been put into another model.
        parts = [module["type"].rpartition(".") for module in modules]
        carried = {name for file, _, name in parts if file == MODULES_FILE}
        for copy in listing.parent.glob(f"*/{MODULES_FILE}.py"):
            copy.unlink()  # sentence-transformers puts one beside the weights of each module, and reads none there
        (listing.parent / f"{MODULES_FILE}.py").write_text(modules_source(tuple(sorted(carried))), "utf-8")
        listing.write_text(json.dumps(modules, indent=2), "utf-8")
    return bool(fresh)


def add_remote_code(export: str | Path) -> None:
    """Makes `AutoModel.from_pretrained(export, trust_remote_code=True)` give sentence vectors, without this package.

    Writes one file of code and names it in the configuration; weights and modules stay as they are, so that
    `SentenceTransformer(export)` loads what it did. See `SentenceEncoder` and `RoutedSentenceEncoder`.

    Args:
        export: A folder that sentence-transformers has written.

    Raises:
        XlsrError: its modules are others than this package writes.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> from hf_xlsr.export import export_sentence_transformer
        >>> tokenizer = train_tokenizer(["a red house", "a blue river"], vocab_size=30, algorithm="bpe", max_length=16)
        >>> size = BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> _ = export_sentence_transformer(BertModel(size), tokenizer, "model", max_length=16)
        >>> add_remote_code("model")
        >>> json.loads((Path("model") / "config.json").read_text())["auto_map"]
        {'AutoModel': 'modeling_sentence_encoder.SentenceEncoder'}
    """
    home, parts = Path(export), export_parts(export)
    for part in parts.values():
        _update(home / part.folder / "config.json", {"sentence_encoder": part.section})
    if "" in parts:
        auto_map = {"AutoModel": f"{MODEL_FILE}.SentenceEncoder"}
        _update(home / parts[""].folder / "config.json", {"auto_map": auto_map})
    else:
        from hf_xlsr.export.inference import RoutedSentenceEncoderConfig

        names = {"AutoConfig": "RoutedSentenceEncoderConfig", "AutoModel": "RoutedSentenceEncoder"}
        config = {
            "model_type": RoutedSentenceEncoderConfig.model_type,
            "architectures": [names["AutoModel"]],
            "auto_map": {auto: f"{MODEL_FILE}.{name}" for auto, name in names.items()},
            "routes": {route: part.folder for route, part in parts.items()},
        }
        _update(home / "config.json", config)
    (home / f"{MODEL_FILE}.py").write_text(model_source(), "utf-8")


def has_only_our_code(export: str | Path) -> bool:
    """Whether an export asks for trust, and all the code that it names is this package's own.

    sentence-transformers wants trust for every class from outside itself, also from an installed package. Files of code
    in the export have to be, letter for letter, what this version of the package writes, and no configuration may name
    other code.

    Args:
        export: A folder of sentence-transformers.

    Example:
        >>> Path("other").mkdir()
        >>> _ = (Path("other") / "modules.json").write_text('[{"type": "os.system", "path": ""}]')
        >>> has_only_our_code("other")
        False
    """
    home = Path(export)
    if not (home / "modules.json").is_file():
        return False
    types = [str(module["type"]) for module in json.loads((home / "modules.json").read_text("utf-8"))]
    outside = {name for name in types if not name.startswith(STOCK)}
    names = {name.rpartition(".")[2] for name in outside}
    allowed = {f"{MODULES_FILE}.{name}" for name in names} | {f"{MODULE_CLASSES.get(name)}.{name}" for name in names}
    if not outside or not names <= set(MODULE_CLASSES) or not outside <= allowed:
        return False
    expected = {f"{MODEL_FILE}.py": model_source(), f"{MODULES_FILE}.py": modules_source(tuple(sorted(names)))}
    files = {file.relative_to(home).as_posix(): file for file in home.rglob("*.py")}
    if any(expected.get(name) != file.read_text("utf-8") for name, file in files.items()):
        return False
    # Adapters name the model that they belong on, which would be loaded with the same trust.
    if any(home.rglob("adapter_config.json")):
        return False
    return not any(_names_other_code(file) for file in home.rglob("*.json") if file.name != "tokenizer.json")


def _names_other_code(file: Path) -> bool:
    """Whether a configuration names code from elsewhere, which would run along with what is trusted."""
    content = json.loads(file.read_text("utf-8"))
    if not isinstance(content, dict):
        return False
    auto_map, types = content.get("auto_map") or {}, content.get("types") or {}
    if not isinstance(auto_map, dict) or not isinstance(types, dict):
        return True
    activation = str(content.get("activation_function", "torch."))
    return (
        # A name with `--` in it leads to another repository.
        not all(re.fullmatch(rf"{MODEL_FILE}\.\w+", str(name)) for name in auto_map.values())
        or not all(str(name).startswith(STOCK) for name in types.values())
        or not activation.startswith("torch.")
    )


@cache
def modules_source(names: tuple[str, ...]) -> str:
    """The file with these of `MODULE_CLASSES`."""
    classes = [getattr(importlib.import_module(MODULE_CLASSES[name]), name) for name in names]
    return standalone_source(classes, "Modules of this model for sentence-transformers.")


@cache
def model_source() -> str:
    """The file with `SentenceEncoder` and `RoutedSentenceEncoder`."""
    from hf_xlsr.export.inference import RoutedSentenceEncoder

    return standalone_source([RoutedSentenceEncoder], "This model's sentence vectors for AutoModel.")


def _update(file: Path, values: dict[str, Any]) -> None:
    content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    file.write_text(json.dumps({**content, **values}, indent=2) + "\n", "utf-8")
