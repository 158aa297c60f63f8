"""Edits: what each kind changes, and that training and tests never share material."""

from __future__ import annotations

import re
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_xlsr.data.edits import (
    DIGITS,
    KINDS,
    LANGUAGES,
    NUMBER_WORDS,
    OPPOSITES,
    USES,
    Edit,
    Editor,
    Use,
    names_in,
    use_of,
)
from hf_xlsr.evaluation import distractors
from hf_xlsr.utils.errors import XlsrError

PARTS = (
    "Anna Paris Karl Bonn Monday France German one twelve thirteen sixty first 12 1984 7 the dog a house was can't not "
    "hardly never no longer is happy sad clean dirty and to , ."
).split()
SENTENCES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=14).map(lambda parts: "We " + " ".join(parts))
NAMES = ["Anna", "Paris", "Karl", "Bonn", "Eve", "Rome", "Tokyo", "Lima"]


def edits(sentence: str, use: Use, language: str = "en", each: int = 3) -> list[Edit]:
    editor = Editor(language, use, LANGUAGES[language].kinds, names=NAMES)
    return editor(sentence, each=each)


def materials(sentences: list[str], use: Use, language: str = "en") -> set[str]:
    made = chain.from_iterable(edits(sentence, use, language) for sentence in sentences)
    return {edit.material.lower() for edit in made}


@given(st.lists(SENTENCES, max_size=12))
def test_training_and_tests_share_no_material(sentences: list[str]) -> None:
    assert materials(sentences, "train").isdisjoint(materials(sentences, "test"))


@given(st.lists(SENTENCES, max_size=8))
def test_words_of_training_are_in_no_distractor_of_the_protocol(sentences: list[str]) -> None:
    """`xsim-pp` without kinds draws any digits and names, but none of the words that training puts in."""
    words: set[str] = set()
    for sentence in sentences:
        for edit in edits(sentence, "train"):
            if edit.kind in ("number", "negation") and not DIGITS.fullmatch(edit.material):
                words.add(edit.material)

    for distractor in distractors(sentences):
        new_words = set(distractor.text.lower().split()) - set(sentences[distractor.row].lower().split())
        assert words.isdisjoint(new_words)


def test_word_lists_are_disjoint() -> None:
    for words in LANGUAGES.values():
        by_use = {use: set(chain.from_iterable(words.new_numbers.get(use, ()))) for use in USES}
        for use in USES:
            by_use[use] |= set(words.negators.get(use, ())) | set(words.opposites.get(use, {}))
        assert by_use["train"].isdisjoint(by_use["test"])

    of_the_protocol = set(chain.from_iterable(OPPOSITES)) | set(chain.from_iterable(NUMBER_WORDS)) | {"not"}
    english = LANGUAGES["en"]
    assert set(english.opposites["train"]).isdisjoint(of_the_protocol)
    assert set(chain.from_iterable(english.new_numbers["train"])).isdisjoint(of_the_protocol)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_each_list_has_two_words_for_each_use(language: str, use: Use) -> None:
    for words in LANGUAGES[language].entities:
        assert [use_of(word) for word in words].count(use) >= 2
    assert [use_of(str(digit)) for digit in range(1, 10)].count(use) >= 2


@given(SENTENCES, st.sampled_from(USES), st.sampled_from(list(LANGUAGES)))
def test_edits_differ_from_the_sentence_and_from_each_other(sentence: str, use: Use, language: str) -> None:
    made = edits(sentence, use, language)
    texts = [edit.text for edit in made]
    assert sentence not in texts
    assert len(set(texts)) == len(texts)
    assert made == edits(sentence, use, language)
    assert {edit.kind for edit in made} <= set(KINDS)


@pytest.mark.parametrize(
    ("kind", "sentence", "use", "expected"),
    [
        ("number", "Two men came.", "train", r"(Thir|Four|Fif|Six|Seven|Eigh|Nine)teen men came\."),
        ("number", "He has 25 cats.", "test", r"He has \d\d cats\."),
        ("name", "We met Anna there.", "train", r"We met \w+ there\."),
        ("negation", "He was here.", "test", r"He was not here\."),
        ("negation", "He was here.", "train", r"He was (hardly|no longer|scarcely) here\."),
        ("negation", "He was not happy.", "test", r"He was (happy|not sad)\."),
        ("negation", "The shirt felt clean.", "train", r"The shirt felt dirty\."),
        ("entity", "We left on Monday.", "train", r"We left on \w+day\."),
    ],
)
def test_examples(kind: str, sentence: str, use: Use, expected: str) -> None:
    editor = Editor("en", use, [kind], names=NAMES)
    texts = [edit.text for edit in editor(sentence, each=3)]
    assert texts
    for text in texts:
        assert re.fullmatch(expected, text)


@pytest.mark.parametrize("sentence", ["The dog bit the man.", "He flew from Rome to Lima.", "Of 25 men 13 came."])
def test_order_belongs_to_one_use(sentence: str) -> None:
    made = edits(sentence, "train") + edits(sentence, "test")
    (order,) = [edit for edit in made if edit.kind == "order"]
    assert sorted(order.text.split()) == sorted(sentence.split()) or sorted(order.text) == sorted(sentence)
    assert order.text != sentence


@pytest.mark.parametrize(
    "sentence", ["We met Anna and Karl.", "We need 12, 13 or more.", "We saw Rome, Lima and Bonn."]
)
def test_items_of_a_list_keep_their_order(sentence: str) -> None:
    neighbours = [edit for use in USES for edit in edits(sentence, use) if edit.kind == "order"]
    for edit in neighbours:
        assert edit.material == "bonn rome"  # with an item between them


def test_other_languages_have_digits() -> None:
    editor = Editor("th", "train", ["number"])
    (edit,) = editor("ฉันมีแมว 25 ตัว")
    assert edit.text != "ฉันมีแมว 25 ตัว"
    with pytest.raises(XlsrError, match=r"'th'.*'name'"):
        Editor("th", "train", ["name"])


def test_names() -> None:
    assert names_in(["We met Anna in Paris.", "The man met Karl.", "He saw Anna."]) == ["Anna", "Paris", "Karl"]
