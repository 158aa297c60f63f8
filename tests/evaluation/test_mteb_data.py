"""Rows of mteb's tasks with our columns; the data of the tasks are set by hand."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset
from mteb_helpers import table, with_data

mteb = pytest.importorskip("mteb")

from hf_xlsr.evaluation.mteb.data import mteb_rows  # noqa: E402

Rows = list[dict[str, Any]]
BITEXT = ("source", "target", "source_lang", "target_lang")
STS = ("sentence1", "sentence2", "score", "lang")
PAIRS = ("sentence1", "sentence2", "label", "lang")
SENTENCES = {"sentence1": ["A dog."], "sentence2": ["Ein Hund."]}
LABELLED: dict[str, Any] = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "labels": [0, 1]}
FLORES = table(eng_Latn=["Yes"], deu_Latn=["Ja"], zho_Hans=["是"], zho_Hant=["是的"])
# Without a translation of the first target.
BUCC = {"sentence1": ["Zwei", "Drei"], "sentence2": ["One", "Two", "Three"], "gold": [(4, 1), (7, 2)]}
INTENTS = {split: table(text=[split], label=["yes"]) for split in ("train", "validation", "test")}


def rows_of(monkeypatch: pytest.MonkeyPatch, task_name: str, data: Any, **options: Any) -> Rows:
    """The rows of a task whose data are there only once they are asked for."""
    real = mteb.get_task

    def get_task(asked: str, **given: Any) -> Any:
        task = real(asked, **given)
        task.load_data = lambda: with_data(task, data)
        return task

    monkeypatch.setattr(mteb, "get_task", get_task)
    return list(mteb_rows(task_name, **options))


@pytest.mark.parametrize(
    ("task", "subsets", "data", "columns", "expected"),
    [
        (
            "Tatoeba",
            ["deu-eng", "cmn-eng"],
            {
                "deu-eng": {"test": table(sentence1=["Hallo", "Ja"], sentence2=["Hello", "Yes"])},
                "cmn-eng": {"test": table(sentence1=["你好"], sentence2=["Hello"])},
            },
            BITEXT,
            [("Hallo", "Hello", "de", "en"), ("Ja", "Yes", "de", "en"), ("你好", "Hello", "zh", "en")],
        ),
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
        (
            "STS17",
            ["en-en", "en-de"],
            dict.fromkeys(("en-en", "en-de"), {"test": table(**SENTENCES, score=[5])}),
            STS,
            [("A dog.", "Ein Hund.", 5.0, "en"), ("A dog.", "Ein Hund.", 5.0, "en+de")],
        ),
        (
            "STS12",
            None,
            dict.fromkeys(("train", "test"), table(**SENTENCES, score=[2.5])),
            STS,
            [("A dog.", "Ein Hund.", 2.5, "en")],
        ),
        *[
            ("XNLI", ["de"], {"de": {"test": rows}}, PAIRS, [("a", "c", 0, "de"), ("b", "d", 1, "de")])
            for rows in (table(**LABELLED), Dataset.from_list([LABELLED]))  # older tasks keep columns as lists
        ],
    ],
)
def test_rows(
    task: str, subsets: Any, data: Any, columns: tuple[str, ...], expected: Any, monkeypatch: pytest.MonkeyPatch
):
    found = rows_of(monkeypatch, task, data, subsets=subsets)
    assert found == [dict(zip(columns, row, strict=True)) for row in expected]


def test_classification_has_training_rows(monkeypatch: pytest.MonkeyPatch):
    def found(split: str | None = None) -> Rows:
        return rows_of(monkeypatch, "MassiveIntentClassification", {"de": INTENTS}, subsets=["de"], split=split)

    row = {"label": "yes", "lang": "de"}
    assert found() == [{**row, "text": split, "split": split} for split in INTENTS]
    assert found("dev") == found("validation") == [{**row, "text": "validation", "split": "validation"}]
