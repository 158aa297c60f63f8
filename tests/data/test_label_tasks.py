"""Labelled rows and inference pairs: tasks, sources, tokenised rows, evaluation sets."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_helpers import framed_tokenizer, word_tokenizer

from hf_xlsr.data.cleaning import evaluation_keys, row_text
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.encoding import encode_texts
from hf_xlsr.data.evaluation_sets import labelled_sets
from hf_xlsr.data.label_tasks import LabelledSet, LabelledTask
from hf_xlsr.data.preparation import CleanRows
from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.data.sources import parse_sources
from hf_xlsr.data.training_rows import clean_inference, clean_labelled

WORDS = "dogs cats birds run sleep sing hunde katzen laufen schlafen a b c d e f g h".split()
NLI = LabelledTask(labels=("entailment", "neutral", "contradiction"))
SINGLE = LabelledTask(texts="single", labels=("negative", "positive"))
STS = LabelledTask(scores=(0, 5))
WIDE = "premise_en premise_de hypothesis_en hypothesis_de label"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return framed_tokenizer(WORDS)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {"en": word_tokenizer(WORDS), "de": word_tokenizer(WORDS[::-1])}


def write(path: Path, *rows: tuple[Any, ...], names: str = "first second label") -> str:
    columns = zip(*rows, strict=True)
    pq.write_table(pa.table(dict(zip(names.split(), map(list, columns), strict=True))), path)
    return str(path)


def prepare(sources: Any, tokenizer: Any, **options: Any) -> PreparedRows:
    clean = clean_labelled(parse_sources(sources), NLI, languages=["en", "de"], **options)
    return DataConverter(tokenizer, max_length=16).labelled(clean.rows)


def inference(sources: Any, tokenizers: Any) -> tuple[CleanRows, PreparedRows]:
    clean = clean_inference(parse_sources(sources), languages=["en", "de"])
    return clean, DataConverter(tokenizers, max_length=16).inference(clean.rows)


def decoded(data: PreparedRows, tokenizers: dict[str, Any]) -> list[tuple[str, str, int, str]]:
    """Premise, hypothesis, label and language of inference rows."""
    result = []
    for index in range(len(data)):
        row = data[0, index]
        tokenizer = tokenizers[row["lang"]]
        premise = tokenizer.decode(row["premise_ids"], skip_special_tokens=True)
        hypothesis = tokenizer.decode(row["hypothesis_ids"], skip_special_tokens=True)
        result.append((premise, hypothesis, row["label"], row["lang"]))
    return result


@pytest.mark.parametrize(("value", "label"), [("1", 0), (2, 1), ("none", 2), (None, 2), ("", None)])
def test_class_that_is_called_none(value: Any, label: int | None) -> None:
    stars = LabelledTask(texts="single", labels=("1", "2", "none"))
    assert stars.value(value) == label


@pytest.mark.parametrize(
    ("value", "label"), [(" Neutral ", 1), ("contradictory", 2), ("1", 1), (2.0, 2), (-1, None), ("-", None)]
)
def test_classes_by_name_and_number(value: Any, label: int | None) -> None:
    assert NLI.value(value) == label


@pytest.mark.parametrize(
    ("value", "score"), [("2.5", 2.5), (5, 5.0), (0.0, 0.0), ("", None), (None, None), (float("nan"), None)]
)
def test_scores(value: Any, score: float | None) -> None:
    assert STS.value(value) == score
    assert LabelledTask(scores=(-1, 1)).value(-1) == -1.0


@pytest.mark.parametrize("value", [3, -2, "maybe", 0.5, True])
def test_invalid_classes(value: Any) -> None:
    with pytest.raises(ValueError):
        NLI.value(value)


@pytest.mark.parametrize("value", [5.1, -1, "high", "inf"])
def test_invalid_scores(value: Any) -> None:
    with pytest.raises(ValueError):
        STS.value(value)


# Prepared rows.


def test_pair_is_one_sequence(tmp_path: Path, tokenizer: Any) -> None:
    file = write(tmp_path / "a.parquet", ("dogs run", "cats", "contradiction"))
    expected = {"input_ids": [2, 4, 7, 3, 5, 3], "label": 2, "lang": "en", "index": 0, "epoch": 5}
    assert prepare(file, tokenizer)[5, 0] == expected

    data = prepare(file, framed_tokenizer(WORDS, types=True))
    assert data[5, 0] == {**expected, "token_type_ids": [0, 0, 0, 0, 1, 1]}
    assert data.lengths.tolist() == [6]
    assert data.groups.tolist() == [0]


@given(st.integers(1, 12), st.integers(1, 12), st.integers(5, 24))
def test_longer_text_is_truncated_first(first: int, second: int, max_length: int) -> None:
    tokenizer = framed_tokenizer(WORDS)
    columns, truncated = encode_texts([["a " * first], ["b " * second]], tokenizer, max_length)
    counts = Counter(tokenizer.convert_ids_to_tokens(columns["input_ids"][0]))

    shorter, longer = sorted([first, second])  # a naive twin: remove a token of the longer one until they fit
    while shorter + longer + 3 > max_length:
        shorter, longer = sorted([shorter, longer - 1])
    assert truncated == (first + second + 3 > max_length)
    assert sorted([counts["a"], counts["b"]]) == [shorter, longer]
    assert (counts["a"] - counts["b"]) * (first - second) >= 0
    assert counts["[CLS]"] == 1
    assert counts["[SEP]"] == 2


DOGS_RUN = {"first": "Dogs.", "second": "run"}
CATS_SING = {"first": "sing", "second": "cats"}


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"evaluation_texts": ["Dogs.", "run"]}, [2, 1]),
        ({"evaluation_texts": evaluation_keys([DOGS_RUN])}, [2, 1]),
        ({"evaluation_texts": [row_text(DOGS_RUN), row_text(CATS_SING)], "whole_rows": True}, [1, 2, 1]),
        ({"evaluation_texts": ["sleep"], "whole_rows": True}, [0, 2, 1]),  # single texts count, too
    ],
    ids=["text", "keys", "row", "held-out"],
)
def test_evaluation_rows_are_removed_by_text_or_by_row(
    tmp_path: Path, tokenizer: Any, options: dict[str, Any], labels: list[int]
) -> None:
    rows = [("dogs", "run", 0), ("dogs", "sleep", 1), ("cats", "birds", 2), ("birds", "cats", 1)]
    file = write(tmp_path / "a.parquet", *rows)
    assert prepare(file, tokenizer, **options).rows["label"][:] == labels


# Inference pairs, tokenised side by side.


def test_inference_rows_have_label_and_language(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    wide = write(tmp_path / "w.parquet", ("dogs run", "hunde laufen", "dogs", "hunde", "neutral"), names=WIDE)
    mixed_rows = [("katzen", "schlafen", "2", "de"), ("cats", "sleep", "1", None)]
    mixed = write(tmp_path / "m.parquet", *mixed_rows, names="premise hypothesis gold lang")
    sources = [
        {"path": wide, "columns": "premise=premise_en,hypothesis=hypothesis_en", "languages": ["en"]},
        {"path": wide, "columns": "premise=premise_de,hypothesis=hypothesis_de", "languages": ["de"]},
        {"path": mixed, "columns": {"label": "gold"}},
    ]

    clean, data = inference(sources, tokenizers)

    assert decoded(data, tokenizers) == [
        ("dogs run", "dogs", 1, "en"),
        ("hunde laufen", "hunde", 1, "de"),
        ("katzen", "schlafen", 2, "de"),
        ("cats", "sleep", 1, "en"),
    ]
    assert data.languages == ["de", "en"]
    assert data.groups.tolist() == [1, 0, 0, 1]
    assert data.lengths.tolist() == [4, 4, 3, 3]
    assert clean.report["labels"] == {"entailment": 0, "neutral": 3, "contradiction": 1}
    assert clean.report["pairs"] == 4
    assert data.report["num_truncated"] == 0


def test_wide_file_is_read_crosswise(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(WORDS)
    rows = [("dogs run", "hunde laufen", "cats sleep", "katzen schlafen", "neutral")] * 60
    rows += [("birds", "", "birds", "katzen", "neutral"), ("dogs", "hunde", "cats", "katzen", "-")]
    source = {
        "path": write(tmp_path / "wide.parquet", *rows, names=WIDE),
        "columns": "premise=premise_{lang},hypothesis=hypothesis_{lang},label=label",
        "languages": ["en", "de"],
    }

    clean, data = inference(source, tokenizer)

    counts = Counter(decoded(data, {"en": tokenizer, "de": tokenizer}))
    assert counts.keys() == {("dogs run", "katzen schlafen", 1, "en"), ("hunde laufen", "cats sleep", 1, "de")}
    assert counts.total() == 60
    assert min(counts.values()) > 15

    without_label = clean.report["cleaning"]["no_label"]
    assert without_label["in"] - without_label["out"] == 1
    assert clean.report["rejected"] == {"fewer than two languages filled": 1}


# Evaluation sets.


@pytest.fixture
def xnli(tmp_path: Path) -> LabelledSet:
    """A test set of two sources and three languages."""
    wide = write(tmp_path / "w.parquet", ("dogs", "hunde", 0), ("cats", "katzen", -1), names="en de label")
    sources = [
        {"path": wide, "columns": "first={lang},second=en,label=label", "languages": ["en", "de"]},
        {"path": write(tmp_path / "m.parquet", ("birds", "sing", 2)), "languages": ["fr"]},
    ]
    (xnli,) = labelled_sets({"xnli": parse_sources(sources)}, NLI, languages=["en"], split="test")
    return xnli


def test_set_holds_labelled_rows_of_all_sources(xnli: LabelledSet) -> None:
    assert (xnli.name, xnli.split) == ("xnli", "test")
    assert [(row["lang"], row["label"]) for row in xnli.rows] == [("en", 0), ("de", 0), ("fr", 2)]
    assert list(xnli.texts()) == ["dogs", "dogs", "hunde", "dogs", "birds", "sing"]


def test_sets_are_tokenised_once(xnli: LabelledSet, tokenizer: Any) -> None:
    features = xnli.features(tokenizer, 16)
    columns, _ = encode_texts([["hunde"], ["dogs"]], tokenizer, 16)
    assert features[1]["input_ids"] == columns["input_ids"][0]
    assert xnli.features(tokenizer, 16) is features
    assert xnli.features(tokenizer, 5) is not features


def test_set_of_single_texts(tokenizer: Any) -> None:
    single = LabelledSet("sst2", "dev", [{"text": "birds sing", "lang": "en", "label": 1}], SINGLE)
    assert single.features(tokenizer, 16) == [{"input_ids": [2, 6, 9, 3]}]
