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
    sources, targets = [f"s{i}" for i in range(count)], [f"t{i}" for i in range(count)]
    vectors = rng.normal(size=(count, width))
    moved = vectors + noise * rng.normal(size=vectors.shape)
    return TableEncoder(dict(zip(sources + targets, [*vectors, *moved], strict=True))), sources, targets


def cosines(encoder: TableEncoder, sources: list[str], targets: list[str]) -> np.ndarray:
    """All cosines between two sides, float64, by plain NumPy."""
    x, y = (np.array([encoder.table[text] for text in side]) for side in (sources, targets))
    return (x / np.linalg.norm(x, axis=1)[:, None]) @ (y / np.linalg.norm(y, axis=1)[:, None]).T


def word_model(seed: int = 3) -> SentenceTransformer:
    """A sentence-transformers model without a network: the mean of random word vectors."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(["[UNK]", *WORDS])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    weights = np.random.default_rng(seed).normal(size=(len(WORDS) + 1, 12)).astype(np.float32)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu")


def word_pairs(count: int, seed: int = 3) -> tuple[list[str], list[str]]:
    """Sentences of five words, and the same with the last word exchanged for another; no sentence occurs twice."""
    rng = np.random.default_rng(seed)
    sources = [list(rng.choice(WORDS, 5)) for _ in range(count)]
    targets = [[*sentence[:4], rng.choice(WORDS)] for sentence in sources]
    source_texts, target_texts = ([" ".join(sentence) for sentence in side] for side in (sources, targets))
    assert len(set(source_texts)) == len(set(target_texts)) == count
    return source_texts, target_texts


def world(
    rows: int = 150, offset: float = 3.0, noise: float = 0.5, seed: int = 0, languages: tuple[str, ...] = LANGUAGES
) -> tuple[TableEncoder, dict[str, list[str]]]:
    """Sentences whose vectors are what the row says, some noise, and something that only the language says."""
    rng = np.random.default_rng(seed)
    meaning = rng.normal(size=(rows, 24))
    table, texts = {}, {}
    for language in languages:
        said = offset * rng.normal(size=24)
        texts[language] = [f"{language} {row}" for row in range(rows)]
        table |= dict(zip(texts[language], meaning + noise * rng.normal(size=meaning.shape) + said, strict=True))
    return TableEncoder(table), texts
