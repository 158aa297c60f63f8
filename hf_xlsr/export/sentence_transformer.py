"""Export to sentence-transformers: stock modules and a stock architecture, which load without this package."""

from __future__ import annotations

import json
import tempfile
from copy import copy
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.base.modules.module import Module
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from transformers import PreTrainedModel

from hf_xlsr.encoders.loading import MAX_LENGTH
from hf_xlsr.encoders.stock import max_positions, new_pooler
from hf_xlsr.utils.files import write_json

POOLING_KEYS = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "max": "pooling_mode_max_tokens"}


def encoder_modules(encoder: PreTrainedModel, tokenizer: Any, *, pooling: str, max_length: int) -> list[Module]:
    """`Transformer` and `Pooling` around a copy of an encoder, on the CPU in float32.

    An encoder without the pooler of its architecture gets one, so that it loads without warnings and that checkpoints of
    sentence-transformers' own trainer resume. Embeddings do not depend on it.
    """
    max_length = min(max_length, max_positions(encoder) or max_length)
    with tempfile.TemporaryDirectory() as folder:
        encoder.save_pretrained(folder, state_dict={**new_pooler(encoder.config), **encoder.state_dict()})
        tokenizer.save_pretrained(folder)
        # In transformers 5 a model comes back in the precision that it was saved in.
        transformer = Transformer(folder, max_seq_length=max_length, model_kwargs={"dtype": torch.float32})
    transformer.model_kwargs = {}
    return [transformer, Pooling(encoder.config.hidden_size, pooling_mode=pooling)]


def dense(weight: torch.Tensor, bias: torch.Tensor | None) -> Dense:
    """A `Dense` layer without activation, float32 on the CPU, with copies of a weight, `(out, in)`, and a bias."""
    copies = [None if part is None else part.detach().to("cpu", torch.float32, copy=True) for part in (weight, bias)]
    return Dense(
        weight.shape[1],
        weight.shape[0],
        bias=bias is not None,
        activation_function=nn.Identity(),
        init_weight=copies[0],
        init_bias=copies[1],
    )


def to_sentence_transformer(
    encoder: PreTrainedModel,
    tokenizer: Any,
    *,
    projection: nn.Linear | None = None,
    pooling: str = "mean",
    normalize: bool = True,
    max_length: int = MAX_LENGTH,
) -> SentenceTransformer:
    """Wraps a plain encoder as `Transformer + Pooling (+ Dense) (+ Normalize)`, on the CPU in float32.

    Args:
        encoder: A stock Hugging Face encoder, for example `model.encoder`; the result has copies of its weights.
        tokenizer: Its fast tokenizer.
        projection: A linear layer applied to the pooled embeddings.
        pooling: `mean`, `max` or `cls`.
        normalize: Normalise embeddings to length 1.
        max_length: Number of tokens that sentences are truncated to.
    """
    modules = encoder_modules(encoder, tokenizer, pooling=pooling, max_length=max_length)
    if projection is not None:
        modules.append(dense(projection.weight, projection.bias))
    return SentenceTransformer(modules=[*modules, *([Normalize()] if normalize else [])], device="cpu")


def settings_of(model: SentenceTransformer) -> dict[str, Any]:
    """Prompts, similarity function and truncation of a model, as arguments of `SentenceTransformer`."""
    names = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim")
    return {name: copy(getattr(model, name)) for name in names}


def save_export(model: SentenceTransformer, path: str | Path) -> SentenceTransformer:
    """Writes a model of stock modules to a folder, and loads it: `SentenceTransformer(path)` needs no hf-xlsr.

    Pooling and maximum length are also written under the names of older versions, which text-embeddings-inference reads.
    """
    model.save(str(path), create_model_card=False)
    for file in Path(path).rglob("*Pooling/config.json"):
        content = json.loads(file.read_text("utf-8"))
        older = {key: content["pooling_mode"] == mode for mode, key in POOLING_KEYS.items()}
        write_json(file, {**content, **older})
    for file in Path(path).rglob("sentence_bert_config.json"):
        tokenizer = json.loads((file.parent / "tokenizer_config.json").read_text("utf-8"))
        content = {**json.loads(file.read_text("utf-8")), "max_seq_length": tokenizer["model_max_length"]}
        write_json(file, content)
    return SentenceTransformer(str(path), device="cpu", trust_remote_code=False)
