from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_xlsr.data import running_text
from hf_xlsr.data.running_text import split_sentences


@pytest.mark.parametrize(
    "language, text, expected",
    [
        ("en", "Dr. Smith went home. He slept!  Why?", ["Dr. Smith went home.", "He slept!", "Why?"]),
        ("de", "Das ist z.B. gut. Ja!", ["Das ist z.B. gut.", "Ja!"]),
        ("deu_Latn", "Das ist z.B. gut. Ja!", ["Das ist z.B. gut.", "Ja!"]),
        ("hi", "यह घर है। वह जाता है।", ["यह घर है।", "वह जाता है।"]),
        ("ar", "ما هذا؟ هذا كتاب.", ["ما هذا؟", "هذا كتاب."]),
        ("cmn", "你好。今天天气很好!", ["你好。", "今天天气很好!"]),
        ("xx", "One here. Two here.", ["One here.", "Two here."]),
    ],
)
def test_marks_and_abbreviations_of_a_language(language: str, text: str, expected: list[str]) -> None:
    assert split_sentences(text, language) == expected


def test_white_space_is_normalised_and_empty_sentences_are_dropped() -> None:
    assert split_sentences("\n\n  One\tline\nmore. \r\n\r\n\n Two. \n", "en") == ["One line more.", "Two."]
    assert split_sentences(" \n\n ", "en") == split_sentences("", "en") == []


@given(st.text(max_size=200))
def test_no_character_but_white_space_is_lost(text: str) -> None:
    assert "".join("".join(split_sentences(text, "en")).split()) == "".join(text.split())


@pytest.mark.parametrize("block", [17, 64, 1000])
def test_blocks_leave_no_trace(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sentences = [f"The {number} cats of Mr. Lee sat there." for number in range(60)] + ["no end"]
    text = " ".join(sentences)
    assert split_sentences(text, "en") == sentences
    monkeypatch.setattr(running_text, "_BLOCK", block)
    assert split_sentences(text, "en") == sentences
