"""Labelled rows: tasks, sources, tokenised pairs, and what is kept out of training."""

from __future__ import annotations

import json
import tempfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_helpers import framed_tokenizer

from hf_xlsr.data.cleaning import evaluation_keys
from hf_xlsr.data.labelled import (
    LabelledSet,
    LabelledTask,
    encode_texts,
    labelled_rows,
    language_views,
    prepare_labelled,
    read_sets,
    row_text,
)
from hf_xlsr.data.prepared import PreparedRows

WORDS = "dogs cats birds run sleep sing hunde katzen laufen schlafen a b c d e f g h".split()
NLI = LabelledTask(labels=("entailment", "neutral", "contradiction"))
SINGLE = LabelledTask(texts="single", labels=("negative", "positive"))
STS = LabelledTask(scores=(0, 5))


def framed(**options: Any) -> Any:
    return framed_tokenizer(WORDS, **options)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return framed()


def write(path: Path, *rows: tuple[Any, ...], names: tuple[str, ...] = ("first", "second", "label")) -> str:
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), path)
    return str(path)


def prepare(given: Any, tokenizer: Any, folder: Path, task: LabelledTask = NLI, **options: Any) -> PreparedRows:
    rest = {"languages": ["en", "de"], "evaluation_texts": (), "max_length": 16, **options}
    return prepare_labelled(given, task=task, tokenizer=tokenizer, folder=folder, **rest)


def texts(data: PreparedRows, tokenizer: Any) -> list[tuple[str, Any, str]]:
    rows = data.__getitems__([(0, index) for index in range(len(data))])
    return [(tokenizer.decode(row["input_ids"]), row["label"], row["lang"]) for row in rows]


# Tasks.


@pytest.mark.parametrize(
    ("label", "number"),
    [("entailment", 0), (" Neutral ", 1), ("contradictory", 2), (0, 0), ("1", 1), (2.0, 2), (-1, None), ("-", None)],
)
def test_classes_by_name_and_number(label: Any, number: int | None) -> None:
    assert NLI.value(label) == number


@pytest.mark.parametrize("label", [3, -2, "maybe", 0.5, True])
def test_invalid_class(label: Any) -> None:
    with pytest.raises(ValueError):
        NLI.value(label)


def test_class_names_precede_numbers() -> None:
    stars = LabelledTask(texts="single", labels=("1", "2", "none"))
    assert [stars.value(value) for value in ("1", 2, "none", None, "")] == [0, 1, 2, 2, None]


def test_scores() -> None:
    assert [STS.value(score) for score in ("2.5", 5, 0.0, "", None, float("nan"))] == [2.5, 5.0, 0.0, None, None, None]
    below_zero = LabelledTask(scores=(-1, 1))
    assert below_zero.value(-1) == -1.0
    for wrong in (5.1, -1, "high", "inf"):
        with pytest.raises(ValueError):
            STS.value(wrong)


def test_metrics_and_outputs_follow_from_the_task() -> None:
    assert (NLI.metrics, STS.metrics) == (("accuracy",), ("pearson", "spearman"))
    assert (NLI.num_labels, STS.num_labels, NLI.columns, SINGLE.columns) == (3, 1, ("first", "second"), ("text",))


# Sources.


def test_wide_source_is_split_by_language() -> None:
    source = {
        "path": "{lang}/xnli.tsv",
        "columns": {"first": "premise_{lang}", "second": "hypothesis_{lang}"},
        "config": "{lang}",
        "where": {"language": ["{lang}"]},
        "languages": ["sw", "ur"],
        "sample": 3,
    }
    assert language_views(source, ["en"]) == [
        {
            "path": f"{language}/xnli.tsv",
            "columns": {"first": f"premise_{language}", "second": f"hypothesis_{language}"},
            "config": language,
            "where": {"language": [language]},
            "languages": [language],
            "sample": 3,
        }
        for language in ("sw", "ur")
    ]
    # Without languages of its own it has the recipe's; without the placeholder it is read once.
    assert [view["languages"] for view in language_views({"path": "{lang}.tsv"}, ["en", "de"])] == [["en"], ["de"]]
    assert language_views("a.tsv", ["en", "de"]) == [{"path": "a.tsv", "languages": ["en"]}]


def test_rows_of_wide_files_and_of_files_with_languages(tmp_path: Path) -> None:
    wide = write(
        tmp_path / "wide.parquet",
        ("dogs run", "dogs", "hunde laufen", "hunde", "entailment"),
        ("cats", "run", "katzen", "laufen", "neutral"),
        names=("premise_en", "hypothesis_en", "premise_de", "hypothesis_de", "gold"),
    )
    mixed = write(
        tmp_path / "mixed.tsv.parquet",
        ("katzen", "schlafen", "2", "de"),
        ("cats", "sleep", "1", None),
        names=("first", "second", "label", "lang"),
    )
    sources = [
        {
            "path": wide,
            "columns": "first=premise_{lang},second=hypothesis_{lang},label=gold",
            "languages": ["de", "en"],
        },
        {"path": mixed},
    ]
    assert list(labelled_rows(sources, NLI, languages=["en"])) == [
        {"first": "hunde laufen", "second": "hunde", "lang": "de", "label": 0},
        {"first": "katzen", "second": "laufen", "lang": "de", "label": 1},
        {"first": "dogs run", "second": "dogs", "lang": "en", "label": 0},
        {"first": "cats", "second": "run", "lang": "en", "label": 1},
        {"first": "katzen", "second": "schlafen", "lang": "de", "label": 2},
        {"first": "cats", "second": "sleep", "lang": "en", "label": 1},
    ]


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30))
def test_hash_split_separates_texts_in_every_language(letters: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [(letter, f"{letter}-{number}", number % 3) for number, letter in enumerate(letters)]
        file = write(Path(folder) / "a.parquet", *rows, names=("premise_en", "premise_de", "label"))
        common = {
            "path": file,
            "columns": "first=premise_{lang},second=premise_de,label=label",
            "languages": ["en", "de"],
            "hash_key": "premise_en",
            "hash_modulus": 3,
        }
        parts = {
            part: list(labelled_rows([{**common, "hash_split": part}], NLI, languages=["en"]))
            for part in ("rest", "held")
        }
    assert len(parts["rest"]) + len(parts["held"]) == 2 * len(letters)
    for part, held in (("rest", False), ("held", True)):
        for row in parts[part]:
            assert (zlib.crc32(row["first"][0].encode()) % 3 == 0) == held


# Tokenising.


def test_pair_is_one_sequence(tmp_path: Path) -> None:
    tokenizer = framed(types=True)
    file = write(tmp_path / "a.parquet", ("dogs run", "cats", "contradiction"))
    data = prepare(file, tokenizer, tmp_path / "out")
    assert data[5, 0] == {
        "input_ids": [2, 4, 7, 3, 5, 3],
        "token_type_ids": [0, 0, 0, 0, 1, 1],
        "label": 2,
        "lang": "en",
        "index": 0,
        "epoch": 5,
    }
    assert data.lengths.tolist() == [6] and data.groups.tolist() == [0]
    untyped = prepare(file, framed(), tmp_path / "untyped")
    assert "token_type_ids" not in untyped[0, 0] and untyped[0, 0]["input_ids"] == [2, 4, 7, 3, 5, 3]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(5, 24))
def test_longer_text_is_truncated_first(first: int, second: int, max_length: int) -> None:
    tokenizer = framed()
    columns, cut = encode_texts([["a " * first], ["b " * second]], tokenizer, max_length)
    counts = Counter(tokenizer.convert_ids_to_tokens(columns["input_ids"][0]))
    # A naive twin: take a piece from the longer one until they fit; of equals, from either.
    left = [first, second]
    while sum(left) + 3 > max_length:
        left[left.index(max(left))] -= 1
    assert cut == (first + second + 3 > max_length)
    assert sorted([counts["a"], counts["b"]]) == sorted(left) and counts["[SEP]"] == 2 and counts["[CLS]"] == 1
    assert (counts["a"] - counts["b"]) * (first - second) >= 0


def test_scores_and_single_texts(tmp_path: Path, tokenizer: Any) -> None:
    sts = write(tmp_path / "sts.parquet", ("dogs", "cats", "2.6"), ("dogs", "dogs", "5"), ("dogs", "run", None))
    data = prepare(sts, tokenizer, tmp_path / "sts", STS)
    assert data.rows["label"][:] == pytest.approx([2.6, 5.0]) and data.report["unlabelled"] == {"sts": 1}
    assert data.report["labels"] == {}
    sst = write(tmp_path / "sst.parquet", ("birds sing", "1"), names=("sentence", "label"))
    source = {"path": sst, "columns": "text=sentence,label=label"}
    assert texts(prepare(source, tokenizer, tmp_path / "sst", SINGLE), tokenizer) == [
        ("[CLS] birds sing [SEP]", 1, "en")
    ]


def test_report_counts(tmp_path: Path, tokenizer: Any) -> None:
    file = write(
        tmp_path / "a.parquet",
        ("dogs", "run", 0),
        ("dogs", "a " * 30, 1),
        ("cats", "run", -1),
        ("", "run", 1),
        ("birds", "sing", 1),
        ("DOGS!", "sing", 2),
    )
    data = prepare(file, tokenizer, tmp_path / "out", evaluation_texts=["birds"], cleaning=["deduplicate"])
    report = data.report
    assert report["pairs"] == len(data) == 3
    assert report["labels"] == {"entailment": 1, "neutral": 1, "contradiction": 1}
    assert report["languages"] == ["en"] and report["unlabelled"] == {"a": 1}
    assert report["rejected"] == {"empty first": 1} and report["num_truncated"] == 1
    assert report["cleaning"]["remove_evaluation"] == {"in": 4, "out": 3, "changed": 0}
    assert report["tokens"] == 5 + 16 + 6
    assert json.loads((tmp_path / "out" / "prepared.json").read_text("utf-8"))["pairs"] == 3


def test_evaluation_rows_are_removed_by_text_or_by_row(tmp_path: Path, tokenizer: Any) -> None:
    rows = [("dogs", "run", 0), ("dogs", "sleep", 1), ("cats", "birds", 2), ("birds", "cats", 1)]
    file = write(tmp_path / "a.parquet", *rows)
    held = [{"first": "Dogs.", "second": "run"}, {"first": "sing", "second": "cats"}]
    by_text = prepare(file, tokenizer, tmp_path / "text", evaluation_texts=["Dogs.", "run"])
    assert [row[1] for row in texts(by_text, tokenizer)] == [2, 1]
    keys = prepare(file, tokenizer, tmp_path / "keys", evaluation_texts=evaluation_keys(held[:1]))
    assert texts(keys, tokenizer) == texts(by_text, tokenizer)
    by_row = prepare(file, tokenizer, tmp_path / "row", evaluation_texts=map(row_text, held), overlap="row")
    assert [row[1] for row in texts(by_row, tokenizer)] == [1, 2, 1]
    # What is held out beside comes text by text, also where rows are pairs.
    alone = prepare(file, tokenizer, tmp_path / "alone", evaluation_texts=["sleep"], overlap="row")
    assert [row[1] for row in texts(alone, tokenizer)] == [0, 2, 1]
    counts = by_row.report["cleaning"]["remove_evaluation"]
    assert (counts["in"], counts["out"]) == (4, 3)


# Batches.


# Evaluation sets.


def test_sets_are_tokenised_once(tmp_path: Path, tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    wide = write(tmp_path / "w.parquet", ("dogs", "hunde", 0), ("cats", "katzen", -1), names=("en", "de", "label"))
    more = write(tmp_path / "m.parquet", ("birds", "sing", 2))
    given = {
        "xnli": [
            {"path": wide, "columns": "first={lang},second=en,label=label", "languages": ["en", "de"]},
            {"path": more, "languages": ["fr"]},
        ]
    }
    (data,) = read_sets(given, NLI, languages=["en"], split="test")
    assert (data.name, data.split) == ("xnli", "test")
    assert "data.test.xnli: 2 rows" in caplog.text
    assert [(row["lang"], row["label"]) for row in data.rows] == [("en", 0), ("de", 0), ("fr", 2)]
    assert list(data.texts()) == ["dogs", "dogs", "hunde", "dogs", "birds", "sing"]
    features = data.features(tokenizer, 16)
    assert features[1]["input_ids"] == encode_texts([["hunde"], ["dogs"]], tokenizer, 16)[0]["input_ids"][0]
    assert data.features(tokenizer, 16) is features and data.features(tokenizer, 5) is not features
    assert read_sets(None, NLI, languages=["en"], split="dev") == []


def test_set_of_single_texts(tokenizer: Any) -> None:
    rows = [{"text": "birds sing", "lang": "en", "label": 1}]
    assert LabelledSet("sst2", "dev", rows, SINGLE).features(tokenizer, 16) == [{"input_ids": [2, 6, 9, 3]}]
