"""Tiny sentence encoders of many architectures, as users have them: `GIVEN` builds each as a `SentenceTransformer`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs, texts_of
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import (
    Dropout,
    LayerNorm,
    Pooling,
    StaticEmbedding,
    WordWeights,
)
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForTextEncoding,
    BertConfig,
    Gemma3TextConfig,
    ModernBertConfig,
    PreTrainedConfig,
    Qwen3Config,
    RobertaConfig,
    T5Config,
    XLMRobertaConfig,
)

from hf_xlsr.data.tokenization import train_tokenizer

WIDTH = 16
PROMPTS = {"query": "one two: ", "document": "three: ", "fr": "quatre: "}
CHAT_TEMPLATE = "{% for message in messages %}<s>one {{ message['content'] }}</s>{% endfor %}"
SENTENCES = [*texts_of(make_pairs(6, seed=5)), "red", "bleu " * 9]

LAYERS: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
BERT_SIZE: dict[str, Any] = {**LAYERS, "intermediate_size": 32, "max_position_embeddings": 40, "pad_token_id": 0}


@cache
def trained() -> Any:
    return train_tokenizer(texts_of(make_pairs(200)), vocab_size=90, algorithm="bpe", max_length=32, frame=True)


def tiny_tokenizer(**attributes: Any) -> Any:
    """A tokenizer with `<s>` and `</s>` around a sentence; `attributes` are set on it, None removes a token."""
    tokenizer = copy.deepcopy(trained())
    for name, value in attributes.items():
        setattr(tokenizer, name, value)
    return tokenizer


def tiny_transformer(folder: Path, config: PreTrainedConfig, tokenizer: Any, **options: Any) -> Transformer:
    """A `Transformer` of random weights, loaded from a folder as users load it."""
    torch.manual_seed(0)
    config.vocab_size = len(tokenizer)
    auto = AutoModelForTextEncoding if isinstance(config, T5Config) else AutoModel
    encoder = auto.from_config(config)
    for weight in encoder.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.3)

    encoder.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Transformer(str(folder), **options)


def assembled(modules: list[Any], **settings: Any) -> SentenceTransformer:
    return SentenceTransformer(modules=modules, device="cpu", **settings).eval()


def bert(folder: Path, pooling: Any = "mean", *behind: nn.Module, prompt: bool = True, **settings: Any) -> Any:
    transformer = tiny_transformer(folder, BertConfig(**BERT_SIZE), tiny_tokenizer())
    pool = Pooling(WIDTH, pooling_mode=pooling, include_prompt=prompt)
    return assembled([transformer, pool, *behind], **settings)


def of_config(config: PreTrainedConfig, pooling: str, **attributes: Any) -> Callable[[Path], SentenceTransformer]:
    def build(folder: Path) -> SentenceTransformer:
        tokenizer = tiny_tokenizer(**attributes)
        return assembled([tiny_transformer(folder, config, tokenizer), Pooling(WIDTH, pooling), Normalize()])

    return build


def dense(inputs: int, outputs: int, activation: nn.Module, bias: bool = True) -> Dense:
    torch.manual_seed(1)
    return Dense(inputs, outputs, bias=bias, activation_function=activation)


def weighted_words(folder: Path) -> SentenceTransformer:
    tokenizer = tiny_tokenizer()
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    weights = WordWeights(words, {word: 1 + number % 3 for number, word in enumerate(words)})
    transformer = tiny_transformer(folder, BertConfig(**BERT_SIZE), tokenizer)
    return assembled([transformer, weights, Pooling(WIDTH, "mean")])


def normalized_layer(folder: Path) -> SentenceTransformer:
    layer = LayerNorm(WIDTH)
    nn.init.normal_(layer.norm.weight)
    return bert(folder, "mean", Dropout(0.0), layer)


def chat(folder: Path) -> SentenceTransformer:
    """A decoder that reads a text as a message of a chat."""
    tokenizer = tiny_tokenizer(chat_template=CHAT_TEMPLATE, padding_side="left")
    transformer = tiny_transformer(folder, qwen(), tokenizer)
    return assembled([transformer, Pooling(WIDTH, "lasttoken"), Normalize()])


def static(folder: Path) -> SentenceTransformer:
    torch.manual_seed(0)
    return assembled([StaticEmbedding(tiny_tokenizer().backend_tokenizer, embedding_dim=WIDTH)])


def static_words(folder: Path) -> SentenceTransformer:
    """A static embedding of words, without special tokens, which reads the first five of a text."""
    torch.manual_seed(0)
    words = sorted({word for text in texts_of(make_pairs(200)) for word in text.split()})
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(["?", *words])}, unk_token="?"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.enable_truncation(5)
    modules = [StaticEmbedding(tokenizer, embedding_dim=24), dense(24, WIDTH, nn.Tanh()), Normalize()]
    return assembled(modules, prompts=PROMPTS, default_prompt_name="query", truncate_dim=8)


def routed(folder: Path) -> SentenceTransformer:
    routes = {}
    for language in ("en", "fr"):
        transformer = tiny_transformer(folder / language, BertConfig(**BERT_SIZE), tiny_tokenizer())
        with torch.no_grad():
            for weight in transformer.model.parameters():
                weight.add_(0.1 * len(routes))
        routes[language] = [transformer, Pooling(WIDTH, "cls")]
    mappings: Any = {("query", None): "en", ("document", None): "fr"}
    return assembled([Router(routes, route_mappings=mappings), Normalize()])


def qwen() -> PreTrainedConfig:
    size = {**LAYERS, "intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 8}
    return Qwen3Config(**size, max_position_embeddings=40, pad_token_id=0, eos_token_id=2)


def gemma() -> PreTrainedConfig:
    size = {**LAYERS, "intermediate_size": 32, "num_key_value_heads": 1, "head_dim": 8}
    return Gemma3TextConfig(**size, max_position_embeddings=40, pad_token_id=0, sliding_window=8)


T5_SIZE: dict[str, Any] = {"d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "pad_token_id": 0}
MODERN_SIZE: dict[str, Any] = {**BERT_SIZE, "global_attn_every_n_layers": 2, "local_attention": 8}
ROBERTA_SIZE: dict[str, Any] = {**BERT_SIZE, "max_position_embeddings": 42}
NO_LIMIT = {"model_max_length": int(1e30)}

GIVEN: dict[str, Callable[[Path], SentenceTransformer]] = {
    "bert_cls": lambda folder: bert(folder, "cls", Normalize()),
    "bert_mean": lambda folder: bert(folder, "mean", similarity_fn_name="dot", truncate_dim=8),
    "bert_max": lambda folder: bert(folder, "max", Normalize()),
    "bert_weighted": lambda folder: bert(folder, "weightedmean", Normalize()),
    "bert_sqrt": lambda folder: bert(folder, "mean_sqrt_len_tokens"),
    "bert_two_modes": lambda folder: bert(folder, ("cls", "mean"), Normalize()),
    "bert_prompts": lambda folder: bert(folder, "mean", Normalize(), prompts=PROMPTS, default_prompt_name="query"),
    "prompt_left_out": lambda folder: bert(
        folder, "mean", Normalize(), prompt=False, prompts={"query": "one two: "}, default_prompt_name="query"
    ),
    "labse": lambda folder: bert(folder, "cls", dense(WIDTH, 12, nn.Tanh()), Normalize()),
    "two_dense": lambda folder: bert(
        folder, "mean", dense(WIDTH, 24, nn.Identity(), False), dense(24, 12, nn.Identity(), False), Normalize()
    ),
    "layer_norm": normalized_layer,
    "word_weights": weighted_words,
    "roberta_no_limit": of_config(RobertaConfig(**ROBERTA_SIZE), "mean", **NO_LIMIT),
    "xlmr_no_limit": of_config(XLMRobertaConfig(**ROBERTA_SIZE), "cls", **NO_LIMIT),
    "xlmr": of_config(XLMRobertaConfig(**ROBERTA_SIZE), "mean"),
    "modernbert": of_config(ModernBertConfig(**MODERN_SIZE), "cls"),
    "gemma": of_config(gemma(), "mean", mask_token=None),
    "qwen": of_config(qwen(), "lasttoken", mask_token=None, padding_side="left"),
    "chat": chat,
    "t5": of_config(T5Config(**T5_SIZE), "mean", mask_token=None),
    "static": static,
    "static_words": static_words,
    "routed": routed,
}


FAST = {"bert_prompts", "prompt_left_out", "qwen", "routed", "static_words"}
"""Those that differ most; the others are tried by `make test-all`."""


def named(names: Iterable[str]) -> list[Any]:
    """Names as parameters of a test, which is slow for most of them."""
    return [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


def build(name: str, folder: Path) -> SentenceTransformer:
    """An encoder by its name; weights are in the folder, too."""
    folder.mkdir(parents=True, exist_ok=True)
    return GIVEN[name](folder)


def vectors(model: Any, **options: Any) -> torch.Tensor:
    """Embeddings of all sentences; of a model with routes those of both languages."""
    if not isinstance(model[0], Router):
        return torch.as_tensor(model.encode(SENTENCES, **options))
    english = model.encode(SENTENCES, task="en", **options)
    french = model.encode(SENTENCES, task="fr", **options)
    return torch.cat([torch.as_tensor(english), torch.as_tensor(french)])
