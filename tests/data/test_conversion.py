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
    pairs = []
    for index in range(len(data)):
        row = data[0, index]
        pairs.append((text(row["source_ids"]), text(row["target_ids"]), row["source_lang"], row["target_lang"]))
    return pairs


RED_AND_BLUE = [("red", "eins"), ("blue", "zwei")]
PLAIN = [{"source": "red", "target": "eins"}, {"source": "blue", "target": "zwei"}]
TRANSLATIONS = [{"translation": {"en": "red", "de": "eins"}}, {"translation": {"en": "blue", "de": "zwei"}}]
FORMS: dict[str, Any] = {
    "source and target": PLAIN,
    "anchor and positive": [{"id": 1, "anchor": source, "positive": target} for source, target in RED_AND_BLUE],
    "english and non_english": [{"english": source, "non_english": target} for source, target in RED_AND_BLUE],
    "translation": TRANSLATIONS,
    "columns by language": [{"de": target, "note": "x", "en": source} for source, target in RED_AND_BLUE],
    "languages in rows": [{**pair, "source_lang": "en", "target_lang": "de"} for pair in PLAIN],
}


@pytest.mark.parametrize("rows", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("languages_of", ["argument", "key", "tokenizers"])
def test_pairs_of_every_form(rows: list[dict[str, Any]], languages_of: str) -> None:
    if languages_of == "argument":
        data = DataConverter(TOKENIZER, languages=("en", "de")).pairs(rows)
    elif languages_of == "key":
        data = DataConverter(TOKENIZER).pairs({"en-de": Dataset.from_list(rows)})
    else:
        data = DataConverter({"en": TOKENIZER, "de": TOKENIZER}).pairs(Dataset.from_list(rows))
    assert pairs_of(data) == [("red", "eins", "en", "de"), ("blue", "zwei", "en", "de")]
    assert data.lengths.tolist() == [3, 3]


def test_languages_of_each_row_and_dataset() -> None:
    rows = [{"source": "red", "target": "eins", "source_lang": "en", "target_lang": None}]
    data = DatasetDict({"fr-zh-Hans": Dataset.from_list(rows), "sw-en": Dataset.from_list(TRANSLATIONS[1:])})
    pairs = DataConverter(TOKENIZER, languages=("en", "de")).pairs(data)
    assert pairs_of(pairs) == [("red", "eins", "en", "zh-Hans"), ("blue", "zwei", "en", "de")]


NUMBERED = [{"id": "1", "en": "red", "de": "eins"}]
MIXED = [{"translation": {"en": "red", "de": "eins"}}, {"translation": {"en": "red", "sw": "drei"}}]


@pytest.mark.parametrize(
    ("convert", "rows", "expected"),
    [
        (CONVERT, MIXED, [("en", "de"), ("en", "sw")]),
        (CONVERT, NUMBERED, [("en", "de")]),
        (DataConverter(TOKENIZER, languages=("en",)), NUMBERED, [("en", "de")]),
        (DataConverter({"source": TOKENIZER, "target": TOKENIZER}), PLAIN, [("source", "target")]),
    ],
    ids=["mixed", "numbered", "one language", "sides"],
)
def test_language_pairs(convert: DataConverter, rows: Any, expected: list[tuple[str, str]]) -> None:
    assert convert.pairs(rows).language_pairs == expected


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("converted", [False, True])
def test_languages_of_pairs(streamed: bool, converted: bool) -> None:
    data: Any = Dataset.from_list(TRANSLATIONS)
    if streamed:
        data = data.to_iterable_dataset()
    if converted:
        data = CONVERT.pairs(data)
    assert pair_languages(data) == ["en", "de"]


codes_of_languages = pytest.mark.parametrize("column", ["src", "doc", "set"])


@codes_of_languages
@pytest.mark.parametrize(
    ("languages", "key"), [(("en", "de"), "train"), (None, "en-de"), (None, None)], ids=["argument", "key", "none"]
)
def test_words_are_no_languages(languages: Any, key: str | None, column: str) -> None:
    rows: Any = [{"en": "red", "xx": "eins", column: "mt"}]
    with pytest.raises(XlsrError, match="columns"):
        DataConverter(TOKENIZER, languages=languages).pairs({key: rows} if key else rows)


@codes_of_languages
def test_columns_of_languages_that_are_asked_for(column: str) -> None:
    rows = [{"en": "red", "pt_BR": "eins", column: "mt"}]
    pairs = DataConverter(TOKENIZER, languages=("en", "pt")).pairs(rows)
    assert pairs.language_pairs == [("en", "pt_BR")]


# Labels.


def test_many_rows_without_a_label() -> None:
    rows = [{"text": "red", "label": -1}] * 1000
    rows.append({"text": "blue", "label": 2})
    data = CONVERT.labelled(rows)
    assert data.rows["label"][:] == [2]
    assert list(data.report["labels"]) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("form", "rows", "message", "num_left"),
    [
        (
            "pairs",
            [{"anchor": text, "positive": "eins"} for text in ("red", "", "blue", " ", "red")],
            "2 of 5 rows",
            3,
        ),
        ("labelled", [{"text": "red", "label": label} for label in (1, -1, 0)], "1 of 3 rows", 2),
    ],
    ids=["pairs", "labelled"],
)
def test_skipped_rows_are_counted(
    form: str, rows: Any, message: str, num_left: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = getattr(CONVERT, form)(rows)
    (record,) = caplog.records
    assert record.getMessage().startswith(message)
    assert len(data) == num_left


def test_labelled_rows() -> None:
    rows = [
        {"text": "red", "label": 1},
        {"text": "blue", "label": -1},
        {"text": "green", "label": 0},
    ]
    data = CONVERT.labelled({"en": rows, "de": Dataset.from_list(rows).to_iterable_dataset()})
    assert data.rows["label"][:] == [1, 0, 1, 0]
    assert data.rows["lang"][:] == ["en", "en", "de", "de"]
    assert list(data.report["labels"]) == ["0", "1"]


def test_labels_of_text() -> None:
    data = CONVERT.labelled([{"text": "red", "label": label} for label in ("good", "bad", "good")])
    assert data.rows["label"][:] == [1, 0, 1]
    assert list(data.report["labels"]) == ["bad", "good"]


@pytest.mark.parametrize(
    ("first", "second"), [("premise", "hypothesis"), ("sentence1", "sentence2"), ("text", "text_pair")]
)
def test_scores_of_pairs_of_every_form(first: str, second: str) -> None:
    rows = [{first: "red", second: "eins", "label": score} for score in (0.5, 2.5)]
    data = DataConverter(framed_tokenizer(WORDS)).labelled(rows)
    assert data.rows["label"][:] == [0.5, 2.5]
    assert text(data[0, 0]["input_ids"]) == "red eins"


def test_labels_of_inference_are_found_by_name() -> None:
    names = ["contradiction", "entailment", "neutral"]
    rows = Dataset.from_dict({"premise": ["red"] * 3, "hypothesis": ["eins"] * 3, "label": [0, 1, 2]})
    data = CONVERT.inference(rows.cast_column("label", ClassLabel(names=names)))
    assert data.rows["label"][:] == [2, 0, 1]


# Negatives, prompts and the cache.


def test_hard_negatives() -> None:
    rows = [
        {"anchor": "red", "positive": "eins", "negative": "zwei", "negative_1": ["drei", "", "vier"]},
        {"anchor": "blue", "positive": "zwei", "negative": None, "negative_1": None},
    ]
    convert = DataConverter(TOKENIZER, prompts={"target": "query : "})

    data = convert.pairs({"a": rows, "b": TRANSLATIONS})

    first, *without = [data[0, index] for index in range(len(data))]
    assert list(map(text, first["negative_ids"])) == ["query : zwei", "query : drei", "query : vier"]
    assert len(first["negative_text"]) == 3
    assert first["negative_text"][0] == without[0]["target_text"]
    for row in without:
        assert not row.get("negative_ids")


@pytest.fixture
def stored(tmp_path: Path) -> Dataset:
    """A dataset in files, which `datasets` caches what is made of."""
    Dataset.from_list(TRANSLATIONS * 50).save_to_disk(str(tmp_path))
    return Dataset.load_from_disk(str(tmp_path))


def test_two_tokenizers_never_share_a_cache(stored: Dataset) -> None:
    converters = [
        CONVERT,
        DataConverter(word_tokenizer(WORDS[::-1]), max_length=8),
        DataConverter(TOKENIZER, max_length=2),
        DataConverter(TOKENIZER, max_length=8, prompts="query :"),
        DataConverter(TOKENIZER, max_length=8, prompts={"de": "query :"}),
    ]
    for _ in range(2):
        ids = set()
        for converter in converters:
            row = converter.pairs(stored).rows.map(lambda row: {"first": row["source_ids"]})[0]
            assert row["first"] == row["source_ids"]
            ids.add(str((row["source_ids"], row["target_ids"])))
        assert len(ids) == len(converters)


def test_equal_converters_share_a_cache(stored: Dataset) -> None:
    first = CONVERT.pairs(stored).rows
    again = DataConverter(TOKENIZER, max_length=8).pairs(stored).rows
    assert first.cache_files
    assert again.cache_files == first.cache_files


@pytest.mark.parametrize(
    ("prompts", "source", "target"),
    [
        ("query: ", "query : red", "query : eins"),
        ({"source": "query: "}, "query : red", "eins"),
        ({"de": "query: "}, "red", "query : eins"),
        ({"query": "query : ", "default": "red : "}, "query : red", "red : eins"),  # names of sentence-transformers
    ],
)
def test_prompts_by_role_and_language(prompts: Any, source: str, target: str) -> None:
    convert = DataConverter(TOKENIZER, languages=("en", "de"), prompts=prompts)
    assert pairs_of(convert.pairs(PLAIN))[0][:2] == (source, target)


def test_texts_are_equal_without_their_prompts() -> None:
    bare = DataConverter(TOKENIZER).pairs(TRANSLATIONS)
    prompted = DataConverter(TOKENIZER, prompts="query: ").pairs(TRANSLATIONS)
    assert bare[0, 0]["source_text"] == prompted[0, 0]["source_text"]


# Running text.


def neighbours(data: Any) -> list[tuple[str, str]]:
    pairs = []
    for index in range(len(data)):
        row = data[0, index]
        pairs.append((text(row["first_ids"]), text(row["second_ids"])))
    return pairs


SENTENCES = [("1", "red"), ("1", "blue"), ("1", ""), ("1", "green"), ("2", "red"), ("2", "green"), (None, "red")]


def test_running_text_of_sentences() -> None:
    rows = [{"document": document, "text": sentence} for document, sentence in SENTENCES]
    assert neighbours(CONVERT.running_text(rows)) == [("red", "blue"), ("red", "green")]


def test_running_text_of_sentences_with_positions() -> None:
    rows = []
    for position, (document, sentence) in enumerate(SENTENCES):
        rows.append({"document": document, "text": sentence, "position": position})
    data = Dataset.from_list(rows[::-1])
    assert neighbours(CONVERT.running_text(data)) == [("red", "blue"), ("red", "green")]


def test_running_text_of_documents() -> None:
    documents = CONVERT.running_text({"en": [{"text": "Red. Blue. Green."}, {"text": "Blue."}]})
    assert neighbours(documents) == [("Red .", "Blue ."), ("Blue .", "Green .")]
