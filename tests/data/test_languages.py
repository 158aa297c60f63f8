from __future__ import annotations

import importlib.util
import unicodedata

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data import languages
from hf_xlsr.data.languages import foreign_letters, scripts_of, share_of_first
from hf_xlsr.utils.errors import XlsrError

needs_py3langid = pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs the extra text")


@settings(max_examples=50, deadline=None)
@given(
    st.text(st.sampled_from("abñß жЩ漢字あー한कि้ก١2,.ʼµ😀"), max_size=30), st.sampled_from(["en", "ru", "ja", "hi"])
)
def test_foreign_letters_equal_a_loop(text: str, language: str) -> None:
    own, letters = [*scripts_of([language]), "Common"], [x for x in text if unicodedata.category(x)[0] == "L"]
    foreign = [x for x in letters if not any(regex.match(rf"\p{{Script={script}}}", x) for script in own)]
    assert foreign_letters(text, (language,)) == len(foreign)


IN_EACH_SCRIPT = {
    "az": "dil дил",
    "bs": "jezik језик",
    "cr": "ᓀᐦᐃᔭᐍᐏᐣ nēhiyawēwin",
    "ie": "Interlingue",
    "iu": "ᐃᓄᒃᑎᑐᑦ Inuktitut",
    "kk": "қазақ qazaq قازاق",
    "ks": "کٲشُر कॉशुर",
    "ku": "kurdî کوردی",
    "mn": "монгол ᠮᠣᠩᠭᠣᠯ",
    "sd": "سنڌي सिन्धी",
    "sr": "jezik језик",
    "tk": "dil дил",
    "uz": "til тил",
}
"""A language's name, or its word for language, in each script that it is written in."""


@pytest.mark.parametrize("language", IN_EACH_SCRIPT)
def test_no_letter_of_an_own_script_is_foreign(language: str) -> None:
    assert foreign_letters(IN_EACH_SCRIPT[language], (language,)) == 0


def share(text: str, first: str, second: str) -> float | None:
    return share_of_first((first, second), place="a line", advice="name it")(text)


def test_letters_determine_scripts_that_differ() -> None:
    # Two Latin letters against one that counts four times, whatever the order and the tag of the languages.
    assert share("ok 茶", "en", "zh") == pytest.approx(1 / 3)
    assert share("ok 茶", "cmn", "eng_Latn") == pytest.approx(2 / 3)
    assert share("да 茶", "ru", "zh") == pytest.approx(2 / 3)  # neither is Latin
    assert share("8:30 😀", "en", "zh") is share("να", "en", "zh") is None


@needs_py3langid
def test_identifier_divides_the_share_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        nb_classes = ("en", "fr", "de", "zh")

        def rank(self, text: str) -> list[tuple[str, float]]:
            return [("en", 0.6), ("fr", 0.2), ("de", 0.15), ("zh", 0.05)]

    monkeypatch.setattr(languages, "language_identifier", Fixed)
    assert share("okay", "en", "fr") == pytest.approx(0.75)
    assert share("okay", "gsw", "en") == pytest.approx(0.4)  # gsw gets the rest


@needs_py3langid
@given(text=st.text(), tags=st.permutations(["en", "fr", "zh", "ja", "ru", "gsw"]).map(lambda tags: tags[:2]))
@settings(max_examples=50, deadline=None)
def test_shares_sum_to_one_in_any_order(text: str, tags: list[str]) -> None:
    found, reverse = share(text, *tags), share(text, *tags[::-1])
    if found is None or reverse is None:
        assert found is reverse
    else:
        assert found >= 0 and found + reverse == pytest.approx(1)


@needs_py3langid
@pytest.mark.parametrize("tags", [("nb", "nn"), ("gsw", "ang"), ("zh", "yue")])
def test_inseparable_languages_are_an_error(tags: tuple[str, str]) -> None:
    with pytest.raises(XlsrError, match="name it"):
        share("text", *tags)
