"""How much a text is of each of a few languages: by letters, by the identifier within a script, or by neither."""

from __future__ import annotations

import importlib.util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data import language_identification
from hf_xlsr.data.language_identification import language_shares
from hf_xlsr.utils.errors import XlsrError

needs_langid = pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs the extra langid")


def shares(text: str, *languages: str) -> tuple[float, ...] | None:
    return language_shares(languages, place="a line", mend="name it")(text)


def test_letters_of_scripts_that_differ():
    # Two Latin letters against one that counts four times, whatever the order and the tag of the languages.
    assert shares("ok 茶", "en", "zh") == pytest.approx((1 / 3, 2 / 3))
    assert shares("ok 茶", "cmn", "eng_Latn") == pytest.approx((2 / 3, 1 / 3))
    # None of the two is Latin: each letter counts the same.
    assert shares("да 茶", "ru", "zh") == pytest.approx((2 / 3, 1 / 3))
    assert shares("να", "en", "ru", "el") == (0.0, 0.0, 1.0)


@pytest.mark.parametrize("text", ["", "8:30", "😀 – !", "να"])
def test_texts_that_say_nothing(text: str):
    assert shares(text, "en", "zh") is None


@needs_langid
def test_the_identifier_divides_what_letters_give_to_a_script(monkeypatch: pytest.MonkeyPatch):
    class Fixed:
        def rank(self, text: str) -> list[tuple[str, float]]:
            return [("en", 0.6), ("fr", 0.2), ("de", 0.15), ("zh", 0.05)]

    monkeypatch.setattr(language_identification, "language_identifier", Fixed)
    assert shares("okay", "en", "fr") == pytest.approx((0.75, 0.25))
    # Half of the weight is Han; the Latin half goes 3 : 1.
    assert shares("okay 茶", "fr", "zh", "en") == pytest.approx((0.125, 0.5, 0.375))
    # Swiss German is none of the identifier's: it gets what the others leave.
    assert shares("okay", "gsw", "en", "fr") == pytest.approx((0.2, 0.6, 0.2))


@needs_langid
def test_languages_that_share_a_script_through_a_third_one_are_one_group():
    # Serbian is written in both scripts, so that letters tell none of the three from another.
    found = shares("Где ты оставил ключи от машины?", "en", "ru", "sr")
    assert found is not None and found.index(max(found)) == 1 and found[0] > 0
    assert shares("Где ты оставил ключи от машины?", "en", "ru", "zh") == (0.0, 1.0, 0.0)


@needs_langid
@given(text=st.text(), languages=st.permutations(["en", "fr", "zh", "ja", "ru", "gsw"]).map(lambda tags: tags[:4]))
@settings(max_examples=50, deadline=None)
def test_shares_are_shares_and_know_no_order(text: str, languages: list[str]):
    found, reverse = shares(text, *languages), shares(text, *languages[::-1])
    if found is None or reverse is None:
        assert found is reverse
    else:
        assert min(found) >= 0 and sum(found) == pytest.approx(1)
        assert found == pytest.approx(reverse[::-1])


@needs_langid
@pytest.mark.parametrize("languages", [("nb", "nn"), ("en", "gsw", "ang"), ("zh", "yue", "en")])
def test_languages_that_cannot_be_told_apart(languages: tuple[str, ...]):
    with pytest.raises(XlsrError, match=r"a line is in \w+.* or \w+, which py3langid cannot tell apart; name it\."):
        shares("text", *languages)


def test_the_identifier_is_asked_for_where_it_is_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert shares("茶", "en", "zh", "ru") == (0.0, 1.0, 0.0)
    says = r"to tell whether a line is in en, fr or de, the package py3langid is needed; .*install 'hf-xlsr\[langid\]'"
    with pytest.raises(XlsrError, match=says):
        shares("tea", "en", "fr", "zh", "de")
