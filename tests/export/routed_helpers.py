"""What the tests of routed exports share: two small encoders of different make, and their vectors worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel, PreTrainedModel

from hf_xlsr import DualMomentumConfig, DualMomentumModel
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.assembly import EncoderPart, with_modules
from hf_xlsr.encoders.heads import head_config

ENGLISH = [
    "The children are playing in the garden behind the house.",
    "She bought three tickets for the theatre yesterday.",
    "Where did you leave the keys of the car?",
    "Tea.",
]
CHINESE = ["孩子们在房子后面的花园里玩。", "她昨天买了三张戏票。", "你把车钥匙放在哪里了？", "茶。"]
MAX_LENGTH = 24
BERT: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
DISTILBERT: dict[str, Any] = {"dim": 12, "n_layers": 1, "n_heads": 2, "hidden_dim": 24}
BOTH: dict[str, Any] = {"max_position_embeddings": 40, "initializer_range": 0.3}


def dense_of(layer: nn.Linear) -> Dense:
    """A linear layer as a module of sentence-transformers, with the same weights."""
    bias = layer.bias is not None
    module = Dense(layer.in_features, layer.out_features, bias=bias, activation_function=nn.Identity())
    module.linear.load_state_dict(layer.state_dict())
    return module


def with_dense(model: SentenceTransformer, layer: nn.Linear) -> SentenceTransformer:
    """A model with a linear layer behind its pooling, and in front of a last `Normalize`."""
    transformer, pooling, *last = model
    return with_modules(model, [transformer, pooling, dense_of(layer), *last])


class Parts:
    """Encoders of width 16 (with a pooler, which no vector comes from) and 12, tokenizers, projections to 8."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        english = train_tokenizer(ENGLISH * 5, vocab_size=48, algorithm="bpe", max_length=MAX_LENGTH)
        chinese = train_tokenizer(CHINESE * 5, vocab_size=36, algorithm="bpe", max_length=MAX_LENGTH)
        self.tokenizers = {"en": english, "zh": chinese}
        self.encoders: dict[str, PreTrainedModel] = {
            "en": BertModel(BertConfig(vocab_size=len(english), **BERT, **BOTH)),
            "zh": DistilBertModel(DistilBertConfig(vocab_size=len(chinese), **DISTILBERT, **BOTH)),
        }
        # Left in training mode, as a trainer leaves them: the export must not keep their dropout.
        self.projections = {"en": nn.Linear(16, 8), "zh": nn.Linear(12, 8, bias=False)}

    def encoder_part(self, language: str) -> EncoderPart:
        """The encoder of a language with mean pooling, its projection and unit vectors behind it."""
        encoder = self.encoders[language]
        pooling = Pooling(encoder.config.hidden_size, pooling_mode="mean")
        head = [pooling, dense_of(self.projections[language]), Normalize()]
        return EncoderPart(encoder, self.tokenizers[language], head, {"max_seq_length": MAX_LENGTH})

    def model(self, encoders: dict[str, str] | None = None) -> DualMomentumModel:
        """A model with these encoders and projections; by default each language has its own.

        Args:
            encoders: By name in the model, the language of these parts that an encoder is of.
        """
        encoders = encoders or {"en": "en", "zh": "zh"}
        parts = {name: self.encoder_part(language) for name, language in encoders.items()}
        config = DualMomentumConfig(
            languages=["en", "fr", "de"] if "shared" in parts else list(parts),
            encoder_configs={name: part.encoder.config for name, part in parts.items()},
            heads={name: head_config(part.head or []) for name, part in parts.items()},
            transformer_options={name: part.options for name, part in parts.items()},
            queue_size=4,
        )
        return DualMomentumModel(config, parts)

    def by_hand(self, texts: list[str], language: str, *, projected: bool = True) -> np.ndarray:
        """Vectors one text at a time, so that nothing is padded, in float64."""
        encoder = self.encoders[language].double().eval()
        tokenizer = self.tokenizers[language]
        vectors = []
        with torch.no_grad():
            for text in texts:
                ids = tokenizer(text, truncation=True, max_length=MAX_LENGTH, return_tensors="pt").input_ids
                states = encoder(input_ids=ids).last_hidden_state[0]
                vector = states.mean(0)
                if projected:
                    layer = self.projections[language].double()
                    vector = layer(vector)
                    layer.float()
                vectors.append((vector / vector.square().sum().sqrt()).numpy())

        encoder.float().train()
        return np.stack(vectors)
