"""A trainer's model and tokenizers from what users give: models, folders and ids, encoders of sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_file_path
from torch import nn
from transformers import AutoConfig, AutoTokenizer, set_seed

from hf_xlsr.encoders.stock import encoder_from_pretrained, set_dropout
from hf_xlsr.modeling.base import EncoderWithLmHead, config_of_encoder
from hf_xlsr.modeling.dual_momentum import DualMomentumConfig, DualMomentumModel
from hf_xlsr.modeling.dual_momentum.configuration_dual_momentum import SHARED
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError

TOKENIZERS = "tokenizers"  # folder of a checkpoint
NLI_LABELS = 3


@dataclass
class Part:
    """A pretrained encoder without its pooler, its tokenizer and the pooling of sentence-transformers, if known."""

    encoder: Any
    tokenizer: Any
    pooling: str | None = None

    def __post_init__(self) -> None:
        if getattr(self.encoder, "_hf_peft_config_loaded", False):  # a saved model would lose the weights below them
            raise XlsrError("`model` has adapters. Merge them, or train without them and call `add_adapters`.")

    def options(self, config_class: Any) -> dict[str, Any]:
        """Values of a model's configuration that the encoder decides."""
        return {"pooling": self.pooling} if self.pooling and hasattr(config_class, "pooling") else {}


def read_part(model: Any) -> Part | dict[str, Part]:
    """Pretrained encoders of a folder, a Hub id or a `SentenceTransformer`: one, or by route."""
    if isinstance(model, str | Path):
        if load_file_path(str(model), "modules.json") is None:
            return Part(encoder_from_pretrained(str(model)), load_auto(AutoTokenizer, model))
        model = SentenceTransformer(str(model), device="cpu", trust_remote_code=False)
    first, *rest = list(model)
    if not hasattr(first, "sub_modules"):
        return _part([first, *rest])
    return {name: _part([*modules, *rest]) for name, modules in first.sub_modules.items()}


def _part(modules: list[Any]) -> Part:
    names = [type(module).__name__ for module in modules]
    if names[:1] != ["Transformer"] or not set(names[1:]) <= {"Pooling", "Normalize"}:
        raise XlsrError(f"`model` must be a Transformer, a Pooling and Normalize, got {', '.join(names)}.")
    encoder = modules[0].model
    encoder.pooler = None  # DDP would wait for its gradient
    pooling = next((module.pooling_mode for module in modules if hasattr(module, "pooling_mode")), None)
    return Part(encoder.float(), modules[0].tokenizer, pooling)


def _is_saved(model: Any, model_class: Any) -> bool:
    if not isinstance(model, str | Path) or (Path(model) / "modules.json").is_file():
        return False
    try:
        return load_auto(AutoConfig, model).model_type == model_class.config_class.model_type
    except (OSError, ValueError):
        return False  # loading the encoder says why


def tokenizer_of(encoder: Any, folder: str | Path | None = None) -> Any:
    """The tokenizer from the place that an encoder was loaded from."""
    place = str(folder or getattr(encoder, "name_or_path", ""))
    with suppress(OSError, ValueError):
        if place:
            return load_auto(AutoTokenizer, place)
    raise XlsrError(f"The tokenizer of the encoder ('{place}') is missing. Give `processing_class` or `tokenizers`.")


def check_classifier(config: Any, nli_dataset: Any) -> None:
    if nli_dataset is not None and not config.nli_labels:
        raise XlsrError(f"`nli_dataset` needs a classifier. Set nli_labels to {NLI_LABELS}.")


def model_and_tokenizer(
    model_class: Any, model: Any, tokenizer: Any = None, *, seed: int, dropout: float | None = None, **options: Any
) -> tuple[Any, Any]:
    """A model with one encoder, and its tokenizer.

    `model` is one of `model_class`, with or without adapters; a folder or Hub id of one or of an encoder; or a
    `SentenceTransformer`. New models have the values `options` in their configuration; without an LM head, `dropout` too.
    """
    if isinstance(model, nn.Module) and not isinstance(model, SentenceTransformer):
        return model, tokenizer or tokenizer_of(base_model(model).encoder)
    if _is_saved(model, model_class):
        return model_class.from_pretrained(model), tokenizer or tokenizer_of(None, model)
    part = read_part(model) if isinstance(model, str | Path | SentenceTransformer) else None
    if not isinstance(part, Part):
        raise XlsrError(f"`model` must be a {model_class.__name__}, or a single encoder by folder, id or object.")
    config_class = model_class.config_class
    config = config_class(**config_of_encoder(part.encoder), **part.options(config_class), **options)
    set_seed(seed)
    if issubclass(model_class, EncoderWithLmHead):
        made = model_class(config, part.encoder)
        if made.lm_head is not None and (place := part.encoder.name_or_path):
            made.lm_head.load_pretrained(place)
    else:
        set_dropout(config.get_text_config(), dropout)
        made = model_class(config)
        made.encoder.load_state_dict(part.encoder.state_dict())
    return made, tokenizer or part.tokenizer


def dual_model_and_tokenizers(
    model: Any,
    tokenizers: Mapping[str, Any] | None,
    languages: Callable[[Any, Any], list[str]],
    *,
    seed: int,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """A `DualMomentumModel`, and a tokenizer for each language.

    `model` may also be its folder or Hub id, a mapping from language to encoder, or an encoder of all languages, whose
    languages come from `languages(encoder, tokenizer)`. Encoders are folders, Hub ids or `SentenceTransformer` objects.
    """
    if isinstance(model, nn.Module) and not isinstance(model, SentenceTransformer):
        return model, dict(tokenizers) if tokenizers else _tokenizers_of(base_model(model))
    if _is_saved(model, DualMomentumModel):
        made = DualMomentumModel.from_pretrained(model)
        return made, dict(tokenizers) if tokenizers else _tokenizers_of(made, Path(model) / TOKENIZERS)
    read = {name: read_part(one) for name, one in model.items()} if isinstance(model, Mapping) else read_part(model)
    parts: dict[str, Any] = read if isinstance(read, dict) else {SHARED: read}
    shared = parts.get(SHARED)
    named = languages(shared.encoder, tokenizers or shared.tokenizer) if shared else list(parts)
    encoders = {name: part.encoder for name, part in parts.items()}
    configs = {name: encoder.config for name, encoder in encoders.items()}
    pooling = next(iter(parts.values())).options(DualMomentumConfig)
    config = DualMomentumConfig(languages=named, encoder_configs=configs, **pooling, **options)
    set_seed(seed)
    own = {language: (shared or parts[language]).tokenizer for language in named}
    return DualMomentumModel(config, encoders), {**own, **(tokenizers or {})}


def _tokenizers_of(model: Any, folder: Path | None = None) -> dict[str, Any]:
    found = {name: tokenizer_of(encoder, folder and folder / name) for name, encoder in model.encoders.items()}
    return {language: found[model.config.encoder_of(language)] for language in model.config.languages}
