from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizer_helpers import word_tokenizer

from hf_xlsr.data import sources
from hf_xlsr.data.cleaning import evaluation_keys
from hf_xlsr.data.collators.dual_momentum import NliCollator
from hf_xlsr.data.multitask import MultiTaskBatchSampler, MultiTaskCollator, MultiTaskDataset
from hf_xlsr.data.nli import PreparedNli, label_number, prepare_nli
from hf_xlsr.data.sampling import LengthBucketBatchSampler
from hf_xlsr.utils.errors import XlsrError

WORDS = ["dogs", "run", "cats", "sleep", "birds", "sing"]
WORTE = ["hunde", "laufen", "katzen", "schlafen"]


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Any]:
    return {"en": word_tokenizer(WORDS), "de": word_tokenizer(WORTE, special_first=False)}


def write(path: Path, *rows: tuple[Any, ...], names: tuple[str, ...] = ("premise", "hypothesis", "label")) -> Path:
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), path)
    return path


def run(given: Any, tokenizers: Any, folder: Path, **options: Any) -> PreparedNli:
    rest = {"languages": ["en", "de"], "evaluation_texts": (), "max_length": 16, **options}
    return prepare_nli(given, tokenizers=tokenizers, folder=folder, **rest)


def texts(data: PreparedNli, tokenizers: dict[str, Any]) -> list[tuple[str, str, int, str]]:
    """What the data holds, read back from the pieces."""
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
    [
        ("entailment", 0),
        ("neutral", 1),
        ("contradiction", 2),
        ("Contradictory", 2),
        (0, 0),
        ("1", 1),
        (2.0, 2),
        (-1, None),
        (-1.0, None),
        ("-", None),
        ("", None),
        (None, None),
    ],
)
def test_labels(label: Any, number: int | None) -> None:
    assert label_number(label) == number


@pytest.mark.parametrize("label", [3, -2, "maybe", 0.5, True])
def test_what_is_no_label(label: Any) -> None:
    with pytest.raises(ValueError, match="is no label"):
        label_number(label)


def test_rows_are_tokenised_with_label_and_language(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", ("dogs run", "cats sleep", "contradiction"), ("dogs", "dogs run", "neutral"))
    data = run([str(file)], tokenizers, tmp_path / "nli")
    assert data[5, 0] == {
        "premise_ids": [2, 4, 5, 3],
        "hypothesis_ids": [2, 6, 7, 3],
        "label": 2,
        "lang": "en",
        "index": 0,
        "epoch": 5,
    }
    assert texts(data, tokenizers)[1] == ("dogs", "dogs run", 1, "en")
    assert data.lengths.tolist() == [4, 4] and data.groups.tolist() == [0, 0]
    assert data.report["labels"] == {"entailment": 0, "neutral": 1, "contradiction": 1}
    assert (data.report["pairs"], data.report["pieces"], data.report["truncated_sides"]) == (2, 15, 0)


def test_rows_without_label_and_of_evaluation_sets_are_dropped_and_counted(
    tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    file = write(
        tmp_path / "a.parquet",
        ("dogs run", "cats sleep", 0),
        ("dogs", "run", -1),
        ("dogs", "run", None),
        ("birds sing", "dogs", 1),
        ("cats", "birds sing", 2),
        ("cats", "run", 2),
        ("dogs", "sleep", 1),
        ("", "run", 1),
    )
    for number, held in enumerate((["Birds SING!"], evaluation_keys([{"text": "birds sing"}]))):
        data = run(str(file), tokenizers, tmp_path / str(number), evaluation_texts=held)
        assert texts(data, tokenizers) == [
            ("dogs run", "cats sleep", 0, "en"),
            ("cats", "run", 2, "en"),
            ("dogs", "sleep", 1, "en"),
        ]
        assert (data.report["unlabelled"], data.report["evaluation"]) == (2, 2)
        assert data.report["rejected"] == {"empty premise": 1}


def test_wide_files_and_rows_that_name_their_language(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    wide = write(
        tmp_path / "wide.parquet",
        ("dogs run", "dogs", "hunde laufen", "hunde", "entailment"),
        names=("premise_en", "hypothesis_en", "premise_de", "hypothesis_de", "label"),
    )
    mixed = write(
        tmp_path / "mixed.parquet",
        ("katzen", "schlafen", "2", "de"),
        ("cats", "sleep", "1", None),
        names=("premise", "hypothesis", "gold", "lang"),
    )
    given = [
        {"path": str(wide), "columns": f"premise=premise_{lang},hypothesis=hypothesis_{lang}", "languages": [lang]}
        for lang in ("en", "de")
    ]
    data = run([*given, {"path": str(mixed), "columns": {"label": "gold"}}], tokenizers, tmp_path / "nli")
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
    data = run(["snli", {"corpus": "multinli"}], tokenizers, tmp_path / "nli")
    assert len(data) == 2
    assert asked == [("snli", ["en"], "train"), ("multinli", ["en"], "train")]


def test_samples_follow_the_seed(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", *((one, other, 0) for one in WORDS for other in WORDS))
    source = {"path": str(file), "sample": 5}
    drawn = [
        texts(run(source, tokenizers, tmp_path / str(number), seed=seed), tokenizers)
        for number, seed in enumerate((1, 1, 2))
    ]
    assert len(drawn[0]) == 5 and drawn[0] == drawn[1] != drawn[2]


def test_long_sentences_are_cut_before_their_last_special_token(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    file = write(tmp_path / "a.parquet", ("dogs run cats sleep", "dogs", 0))
    data = run(str(file), tokenizers, tmp_path / "nli", max_length=4)
    assert data[0, 0]["premise_ids"] == [2, 4, 5, 3] and data.report["truncated_sides"] == 1


def test_a_finished_preparation_is_taken_up_and_an_unfinished_one_is_not(
    tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    file, folder = write(tmp_path / "a.parquet", ("dogs", "run", 0), ("dogs", "run", -1)), tmp_path / "nli"
    first = run(str(file), tokenizers, folder)
    broken: Any = None  # would fail if it were used
    again = run(str(file), broken, folder)
    assert again.report == first.report and again[0, 0] == first[0, 0]
    assert json.loads((folder / "prepared.json").read_text("utf-8"))["unlabelled"] == 1
    (folder / "prepared.json").unlink()
    with pytest.raises(TypeError):
        run(str(file), broken, folder)
    assert run(str(file), tokenizers, folder).report == first.report
    write(file, ("dogs", "run", 1))
    with pytest.raises(XlsrError, match="a.parquet has changed since"):
        run(str(file), tokenizers, folder)


@pytest.mark.parametrize(
    ("row", "names", "message"),
    [
        (
            ("dogs", "run", 3),
            ("premise", "hypothesis", "label"),
            "row 1 of NLI data 'bad' has label 3; labels are ent",
        ),
        (("dogs", "run", 1), ("premise", "hypothesis", "gold"), "NLI data 'bad' has no column 'label'; name the one"),
        (("dogs", "run", 1, "it"), ("premise", "hypothesis", "label", "lang"), "also in 'it', which has no tokenizer"),
        (("dogs", 1), ("premise", "label"), "no column 'hypothesis'"),
        (
            ("dogs", "run", -1),
            ("premise", "hypothesis", "label"),
            "no labelled pair of premise and hypothesis is left",
        ),
    ],
)
def test_mistakes(
    row: tuple[Any, ...], names: tuple[str, ...], message: str, tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    unlabelled = tuple(-1 if name in ("label", "gold") else "en" if name == "lang" else "dogs" for name in names)
    file = write(tmp_path / "bad.parquet", unlabelled, row, names=names)
    with pytest.raises(XlsrError, match=message):
        run(str(file), tokenizers, tmp_path / "nli")


def test_a_language_without_tokenizer_is_told_before_reading(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="also in 'it', which has no tokenizer; known are de, en"):
        run([{"path": "gone.parquet", "languages": ["it"]}], tokenizers, tmp_path / "nli")


def test_batches_of_one_language_beside_another_task(tokenizers: dict[str, Any], tmp_path: Path) -> None:
    rows = [(word, "run", 0, "en") for word in WORDS] + [(word, "laufen", 2, "de") for word in WORTE]
    names = ("premise", "hypothesis", "label", "lang")
    data = run(str(write(tmp_path / "a.parquet", *rows, names=names)), tokenizers, tmp_path / "nli")
    nli = LengthBucketBatchSampler(data.lengths, 2, groups=data.groups, homogeneous=True)
    main = LengthBucketBatchSampler([3] * 10, 2)
    loaded = MultiTaskDataset({"pairs": PairsOfNothing(), "nli": data})
    pads = {language: tokenizer.pad_token_id for language, tokenizer in tokenizers.items()}
    collate = MultiTaskCollator({"pairs": lambda features: {"x": len(features)}, "nli": NliCollator(pads)})
    batches = [collate(loaded.__getitems__(keys)) for keys in MultiTaskBatchSampler(main, {"nli": nli})]
    assert Counter((batch["nli_lang"], tuple(batch["nli_labels"].tolist())) for batch in batches) == {
        ("en", (0, 0)): 3,
        ("de", (2, 2)): 2,
    }
    assert all(batch["x"] == 2 and batch["nli_premise_input_ids"].shape == (2, 3) for batch in batches)


class PairsOfNothing:
    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        return {}


WIDE = ("premise_en", "premise_de", "hypothesis_en", "hypothesis_de", "label")
CROSSED = "premise=premise_{lang},hypothesis=hypothesis_{lang},label=label"


def test_a_wide_file_is_read_crosswise(tmp_path: Path) -> None:
    tokenizer = word_tokenizer([*WORDS, *WORTE])
    rows = [("dogs run", "hunde laufen", "cats sleep", "katzen schlafen", "neutral")] * 60
    rows += [("birds", "", "birds", "katzen", "neutral"), ("dogs", "hunde", "cats", "katzen", "-")]
    path = write(tmp_path / "wide.parquet", *rows, names=WIDE)
    source = {"path": str(path), "columns": CROSSED, "languages": ["en", "de"]}
    data = run(source, tokenizer, tmp_path / "run")
    found = Counter(texts(data, {"en": tokenizer, "de": tokenizer}))
    assert set(found) == {("dogs run", "katzen schlafen", 1, "en"), ("hunde laufen", "cats sleep", 1, "de")}
    assert sum(found.values()) == 60 and min(found.values()) > 15  # a row without a second language gives no pair
    assert data.report["unlabelled"] == 1 and data.report["rejected"] == {"fewer than two languages filled": 1}
    other = run(source, tokenizer, tmp_path / "other", seed=2)
    assert texts(other, {"en": tokenizer, "de": tokenizer}) != texts(data, {"en": tokenizer, "de": tokenizer})


def test_a_row_of_one_language_is_set_aside_whatever_its_label_is(tmp_path: Path) -> None:
    tokenizer = word_tokenizer([*WORDS, *WORTE])
    rows = [("dogs run", "hunde laufen", "cats sleep", "katzen schlafen", 1), ("birds", "", "birds", "katzen", 0)]
    path = write(tmp_path / "wide.parquet", *rows, names=WIDE)
    data = run({"path": str(path), "columns": CROSSED, "languages": ["en", "de"]}, tokenizer, tmp_path / "run")
    assert len(data) == 1 and data.report["rejected"] == {"fewer than two languages filled": 1}


@pytest.mark.parametrize(
    ("changes", "own", "sentence"),
    [
        ({"languages": ["en"]}, False, "takes two languages or more"),
        (
            {"columns": "premise=premise_{lang},hypothesis=hypothesis_en,label=label"},
            False,
            "takes two languages or more",
        ),
        ({"columns": "premise=premise_{lang},hypothesis=hypothesis_{lang}"}, False, "and label"),
        ({}, True, "each language has an encoder of its own here"),
    ],
)
def test_wide_files_that_are_refused(
    changes: dict[str, Any], own: bool, sentence: str, tokenizers: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "wide.parquet", ("a", "b", "c", "d", "neutral"), names=WIDE)
    source = {"path": str(path), "columns": CROSSED, "languages": ["en", "de"], **changes}
    with pytest.raises(XlsrError, match=sentence):
        run(source, tokenizers if own else tokenizers["en"], tmp_path / "run")
