"""A server that reads folders by the names of older versions, as text-embeddings-inference does, with torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer

PACKAGE = "sentence_transformers.models."
SERVED_FLAGS = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_lasttoken")
ACTIVATIONS: dict[str, Any] = {
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.linear.Identity": torch.nn.Identity(),
}


class NotServedError(Exception):
    """The folder has something that the server does not know."""


def read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))


class OldServer:
    """The encoder of a folder, or of one route of it, which real servers do not read."""

    def __init__(self, folder: Path, route: str = "") -> None:
        modules = modules_of(folder, route)
        (first, place), *modules_behind = modules
        if first != "Transformer":
            raise NotServedError(first)
        is_t5 = read(place / "config.json")["model_type"] == "t5"
        auto_class: Any = AutoModelForTextEncoding if is_t5 else AutoModel
        self.encoder = auto_class.from_pretrained(place).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(place)
        self.max_length = read(place / "sentence_bert_config.json")["max_seq_length"]
        self.flag = ""
        self.layers: list[Any] = []
        for name, module_folder in modules_behind:
            if name == "Pooling":
                self.flag = pooling_flag(read(module_folder / "config.json"))
            elif name == "Dense":
                self.layers.append(Linear(module_folder))
            elif name != "Normalize":
                raise NotServedError(name)

    @torch.no_grad()
    def embed(self, texts: list[str]) -> torch.Tensor:
        """Embeddings of length 1, as the server gives them by default."""
        batch = self.tokenizer(texts, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt")
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        vectors = self.pool(self.encoder(**inputs).last_hidden_state, inputs["attention_mask"])
        for layer in self.layers:
            vectors = layer(vectors)
        return torch.nn.functional.normalize(vectors, dim=-1)

    def pool(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.flag == "pooling_mode_mean_tokens":
            weights = mask.unsqueeze(-1)
            return (states * weights).sum(1) / weights.sum(1)

        chosen = mask.argmax(1)  # texts may be padded on the left
        if self.flag == "pooling_mode_lasttoken":
            chosen = (mask * torch.arange(mask.shape[1])).argmax(1)
        return states[torch.arange(len(states)), chosen]


class Linear:
    """A `Dense`."""

    def __init__(self, folder: Path) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.activation = ACTIVATIONS[read(folder / "config.json")["activation_function"]]

    def __call__(self, vectors: torch.Tensor) -> Any:
        linear = torch.nn.functional.linear(vectors, self.weights["linear.weight"], self.weights.get("linear.bias"))
        return self.activation(linear)


def modules_of(folder: Path, route: str = "") -> list[tuple[str, Path]]:
    """Old names and folders of the modules of a folder, with those of a route in place of a router."""
    modules = []
    for entry in read(folder / "modules.json"):
        name = old_name(entry["type"])
        place = folder / entry["path"]
        if name == "Router" and route:
            router = read(place / "router_config.json")
            for part in router["structure"][route]:
                modules.append((old_name(router["types"][part]), place / part))
        else:
            modules.append((name, place))
    return modules


def old_name(module_type: str) -> str:
    """The name of a module in the old package; others are unknown."""
    package, _, name = module_type.rpartition(".")
    if f"{package}." != PACKAGE:
        raise NotServedError(module_type)
    return name


def pooling_flag(config: dict[str, Any]) -> str:
    """The first flag that the server knows; the keys of newer versions are unknown."""
    assert config["word_embedding_dimension"] > 0
    for flag in SERVED_FLAGS:
        if config[flag]:
            return flag
    raise NotServedError("pooling")
