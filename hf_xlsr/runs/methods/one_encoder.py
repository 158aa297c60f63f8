"""Methods with one encoder for all languages, new or pretrained, and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig

from hf_xlsr.data.pairs import load_tokenizer
from hf_xlsr.data.sources import expand
from hf_xlsr.encoders.loading import weights_folder
from hf_xlsr.encoders.stock import DROPOUTS, check_token_ids
from hf_xlsr.runs.methods.sentence_encoder import SentenceEncoderMethod, SentenceEncoderRecipe
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError, did_you_mean
from hf_xlsr.utils.validation import Section

OneEncoderT = TypeVar("OneEncoderT", bound="OneEncoderMethod")
ENCODER = (
    dict[str, Any] | None,
    Field(None, description="values of the encoder's configuration, or `path`: folder or id of a pretrained encoder"),
)


class TokenizerSection(Section):
    path: str | None = Field(
        None,
        description="a trained tokenizer; by default that of a pretrained encoder or of `start_from`, else a new one is "
        "trained",
    )
    vocab_size: int = Field(50_000, ge=1, description="vocabulary size of a new tokenizer")
    algorithm: Literal["unigram", "bpe"] = Field("unigram", description="algorithm of a new tokenizer")
    lowercase: bool = Field(True, description="whether a new tokenizer lowercases")
    smoothing: float = Field(
        0.3, ge=0, description="exponent of the languages' shares in the text that a new tokenizer is trained on"
    )
    frame: bool = Field(False, description="whether a new tokenizer puts special tokens around a sentence")


class FramedTokenizerSection(TokenizerSection):
    """The tokenizer of a model that needs special tokens around a sentence."""

    frame: bool = Field(True, description="whether a new tokenizer puts special tokens around a sentence")


class OneEncoderRecipe(SentenceEncoderRecipe):
    tokenizer: TokenizerSection = TokenizerSection()


class OneEncoderMethod(SentenceEncoderMethod):
    """A method whose `model.encoder` describes an encoder, or names a pretrained one by `path`."""

    # Architecture where the recipe names none.
    default_type: ClassVar[str] = "bert"
    # Values of a pretrained encoder that a recipe may change, as no weights depend on them.
    free_values: ClassVar[tuple[str, ...]] = ()

    recipe: OneEncoderRecipe

    @classmethod
    def bind(cls: type[OneEncoderT], content: Mapping[str, Any]) -> OneEncoderT:
        method = super().bind(content)
        known = [key.rsplit(".", 1)[-1] for key in cls.nested_keys(content)]
        for key in method.encoder_section:
            if key not in known:
                name = method.recipe.name
                raise XlsrError(f"recipe '{name}': unknown key 'model.encoder.{key}'; {did_you_mean(key, known)}")
        # A pretrained encoder needs its own tokenizer: its embeddings mean nothing under another vocabulary.
        tokenizer = method.recipe.tokenizer
        tokenizer.path = tokenizer.path or method.encoder_section.get("path")
        return method

    @classmethod
    def nested_keys(cls, content: Mapping[str, Any]) -> list[str]:
        model = content.get("model")
        encoder = model.get("encoder") if isinstance(model, Mapping) else None
        kind = (encoder.get("model_type") if isinstance(encoder, Mapping) else None) or cls.default_type
        if kind not in CONFIG_MAPPING:
            raise XlsrError(f"model.encoder.model_type is '{kind}'; {did_you_mean(str(kind), CONFIG_MAPPING)}")
        return [f"model.encoder.{key}" for key in ("path", *AutoConfig.for_model(kind).to_dict())]

    @property
    def encoder_section(self) -> dict[str, Any]:
        return dict(self.recipe.model.get("encoder") or {})

    @property
    def encoder_path(self) -> str | None:
        """The pretrained encoder that `model.encoder` names; None for a new one."""
        path = self.encoder_section.get("path")
        return expand(path) if path else None

    @property
    def pretrained(self) -> bool:
        return bool(self.encoder_path or self.recipe.start_from)

    def tokenizer_options(self) -> dict[str, Any]:
        """The section `tokenizer`; without a path, that of the weights that `start_from` names.

        A new tokenizer would give every token the embedding of another one.
        """
        options = self.recipe.tokenizer.model_dump()
        if self.recipe.start_from and not options["path"]:
            folder = weights_folder(self.recipe.start_from)
            if not (folder / "tokenizer.json").is_file():
                raise XlsrError(f"start_from '{folder}' has no tokenizer next to its weights; set tokenizer.path.")
            options["path"] = str(folder)
        return options

    def check_tokenizer(self, needs: Callable[[Any], Any]) -> None:
        """Runs a check of a collator on a given tokenizer, before data are prepared with it."""
        if path := self.tokenizer_options()["path"]:
            tokenizer = load_tokenizer(expand(path), "tokenizer.path")
            with self.explained(f"tokenizer.path '{path}'"):
                needs(tokenizer)

    def check(self, arguments: Any, sets: Mapping[str, Any]) -> None:
        super().check(arguments, sets)
        self.pretrained_config()

    def pretrained_config(self) -> PreTrainedConfig | None:
        """The configuration of the pretrained encoder; None if the recipe describes a new one."""
        values, path = self.encoder_section, self.encoder_path
        if path is None:
            return None
        del values["path"]
        free = {name: value for name, value in values.items() if name in self.free_values}
        with self.explained(f"model.encoder.path '{path}'"):
            config = load_auto(AutoConfig, path, **free)
        for name, value in values.items():
            if (own := getattr(config, name, None)) != value:
                dropout = "" if self.free_values else " (model.dropout sets dropout)"
                raise XlsrError(
                    f"recipe '{self.recipe.name}': model.encoder.{name} is {value!r}, but the encoder in '{path}' has "
                    f"{own!r}; remove it{dropout}, or override it with --model.encoder.{name} {own}."
                )
        return config

    def encoder_config(
        self, tokenizer: Any, make: Mapping[str, Callable[..., PreTrainedConfig]] | None = None
    ) -> PreTrainedConfig:
        """The configuration that `model.encoder` describes, for the vocabulary of the data.

        `make` has makers of the configuration of architectures where it is not `AutoConfig.for_model`.
        """
        config = self.pretrained_config() or self._new_config(tokenizer, make or {})
        check_token_ids(
            tokenizer, config.vocab_size, fix="Give tokenizer.path and model.encoder.path that belong together."
        )
        return config

    def _new_config(self, tokenizer: Any, make: Mapping[str, Callable[..., PreTrainedConfig]]) -> PreTrainedConfig:
        values = self.encoder_section
        kind = values.pop("model_type", None) or self.default_type
        sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **values}
        with self.explained("model.encoder"):
            return make[kind](**sizes) if kind in make else AutoConfig.for_model(kind, **sizes)

    def model_on_encoder(self, model_class: Any, text_config: PreTrainedConfig, **options: Any) -> Any:
        """The model of the recipe, on its pretrained encoder or on a new one."""
        dropout, options = self.recipe.model.get("dropout"), {**self.config_options, **options}
        with self.explained("model"):
            if path := self.encoder_path:
                return model_class.from_encoder(path, dropout=dropout, **options)
            if dropout is not None:
                for name in DROPOUTS:
                    if hasattr(text_config, name):
                        setattr(text_config, name, dropout)
            return model_class(model_class.config_class(text_config=text_config, **options))
