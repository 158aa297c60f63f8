from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_xlsr.data.corpora.bible import TRANSLATIONS
from hf_xlsr.data.corpora.loading import CORPORA, corpora_table, load_corpus


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for `datasets.load_dataset`: notes the calls, gives rows."""
    fake = SimpleNamespace(calls=[], rows=[])

    def load(hub_id: str, config: str | None, *, split: str, **options: Any) -> Iterator[dict[str, Any]]:
        fake.calls.append((hub_id, config, split, options))
        return iter(fake.rows)

    monkeypatch.setattr("datasets.load_dataset", load)
    return fake


def pair(source: str, target: str, source_lang: str, target_lang: str) -> dict[str, str]:
    return {"source": source, "target": target, "source_lang": source_lang, "target_lang": target_lang}


@pytest.mark.parametrize(
    ("name", "languages", "config"), [("europarl", ("fr", "de"), "de-fr"), ("iitb", ("hi", "en"), None)]
)
def test_nested_pairs_in_either_order(hub: Any, name: str, languages: tuple[str, str], config: str | None) -> None:
    first, second = languages
    hub.rows = [{"translation": {first: "one", second: "two"}}]
    assert list(load_corpus(name, languages=languages)) == [pair("one", "two", first, second)]
    assert list(load_corpus(name, languages=[second, first])) == [pair("two", "one", second, first)]
    assert hub.calls == [(CORPORA[name].hub_id, config, "train", {"streaming": True})] * 2


def test_text_in_several_languages(hub: Any) -> None:
    hub.rows = [{"text": "words", "url": "somewhere"}]
    rows = list(load_corpus("wikipedia", languages=["en", "fr"]))
    assert rows == [{"text": "words", "lang": "en"}, {"text": "words", "lang": "fr"}]
    assert [call[1] for call in hub.calls] == ["20231101.en", "20231101.fr"]
    assert list(load_corpus("cc-text", languages=["he"], split="dev")) == [{"text": "words", "lang": "he"}]
    assert hub.calls[-1][1:3] == ("iw", "validation")


def test_empty_rows_are_skipped(hub: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    good = {"premise": "a", "hypothesis": "b", "label": 0}
    hub.rows = [{**good, "label": -1}, good, {**good, "hypothesis": " "}, {**good, "premise": None}]
    assert list(load_corpus("xnli", languages=["sw"], split="dev")) == [{**good, "lang": "sw"}]
    assert hub.calls == [("facebook/xnli", "sw", "validation", {"streaming": True})]
    assert "xnli: 3 rows" in caplog.text


def test_page_shows_the_catalog() -> None:
    page = (Path(__file__).parents[2] / "docs" / "corpora.md").read_text(encoding="utf-8")
    rows = []
    for line in page.splitlines():
        rows.append([cell.strip() for cell in line.strip("|").split("|")])

    for corpus in corpora_table():
        note = corpus.pop("note")
        assert list(corpus.values()) in rows
        assert note == "-" or f"- `{corpus['name']}`: {note}." in page
    for translation in TRANSLATIONS:
        language = translation.language + " (default)" * translation.default
        year = str(translation.year or "not stated")
        assert [language, f"`{translation.code}`", translation.title, year, translation.status] in rows
