from __future__ import annotations

from typing import Any

import pytest
import sacrebleu

from hf_xlsr.evaluation.bleu import bleu, bleu_rows, corpus_bleu

TRANSLATIONS = ["The cat sat on the mat.", "A dog barks, loudly!", "He doesn't know (yet)."]
REFERENCES = ["The cat is sitting on the mat.", "A dog barks loudly.", "He doesn't know it yet."]


class Fixed:
    """Answers from a list and notes how it was asked."""

    def __init__(self, answers: dict[str, str]) -> None:
        self.answers = answers
        self.options: dict[str, Any] = {}

    def translate(self, sentences: Any, **options: Any) -> list[str]:
        self.options = options
        return [self.answers[sentence] for sentence in sentences]


@pytest.mark.parametrize("tokenize", ["13a", "zh", "none"])
def test_equals_sacrebleu(tokenize: str) -> None:
    score, signature = corpus_bleu(TRANSLATIONS, REFERENCES, tokenize=tokenize)
    expected = sacrebleu.corpus_bleu(TRANSLATIONS, [REFERENCES], tokenize=tokenize, force=True)
    assert score == pytest.approx(expected.score / 100, rel=1e-12)
    assert 0 < score < 1
    settings = {f"tok:{tokenize}", f"version:{sacrebleu.__version__}", "case:mixed", "smooth:exp"}
    assert settings <= set(signature.split("|"))


def test_keys() -> None:
    translator = Fixed({"eins": "one two three four", "zwei": "two"})
    scored = bleu(
        translator,
        ["zwei", "eins"],
        ["two", "one two three four"],
        languages=("de", "en"),
        name="multi30k",
        tokenize=["13a", "none"],
        num_beams=4,
        length_penalty=0.6,
    )
    assert scored.results == {
        "multi30k-bleu/de-en/test/bleu": 1.0,
        "multi30k-bleu/de-en/test/sentences": 2,
        "multi30k-bleu-none/de-en/test/bleu": 1.0,
        "multi30k-bleu-none/de-en/test/sentences": 2,
    }
    assert translator.options == {"num_beams": 4, "length_penalty": 0.6}
    assert scored.texts == ["two", "one two three four"]

    assert list(scored.signatures) == ["multi30k-bleu/de-en/test/bleu", "multi30k-bleu-none/de-en/test/bleu"]
    by_default, without_tokenizing = scored.signatures.values()
    assert "|tok:13a|" in by_default
    assert "|tok:none|" in without_tokenizing


def test_rows_of_several_language_pairs() -> None:
    rows = [
        {"source": "eins", "target": "one two three four", "source_lang": "de", "target_lang": "en"},
        {"source": "eins", "target": "一二三四", "source_lang": "de", "target_lang": "zh"},
        {"source": "zwei", "target": "two", "source_lang": "de", "target_lang": "en"},
    ]
    translator = Fixed({"eins": "one two three four", "zwei": "two"})

    metrics = bleu_rows(translator, rows, name="toy", split="dev").results

    assert metrics["toy-bleu/de-en/dev/bleu"] == 1
    assert metrics["toy-bleu/de-en/dev/sentences"] == 2
    assert metrics["toy-bleu-zh/de-zh/dev/bleu"] < 0.1
    assert metrics["toy-bleu-zh/de-zh/dev/sentences"] == 1
