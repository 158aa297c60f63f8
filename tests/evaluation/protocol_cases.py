"""Every protocol on a few texts, as a function of an encoder, by name."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from datasets import Dataset

from hf_xlsr.encoders.debias import fit_debias
from hf_xlsr.evaluation import (
    BuccData,
    bucc,
    language_bias,
    mining,
    nli,
    pair_classification,
    search,
    search_documents,
    sts,
    tatoeba,
    tatoeba_laser,
    tatoeba_mteb,
    tatoeba_xtreme,
    xsim,
    xsim_pp,
    xsr_both_directions,
    zero_shot,
)
from hf_xlsr.evaluation.protocols.senteval import senteval
from hf_xlsr.evaluation.results import Results
from hf_xlsr.sentence_transformers import TatoebaEvaluator

COUNT = 12
ENGLISH = [f"en {number}" for number in range(COUNT)]
GERMAN = [f"de {number}" for number in range(COUNT)]
PAIR: dict[str, Any] = {"languages": ("en", "de"), "name": "data"}
LABELS = [0, 1] * 6


class Prompted:
    """An encoder with prompts, which remembers the prompt of each text; its vectors depend on the text only."""

    def __init__(self, prompts: dict[str, str], default: str | None = None) -> None:
        self.prompts = {"query": "", "document": "", **prompts}  # as sentence-transformers
        self.default_prompt_name = default
        self.used: dict[str, set[str]] = {}

    def encode(self, texts: list[str], *, prompt: str | None = None, **options: Any) -> np.ndarray:
        if prompt is None:
            prompt = self.prompts[self.default_prompt_name] if self.default_prompt_name else ""
        for text in texts:
            self.used.setdefault(text, set()).add(prompt)
        return np.stack([self.vector_of(text) for text in texts])

    @staticmethod
    def vector_of(text: str) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(text.encode())).normal(size=8)

    def prompts_of(self, language: str) -> set[str]:
        """The prompts of texts that begin with the language's code."""
        prompts = set()
        for text, prompts_of_text in self.used.items():
            if text.startswith(language):
                prompts |= prompts_of_text
        return prompts

    def by_language(self) -> dict[str, set[str]]:
        return {"en": self.prompts_of("en"), "de": self.prompts_of("de")}


def _bitext(start: int) -> BuccData:
    numbers = range(start, start + 8)
    sources = [f"en {number}" for number in numbers]
    targets = [f"de {number}" for number in numbers]
    ids = list("abcdefgh")
    return BuccData(ids, sources, ids, targets, frozenset({("a", "a"), ("b", "b")}))


def _rows(**columns: list[Any]) -> list[dict[str, Any]]:
    return Dataset.from_dict(columns).to_list()


def _texts(language: str) -> list[dict[str, Any]]:
    return _rows(text=[f"{language} {number}" for number in range(COUNT)], label=LABELS)


def _premises(language: str) -> list[dict[str, Any]]:
    return _rows(
        premise=[f"{language} {number}" for number in range(COUNT)],
        hypothesis=[f"{language} b{number}" for number in range(COUNT)],
        label=[0, 1, 2] * 4,
    )


def _relatedness(language: str) -> list[dict[str, Any]]:
    return _rows(
        sentence1=[f"{language} {number}" for number in range(COUNT)],
        sentence2=[f"{language} b{number}" for number in range(COUNT)],
        score=[0, 1, 2, 3, 4, 5] * 2,
        split=["train", "dev", "test"] * 4,
    )


Call = Callable[..., Any]
SENTENCES: dict[str, Any] = {"sources": ENGLISH, "targets": GERMAN, **PAIR}
# Protocols of translation pairs, whose English side is the source.
OF_PAIRS: dict[str, Call] = {
    "tatoeba": partial(tatoeba, **SENTENCES),
    "tatoeba-laser": partial(tatoeba_laser, **SENTENCES),
    "tatoeba-mteb": partial(tatoeba_mteb, **SENTENCES),
    "tatoeba-xtreme": partial(tatoeba_xtreme, english=ENGLISH, foreign=GERMAN, **PAIR),
    "xsim": partial(xsim, **SENTENCES),
    "xsim-pp": partial(xsim_pp, **SENTENCES),
    "xsr": partial(xsr_both_directions, **SENTENCES, source_pool=ENGLISH, target_pool=GERMAN),
    "bucc": partial(bucc, tune=_bitext(0), test=_bitext(8), **PAIR, k=2),
    "mining": partial(mining, **SENTENCES, hide_pairs=0.5, k=2),
    "evaluator": lambda encoder, **options: TatoebaEvaluator(**SENTENCES, **options).measure(encoder),
}
# The others, in both languages.
OF_TEXTS: dict[str, Call] = {
    "sts": partial(
        sts,
        tasks={"x": _rows(sentence1=ENGLISH, sentence2=GERMAN, score=LABELS)},
        language="en-de",
    ),
    "pair-classification": partial(
        pair_classification,
        rows=_rows(sentence1=ENGLISH, sentence2=GERMAN, label=LABELS),
        language="en-de",
        name="x",
    ),
    "zero-shot": partial(
        zero_shot,
        train=_texts("en"),
        dev=_texts("en"),
        tests={"de": _texts("de")},
        train_language="en",
        name="x",
    ),
    "nli": partial(
        nli,
        train=_premises("en"),
        dev=_premises("en"),
        tests={"de": _premises("de")},
        train_language="en",
        name="x",
        head="linear",
    ),
    "senteval": lambda encoder, **options: _senteval_in_both(encoder, **options),
    "language-bias": partial(language_bias, texts={"en": ENGLISH, "de": GERMAN}, name="x"),
    "debias": partial(fit_debias, texts={"en": ENGLISH, "de": GERMAN}),
}
SEARCHES: dict[str, Call] = {
    "search": partial(search, texts={"en": ENGLISH, "de": GERMAN}, name="x"),
    "search of documents": partial(
        search_documents,
        queries={"q": "en 1"},
        documents={"d": "de 1", "e": "de 2"},
        relevance={"q": {"d": 1}},
        name="x",
        query_languages={"q": "en"},
        document_languages={"d": "de", "e": "de"},
    ),
}
ALL = OF_PAIRS | OF_TEXTS | SEARCHES


def _senteval_in_both(encoder: Any, **options: Any) -> Results:
    results = Results()
    for language in ("en", "de"):
        tasks = {"STS-B": _relatedness(language)}
        results |= senteval(encoder, tasks, language=language, device="cpu", **options)
    return results
