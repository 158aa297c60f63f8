"""Export to sentence-transformers: stock modules around a stock architecture, so that it loads without this package."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from transformers import PreTrainedModel

from hf_xlsr.encoders.stock import max_positions, no_pooler
from hf_xlsr.export.projected import ProjectedMean
from hf_xlsr.export.remote_code import carry_modules
from hf_xlsr.modeling.cmlm.projections import SentenceProjections
from hf_xlsr.utils.errors import XlsrError, nearest
from hf_xlsr.utils.pooling import POOLING_MODES

MAX_LENGTH = 200


def encoder_modules(encoder: PreTrainedModel, tokenizer: Any, *, pooling: str, max_length: int) -> list[Module]:
    """`Transformer` and `Pooling` around a copy of an encoder, in float32 and without its pooler.

    Args:
        encoder: A stock Hugging Face encoder.
        tokenizer: Its fast tokenizer.
        pooling: `mean`, `max` or `cls`.
        max_length: Longest sentence, in pieces; an encoder of fewer positions cuts there.

    Returns:
        The two modules, on the processor.

    Raises:
        XlsrError: the pooling is unknown.
    """
    if pooling not in POOLING_MODES:
        raise XlsrError(f"pooling mode is '{pooling}'; {nearest(pooling, POOLING_MODES)}")
    max_length = min(max_length, max_positions(encoder) or max_length)
    # No vector comes from a pooler. Without the option its weights would be made up at random on loading.
    options = no_pooler(encoder.config)
    weights = encoder.state_dict()
    if options:
        weights = {name: weight for name, weight in weights.items() if not name.startswith("pooler.")}
    with tempfile.TemporaryDirectory() as folder:
        encoder.save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)
        # In transformers 5 a model comes back in the precision that it was saved in.
        loading = {**options, "dtype": torch.float32}
        transformer: Any = Transformer(folder, max_seq_length=max_length, model_kwargs=loading)
    # The stock class reads `model_kwargs` from its configuration file and does not write them.
    transformer.model_kwargs = options
    transformer.config_keys = [*transformer.config_keys, *(["model_kwargs"] if options else [])]
    return [transformer, Pooling(encoder.config.hidden_size, pooling_mode=pooling)]


def check_projection(projection: nn.Linear, encoder: PreTrainedModel, place: str = "projection") -> None:
    """Refuses a projection of another width than its encoder's.

    Args:
        projection: A linear layer.
        encoder: Whose pooled vectors it takes.
        place: What the error sentence calls the layer.

    Raises:
        XlsrError: the widths differ.
    """
    width = encoder.config.hidden_size
    if projection.in_features != width:
        raise XlsrError(
            f"{place} takes vectors of width {projection.in_features} and its encoder gives {width}; "
            f"make it an nn.Linear({width}, ...)."
        )


def projection_module(projection: nn.Linear) -> Dense:
    """A linear layer as sentence-transformers has it: a copy, on the processor, in float32, without activation."""
    weight, bias = (
        None if part is None else part.detach().to("cpu", torch.float32, copy=True)
        for part in (projection.weight, projection.bias)
    )
    return Dense(
        projection.in_features,
        projection.out_features,
        bias=bias is not None,
        activation_function=nn.Identity(),
        init_weight=weight,
        init_bias=bias,
    )


def to_sentence_transformer(
    encoder: PreTrainedModel,
    tokenizer: Any,
    *,
    projection: nn.Linear | SentenceProjections | None = None,
    pooling: str = "mean",
    normalize: bool = True,
    max_length: int = MAX_LENGTH,
) -> SentenceTransformer:
    """Wraps a plain encoder as `Transformer + Pooling (+ Dense) (+ Normalize)`.

    Args:
        encoder: A stock Hugging Face encoder, for example `model.encoder`.
        tokenizer: Its fast tokenizer.
        projection: A linear layer that pooled vectors go through, or CMLM's projections, whose mean replaces them; a
            folder with these takes `trust_remote_code=True`.
        pooling: `mean`, `max` or `cls`.
        normalize: Give unit vectors.
        max_length: Longest sentence, in pieces.

    Returns:
        The model, on the processor, in float32; its weights are copies.

    Raises:
        XlsrError: the pooling is unknown, or the projection does not take the encoder's width.
    """
    modules = encoder_modules(encoder, tokenizer, pooling=pooling, max_length=max_length)
    if isinstance(projection, SentenceProjections):
        modules.append(ProjectedMean.of(projection))
    elif projection is not None:
        check_projection(projection, encoder)
        modules.append(projection_module(projection))
    return SentenceTransformer(modules=[*modules, *([Normalize()] if normalize else [])], device="cpu")


def export_sentence_transformer(
    encoder: PreTrainedModel, tokenizer: Any, path: str | Path, **options: Any
) -> SentenceTransformer:
    """Writes a folder that `SentenceTransformer(path)` loads, without this package and without trusted code.

    CMLM's projections are the exception: their folder brings the code of their module and takes `trust_remote_code=True`.

    Args:
        encoder: See `to_sentence_transformer`.
        tokenizer: Likewise.
        path: The folder; it is made.
        **options: As for `to_sentence_transformer`.

    Returns:
        The model as the folder gives it.
    """
    return save_export(to_sentence_transformer(encoder, tokenizer, **options), path)


def save_export(model: SentenceTransformer, path: str | Path) -> SentenceTransformer:
    """Writes a model's folder; with code of this package's modules in it, where the model has some.

    Args:
        model: From `to_sentence_transformer` or `to_routed_sentence_transformer`.
        path: The folder; it is made.

    Returns:
        The model as the folder gives it.
    """
    model.save(str(path), create_model_card=False)
    ours = any(type(module).__module__.startswith("hf_xlsr.") for module in model.children())
    loaded = SentenceTransformer(str(path), device="cpu", trust_remote_code=ours)
    carry_modules(path)  # after loading: here the classes are those of the package
    return loaded
