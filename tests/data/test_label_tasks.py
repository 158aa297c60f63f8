"""Labelled rows and inference pairs: tasks, sources, tokenised rows, evaluation sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
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
WIDE = ("premise_en", "premise_de", "hypothesis_en", "hypothesis_de", "label")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return framed_tokenizer(WORDS)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {"en": word_tokenizer(WORDS), "de": word_tokenizer(WORDS[::-1])}


def write(path: Path, *rows: tuple[Any, ...], names: Iterable[str] = ("first", "second", "label")) -> str:
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), path)
    return str(path)


def prepare(sources: Any, tokenizer: Any, task: LabelledTask = NLI, **options: Any) -> PreparedRows:
    clean = clean_labelled(parse_sources(sources), task, languages=["en", "de"], **options)
    return DataConverter(tokenizer, max_length=16).labelled(clean.rows)


def inference(sources: Any, tokenizers: Any) -> tuple[CleanRows, PreparedRows]:
    clean = clean_inference(parse_sources(sources), languages=["en", "de"])
    return clean, DataConverter(tokenizers, max_length=16).inference(clean.rows)


def decoded(data: PreparedRows, tokenizers: Any) -> list[tuple[str, str, int, str]]:
    """Premise, hypothesis, label and language of inference rows."""
    result = []
    for row in data.__getitems__([(0, index) for index in range(len(data))]):
        one = tokenizers[row["lang"]] if isinstance(tokenizers, dict) else tokenizers
        sides = (one.decode(row[f"{side}_ids"], skip_special_tokens=True) for side in ("premise", "hypothesis"))
        result.append((*sides, row["label"], row["lang"]))
    return result


def test_classes_by_name_and_number() -> None:
    stars = LabelledTask(texts="single", labels=("1", "2", "none"))
    assert [stars.value(value) for value in ("1", 2, "none", None, "")] == [0, 1, 2, 2, None]
    named = {" Neutral ": 1, "contradictory": 2, "1": 1, 2.0: 2, -1: None, "-": None}
    assert {label: NLI.value(label) for label in named} == named
    for label in (3, -2, "maybe", 0.5, True):
        with pytest.raises(ValueError):
            NLI.value(label)


def test_scores() -> None:
    assert [STS.value(score) for score in ("2.5", 5, 0.0, "", None, float("nan"))] == [2.5, 5.0, 0.0, None, None, None]
    assert LabelledTask(scores=(-1, 1)).value(-1) == -1.0
    for wrong in (5.1, -1, "high", "inf"):
        with pytest.raises(ValueError):
            STS.value(wrong)


# Prepared rows.


def test_pair_is_one_sequence(tmp_path: Path, tokenizer: Any) -> None:
    file = write(tmp_path / "a.parquet", ("dogs run", "cats", "contradiction"))
    data = prepare(file, framed_tokenizer(WORDS, types=True))
    expected = {"input_ids": [2, 4, 7, 3, 5, 3], "label": 2, "lang": "en", "index": 0, "epoch": 5}
    assert data[5, 0] == {**expected, "token_type_ids": [0, 0, 0, 0, 1, 1]}
    assert data.lengths.tolist() == [6] and data.groups.tolist() == [0]
    assert prepare(file, tokenizer)[5, 0] == expected


@given(st.integers(1, 12), st.integers(1, 12), st.integers(5, 24))
def test_longer_text_is_truncated_first(first: int, second: int, max_length: int) -> None:
    tokenizer = framed_tokenizer(WORDS)
    columns, truncated = encode_texts([["a " * first], ["b " * second]], tokenizer, max_length)
    counts = Counter(tokenizer.convert_ids_to_tokens(columns["input_ids"][0]))
    left = [first, second]  # a naive twin: remove a token of the longer one until they fit; of equals, of either
    while sum(left) + 3 > max_length:
        left[left.index(max(left))] -= 1
    assert truncated == (first + second + 3 > max_length)
    assert sorted([counts["a"], counts["b"]]) == sorted(left) and counts["[SEP]"] == 2 and counts["[CLS]"] == 1
    assert (counts["a"] - counts["b"]) * (first - second) >= 0


def test_evaluation_rows_are_removed_by_text_or_by_row(tmp_path: Path, tokenizer: Any) -> None:
    rows = [("dogs", "run", 0), ("dogs", "sleep", 1), ("cats", "birds", 2), ("birds", "cats", 1)]
    file = write(tmp_path / "a.parquet", *rows)
    held = [{"first": "Dogs.", "second": "run"}, {"first": "sing", "second": "cats"}]
    given = {
        "text": ({"evaluation_texts": ["Dogs.", "run"]}, [2, 1]),
        "keys": ({"evaluation_texts": evaluation_keys(held[:1])}, [2, 1]),
        "row": ({"evaluation_texts": map(row_text, held), "whole_rows": True}, [1, 2, 1]),
        "held-out": ({"evaluation_texts": ["sleep"], "whole_rows": True}, [0, 2, 1]),  # single texts count, too
    }
    for options, labels in given.values():
        assert prepare(file, tokenizer, **options).rows["label"][:] == labels


# Inference pairs, tokenised side by side.


def test_inference_rows_have_label_and_language(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    wide = write(tmp_path / "w.parquet", ("dogs run", "hunde laufen", "dogs", "hunde", "neutral"), names=WIDE)
    names = ("premise", "hypothesis", "gold", "lang")
    mixed = write(tmp_path / "m.parquet", ("katzen", "schlafen", "2", "de"), ("cats", "sleep", "1", None), names=names)
    given: list[Any] = [
        {"path": wide, "columns": f"premise=premise_{lang},hypothesis=hypothesis_{lang}", "languages": [lang]}
        for lang in ("en", "de")
    ]
    clean, data = inference([*given, {"path": mixed, "columns": {"label": "gold"}}], tokenizers)
    assert decoded(data, tokenizers) == [
        ("dogs run", "dogs", 1, "en"),
        ("hunde laufen", "hunde", 1, "de"),
        ("katzen", "schlafen", 2, "de"),
        ("cats", "sleep", 1, "en"),
    ]
    assert data.languages == ["de", "en"] and data.groups.tolist() == [1, 0, 0, 1]
    assert data.lengths.tolist() == [4, 4, 3, 3]
    assert clean.report["labels"] == {"entailment": 0, "neutral": 3, "contradiction": 1}
    assert (clean.report["pairs"], data.report["num_truncated"]) == (4, 0)


def test_wide_file_is_read_crosswise(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(WORDS)
    rows = [("dogs run", "hunde laufen", "cats sleep", "katzen schlafen", "neutral")] * 60
    rows += [("birds", "", "birds", "katzen", "neutral"), ("dogs", "hunde", "cats", "katzen", "-")]
    file = write(tmp_path / "wide.parquet", *rows, names=WIDE)
    columns = "premise=premise_{lang},hypothesis=hypothesis_{lang},label=label"
    source = {"path": file, "columns": columns, "languages": ["en", "de"]}
    clean, data = inference(source, tokenizer)
    found = Counter(decoded(data, tokenizer))
    assert set(found) == {("dogs run", "katzen schlafen", 1, "en"), ("hunde laufen", "cats sleep", 1, "de")}
    assert sum(found.values()) == 60 and min(found.values()) > 15
    labelled = clean.report["cleaning"]["no_label"]
    assert labelled["in"] - labelled["out"] == 1
    assert clean.report["rejected"] == {"fewer than two languages filled": 1}


# Evaluation sets.


def test_sets_are_tokenised_once(tmp_path: Path, tokenizer: Any) -> None:
    wide = write(tmp_path / "w.parquet", ("dogs", "hunde", 0), ("cats", "katzen", -1), names=("en", "de", "label"))
    more = {"path": write(tmp_path / "m.parquet", ("birds", "sing", 2)), "languages": ["fr"]}
    both = {"path": wide, "columns": "first={lang},second=en,label=label", "languages": ["en", "de"]}
    (data,) = labelled_sets({"xnli": parse_sources([both, more])}, NLI, languages=["en"], split="test")
    assert (data.name, data.split) == ("xnli", "test")
    assert [(row["lang"], row["label"]) for row in data.rows] == [("en", 0), ("de", 0), ("fr", 2)]
    assert list(data.texts()) == ["dogs", "dogs", "hunde", "dogs", "birds", "sing"]
    features = data.features(tokenizer, 16)
    assert features[1]["input_ids"] == encode_texts([["hunde"], ["dogs"]], tokenizer, 16)[0]["input_ids"][0]
    assert data.features(tokenizer, 16) is features and data.features(tokenizer, 5) is not features
    single = LabelledSet("sst2", "dev", [{"text": "birds sing", "lang": "en", "label": 1}], SINGLE)
    assert single.features(tokenizer, 16) == [{"input_ids": [2, 6, 9, 3]}]
