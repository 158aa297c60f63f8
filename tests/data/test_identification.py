from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data import identification
from hf_xlsr.data.identification import cached_identifier, load_identifier, share_of_first
from hf_xlsr.utils.errors import XlsrError

needs_py3langid = pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs the extra text")
ENGLISH = "Yesterday I worked in the garden with my brother."
NORWEGIAN = "Jeg heter Kari og bor i en liten by ved kysten."


@pytest.mark.parametrize("method", ["py3langid", "heliport"])
def test_identifier_knows_languages_by_any_code(method: str) -> None:
    pytest.importorskip(method)
    identifier = load_identifier(method)
    for code in ("en", "eng", "eng_Latn", "en-GB"):
        assert identifier.share(ENGLISH, (code,)) > 0.9
        assert identifier.share(NORWEGIAN, (code,)) < 0.05
    assert identifier.share(NORWEGIAN, ("nb",)) > 0.9
    assert identifier.share("12 + 30", ("ja",)) == 1


@pytest.mark.parametrize("method", ["py3langid", "heliport"])
def test_identifier_refuses_a_language_that_it_lacks(method: str) -> None:
    pytest.importorskip(method)
    with pytest.raises(XlsrError, match=f"{method} .*'tlh'"):
        load_identifier(method).check(["en", "tlh"])


def test_missing_fasttext_model_is_named(tmp_path: Path) -> None:
    pytest.importorskip("fasttext")
    with pytest.raises(XlsrError, match=r"gone\.ftz"):
        load_identifier(f"fasttext:{tmp_path}/gone.ftz")


class FixedFastText:
    def predict(self, text: str, k: int, threshold: float) -> tuple[tuple[str, ...], list[float]]:
        assert "\n" not in text
        labels = ("__label__de", "__label__en", "__label__fr")
        return labels[: 3 if threshold < 0 else 2], [0.9, 0.1, 0.0][: 3 if threshold < 0 else 2]


def test_fasttext_model_is_read_by_its_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fasttext = pytest.importorskip("fasttext")
    monkeypatch.setattr(fasttext, "load_model", lambda path: FixedFastText())
    file = tmp_path / "lid.ftz"
    file.write_bytes(b"model")
    identifier = load_identifier(f"fasttext:{file}")
    assert identifier.share("Guten\nTag", ("deu",)) == pytest.approx(0.9)
    assert identifier.share("Guten Tag", ("fr",)) == 0
    with pytest.raises(XlsrError, match="'zu'"):
        identifier.check(["zu"])

    file.write_bytes(b"other")
    cached_identifier.cache_clear()
    assert load_identifier(f"fasttext:{file}").name != identifier.name


def test_unknown_method_is_named() -> None:
    with pytest.raises(XlsrError, match="'langid'.*heliport"):
        load_identifier("langid")


@given(
    own=st.floats(0, 1),
    others=st.lists(st.floats(0, 1), max_size=4),
)
@settings(max_examples=50)
def test_share_is_that_of_the_best_two(own: float, others: list[float]) -> None:
    probabilities = {"de": own, **{code: value for code, value in zip(("en", "fr", "nl", "ja"), others, strict=False)}}
    share = identification.Identifier("fixed", lambda text: probabilities).share("x", ("deu",))
    best = max(others, default=0.0)
    assert share == (pytest.approx(own / (own + best)) if own + best else 1.0)


def share(text: str, first: str, second: str) -> float | None:
    return share_of_first((first, second), place="a line", advice="name it")(text)


def test_letters_determine_scripts_that_differ() -> None:
    # Two Latin letters against one that counts four times, whatever the order and the tag of the languages.
    assert share("ok 茶", "en", "zh") == pytest.approx(1 / 3)
    assert share("ok 茶", "cmn", "eng_Latn") == pytest.approx(2 / 3)
    assert share("да 茶", "ru", "zh") == pytest.approx(2 / 3)  # neither is Latin
    assert share("8:30 😀", "en", "zh") is None
    assert share("να", "en", "zh") is None


@needs_py3langid
def test_identifier_divides_the_share_of_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fixed:
        nb_classes = ("en", "fr", "de", "zh")

        def rank(self, text: str) -> list[tuple[str, float]]:
            return [("en", 0.6), ("fr", 0.2), ("de", 0.15), ("zh", 0.05)]

    monkeypatch.setattr(identification, "py3langid_identifier", Fixed)
    assert share("okay", "en", "fr") == pytest.approx(0.75)
    assert share("okay", "gsw", "en") == pytest.approx(0.4)  # gsw gets the rest


@needs_py3langid
@given(text=st.text(), tags=st.permutations(["en", "fr", "zh", "ja", "ru", "gsw"]).map(lambda tags: tags[:2]))
@settings(max_examples=50)
def test_shares_sum_to_one_in_any_order(text: str, tags: list[str]) -> None:
    first, second = tags
    share_first = share(text, first, second)
    share_second = share(text, second, first)
    if share_first is None or share_second is None:
        assert share_first is share_second
    else:
        assert share_first >= 0
        assert share_first + share_second == pytest.approx(1)


@needs_py3langid
@pytest.mark.parametrize("tags", [("nb", "nn"), ("gsw", "ang"), ("zh", "yue")])
def test_inseparable_languages_are_an_error(tags: tuple[str, str]) -> None:
    with pytest.raises(XlsrError, match="name it"):
        share("text", *tags)
