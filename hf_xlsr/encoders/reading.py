"""Reading what users give as an encoder: folders, Hub ids, stock objects, models of this package."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.util import load_file_path
from transformers import AutoConfig, AutoModel, PreTrainedModel

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.data.tokenization import forget_loading, load_tokenizer
from hf_xlsr.encoders.assembly import (
    MODULES_FILE,
    EncoderPart,
    EncoderSettings,
    SentenceEncoder,
    load_sentence_transformer,
    modules_by_route,
    transformer_options,
)
from hf_xlsr.encoders.heads import head_config
from hf_xlsr.encoders.static import StaticEmbeddingModel, tokenizer_of
from hf_xlsr.encoders.stock import (
    encoder_from_pretrained,
    longest_text,
    no_pooler,
    set_pad_token,
)
from hf_xlsr.encoders.trainable_rows import restore_table
from hf_xlsr.utils.auto_classes import ADAPTERS, OWN_MODEL_TYPES, load_auto
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.files import inside, read_json
from hf_xlsr.utils.model_sizes import check_tokenizer_files
from hf_xlsr.utils.variables import expand

TOKENIZERS = "tokenizers"
"""Folder of a saved model with the tokenizer of each of its encoders."""

Given = Any
"""An encoder as a user gives it: path, id or object; or several, by language."""


def read_encoder(given: Given, place: str = "model") -> SentenceEncoder:
    """Reads an encoder in any form; what is given is never changed.

    - A folder or Hub id: of sentence-transformers, with all modules behind the encoder; of a plain Hugging Face encoder;
      of a model of this package, a run or a checkpoint.
    - A `SentenceTransformer`, or a Hugging Face encoder, whose tokenizer is in the place that it was loaded from. They
      are copied.
    - A mapping from language to any of these.

    Weights are float32. `place` names the value in errors.

    Raises:
        XlsrError: Nothing loads; weights or tokenizer files are missing; a module is unsupported; there are adapters.

    Examples:
        >>> from transformers import BertConfig, BertModel
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the red house"] * 20, vocab_size=30, algorithm="bpe", max_length=16)
        >>> size = BertConfig(vocab_size=len(tokenizer), hidden_size=8, num_hidden_layers=1, num_attention_heads=1)
        >>> BertModel(size).save_pretrained("encoder")
        >>> tokenizer.save_pretrained("encoder")[:0]
        ()
        >>> part = read_encoder("encoder").single()
        >>> type(part.encoder).__name__, part.head is None
        ('BertModel', True)
    """
    if isinstance(given, SentenceEncoder):
        return given
    if isinstance(given, Mapping):
        encoders = {str(name): read_encoder(encoder, f"{place}['{name}']") for name, encoder in given.items()}
        return _join(encoders, place)
    if isinstance(given, str | os.PathLike):
        return _read_path(os.fspath(given), place)
    if isinstance(given, SentenceTransformer):
        return _read_modules(_copy(given), place)
    if isinstance(given, PreTrainedModel):
        return _read_model(given, place)
    raise XlsrError(f"`{place}` must be a folder, a Hub id, a SentenceTransformer or an encoder, got {type(given)}.")


def _read_path(given: str, place: str) -> SentenceEncoder:
    model_place = find_model(given)
    path = model_place.path
    if model_place.model_type:
        return read_saved(model_place)
    if load_file_path(path, MODULES_FILE) is None:
        encoder = encoder_from_pretrained(path, place=place)
        return SentenceEncoder({"": _part(encoder, optional_tokenizer(path))}, origin=path)

    try:
        model = load_sentence_transformer(path, "cpu")
    except Exception as error:  # a damaged folder raises errors of many types
        raise XlsrError(f"`{place}` '{given}' cannot be loaded: {error_line(error, 200)}") from error
    return replace(_read_modules(model, place), origin=path)


def _read_modules(model: SentenceTransformer, place: str) -> SentenceEncoder:
    """The modules and settings of a model, which are not copied."""
    by_route: dict[str, EncoderPart] = {}
    for route, (first, *head) in modules_by_route(model).items():
        if isinstance(first, StaticEmbedding):
            encoder: Any = StaticEmbeddingModel.of_table(first.embedding.weight)
            options: dict[str, Any] = {}
            head = [Pooling(first.embedding_dim, "mean"), *head]
        elif isinstance(first, Transformer) and first.module_output_name == "token_embeddings" and head:
            encoder = first.model
            options = transformer_options(first)
        else:
            names = ", ".join(type(module).__name__ for module in (first, *head))
            raise XlsrError(
                f"`{place}` must be a Transformer with a pooling behind it, or a StaticEmbedding, got {names}."
            )

        head_config(head)  # raises for a module that a model cannot store
        by_route[route] = _part(encoder, tokenizer_of(first), head, options)
    return SentenceEncoder(by_route, EncoderSettings.of(model))


def _read_model(given: PreTrainedModel, place: str) -> SentenceEncoder:
    if given.config.model_type in OWN_MODEL_TYPES:
        raise XlsrError(f"`{place}` is a {type(given).__name__}. Give its folder, which has the tokenizers too.")
    origin = given.name_or_path or ""
    return SentenceEncoder({"": _part(_copy(given), optional_tokenizer(origin))}, origin=origin)


def _part(
    encoder: Any,
    tokenizer: Any,
    head: Any = None,
    options: Any = None,
) -> EncoderPart:
    if getattr(encoder, "_hf_peft_config_loaded", False):  # a saved model would lose the weights below them
        raise XlsrError("The encoder has adapters. Merge them, or train without them and call `add_adapters`.")
    restore_table(encoder)
    if no_pooler(encoder.config):
        encoder.pooler = None  # DDP would wait for its gradient
    set_pad_token(tokenizer, encoder)
    if tokenizer is not None:
        forget_loading(tokenizer)

    options = dict(options or {})
    tokenizer_length = getattr(tokenizer, "model_max_length", None)
    max_length = longest_text([encoder], options.get("max_seq_length"), tokenizer_length)
    if max_length is not None:
        options["max_seq_length"] = max_length
    return EncoderPart(encoder.float(), tokenizer, head, options)


def _copy(model: Any) -> Any:
    """A copy of a model; the card of sentence-transformers, which refers to trainers, is shared."""
    card = getattr(model, "model_card_data", None)
    return copy.deepcopy(model, {id(card): card})


def _join(encoders: dict[str, SentenceEncoder], place: str) -> SentenceEncoder:
    """Encoders by language as one; the default prompt of each becomes that of its language."""
    by_language: dict[str, EncoderPart] = {}
    prompts: dict[str, str] = {}
    language_prompts: dict[str, str] = {}
    for language, encoder in encoders.items():
        by_language[language] = encoder.single(f"{place}['{language}']")
        prompts = {**encoder.settings.prompts, **prompts}
        language_prompts[language] = PromptTable.of(encoder.settings).text(language=language)
    if any(language_prompts.values()):
        prompts |= language_prompts

    first = next(iter(encoders.values())).settings
    settings = EncoderSettings(prompts, None, first.similarity_fn_name, first.truncate_dim)
    return SentenceEncoder(by_language, settings)


def optional_tokenizer(path: str) -> Any:
    """The tokenizer of a folder or Hub id; None if there is none, as a user may have another."""
    if not path:
        return None
    if Path(path).is_dir():
        check_tokenizer_files(path)
    try:
        return load_tokenizer(path)
    except XlsrError:
        return None


# --- Models of this package ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelPlace:
    """A model that a user named.

    Attributes:
        path: Its folder, or its id on the Hub.
        model_type: That of a saved model of this package; empty for what sentence-transformers loads.
        architecture: Name of the class of a saved model of this package.
    """

    path: str
    model_type: str = ""
    architecture: str = ""


def named_folder(name: str | Path) -> Path:
    """The folder that a user named, whose variables are expanded; missing for an id on the Hub."""
    return Path(expand(name)).expanduser()


def find_model(name: str | Path, *, trained: bool = False) -> ModelPlace:
    """Finds a model by the folder of a run, a checkpoint, a saved model or an export, or by its id on the Hub.

    Variables `HF_XLSR_*` are expanded. Of a run it is the export, or the weights before that is written; with
    `trained`, the weights, unless only the export is left.
    """
    home = named_folder(name)
    is_run = (home / "training" / "recipe.json").is_file()
    if not (trained and is_run):
        for export in (home, home / "model"):
            if (export / MODULES_FILE).is_file():
                return ModelPlace(str(export))

    folder = home
    if is_run or (home / ADAPTERS).is_file():
        folder = weights_folder(home)
    try:
        config = read_json(folder / "config.json")
        model_type = config["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return ModelPlace(str(folder) if home.is_dir() else str(name))
    if model_type not in OWN_MODEL_TYPES:
        return ModelPlace(str(folder))
    return ModelPlace(str(folder), model_type, (config.get("architectures") or [""])[0])


def encoder_folder(name: str | Path) -> str:
    """The folder, or Hub id, of the encoder and tokenizer that `find_model` finds: of modules that of the first."""
    path = find_model(name).path
    modules_file = Path(path) / MODULES_FILE
    if not modules_file.is_file():
        return path
    return str(Path(path) / inside(path, read_json(modules_file)[0]["path"]))


def weights_folder(path: str | Path) -> Path:
    """The folder that holds the weights of a finished run, with adapters merged, or of a saved model."""
    home = Path(expand(path))
    folders = (home / "training" / "merged", home / "training" / "final", home)
    for folder in folders:
        if any(folder.glob("model*.safetensors")):
            return folder

    has_adapters = any((folder / ADAPTERS).is_file() for folder in folders)
    content = "adapters without their encoder" if has_adapters else "no weights"
    raise XlsrError(f"'{home}' holds {content}; expected a finished run, a checkpoint or a saved model.")


def read_saved(place: ModelPlace, tokenizers: Any = None) -> SentenceEncoder:
    """A saved model of this package as an encoder; its tokenizers are in its folder, unless they are given."""
    model = load_saved(place.path)
    if not hasattr(model, "sentence_encoder"):
        raise XlsrError(f"'{place.path}' holds a {type(model).__name__}, which is not a sentence encoder.")
    encoder: SentenceEncoder = model.sentence_encoder(tokenizers or saved_tokenizers(place.path, model))
    return replace(encoder, origin=place.path)


def load_saved(path: str) -> Any:
    """A saved model of this package, by its model type, in float32."""
    config = load_auto(AutoConfig, path)
    architecture = (config.architectures or [""])[0]
    try:
        loaded: Any = load_auto(AutoModel, path, dtype="float32", use_safetensors=True, output_loading_info=True)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise XlsrError(f"The model in '{path}' cannot be loaded ({error_line(error, 200)}).") from error

    model, info = loaded
    if architecture != type(model).__name__:
        raise XlsrError(f"'{path}' holds a {architecture}, which is not a sentence encoder.")
    for name in sorted(info["missing_keys"]):
        if not name.startswith(model.derived_weights):
            raise XlsrError(f"The model in '{path}' lacks weights: {name}, ...")
    return model


def saved_tokenizers(path: str, model: Any) -> Any:
    """The tokenizer in a saved model's folder, or those of its encoders by name; one in the folder is for all."""
    tokenizer = optional_tokenizer(path)
    if not hasattr(model, "encoders"):
        return tokenizer
    folder = Path(path) / TOKENIZERS
    return {name: optional_tokenizer(str(folder / name)) or tokenizer for name in model.encoders}
