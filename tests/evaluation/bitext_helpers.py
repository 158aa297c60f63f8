"""Encoders whose vectors a test can choose or foresee."""

from __future__ import annotations

from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

LANGUAGES = ("de", "en", "fr", "zh")
WORDS = [f"w{i}" for i in range(40)]


class TableEncoder:
    """Looks the vector of a text up, and keeps what it was asked for."""

    def __init__(self, table: dict[str, Any]):
        self.table = table
        self.tasks: list[str | None] = []
        self.texts: list[str] = []
        self.routes: tuple[str, ...] = ()

    def encode(self, texts: list[str], **kwargs: Any) -> np.ndarray:
        self.tasks.append(kwargs.get("task"))
        self.texts += texts
        return np.array([self.table[text] for text in texts], np.float64)


def noisy(count: int, noise: float, seed: int = 0, width: int = 16) -> tuple[TableEncoder, list[str], list[str]]:
    """An encoder, sources `s0`, `s1`... and targets `t0`, `t1`... whose vectors are the sources' and some noise."""
    rng = np.random.default_rng(seed)
    sources = [f"s{number}" for number in range(count)]
    targets = [f"t{number}" for number in range(count)]

    source_vectors = rng.normal(size=(count, width))
    target_vectors = source_vectors + noise * rng.normal(size=(count, width))
    vectors = np.concatenate([source_vectors, target_vectors])
    table = dict(zip(sources + targets, vectors, strict=True))
    return TableEncoder(table), sources, targets


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cosines(encoder: TableEncoder, sources: list[str], targets: list[str]) -> np.ndarray:
    """All cosines between two sides, float64, by plain NumPy."""
    x = np.array([encoder.table[text] for text in sources])
    y = np.array([encoder.table[text] for text in targets])
    return unit(x) @ unit(y).T


def word_model(seed: int = 3) -> SentenceTransformer:
    """A sentence-transformers model without a network: the mean of random word vectors."""
    vocabulary = {"[UNK]": 0}
    for number, word in enumerate(WORDS, start=1):
        vocabulary[word] = number
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()

    weights = np.random.default_rng(seed).normal(size=(len(vocabulary), 12)).astype(np.float32)
    embedding = StaticEmbedding(tokenizer, embedding_weights=weights)
    return SentenceTransformer(modules=[embedding], device="cpu")


def word_pairs(count: int, seed: int = 3) -> tuple[list[str], list[str]]:
    """Sentences of five words, and the same with the last word exchanged for another; no sentence occurs twice."""
    rng = np.random.default_rng(seed)
    sentences = rng.choice(WORDS, (count, 5)).tolist()
    translations = [[*sentence[:4], rng.choice(WORDS)] for sentence in sentences]
    sources = list(map(" ".join, sentences))
    targets = list(map(" ".join, translations))

    assert len(set(sources)) == count
    assert len(set(targets)) == count
    return sources, targets


def world(
    rows: int = 150, offset: float = 3.0, noise: float = 0.5, seed: int = 0, languages: tuple[str, ...] = LANGUAGES
) -> tuple[TableEncoder, dict[str, list[str]]]:
    """Sentences whose vectors are what the row says, some noise, and something that only the language says."""
    rng = np.random.default_rng(seed)
    meaning = rng.normal(size=(rows, 24))
    table = {}
    texts = {}
    for language in languages:
        of_language = offset * rng.normal(size=24)
        vectors = meaning + of_language + noise * rng.normal(size=(rows, 24))
        sentences = [f"{language} {row}" for row in range(rows)]
        texts[language] = sentences
        table |= dict(zip(sentences, vectors, strict=True))
    return TableEncoder(table), texts
