"""Labelled rows and inference pairs: tasks, sources, tokenised rows, evaluation sets."""

from __future__ import annotations

import tempfile
import zlib
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

from hf_xlsr.data.cleaning import evaluation_keys
from hf_xlsr.data.labelled import (
    LabelledSet,
    LabelledTask,
    encode_texts,
    label_number,
    labelled_rows,
    prepare_labelled,
    prepare_nli,
    read_sets,
    row_text,
)
from hf_xlsr.data.prepared import PreparedRows

WORDS = "dogs cats birds run sleep sing hunde katzen laufen schlafen a b c d e f g h".split()
NLI = LabelledTask(labels=("entailment", "neutral", "contradiction"))
SINGLE = LabelledTask(texts="single", labels=("negative", "positive"))
STS = LabelledTask(scores=(0, 5))
WIDE = ("premise_en", "premise_de", "hypothesis_en", "hypothesis_de", "label")
SIDES = ("premise", "hypothesis", "label")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return framed_tokenizer(WORDS)


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {"en": word_tokenizer(WORDS), "de": word_tokenizer(WORDS, special_first=False)}


def write(path: Path, *rows: tuple[Any, ...], names: Iterable[str] = ("first", "second", "label")) -> str:
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), path)
    return str(path)


def prepare(given: Any, tokenizer: Any, folder: Path, task: LabelledTask = NLI, **options: Any) -> PreparedRows:
    rest = {"languages": ["en", "de"], "evaluation_texts": (), "max_length": 16, **options}
    return prepare_labelled(given, task=task, tokenizer=tokenizer, folder=folder, **rest)


def inference(given: Any, tokenizers: Any, folder: Path, **options: Any) -> PreparedRows:
    rest = {"languages": ["en", "de"], "evaluation_texts": (), "max_length": 16, **options}
    return prepare_nli(given, tokenizers=tokenizers, folder=folder, **rest)


def labels_of(data: PreparedRows) -> list[Any]:
    return data.rows["label"][:]


def decoded(data: PreparedRows, tokenizers: Any) -> list[tuple[str, str, int, str]]:
    """Premise, hypothesis, label and language of inference rows."""
    result = []
    for row in data.__getitems__([(0, index) for index in range(len(data))]):
        one = tokenizers[row["lang"]] if isinstance(tokenizers, dict) else tokenizers
        sides = (one.decode(row[f"{side}_ids"], skip_special_tokens=True) for side in ("premise", "hypothesis"))
        result.append((*sides, row["label"], row["lang"]))
    return result


@pytest.mark.parametrize(
    ("label", "number"),
    [("entailment", 0), (" Neutral ", 1), ("contradictory", 2), (0, 0), ("1", 1), (2.0, 2)]
    + [(label, None) for label in (-1, -1.0, "-", "", None)],
)
def test_classes_by_name_and_number(label: Any, number: int | None) -> None:
    assert NLI.value(label) == label_number(label) == number


def test_class_names_precede_numbers_and_others_are_invalid() -> None:
    stars = LabelledTask(texts="single", labels=("1", "2", "none"))
    assert [stars.value(value) for value in ("1", 2, "none", None, "")] == [0, 1, 2, 2, None]
    for label in (3, -2, "maybe", 0.5, True):
        with pytest.raises(ValueError):
            NLI.value(label)


def test_scores() -> None:
    assert [STS.value(score) for score in ("2.5", 5, 0.0, "", None, float("nan"))] == [2.5, 5.0, 0.0, None, None, None]
    assert LabelledTask(scores=(-1, 1)).value(-1) == -1.0
    for wrong in (5.1, -1, "high", "inf"):
        with pytest.raises(ValueError):
            STS.value(wrong)


# Sources.


def test_rows_of_wide_and_mixed_files(tmp_path: Path) -> None:
    wide = write(tmp_path / "w.parquet", ("dogs", "hunde", "cats", "katzen", "entailment"), names=WIDE)
    names = ("first", "second", "label", "lang")
    mixed = write(tmp_path / "m.parquet", ("katzen", "schlafen", "2", "de"), ("cats", "run", "1", None), names=names)
    columns = "first=premise_{lang},second=hypothesis_{lang},label=label"
    given = [{"path": wide, "columns": columns, "languages": ["de", "en"]}, {"path": mixed}]
    assert [tuple(row.values()) for row in labelled_rows(given, NLI, languages=["en"])] == [
        ("hunde", "katzen", "de", 0),
        ("dogs", "cats", "en", 0),
        ("katzen", "schlafen", "de", 2),
        ("cats", "run", "en", 1),
    ]


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30))
def test_hash_split_separates_texts_in_every_language(letters: list[str]) -> None:
    columns = "first=premise_{lang},second=premise_de,label=label"
    with tempfile.TemporaryDirectory() as folder:
        rows = [(letter, f"{letter}-{number}", number % 3) for number, letter in enumerate(letters)]
        file = write(Path(folder) / "a.parquet", *rows, names=("premise_en", "premise_de", "label"))
        common = {"path": file, "columns": columns, "languages": ["en", "de"]}
        split = {"hash_key": "premise_en", "hash_modulus": 3}
        parts = {
            part: list(labelled_rows([{**common, **split, "hash_split": part}], NLI, languages=["en"]))
            for part in ("rest", "held")
        }
    assert len(parts["rest"]) + len(parts["held"]) == 2 * len(letters)
    for part, rows_of_part in parts.items():
        assert all((zlib.crc32(row["first"][0].encode()) % 3 == 0) == (part == "held") for row in rows_of_part)


# Prepared rows.


def test_pair_is_one_sequence(tmp_path: Path, tokenizer: Any) -> None:
    file = write(tmp_path / "a.parquet", ("dogs run", "cats", "contradiction"))
    data = prepare(file, framed_tokenizer(WORDS, types=True), tmp_path / "out")
    expected = {"input_ids": [2, 4, 7, 3, 5, 3], "label": 2, "lang": "en", "index": 0, "epoch": 5}
    assert data[5, 0] == {**expected, "token_type_ids": [0, 0, 0, 0, 1, 1]}
    assert data.lengths.tolist() == [6] and data.groups.tolist() == [0]
    assert prepare(file, tokenizer, tmp_path / "untyped")[5, 0] == expected


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


def test_scores_and_single_texts(tmp_path: Path, tokenizer: Any) -> None:
    sts = write(tmp_path / "sts.parquet", ("dogs", "cats", "2.6"), ("dogs", "dogs", "5"), ("dogs", "run", None))
    data = prepare(sts, tokenizer, tmp_path / "sts", STS)
    assert labels_of(data) == pytest.approx([2.6, 5.0])
    assert data.report["unlabelled"] == {"sts": 1} and data.report["labels"] == {}
    sst = write(tmp_path / "sst.parquet", ("birds sing", "1"), names=("sentence", "label"))
    single = prepare({"path": sst, "columns": "text=sentence,label=label"}, tokenizer, tmp_path / "sst", SINGLE)
    assert tokenizer.decode(single[0, 0]["input_ids"]) == "[CLS] birds sing [SEP]"


def test_report_counts(tmp_path: Path, tokenizer: Any) -> None:
    rows = [("dogs", "run", 0), ("dogs", "a " * 30, 1), ("cats", "run", -1), ("", "run", 1), ("birds", "sing", 1)]
    file = write(tmp_path / "a.parquet", *rows, ("DOGS!", "sing", 2))
    report = prepare(file, tokenizer, tmp_path / "out", evaluation_texts=["birds"], cleaning=["deduplicate"]).report
    assert report["pairs"] == 3 and report["labels"] == {"entailment": 1, "neutral": 1, "contradiction": 1}
    assert report["languages"] == ["en"] and report["unlabelled"] == {"a": 1}
    assert report["rejected"] == {"empty first": 1} and report["num_truncated"] == 1
    assert report["cleaning"]["remove_evaluation"] == {"in": 4, "out": 3, "changed": 0}
    assert report["tokens"] == 5 + 16 + 6


def test_evaluation_rows_are_removed_by_text_or_by_row(tmp_path: Path, tokenizer: Any) -> None:
    rows = [("dogs", "run", 0), ("dogs", "sleep", 1), ("cats", "birds", 2), ("birds", "cats", 1)]
    file = write(tmp_path / "a.parquet", *rows)
    held = [{"first": "Dogs.", "second": "run"}, {"first": "sing", "second": "cats"}]
    given = {
        "text": ({"evaluation_texts": ["Dogs.", "run"]}, [2, 1]),
        "keys": ({"evaluation_texts": evaluation_keys(held[:1])}, [2, 1]),
        "row": ({"evaluation_texts": map(row_text, held), "overlap": "row"}, [1, 2, 1]),
        "held-out": ({"evaluation_texts": ["sleep"], "overlap": "row"}, [0, 2, 1]),  # single texts count, too
    }
    for name, (options, labels) in given.items():
        assert labels_of(prepare(file, tokenizer, tmp_path / name, **options)) == labels


# Inference pairs, tokenised side by side.


def test_inference_rows_have_label_and_language(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    wide = write(tmp_path / "w.parquet", ("dogs run", "hunde laufen", "dogs", "hunde", "neutral"), names=WIDE)
    names = ("premise", "hypothesis", "gold", "lang")
    mixed = write(tmp_path / "m.parquet", ("katzen", "schlafen", "2", "de"), ("cats", "sleep", "1", None), names=names)
    given: list[Any] = [
        {"path": wide, "columns": f"premise=premise_{lang},hypothesis=hypothesis_{lang}", "languages": [lang]}
        for lang in ("en", "de")
    ]
    data = inference([*given, {"path": mixed, "columns": {"label": "gold"}}], tokenizers, tmp_path / "out")
    assert decoded(data, tokenizers) == [
        ("dogs run", "dogs", 1, "en"),
        ("hunde laufen", "hunde", 1, "de"),
        ("katzen", "schlafen", 2, "de"),
        ("cats", "sleep", 1, "en"),
    ]
    assert data.languages == ["de", "en"] and data.groups.tolist() == [1, 0, 0, 1]
    assert data.lengths.tolist() == [4, 4, 3, 3]
    assert data.report["labels"] == {"entailment": 0, "neutral": 3, "contradiction": 1}
    assert (data.report["pairs"], data.report["num_truncated"]) == (4, 0)


def test_wide_file_is_read_crosswise(tmp_path: Path) -> None:
    tokenizer = word_tokenizer(WORDS)
    rows = [("dogs run", "hunde laufen", "cats sleep", "katzen schlafen", "neutral")] * 60
    rows += [("birds", "", "birds", "katzen", "neutral"), ("dogs", "hunde", "cats", "katzen", "-")]
    file = write(tmp_path / "wide.parquet", *rows, names=WIDE)
    columns = "premise=premise_{lang},hypothesis=hypothesis_{lang},label=label"
    source = {"path": file, "columns": columns, "languages": ["en", "de"]}
    data = inference(source, tokenizer, tmp_path / "run")
    found = Counter(decoded(data, tokenizer))
    assert set(found) == {("dogs run", "katzen schlafen", 1, "en"), ("hunde laufen", "cats sleep", 1, "de")}
    assert sum(found.values()) == 60 and min(found.values()) > 15
    assert data.report["unlabelled"] == 1 and data.report["rejected"] == {"fewer than two languages filled": 1}
    other = inference(source, tokenizer, tmp_path / "other", seed=2)
    assert decoded(other, tokenizer) != decoded(data, tokenizer)


# Evaluation sets.


def test_sets_are_tokenised_once(tmp_path: Path, tokenizer: Any, caplog: pytest.LogCaptureFixture) -> None:
    wide = write(tmp_path / "w.parquet", ("dogs", "hunde", 0), ("cats", "katzen", -1), names=("en", "de", "label"))
    more = {"path": write(tmp_path / "m.parquet", ("birds", "sing", 2)), "languages": ["fr"]}
    both = {"path": wide, "columns": "first={lang},second=en,label=label", "languages": ["en", "de"]}
    (data,) = read_sets({"xnli": [both, more]}, NLI, languages=["en"], split="test")
    assert (data.name, data.split) == ("xnli", "test") and "data.test.xnli: 2 rows" in caplog.text
    assert [(row["lang"], row["label"]) for row in data.rows] == [("en", 0), ("de", 0), ("fr", 2)]
    assert list(data.texts()) == ["dogs", "dogs", "hunde", "dogs", "birds", "sing"]
    features = data.features(tokenizer, 16)
    assert features[1]["input_ids"] == encode_texts([["hunde"], ["dogs"]], tokenizer, 16)[0]["input_ids"][0]
    assert data.features(tokenizer, 16) is features and data.features(tokenizer, 5) is not features
    assert read_sets(None, NLI, languages=["en"], split="dev") == []
    single = LabelledSet("sst2", "dev", [{"text": "birds sing", "lang": "en", "label": 1}], SINGLE)
    assert single.features(tokenizer, 16) == [{"input_ids": [2, 6, 9, 3]}]
