from __future__ import annotations

import math
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import sacrebleu

from hf_xlsr.evaluation.bleu import bleu, bleu_rows, corpus_bleu

TRANSLATIONS = ["The cat sat on the mat.", "A dog barks, loudly!", "He doesn't know (yet)."]
REFERENCES = ["The cat is sitting on the mat.", "A dog barks loudly.", "He doesn't know it yet."]


class Fixed:
    """Answers from a list and notes how it was asked."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers, self.options = answers, {}

    def translate(self, sentences: Any, **options: Any) -> list[str]:
        self.options = options
        return [self.answers[sentence] for sentence in sentences]


def test_hand_example() -> None:
    # "the cat sat on the mat" against "the cat is on the mat": 5 of 6 words, 3 of 5 pairs (the cat, on the, the mat),
    # 1 of 4 triples (on the mat), 0 of 3 quadruples, which smoothing counts as half of a third; no brevity penalty.
    expected = math.exp(sum(map(math.log, (5 / 6, 3 / 5, 1 / 4, 1 / 6))) / 4)
    score, _ = corpus_bleu(["the cat sat on the mat"], ["the cat is on the mat"], tokenize="none")
    assert score == pytest.approx(expected, rel=1e-12) == pytest.approx(0.379918, abs=1e-6)


@pytest.mark.parametrize("tokenize", ["13a", "intl", "char", "zh", "none"])
def test_equals_sacrebleu(tokenize: str) -> None:
    score, signature = corpus_bleu(TRANSLATIONS, REFERENCES, tokenize=tokenize)
    theirs = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES], tokenize=tokenize, force=True)
    assert score == pytest.approx(theirs.score / 100, rel=1e-12)
    assert 0 < score < 1
    for part in (f"tok:{tokenize}", f"version:{sacrebleu.__version__}", "case:mixed", "smooth:exp"):
        assert part in signature.split("|")


def test_moses_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    languages: list[str] = []

    class MosesTokenizer:
        def __init__(self, lang: str) -> None:
            languages.append(lang)

        def tokenize(self, text: str, return_str: bool, escape: bool) -> str:
            assert return_str and not escape
            return text.replace(".", " .")

    module = ModuleType("sacremoses")
    module.__spec__ = ModuleSpec("sacremoses", None)
    module.MosesTokenizer = MosesTokenizer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sacremoses", module)
    for language in ("de", "deu_Latn"):
        score, signature = corpus_bleu(["the cat sat."], ["the cat sat. "], tokenize="moses", language=language)
        by_hand, _ = corpus_bleu(["the cat sat ."], ["the cat sat ."], tokenize="none")
        assert score == by_hand == 1 and "tok:moses" in signature
    assert languages == ["de", "de"]


def test_keys() -> None:
    translator = Fixed({"eins": "one two three four", "zwei": "two"})
    signatures: dict[str, str] = {}
    found: list[str] = []
    metrics = bleu(
        translator,
        ["zwei", "eins"],
        ["two", "one two three four"],
        languages=("de", "en"),
        name="multi30k",
        tokenize=["13a", "none"],
        signatures=signatures,
        translations=found,
        num_beams=4,
        length_penalty=0.6,
    )
    assert metrics == {
        "multi30k-bleu/de-en/test/bleu": 1.0,
        "multi30k-bleu/de-en/test/sentences": 2,
        "multi30k-bleu-none/de-en/test/bleu": 1.0,
        "multi30k-bleu-none/de-en/test/sentences": 2,
    }
    assert translator.options == {"num_beams": 4, "length_penalty": 0.6} and found == ["two", "one two three four"]
    assert [name.split("|")[3] for name in signatures.values()] == ["tok:13a", "tok:none"]
    assert list(signatures) == ["multi30k-bleu/de-en/test/bleu", "multi30k-bleu-none/de-en/test/bleu"]


def test_rows_of_several_language_pairs() -> None:
    rows = [
        {"source": "eins", "target": "one two three four", "source_lang": "de", "target_lang": "en"},
        {"source": "eins", "target": "一二三四", "source_lang": "de", "target_lang": "zh"},
        {"source": "zwei", "target": "two", "source_lang": "de", "target_lang": "en"},
    ]
    metrics = bleu_rows(Fixed({"eins": "one two three four", "zwei": "two"}), rows, name="toy", split="dev")
    assert metrics["toy-bleu/de-en/dev/bleu"] == 1 and metrics["toy-bleu/de-en/dev/sentences"] == 2
    assert metrics["toy-bleu-zh/de-zh/dev/bleu"] < 0.1 and metrics["toy-bleu-zh/de-zh/dev/sentences"] == 1
