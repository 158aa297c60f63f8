"""The sections of a recipe that describe one encoder and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig

from hf_xlsr.data.prepare import load_tokenizer
from hf_xlsr.data.sources import expand
from hf_xlsr.data.tokenization import ALGORITHMS
from hf_xlsr.encoders.stock import DROPOUTS, check_token_ids, max_positions
from hf_xlsr.runs.methods.base import encoder_keys
from hf_xlsr.runs.recipe_keys import Key
from hf_xlsr.runs.starting import weights_folder
from hf_xlsr.utils.errors import XlsrError, error_line

TOKENIZER_SECTION = {
    "path": Key(
        None,
        "a trained tokenizer; when absent that of a pretrained encoder or of `start_from`, else one is trained",
        ("str",),
    ),
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


def tokenizer_options(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The section `tokenizer` as data are prepared with it: where it names no path, that of what `start_from` names.

    A new tokenizer would give every piece the embedding of another one.

    Args:
        recipe: Resolved.

    Raises:
        XlsrError: `start_from` holds no weights, or no tokenizer beside them.
    """
    options = dict(recipe["tokenizer"])
    if recipe["start_from"] and not options["path"]:
        folder = weights_folder(recipe["start_from"])
        if not (folder / "tokenizer.json").is_file():
            raise XlsrError(
                f"start_from '{folder}' has no tokenizer beside its weights; name the one that they were trained with in "
                "tokenizer.path."
            )
        options["path"] = str(folder)
    return options


def check_given_tokenizer(recipe: Mapping[str, Any], needs: Callable[[Any], Any]) -> None:
    """Refuses a tokenizer that the training cannot use, before data are prepared with it.

    Args:
        recipe: Resolved.
        needs: Takes the tokenizer and raises XlsrError where it does not do.

    Raises:
        XlsrError: it does not do, or does not load.
    """
    if path := tokenizer_options(recipe)["path"]:
        tokenizer = load_tokenizer(expand(path), "tokenizer.path")
        try:
            needs(tokenizer)
        except XlsrError as error:
            raise XlsrError(f"recipe '{recipe['name']}', tokenizer.path '{path}': {error}") from None


def pretrained_config(recipe: Mapping[str, Any], *, free: Collection[str] = ()) -> PreTrainedConfig | None:
    """The configuration of the encoder that `model.encoder.path` names; None where the recipe describes a new one.

    A pretrained encoder is what it is: values beside its path may only repeat that.

    Args:
        recipe: Resolved.
        free: Values on which no weights depend, and that may differ.

    Raises:
        XlsrError: nothing loads from the path, or a value beside it is another.
    """
    values, path = encoder_section(recipe), encoder_path(recipe)
    if path is None:
        return None
    del values["path"]
    try:
        config = AutoConfig.from_pretrained(path, **{name: value for name, value in values.items() if name in free})
    except OSError:
        raise XlsrError(f"model.encoder.path '{path}' holds no encoder that loads; check it.") from None
    except (TypeError, ValueError) as error:
        raise XlsrError(f"recipe '{recipe['name']}', model.encoder: {error_line(error)}") from None
    own = {name: getattr(config, name, None) for name, value in values.items() if getattr(config, name, None) != value}
    if own:
        here = ", ".join(f"{name} {values[name]!r}" for name in own)
        first, dropout = next(iter(own)), "" if free else " (dropout is set by model.dropout)"
        raise XlsrError(
            f"recipe '{recipe['name']}': model.encoder has {here} beside path '{path}', whose encoder has "
            f"{', '.join(map(repr, own.values()))}; leave that out{dropout}, or where a ready recipe brings it, override "
            f"it by the encoder's own, such as --model.encoder.{first} {own[first]}."
        )
    return config


def encoder_config(
    recipe: Mapping[str, Any],
    tokenizer: Any,
    *,
    default: str = "bert",
    make: Mapping[str, Callable[..., PreTrainedConfig]] | None = None,
    free: Collection[str] = (),
) -> PreTrainedConfig:
    """The configuration that `model.encoder` describes, on the vocabulary of the data.

    Args:
        recipe: Resolved.
        tokenizer: Of the data.
        default: Architecture where the recipe names none.
        make: Architecture -> maker of its configuration, where it is not `AutoConfig.for_model`.
        free: See `pretrained_config`.

    Raises:
        XlsrError: nothing loads from the path, a value does not fit, or there are too few embeddings.
    """
    config = pretrained_config(recipe, free=free) or _new_config(recipe, tokenizer, default, make or {})
    fix = "Set tokenizer.path and model.encoder.path to the same checkpoint."
    check_token_ids(tokenizer, config.vocab_size, fix=fix)
    return config


def _new_config(
    recipe: Mapping[str, Any], tokenizer: Any, default: str, make: Mapping[str, Callable[..., PreTrainedConfig]]
) -> PreTrainedConfig:
    values = encoder_section(recipe)
    values.pop("path", None)
    kind = values.pop("model_type", None) or default
    sizes = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, **values}
    try:
        return make[kind](**sizes) if kind in make else AutoConfig.for_model(kind, **sizes)
    except (TypeError, ValueError) as error:
        raise XlsrError(f"recipe '{recipe['name']}', model.encoder: {error_line(error)}") from None


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
            return model_class.from_encoder(path, dropout=dropout, **options)
        if dropout is not None:
            for name in DROPOUTS:
                if hasattr(text_config, name):
                    setattr(text_config, name, dropout)
        return model_class(model_class.config_class(text_config=text_config, **options))
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise XlsrError(f"recipe '{recipe['name']}', model: {error_line(error)}") from None


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
    positions, length = max_positions(encoder), recipe["data"]["max_length"]
    if positions is not None and positions < length + before:
        more = f" and {before} before them" if before else ""
        raise XlsrError(
            f"data.max_length is {length} pieces{more} but {place} has {positions} positions; lower data.max_length, or "
            "raise max_position_embeddings of a new encoder."
        )
