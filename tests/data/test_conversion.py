"""Data as users have it, converted to what trainers read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import ClassLabel, Dataset, DatasetDict
from tokenizer_helpers import framed_tokenizer, word_tokenizer

from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.raw_rows import pair_languages
from hf_xlsr.utils.errors import XlsrError

WORDS = "query : red blue green eins zwei drei vier . Red Blue Green".split()
TOKENIZER = word_tokenizer(WORDS)
CONVERT = DataConverter(TOKENIZER, max_length=8)


def text(ids: Any, tokenizer: Any = TOKENIZER) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def pairs_of(data: Any) -> list[tuple[str, ...]]:
    """Texts and languages of converted pairs."""
    rows = [data[0, index] for index in range(len(data))]
    sides = [(text(row["source_ids"]), text(row["target_ids"])) for row in rows]
    return [(*side, row["source_lang"], row["target_lang"]) for side, row in zip(sides, rows, strict=True)]


RED, BLUE = ("red", "eins"), ("blue", "zwei")
FORMS: dict[str, Any] = {
    "source and target": [{"source": a, "target": b} for a, b in (RED, BLUE)],
    "anchor and positive": [{"id": 1, "anchor": a, "positive": b} for a, b in (RED, BLUE)],
    "english and non_english": [{"english": a, "non_english": b} for a, b in (RED, BLUE)],
    "translation": [{"translation": {"en": a, "de": b}} for a, b in (RED, BLUE)],
    "columns by language": [{"de": b, "note": "x", "en": a} for a, b in (RED, BLUE)],
    "languages in rows": [
        {"source": a, "target": b, "source_lang": "en", "target_lang": "de"} for a, b in (RED, BLUE)
    ],
}


@pytest.mark.parametrize("rows", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("how", ["list", "dict", "tokenizers"])
def test_pairs_of_every_form(rows: list[dict[str, Any]], how: str) -> None:
    data: Any = rows if how == "list" else Dataset.from_list(rows)
    tokenizers: Any = {"en": TOKENIZER, "de": TOKENIZER} if how == "tokenizers" else TOKENIZER
    languages = None if how in ("dict", "tokenizers") else ("en", "de")
    found = DataConverter(tokenizers, languages=languages).pairs({"en-de": data} if how == "dict" else data)
    assert pairs_of(found) == [(*RED, "en", "de"), (*BLUE, "en", "de")]
    assert found.lengths.tolist() == [3, 3]


def test_languages_of_each_row_and_dataset() -> None:
    rows = [{"source": "red", "target": "eins", "source_lang": "en", "target_lang": None}]
    data = DatasetDict({"fr-zh-Hans": Dataset.from_list(rows), "sw-en": Dataset.from_list(FORMS["translation"][1:])})
    found = DataConverter(TOKENIZER, languages=("en", "de")).pairs(data)
    assert pairs_of(found) == [(*RED, "en", "zh-Hans"), (*BLUE, "en", "de")]
    mixed = [{"translation": {"en": "red", "de": "eins"}}, {"translation": {"en": "red", "sw": "drei"}}]
    assert CONVERT.pairs(mixed).language_pairs == [("en", "de"), ("en", "sw")]
    numbered = [{"id": "1", "en": "red", "de": "eins"}]
    assert CONVERT.pairs(numbered).language_pairs == [("en", "de")]
    of_one_language = DataConverter(TOKENIZER, languages=("en",))
    assert of_one_language.pairs(numbered).language_pairs == [("en", "de")]
    shared = DataConverter({"source": TOKENIZER, "target": TOKENIZER}).pairs(FORMS["source and target"])
    assert shared.language_pairs == [("source", "target")]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("converted", [False, True])
def test_languages_of_pairs(streamed: bool, converted: bool) -> None:
    data: Any = Dataset.from_list(FORMS["translation"])
    if streamed:
        data = data.to_iterable_dataset()
    if converted:
        data = CONVERT.pairs(data)
    assert pair_languages(data) == ["en", "de"]


@pytest.mark.parametrize("key", ["train", "en-de"])
@pytest.mark.parametrize("other", ["src", "doc", "set"])  # also codes of languages
def test_words_are_no_languages(key: str, other: str) -> None:
    rows = [{"en": "red", "xx": "eins", other: "mt"}]
    with pytest.raises(XlsrError, match="columns"):
        DataConverter(TOKENIZER, languages=("en", "de") if key == "train" else None).pairs({key: rows})
    with pytest.raises(XlsrError, match="columns"):
        CONVERT.pairs(rows)
    assert DataConverter(TOKENIZER, languages=("en", "pt")).pairs(
        [{"en": "red", "pt_BR": "eins", other: "mt"}]
    ).language_pairs == [("en", "pt_BR")]


def test_many_rows_without_a_label() -> None:
    rows = [{"text": "red", "label": -1}] * 1000 + [{"text": "blue", "label": 2}]
    found = CONVERT.labelled(rows)
    assert found.rows["label"][:] == [2] and list(found.report["labels"]) == ["0", "1", "2"]


def test_skipped_rows_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    pairs = [{"anchor": text, "positive": "eins"} for text in ("red", "", "blue", " ", "red")]
    assert len(CONVERT.pairs(pairs)) == 3
    labelled = [{"text": "red", "label": label} for label in (1, -1, 0)]
    assert len(CONVERT.labelled(labelled)) == 2
    counts = [record.getMessage().partition(" rows")[0] for record in caplog.records]
    assert counts == ["2 of 5", "1 of 3"]


def test_labelled_rows() -> None:
    rows = [{"text": "red", "label": 1}, {"text": "blue", "label": -1}, {"text": "green", "label": 0}]
    data = {"en": rows, "de": Dataset.from_list(rows).to_iterable_dataset()}
    found = CONVERT.labelled(data)
    assert found.rows["label"][:] == [1, 0, 1, 0] and found.rows["lang"][:] == ["en", "en", "de", "de"]
    assert list(found.report["labels"]) == ["0", "1"]
    of_text = CONVERT.labelled([{"text": "red", "label": label} for label in ("good", "bad", "good")])
    assert of_text.rows["label"][:] == [1, 0, 1]
    assert list(of_text.report["labels"]) == ["bad", "good"]


@pytest.mark.parametrize(
    ("first", "second"), [("premise", "hypothesis"), ("sentence1", "sentence2"), ("text", "text_pair")]
)
def test_scores_of_pairs_of_every_form(first: str, second: str) -> None:
    rows = [{first: "red", second: "eins", "label": score} for score in (0.5, 2.5)]
    found = DataConverter(framed_tokenizer(WORDS)).labelled(rows)
    assert found.rows["label"][:] == [0.5, 2.5]
    assert text(found[0, 0]["input_ids"]) == "red eins"


def test_labels_of_inference_are_found_by_name() -> None:
    names = ["contradiction", "entailment", "neutral"]
    rows = Dataset.from_dict({"premise": ["red"] * 3, "hypothesis": ["eins"] * 3, "label": [0, 1, 2]})
    found = CONVERT.inference(rows.cast_column("label", ClassLabel(names=names)))
    assert found.rows["label"][:] == [2, 0, 1]


def test_hard_negatives() -> None:
    rows = [
        {"anchor": "red", "positive": "eins", "negative": "zwei", "negative_1": ["drei", "", "vier"]},
        {"anchor": "blue", "positive": "zwei", "negative": None, "negative_1": None},
    ]
    found = DataConverter(TOKENIZER, prompts={"target": "query : "}).pairs({"a": rows, "b": FORMS["translation"]})
    negatives = [[text(ids) for ids in found[0, index].get("negative_ids") or ()] for index in range(len(found))]
    assert negatives == [["query : zwei", "query : drei", "query : vier"], [], [], []]
    assert len(found[0, 0]["negative_text"]) == 3 and found[0, 0]["negative_text"][0] == found[0, 1]["target_text"]


def test_two_tokenizers_never_share_a_cache(tmp_path: Path) -> None:
    Dataset.from_list(FORMS["translation"] * 50).save_to_disk(str(tmp_path))
    data = Dataset.load_from_disk(str(tmp_path))
    other = word_tokenizer(WORDS[::-1])
    converters = [
        CONVERT,
        DataConverter(other, max_length=8),
        DataConverter(TOKENIZER, max_length=2),
        DataConverter(TOKENIZER, max_length=8, prompts="query :"),
        DataConverter(TOKENIZER, max_length=8, prompts={"de": "query :"}),
    ]
    for _ in range(2):
        seen = [
            converter.pairs(data).rows.map(lambda row: {"first": row["source_ids"]})[0] for converter in converters
        ]
        ids = [(row["source_ids"], row["target_ids"]) for row in seen]
        assert len(set(map(str, ids))) == 5 and all(row["first"] == row["source_ids"] for row in seen)
    first, again = (converter.pairs(data).rows for converter in (CONVERT, DataConverter(TOKENIZER, max_length=8)))
    assert first.cache_files == again.cache_files != []


def test_prompts_by_role_and_language() -> None:
    for prompts, expected in (("query: ", "query : "), ({"source": "query: "}, ""), ({"de": "query: "}, "query : ")):
        convert = DataConverter(TOKENIZER, languages=("en", "de"), prompts=prompts)
        assert pairs_of(convert.pairs(FORMS["source and target"]))[0][1] == f"{expected}eins"
    roles = {"query": "query : ", "default": "red : "}  # names of sentence-transformers
    sides = pairs_of(DataConverter(TOKENIZER, prompts=roles).pairs(FORMS["source and target"]))[0][:2]
    assert sides == ("query : red", "red : eins")
    bare, prompted = (DataConverter(TOKENIZER, prompts=p).pairs(FORMS["translation"]) for p in (None, "query: "))
    assert bare[0, 0]["source_text"] == prompted[0, 0]["source_text"]


def neighbours(data: Any) -> list[tuple[str, str]]:
    rows = [data[0, index] for index in range(len(data))]
    return [(text(row["first_ids"]), text(row["second_ids"])) for row in rows]


def test_running_text_of_sentences() -> None:
    rows = [("1", "red"), ("1", "blue"), ("1", ""), ("1", "green"), ("2", "red"), ("2", "green"), (None, "red")]
    ordered = [{"document": document, "text": one} for document, one in rows]
    expected = [("red", "blue"), ("red", "green")]
    assert neighbours(CONVERT.running_text(ordered)) == expected
    turned = [{**row, "position": place} for place, row in enumerate(ordered)][::-1]
    assert neighbours(CONVERT.running_text(Dataset.from_list(turned))) == expected
    documents = CONVERT.running_text({"en": [{"text": "Red. Blue. Green."}, {"text": "Blue."}]})
    assert neighbours(documents) == [("Red .", "Blue ."), ("Blue .", "Green .")]
