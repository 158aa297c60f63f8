"""A trainer's model and tokenizers from what users give."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn
from transformers import set_seed

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.encoders.assembly import MessageTokenizer, SentenceEncoder, text_tokenizer
from hf_xlsr.encoders.reading import find_model, read_encoder, read_tokenizer, saved_tokenizers
from hf_xlsr.encoders.stock import check_token_ids, set_pad_token, usable_length, vocab_size_of
from hf_xlsr.modeling.base import XlsrPreTrainedModel
from hf_xlsr.modeling.dual_momentum import DualMomentumModel
from hf_xlsr.trainers.adapters import base_model
from hf_xlsr.utils.errors import XlsrError

NLI_LABELS = 3
LANGUAGE = re.compile(r"[a-z]{2,3}([-_]\w+)?")  # names of prompts that may be those of languages


def check_classifier(config: Any, nli_dataset: Any) -> None:
    if nli_dataset is not None and not config.nli_labels:
        raise XlsrError(f"`nli_dataset` needs a classifier. Set nli_labels to {NLI_LABELS}.")


def is_own(model: Any) -> bool:
    """Whether a model is one of this package, with or without adapters, and so trained as it is."""
    return isinstance(model, nn.Module) and isinstance(base_model(model), XlsrPreTrainedModel)


def own_tokenizer(model: Any) -> Any:
    """The tokenizer in the place that the encoder of one of our models was loaded from."""
    return read_tokenizer(base_model(model).encoder.name_or_path, "processing_class")


def saved_model(model: Any, model_class: Any) -> tuple[Any, Any] | None:
    """A saved model of the trainer's own class with its tokenizers; None if a path names something else."""
    if not isinstance(model, str | Path):
        return None
    place = find_model(model, trained=True)
    if place.model_type != model_class.config_class.model_type:
        return None
    loaded = model_class.from_pretrained(place.path)
    return loaded, saved_tokenizers(place.path, loaded)


def model_and_tokenizer(
    model_class: Any, model: Any, tokenizer: Any = None, *, seed: int, dropout: float | None = None, **options: Any
) -> tuple[Any, Any]:
    """A model with one encoder, and its tokenizer.

    `model` is one of `model_class`, with or without adapters; the folder of one; or an encoder in any form that
    `read_encoder` takes, for a new model with the values `options` in its configuration.
    """
    if is_own(model):
        return model, tokenizer or own_tokenizer(model)
    if saved := saved_model(model, model_class):
        return saved[0], tokenizer or saved[1]
    read = read_encoder(model)
    part = read.single()
    set_seed(seed)
    return model_class.from_encoder(read, dropout=dropout, **options), tokenizer or part.tokenizer


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
    if is_own(model):
        ours = base_model(model)
        if tokenizers:
            return model, dict(tokenizers)
        return model, by_language(
            ours, {name: read_tokenizer(one.name_or_path, "tokenizers") for name, one in ours.encoders.items()}
        )
    if saved := saved_model(model, DualMomentumModel):
        return saved[0], dict(tokenizers) if tokenizers else by_language(*saved)
    read = read_encoder(model)
    shared = read.parts.get("")
    if shared is not None:
        tokenizer = shared.required_tokenizer() if tokenizers is None else shared.tokenizer
        own_tokenizers = dict.fromkeys(languages(), tokenizer)
    else:
        own_tokenizers = {language: part.tokenizer for language, part in read.parts.items()}
    set_seed(seed)
    new_model = DualMomentumModel.from_encoders(read, languages=list(own_tokenizers), **options)
    return new_model, {**own_tokenizers, **(tokenizers or {})}


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
        for name, part in parts.items():
            set_pad_token(part.required_tokenizer(name), part.encoder)
            place = f" of '{name}'" if name else ""
            check_token_ids(part.tokenizer, vocab_size_of(part.encoder), of=place)

        own = min(part.options.get("max_seq_length") or part.tokenizer.model_max_length for part in parts.values())
        encoders = [part.encoder for part in parts.values()]
        self.max_length = usable_length(encoders, own, args.max_length, room=room)
        self.prompts = PromptTable.of(encoder.settings).given(args.prompts)
        made = {name: text_tokenizer(part) for name, part in parts.items()}
        self.tokenizers = made[""] if "" in made else made
        self.prompt_lengths = {name: self._prompt_length(part, name) for name, part in parts.items()}

        settings = encoder.settings.to_dict()
        settings |= {"prompts": dict(self.prompts.texts), "default_prompt_name": self.prompts.default}
        config.encoder_settings = settings
        if any(part.options.get("max_seq_length") != self.max_length for part in parts.values()):
            set_option(config, "max_seq_length", self.max_length)

    def _prompt_length(self, part: Any, language: str) -> int:
        """Tokens of the prompt that the pooling leaves out; all rows of a batch must have as many."""
        pooled = [module for module in part.head or () if hasattr(module, "include_prompt")]
        if all(module.include_prompt for module in pooled) or isinstance(text_tokenizer(part), MessageTokenizer):
            return 0
        languages = [language] if language else [None, *filter(LANGUAGE.fullmatch, self.prompts.texts)]
        texts = {
            self.prompts.text(role=role, language=name) for role in ("source", "target", None) for name in languages
        }
        transformer: Any = SentenceEncoder({"": part}).assemble()[0]
        lengths = {transformer.preprocess(["a"], prompt=text).get("prompt_length", 0) for text in texts}
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
