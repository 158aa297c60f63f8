"""Rows of mteb's tasks with our columns; the data of the tasks are set by hand."""

from __future__ import annotations

from typing import Any

import pytest
from datasets import Dataset, DatasetDict
from mteb_helpers import table, with_data

mteb = pytest.importorskip("mteb")

from hf_xlsr.evaluation.mteb.data import mteb_rows  # noqa: E402


@pytest.fixture
def data_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what a task loads; the data are there only once they are asked for."""

    def setter(name: str, data: Any) -> None:
        real = mteb.get_task

        def get_task(asked: str, **options: Any) -> Any:
            task = real(asked, **options)
            if asked == name:
                task.load_data = lambda: with_data(task, {key: data[key] for key in data})
            return task

        monkeypatch.setattr(mteb, "get_task", get_task)

    return setter


def test_bitext(data_of: Any):
    data_of(
        "Tatoeba",
        {
            "deu-eng": {"test": table(sentence1=["Hallo", "Ja"], sentence2=["Hello", "Yes"])},
            "cmn-eng": {"test": table(sentence1=["你好"], sentence2=["Hello"])},
        },
    )
    rows = list(mteb_rows("Tatoeba", subsets=["deu-eng", "cmn-eng"]))
    assert rows == [
        {"source": "Hallo", "target": "Hello", "source_lang": "de", "target_lang": "en"},
        {"source": "Ja", "target": "Yes", "source_lang": "de", "target_lang": "en"},
        {"source": "你好", "target": "Hello", "source_lang": "zh", "target_lang": "en"},
    ]


def test_bitext_in_one_table(data_of: Any):
    columns = {"eng_Latn": ["Yes"], "deu_Latn": ["Ja"], "zho_Hans": ["是"], "zho_Hant": ["是的"]}
    data_of("FloresBitextMining", {"devtest": table(**columns)})
    rows = list(mteb_rows("FloresBitextMining", subsets=["deu_Latn-eng_Latn", "zho_Hans-zho_Hant"]))
    assert rows == [
        {"source": "Ja", "target": "Yes", "source_lang": "de", "target_lang": "en"},
        {"source": "是", "target": "是的", "source_lang": "zho-Hans", "target_lang": "zho-Hant"},
    ]


def test_first_bucc_has_unpaired_targets(data_of: Any):
    data = {"sentence1": ["Zwei", "Drei"], "sentence2": ["One", "Two", "Three"], "gold": [(4, 1), (7, 2)]}
    data_of("BUCC", {"de-en": {"test": data}})
    rows = [(row["source"], row["target"]) for row in mteb_rows("BUCC", subsets=["de-en"])]
    assert rows == [("Zwei", "Two"), ("Drei", "Three")]


def test_sts(data_of: Any):
    columns = {"sentence1": ["A dog."], "sentence2": ["Ein Hund."], "score": [5]}
    data_of("STS17", {"en-en": {"test": table(**columns)}, "en-de": {"test": table(**columns)}})
    rows = list(mteb_rows("STS17", subsets=["en-en", "en-de"]))
    row = {"sentence1": "A dog.", "sentence2": "Ein Hund.", "score": 5.0}
    assert rows == [{**row, "lang": "en"}, {**row, "lang": "en+de"}]


@pytest.mark.parametrize("older", [False, True])
def test_pair_classification(older: bool, data_of: Any):
    columns: dict[str, Any] = {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "labels": [0, 1]}
    rows = Dataset.from_list([columns]) if older else table(**columns)
    data_of("XNLI", {"de": {"test": rows}})
    assert list(mteb_rows("XNLI", subsets=["de"])) == [
        {"sentence1": "a", "sentence2": "c", "label": 0, "lang": "de"},
        {"sentence1": "b", "sentence2": "d", "label": 1, "lang": "de"},
    ]


def test_classification_has_training_rows(data_of: Any):
    splits = {
        "train": table(text=["good"], label=["yes"]),
        "validation": table(text=["fair"], label=["yes"]),
        "test": table(text=["bad"], label=["no"]),
    }
    data_of("MassiveIntentClassification", {"de": splits})
    subsets = ["de"]
    rows = list(mteb_rows("MassiveIntentClassification", subsets=subsets))
    assert rows == [
        {"text": "good", "label": "yes", "lang": "de", "split": "train"},
        {"text": "fair", "label": "yes", "lang": "de", "split": "validation"},
        {"text": "bad", "label": "no", "lang": "de", "split": "test"},
    ]
    for split in ("dev", "validation"):
        (row,) = mteb_rows("MassiveIntentClassification", subsets=subsets, split=split)
        assert (row["text"], row["split"]) == ("fair", "validation")


def test_task_of_one_language(data_of: Any):
    columns = {"sentence1": ["a"], "sentence2": ["b"], "score": [2.5]}
    data_of("STS12", DatasetDict({"train": table(**columns), "test": table(**columns)}))
    assert list(mteb_rows("STS12")) == [{"sentence1": "a", "sentence2": "b", "score": 2.5, "lang": "en"}]
