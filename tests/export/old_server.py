"""Reads an export as text-embeddings-inference does, with torch for its Rust.

It follows that program's sources of July 2026 (commit 0d124dc): `router/src/lib.rs` for pooling, length and tokenizer,
`backends/src/lib.rs` for the modules, `backends/candle/src` for the keys of `config.json` and the linear layers.
Where the program would stop, or leave out a module that it does not know, it raises `NotServedError`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModel

MODULES = [f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Dense", "Normalize")]
SERVED_FLAGS = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_lasttoken")
ACTIVATIONS: dict[str, Any] = {
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.linear.Identity": torch.nn.Identity(),
}
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
LENGTH = "max_position_embeddings"
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
BERT = (
    *SIZES,
    LENGTH,
    *DROPOUTS,
    "hidden_act",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
)
DECODER = (*SIZES, LENGTH, "attention_bias", "num_key_value_heads", "rms_norm_eps")
# Keys of `config.json` without which the program stops, by architecture.
REQUIRED: dict[str, tuple[str, ...]] = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "distilbert": ("vocab_size", "dim", "n_layers", "n_heads", "hidden_dim", "activation", LENGTH, "pad_token_id"),
    "mpnet": (*SIZES, LENGTH, *DROPOUTS, "hidden_act", "layer_norm_eps", "relative_attention_num_buckets"),
    "modernbert": (
        *(
            *SIZES,
            LENGTH,
            "hidden_activation",
            "initializer_range",
            "initializer_cutoff_factor",
            "norm_eps",
            "norm_bias",
        ),
        *("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id", "attention_bias"),
        *(
            "attention_dropout",
            "global_attn_every_n_layers",
            "local_attention",
            "global_rope_theta",
            "local_rope_theta",
        ),
        "classifier_activation",
    ),
    "qwen3": (*DECODER, "hidden_act", "use_sliding_window", "eos_token_id", "rope_theta"),
    "gemma3_text": (
        *(*DECODER, "pad_token_id", "hidden_activation", "query_pre_attn_scalar", "_sliding_window_pattern"),
        *("use_bidirectional_attention", "rope_theta", "rope_local_base_freq"),
    ),
}
DECODERS = ("qwen3", "gemma3_text")


class NotServedError(Exception):
    """The folder has something that the program does not know."""


def read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


def require(is_served: bool, what: str) -> None:
    if not is_served:
        raise NotServedError(what)


class OldServer:
    """The encoder of a folder."""

    def __init__(self, folder: Path) -> None:
        self.layers = [Linear(folder / path) for path in linear_layers(folder)]
        self.check_config(read(folder / "config.json"))
        self.flag = self.pooling_flag(folder)
        self.encoder = AutoModel.from_pretrained(folder).eval()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(read(folder / "sentence_bert_config.json")["max_seq_length"])

    def check_config(self, config: dict[str, Any]) -> None:
        self.model_type = config["model_type"]
        require(self.model_type in REQUIRED, self.model_type)
        for key in REQUIRED[self.model_type]:
            require(config.get(key) is not None, key)
        if self.model_type in DECODERS and "rope_parameters" in config:
            require("rope_theta" in config["rope_parameters"], "rope_parameters")

    def pooling_flag(self, folder: Path) -> str:
        """The first flag that is set of those that the program knows, in the one place that it looks at."""
        file = folder / "1_Pooling" / "config.json"
        require(file.is_file(), "no pooling, so the first state of BERT")
        config = read(file)
        for flag in SERVED_FLAGS:
            if config[flag]:
                require(flag != SERVED_FLAGS[-1] or self.model_type in DECODERS, flag)
                return flag
        raise NotServedError("pooling")

    @torch.no_grad()
    def embed(self, texts: list[str]) -> torch.Tensor:
        """Embeddings of length 1, as the program gives them by default."""
        vectors = []
        for text in texts:
            ids = self.tokenizer.encode(text).ids
            states = self.encoder(input_ids=torch.tensor([ids])).last_hidden_state[0]
            vectors.append(self.pool(states))

        embeddings = torch.stack(vectors)
        for layer in self.layers:
            embeddings = layer(embeddings)
        return torch.nn.functional.normalize(embeddings, dim=-1)

    def pool(self, states: torch.Tensor) -> torch.Tensor:
        if self.flag == "pooling_mode_mean_tokens":
            return states.mean(0)
        return states[-1 if self.flag == "pooling_mode_lasttoken" else 0]


class Linear:
    """A `Dense`."""

    def __init__(self, folder: Path) -> None:
        config = read(folder / "config.json")
        require(config["activation_function"] in ACTIVATIONS, config["activation_function"])
        self.activation = ACTIVATIONS[config["activation_function"]]
        self.weights = load_file(folder / "model.safetensors")

    def __call__(self, vectors: torch.Tensor) -> Any:
        linear = torch.nn.functional.linear(vectors, self.weights["linear.weight"], self.weights.get("linear.bias"))
        return self.activation(linear)


def linear_layers(folder: Path) -> list[str]:
    """Folders of the linear layers, in order; the program leaves all of them out if one module is unknown."""
    entries = read(folder / "modules.json")
    for entry in entries:
        require(entry["type"] in MODULES, entry["type"])
    return [entry["path"] for entry in entries if entry["type"].endswith(".Dense")]
