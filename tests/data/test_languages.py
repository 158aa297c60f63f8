from __future__ import annotations

import unicodedata

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.languages import foreign_letters, scripts_of


@settings(max_examples=50)
@given(
    st.text(st.sampled_from("abñß жЩ漢字あー한कि้ก١2,.ʼµ😀"), max_size=30), st.sampled_from(["en", "ru", "ja", "hi"])
)
def test_foreign_letters_equal_a_loop(text: str, language: str) -> None:
    scripts = [*scripts_of([language]), "Common"]
    letters = [character for character in text if unicodedata.category(character).startswith("L")]
    of_language = regex.compile("|".join(rf"\p{{Script={script}}}" for script in scripts))
    foreign = [letter for letter in letters if not of_language.match(letter)]
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
