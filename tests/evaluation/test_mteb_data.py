"""mteb's data: rows with our columns, the language of a column, and languages as mteb writes them."""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import langcodes
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from mteb_helpers import ENGLISH, FRENCH, table, with_data

mteb = pytest.importorskip("mteb")

from hf_xlsr.evaluation.mteb.tasks import column_language, langscript, means, mteb_rows, mteb_task  # noqa: E402
from hf_xlsr.utils.errors import XlsrError  # noqa: E402

needs_py3langid = pytest.mark.skipif(importlib.util.find_spec("py3langid") is None, reason="needs the extra text")

Rows = list[dict[str, Any]]
BITEXT = ("source", "target", "source_lang", "target_lang")
STS = ("sentence1", "sentence2", "score", "lang")
PAIRS = ("sentence1", "sentence2", "label", "lang")
SENTENCES = {"sentence1": ["A dog."], "sentence2": ["Ein Hund."]}
LABELLED: dict[str, Any] = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "labels": [0, 1]}
FLORES = table(eng_Latn=["Yes"], deu_Latn=["Ja"], zho_Hans=["是"], zho_Hant=["是的"])
# Without a translation of the first target.
BUCC = {"sentence1": ["Zwei", "Drei"], "sentence2": ["One", "Two", "Three"], "gold": [(4, 1), (7, 2)]}
TATOEBA = {"deu-eng": {"test": table(sentence1=["Ja"], sentence2=["Yes"])}}
TATOEBA["cmn-eng"] = {"test": table(sentence1=["你好"], sentence2=["Hello"])}
STS17 = dict.fromkeys(("en-en", "en-de"), {"test": table(**SENTENCES, score=[5])})
STS12 = dict.fromkeys(("train", "test"), table(**SENTENCES, score=[2.5]))
CASES: list[tuple[str, Any, Any, tuple[str, ...], Any]] = [
    ("Tatoeba", list(TATOEBA), TATOEBA, BITEXT, [("Ja", "Yes", "de", "en"), ("你好", "Hello", "zh", "en")]),
    (
        "FloresBitextMining",
        ["deu_Latn-eng_Latn", "zho_Hans-zho_Hant"],
        {"devtest": FLORES},
        BITEXT,
        [("Ja", "Yes", "de", "en"), ("是", "是的", "zho-Hans", "zho-Hant")],
    ),
    (
        "BUCC",
        ["de-en"],
        {"de-en": {"test": BUCC}},
        BITEXT,
        [("Zwei", "Two", "de", "en"), ("Drei", "Three", "de", "en")],
    ),
    ("STS17", list(STS17), STS17, STS, [("A dog.", "Ein Hund.", 5.0, "en"), ("A dog.", "Ein Hund.", 5.0, "en+de")]),
    ("STS12", None, STS12, STS, [("A dog.", "Ein Hund.", 2.5, "en")]),
]
for rows in (table(**LABELLED), Dataset.from_list([LABELLED])):  # older tasks keep columns as lists
    CASES.append(("XNLI", ["de"], {"de": {"test": rows}}, PAIRS, [("a", "c", 0, "de"), ("b", "d", 1, "de")]))


def rows_of(monkeypatch: pytest.MonkeyPatch, task_name: str, data: Any, **options: Any) -> Rows:
    """The rows of a task whose data are there only once they are asked for."""
    real = mteb.get_task

    def get_task(name: str, **task_options: Any) -> Any:
        task = real(name, **task_options)
        task.load_data = lambda: with_data(task, data)
        return task

    monkeypatch.setattr(mteb, "get_task", get_task)
    return list(mteb_rows(task_name, **options))


@pytest.mark.parametrize(("task", "subsets", "data", "columns", "expected"), CASES)
def test_rows(
    task: str, subsets: Any, data: Any, columns: tuple[str, ...], expected: Any, monkeypatch: pytest.MonkeyPatch
):
    expected_rows = [dict(zip(columns, row, strict=True)) for row in expected]
    assert rows_of(monkeypatch, task, data, subsets=subsets) == expected_rows


@pytest.mark.parametrize(
    ("task", "languages", "subsets", "lost"),
    [
        ("Tatoeba", "en de zh ar sw", {"deu-eng", "cmn-eng", "ara-eng", "swh-eng"}, []),
        ("Tatoeba", "fa en no", {"pes-eng"}, ["no"]),
        ("NTREXBitextMining", "ar en", {"arb_Arab-eng_Latn", "eng_Latn-arb_Arab"}, []),
        ("NTREXBitextMining", "zh-Hant en", {"zho_Hant-eng_Latn", "eng_Latn-zho_Hant"}, []),
    ],
)
def test_subsets_in_languages(task: str, languages: str, subsets: set[str], lost: list[str], caplog: Any):
    selected = mteb_task(task, languages.split())
    assert set(selected.hf_subsets) == subsets

    warnings = [record for record in caplog.records if record.name.startswith("hf_xlsr")]
    assert [record.args[1] for record in warnings] == lost


def language(texts: list[str], first: str, second: str) -> str:
    return column_language(texts, (first, second), place="a column")


@needs_py3langid
@given(share=st.integers(0, 12), order=st.randoms())
@settings(max_examples=30)
def test_two_thirds_of_the_texts_decide(share: int, order: Any):
    texts = (FRENCH * 2)[:share] + (ENGLISH * 2)[: 12 - share]
    order.shuffle(texts)
    for candidates in (("fr", "en"), ("en", "fr")):
        if share in (5, 6, 7):
            with pytest.raises(XlsrError, match="a column"):
                language(texts, *candidates)
        else:
            assert language(texts, *candidates) == ("fr" if share >= 8 else "en")


def test_languages():
    tags = [langscript(tag) for tag in ("de", "zh-Hant", "cmn", "pt_BR", "ko", "azb", "acm", "multilingual")]
    assert tags == ["deu-Latn", "zho-Hant", "cmn-Hans", "por-Latn", "kor-Hang", "azb-Arab", "acm-Arab", None]


@functools.cache
def _tags_of_all_tasks() -> frozenset[str]:
    tags: set[str] = set()
    for task in mteb.get_tasks(exclude_superseded=False):
        tags.update(*task.metadata.hf_subsets_to_langscripts.values())
    return frozenset(tag for tag in tags if not tag.endswith("-Code"))


@pytest.mark.slow
def test_every_script_of_a_language_is_found() -> None:
    """By mteb's own list: a code of ISO 639-3 means all tags that begin with it."""
    for tag in _tags_of_all_tasks():
        code, _, script = tag.partition("-")
        assert means(code, tag), tag
        assert means(f"{code}-{script}", tag), tag


@pytest.mark.slow
@pytest.mark.parametrize("language", ["ko", "azb", "acm", "acq", "pbt"])
def test_no_task_of_a_language_is_lost(language: str) -> None:
    code = langcodes.Language.get(language).to_alpha3()
    expected = {tag for tag in _tags_of_all_tasks() if tag.startswith(f"{code}-")}
    assert expected
    assert {tag for tag in _tags_of_all_tasks() if means(language, tag)} == expected
