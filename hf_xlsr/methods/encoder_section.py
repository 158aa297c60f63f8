"""The sections of a recipe that describe one encoder and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from transformers import AutoConfig, PreTrainedConfig

from hf_xlsr.data.sources import expand
from hf_xlsr.data.tokenization import ALGORITHMS
from hf_xlsr.errors import XlsrError
from hf_xlsr.methods.base import encoder_keys, one_line
from hf_xlsr.modeling.encoders import DROPOUTS, positions_of
from hf_xlsr.recipe_keys import Key

TOKENIZER_SECTION = {
    "path": Key(None, "a trained tokenizer; that of a pretrained encoder when absent, else one is trained", ("str",)),
    "vocab_size": Key(50_000, "pieces of a new one", least=1),
    "algorithm": Key("unigram", "of a new one", choices=ALGORITHMS),
    "lowercase": Key(True, "whether a new one lowers all letters"),
    "smoothing": Key(0.3, "exponent of the languages' shares in the text that a new one is trained on", least=0),
    "frame": Key(False, "whether a new one puts special pieces around a sentence"),
}
# Of models that need special pieces around a sentence.
FRAMED_TOKENIZER_SECTION = {**TOKENIZER_SECTION, "frame": replace(TOKENIZER_SECTION["frame"], default=True)}
ENCODER = Key(None, "values of the encoder's configuration; or `path`, a pretrained one", ("mapping",))


def encoder_section(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """`model.encoder` as written; nothing where the recipe has none."""
    model = recipe.get("model")
    content = model.get("encoder") if isinstance(model, Mapping) else None
    return dict(content) if isinstance(content, Mapping) else {}


def encoder_path(recipe: Mapping[str, Any]) -> str | None:
    """The pretrained encoder that `model.encoder` names; None for a new one.

    Raises:
        XlsrError: the path has an environment variable that is not set.
    """
    path = encoder_section(recipe).get("path")
    return expand(path) if path else None


def encoder_section_keys(recipe: Mapping[str, Any], default: str = "bert") -> dict[str, Key]:
    """The known keys of `model.encoder`: the values of its architecture, and `path`."""
    path = Key(None, "folder or id of a pretrained encoder; environment variables are filled in", ("str",))
    return {**encoder_keys(encoder_section(recipe).get("model_type") or default), "path": path}


def complete_tokenizer(recipe: dict[str, Any]) -> None:
    """Gives a pretrained encoder its own tokenizer: its embeddings mean nothing under another vocabulary."""
    path = encoder_section(recipe).get("path")
    if path and not recipe["tokenizer"]["path"]:
        recipe["tokenizer"]["path"] = path


def encoder_config(
    recipe: Mapping[str, Any],
    tokenizer: Any,
    *,
    default: str = "bert",
    make: Mapping[str, Callable[..., PreTrainedConfig]] | None = None,
) -> PreTrainedConfig:
    """The configuration that `model.encoder` describes, on the vocabulary of the data.

    Args:
        recipe: Resolved.
        tokenizer: Of the data.
        default: Architecture where the recipe names none.
        make: Architecture -> maker of its configuration, where it is not `AutoConfig.for_model`.

    Raises:
        XlsrError: nothing loads from the path, a value does not fit, or there are too few embeddings.
    """
    values, path = encoder_section(recipe), encoder_path(recipe)
    values.pop("path", None)
    kind = values.pop("model_type", None) or default
    try:
        if path:
            config = AutoConfig.from_pretrained(path, **values)
        else:
            sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **values}
            chosen = (make or {}).get(kind)
            config = chosen(**sizes) if chosen else AutoConfig.for_model(kind, **sizes)
    except OSError:
        raise XlsrError(f"model.encoder.path '{path}' holds no encoder that loads; check it.") from None
    except (TypeError, ValueError) as error:
        raise XlsrError(f"recipe '{recipe['name']}', model.encoder: {one_line(error)}") from None
    if len(tokenizer) > config.vocab_size:
        raise XlsrError(
            f"the tokenizer has {len(tokenizer):,} pieces but the encoder {config.vocab_size:,}; give "
            "tokenizer.path and model.encoder.path that belong together."
        )
    return config


def model_on_encoder(
    recipe: Mapping[str, Any],
    model_class: Any,
    text_config: PreTrainedConfig,
    options: Mapping[str, Any],
) -> Any:
    """The model that a recipe describes, on its pretrained encoder or on a new one.

    Args:
        recipe: Resolved.
        model_class: With `from_encoder` and a `config_class` that takes `text_config`.
        text_config: From `encoder_config`.
        options: Values of the model's configuration.

    Raises:
        XlsrError: a value does not fit, or the encoder does not load.
    """
    dropout = recipe["model"].get("dropout")
    try:
        if path := encoder_path(recipe):
            _refuse_other_values(recipe, path)
            return model_class.from_encoder(path, dropout=dropout, **options)
        if dropout is not None:
            for name in DROPOUTS:
                if hasattr(text_config, name):
                    setattr(text_config, name, dropout)
        return model_class(model_class.config_class(text_config=text_config, **options))
    except (TypeError, ValueError) as error:
        raise XlsrError(f"recipe '{recipe['name']}', model: {one_line(error)}") from None


def _refuse_other_values(recipe: Mapping[str, Any], path: str) -> None:
    """A pretrained encoder is what it is: values beside its path may only repeat that."""
    config = AutoConfig.from_pretrained(path)
    for name, value in encoder_section(recipe).items():
        there = getattr(config, name, None)
        if name != "path" and there != value:
            raise XlsrError(
                f"recipe '{recipe['name']}': model.encoder has {name} {value!r} beside path '{path}', whose encoder has "
                f"{there!r}; leave it out (dropout is set by model.dropout)."
            )


def check_positions(encoder: Any, recipe: Mapping[str, Any], *, before: int = 0, place: str = "the encoder") -> None:
    """Refuses sentences that are longer than an encoder takes.

    Args:
        encoder: A stock encoder.
        recipe: Resolved.
        before: Positions that the method needs beside those of a sentence.
        place: What the error sentence calls the encoder.

    Raises:
        XlsrError: it has too few positions.
    """
    positions, length = positions_of(encoder), recipe["data"]["max_length"]
    if positions is not None and positions < length + before:
        more = f" and {before} before them" if before else ""
        raise XlsrError(
            f"data.max_length is {length} pieces{more} but {place} has {positions} positions; lower data.max_length, or "
            "raise max_position_embeddings of a new encoder."
        )
