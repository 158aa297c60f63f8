"""A trainer's model and tokenizers from what users give."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from torch import nn
from transformers import set_seed

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.data.tokenization import load_tokenizer
from hf_xlsr.encoders.assembly import MessageTokenizer, SentenceEncoder, text_tokenizer
from hf_xlsr.encoders.reading import find_model, read_encoder, saved_tokenizers
from hf_xlsr.encoders.stock import check_token_ids, set_pad_token, usable_length, vocab_size_of
from hf_xlsr.modeling.base import XlsrPreTrainedModel
from hf_xlsr.modeling.dual_momentum import DualMomentumModel
from hf_xlsr.modeling.heads import NLI_LABELS
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError

LANGUAGE = re.compile(r"[a-z]{2,3}([-_]\w+)?")  # names of prompts that may be those of languages


def check_classifier(config: Any, nli_dataset: Any) -> None:
    if nli_dataset is not None and not config.nli_labels:
        raise XlsrError(f"`nli_dataset` needs a classifier. Set nli_labels to {NLI_LABELS}.")


def is_own(model: Any) -> bool:
    """Whether a model is one of this package, with or without adapters, and so trained as it is."""
    return isinstance(model, nn.Module) and isinstance(base_model(model), XlsrPreTrainedModel)


def own_tokenizer(model: Any) -> Any:
    """The tokenizer of one of our models, or those of its encoders by name.

    It is that of the encoder that the model was made from, in the folder that the model was loaded from, or in the place
    of the encoder.
    """
    trained = base_model(model)
    tokenizer = trained.given_tokenizer
    if tokenizer is None and trained.name_or_path:
        tokenizer = saved_tokenizers(trained.name_or_path, trained)

    encoders = getattr(trained, "encoders", None)
    if encoders is None:
        return tokenizer or load_tokenizer(trained.encoder.name_or_path, "processing_class")
    tokenizers = tokenizer or {}
    return {
        name: tokenizers.get(name) or load_tokenizer(encoder.name_or_path, "tokenizers")
        for name, encoder in encoders.items()
    }


def trained_model(model_class: Any, model: Any, tokenizer: Any = None) -> tuple[Any, Any] | None:
    """A model of this package with its tokenizer, given as an object or as its folder; None for anything else."""
    if isinstance(model, str | Path):
        location = find_model(model, trained=True)
        if location.architecture != model_class.__name__:
            return None
        model = load_auto(model_class, location.path)
    elif not is_own(model):
        return None
    return model, tokenizer or own_tokenizer(model)


def model_and_tokenizer(
    model_class: Any, model: Any, tokenizer: Any = None, *, seed: int, dropout: float | None = None, **options: Any
) -> tuple[Any, Any]:
    """A model with one encoder, and its tokenizer.

    `model` is one of `model_class`, with or without adapters; the folder of one; or an encoder in any form that
    `read_encoder` takes, for a new model with the values `options` in its configuration.
    """
    own = trained_model(model_class, model, tokenizer)
    if own is not None:
        return own
    read = read_encoder(model)
    encoder_tokenizer = read.single().tokenizer
    set_seed(seed)
    return model_class.from_encoder(read, dropout=dropout, **options), tokenizer or encoder_tokenizer


def dual_model_and_tokenizers(
    model: Any,
    tokenizers: Mapping[str, Any] | None,
    languages: Callable[[], list[str]],
    *,
    seed: int,
    **options: Any,
) -> tuple[DualMomentumModel, dict[str, Any]]:
    """A `DualMomentumModel`, and a tokenizer for each language.

    `model` may also be its folder, a mapping from language to encoder, a model with routes by language, or one encoder
    of all languages, which come from `languages`. Encoders have any form that `read_encoder` takes.
    """
    own = trained_model(DualMomentumModel, model, tokenizers)
    if own is not None:
        own_model, own_tokenizers = own
        return own_model, dict(tokenizers) if tokenizers else by_language(base_model(own_model), own_tokenizers)

    read = read_encoder(model)
    if "" in read.parts:
        shared = read.parts[""]
        tokenizer = shared.required_tokenizer() if tokenizers is None else shared.tokenizer
        read_tokenizers = dict.fromkeys(languages(), tokenizer)
    else:
        read_tokenizers = {language: part.tokenizer for language, part in read.parts.items()}
    set_seed(seed)
    new_model = DualMomentumModel.from_encoders(read, languages=list(read_tokenizers), **options)
    return new_model, {**read_tokenizers, **(tokenizers or {})}


def by_language(model: Any, tokenizers: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizers of a model's encoders by language."""
    config = model.config
    return {language: tokenizers[config.encoder_of(language)] for language in config.languages}


class TextSettings:
    """How a trainer reads texts: tokenizers, prompts and length, from its arguments and else from the encoder.

    Arguments become settings of the model, so that every save and export has them.

    Attributes:
        tokenizers: What makes token ids: one, or one for each route, see `text_tokenizer`.
        prompts: The prompts of training.
        max_length: Tokens that texts are truncated to.
    """

    def __init__(self, model: Any, tokenizers: Any, args: Any, *, room: Callable[[int], int] | None = None) -> None:
        config = model.config
        encoder: SentenceEncoder = model.sentence_encoder(tokenizers)
        parts = encoder.parts
        own_lengths = []
        for route, part in parts.items():
            set_pad_token(part.required_tokenizer(route), part.encoder)
            check_token_ids(part.tokenizer, vocab_size_of(part.encoder), of=f" of '{route}'" if route else "")
            own_lengths.append(part.options.get("max_seq_length") or part.tokenizer.model_max_length)

        encoders = [part.encoder for part in parts.values()]
        self.max_length = usable_length(encoders, min(own_lengths), args.max_length, room=room)
        self.prompts = PromptTable.of(encoder.settings).given(args.prompts)
        text_tokenizers = {route: text_tokenizer(part) for route, part in parts.items()}
        self.tokenizers = text_tokenizers.get("", text_tokenizers)
        self.prompt_lengths = {route: self._prompt_length(part, route) for route, part in parts.items()}

        settings = encoder.settings.to_dict()
        settings |= {"prompts": dict(self.prompts.texts), "default_prompt_name": self.prompts.default}
        config.encoder_settings = settings
        if args.max_length is not None or any("max_seq_length" not in part.options for part in parts.values()):
            set_option(config, "max_seq_length", self.max_length)

    def _prompt_length(self, part: Any, language: str) -> int:
        """Tokens of the prompt that the pooling leaves out; all rows of a batch must have as many."""
        poolings = [module for module in part.head or () if hasattr(module, "include_prompt")]
        if all(module.include_prompt for module in poolings) or isinstance(text_tokenizer(part), MessageTokenizer):
            return 0
        languages = [language] if language else [None, *filter(LANGUAGE.fullmatch, self.prompts.texts)]
        transformer: Any = SentenceEncoder({"": part}).assemble()[0]
        lengths = set()
        for role, name in product(("source", "target", None), languages):
            prompt = self.prompts.text(role=role, language=name)
            lengths.add(transformer.preprocess(["a"], prompt=prompt).get("prompt_length", 0))
        if len(lengths) > 1:
            raise XlsrError(
                f"Prompts must have equally many tokens for a pooling that leaves them out (include_prompt: false), got "
                f"{', '.join(map(str, sorted(lengths)))} tokens."
            )
        return int(lengths.pop())


def set_option(config: Any, name: str, value: Any) -> None:
    """Sets an option of sentence-transformers' `Transformer` in a configuration, for each of its encoders."""
    stored = dict(config.transformer_options or {})
    if hasattr(config, "encoder_configs"):
        config.transformer_options = {key: {**stored.get(key, {}), name: value} for key in config.encoder_configs}
    else:
        config.transformer_options = {**stored, name: value}
