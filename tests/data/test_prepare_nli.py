from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data import sources
from hf_xlsr.data.nli import label_number, prepare_nli
from hf_xlsr.data.prepared import PreparedRows

WORDS = ["dogs", "run", "cats", "sleep", "birds", "sing"]
WORTE = ["hunde", "laufen", "katzen", "schlafen"]
NAMES = ("premise", "hypothesis", "label")
WIDE = ("premise_en", "premise_de", "hypothesis_en", "hypothesis_de", "label")
CROSSED = "premise=premise_{lang},hypothesis=hypothesis_{lang},label=label"


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {"en": word_tokenizer(WORDS), "de": word_tokenizer(WORTE, special_first=False)}


def write(path: Path, *rows: tuple[Any, ...], names: tuple[str, ...] = NAMES) -> str:
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), path)
    return str(path)


def run(given: Any, tokenizers: Any, folder: Path, **options: Any) -> PreparedRows:
    rest = {"languages": ["en", "de"], "evaluation_texts": (), "max_length": 16, **options}
    return prepare_nli(given, tokenizers=tokenizers, folder=folder, **rest)


def texts(data: PreparedRows, tokenizers: dict[str, Any]) -> list[tuple[str, str, int, str]]:
    """The rows, decoded."""
    return [
        (
            tokenizers[row["lang"]].decode(row["premise_ids"], skip_special_tokens=True),
            tokenizers[row["lang"]].decode(row["hypothesis_ids"], skip_special_tokens=True),
            row["label"],
            row["lang"],
        )
        for row in data.__getitems__([(0, index) for index in range(len(data))])
    ]


@pytest.mark.parametrize(
    ("label", "number"),
    [("entailment", 0), ("neutral", 1), ("Contradictory", 2), (0, 0), ("1", 1), (2.0, 2)]
    + [(label, None) for label in (-1, -1.0, "-", "", None)],
)
def test_labels(label: Any, number: int | None) -> None:
    assert label_number(label) == number


@pytest.mark.parametrize("label", [3, -2, "maybe", 0.5, True])
def test_invalid_label(label: Any) -> None:
    with pytest.raises(ValueError):
        label_number(label)


def test_rows_have_label_and_language(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", ("dogs run", "cats sleep", "contradiction"), ("dogs", "dogs run", "neutral"))
    data = run([file], tokenizers, tmp_path / "nli")
    assert data[5, 0] == {
        "premise_ids": [2, 4, 5, 3],
        "hypothesis_ids": [2, 6, 7, 3],
        "label": 2,
        "lang": "en",
        "index": 0,
        "epoch": 5,
    }
    assert data.lengths.tolist() == [4, 4] and data.groups.tolist() == [0, 0]
    assert data.report["labels"] == {"entailment": 0, "neutral": 1, "contradiction": 1}
    assert (data.report["pairs"], data.report["tokens"], data.report["num_truncated"]) == (2, 15, 0)


def test_unlabelled_rows_and_evaluation_rows_are_counted(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    rows = [("dogs run", "cats sleep", 0), ("dogs", "run", -1), ("dogs", "run", None), ("birds sing", "dogs", 1)]
    rows += [("cats", "birds sing", 2), ("cats", "run", 2), ("", "run", 1)]
    file = write(tmp_path / "a.parquet", *rows)
    data = run(file, tokenizers, tmp_path / "out", evaluation_texts=["Birds SING!"])
    assert texts(data, tokenizers) == [("dogs run", "cats sleep", 0, "en"), ("cats", "run", 2, "en")]
    assert data.report["unlabelled"] == 2 and data.report["rejected"] == {"empty premise": 1}
    assert data.report["cleaning"] == {"remove_evaluation": {"in": 4, "out": 2, "changed": 0}}


def test_wide_files_and_rows_that_name_their_language(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    wide = write(tmp_path / "wide.parquet", ("dogs run", "hunde laufen", "dogs", "hunde", "entailment"), names=WIDE)
    mixed = write(
        tmp_path / "mixed.parquet",
        ("katzen", "schlafen", "2", "de"),
        ("cats", "sleep", "1", None),
        names=("premise", "hypothesis", "gold", "lang"),
    )
    given = [
        {"path": wide, "columns": f"premise=premise_{lang},hypothesis=hypothesis_{lang}", "languages": [lang]}
        for lang in ("en", "de")
    ]
    data = run([*given, {"path": mixed, "columns": {"label": "gold"}}], tokenizers, tmp_path / "nli")
    assert texts(data, tokenizers) == [
        ("dogs run", "dogs", 0, "en"),
        ("hunde laufen", "hunde", 0, "de"),
        ("katzen", "schlafen", 2, "de"),
        ("cats", "sleep", 1, "en"),
    ]
    assert data.languages == ["de", "en"] and data.groups.tolist() == [1, 0, 0, 1]


def test_corpora_are_read_in_the_first_language(
    tokenizers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load(name: str, *, languages: list[str], split: str) -> Any:
        asked.append((name, languages, split))
        return iter([{"premise": "dogs", "hypothesis": "run", "label": 1, "lang": "en"}])

    monkeypatch.setattr(sources, "load_corpus", load)
    assert len(run(["snli", {"corpus": "multinli"}], tokenizers, tmp_path / "nli")) == 2
    assert asked == [("snli", ["en"], "train"), ("multinli", ["en"], "train")]


def test_wide_file_is_read_crosswise(tmp_path: Path) -> None:
    tokenizer = word_tokenizer([*WORDS, *WORTE])
    both = {"en": tokenizer, "de": tokenizer}
    rows = [("dogs run", "hunde laufen", "cats sleep", "katzen schlafen", "neutral")] * 60
    rows += [("birds", "", "birds", "katzen", "neutral"), ("dogs", "hunde", "cats", "katzen", "-")]
    source = {
        "path": write(tmp_path / "wide.parquet", *rows, names=WIDE),
        "columns": CROSSED,
        "languages": ["en", "de"],
    }
    data = run(source, tokenizer, tmp_path / "run")
    found = Counter(texts(data, both))
    assert set(found) == {("dogs run", "katzen schlafen", 1, "en"), ("hunde laufen", "cats sleep", 1, "de")}
    assert sum(found.values()) == 60 and min(found.values()) > 15
    assert data.report["unlabelled"] == 1 and data.report["rejected"] == {"fewer than two languages filled": 1}
    assert texts(run(source, tokenizer, tmp_path / "other", seed=2), both) != texts(data, both)
