from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets.packaged_modules.parquet.parquet import Parquet
from formats_helpers import fails, read_with_side_file
from hub_of_one_file import HubOfOneFile

from hf_xlsr.data.columns import parse_columns, resolve_columns
from hf_xlsr.data.formats.reading import read_rows


@pytest.fixture(params=["a.parquet", "a.jsonl"])
def nested(request, tmp_path):
    """A file with a column of translations, and numbers."""
    path = tmp_path / request.param
    records: list[dict[str, Any]] = [
        {"translation": {"en": "one", "fr": "un"}, "label": 1, "score": 0.5, "source_lang": 7, "blob": b"skip"},
        {"translation": {"en": "two", "fr": None}, "label": 2, "score": 1.5, "source_lang": None, "blob": b"skip"},
        {"translation": {"en": "3", "fr": "trois"}, "label": None, "score": None, "source_lang": None, "blob": b""},
    ]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        for record in records:
            record["blob"] = ""
        path.write_text("\n".join(map(json.dumps, records)), "utf-8")
    return path


def test_nested_columns_and_numbers(nested, tmp_path):
    columns = "source=translation.en,target=translation.fr,label=label,score=score,source_lang=source_lang"
    rows, bad, _ = read_with_side_file(tmp_path, nested, columns=columns)
    assert rows == [
        {"source": "one", "target": "un", "label": 1, "score": 0.5, "source_lang": "7"},
        {"source": "3", "target": "trois", "label": None, "score": None, "source_lang": None},
    ]
    assert type(rows[0]["label"]) is int
    assert type(rows[0]["score"]) is float
    assert bad == [(2, "empty target")]


def test_translations_in_variable_languages_are_columns(tmp_path):
    """As the Hub has the hypotheses of XNLI: two lists in a row."""
    features = datasets.Features(
        {
            "premise": datasets.Translation(["en", "fr"]),
            "hypothesis": datasets.TranslationVariableLanguages(["en", "fr"]),
        }
    )
    row = {
        "premise": {"en": "red", "fr": "rouge"},
        "hypothesis": {"language": ["en", "fr"], "translation": ["blue", "bleu"]},
    }
    datasets.Dataset.from_list([row], features=features).save_to_disk(tmp_path / "xnli")
    rows, _, _ = read_with_side_file(
        tmp_path, tmp_path / "xnli", columns="premise=premise.fr,hypothesis=hypothesis.en", required=()
    )
    assert rows == [{"premise": "rouge", "hypothesis": "blue"}]


def test_required_number(nested, tmp_path):
    rows, bad, _ = read_with_side_file(tmp_path, nested, required=("label",))
    assert [row["label"] for row in rows] == [1, 2]
    assert bad == [(3, "empty label")]


def test_unknown_columns(nested):
    fails(nested, "'translation.fe'", "did you mean 'translation.fr'?", columns="source=translation.fe")
    fails(nested, "no column 'source'")


def test_parquet_with_invalid_utf_8(tmp_path):
    offsets = pa.array(["ab", "cd", "ef"]).buffers()[:2]

    def texts(data: bytes) -> pa.Array:
        return pa.Array.from_buffers(pa.string(), 3, [*offsets, pa.py_buffer(data)])

    columns = {
        "source": texts(b"ab\xff\xfeef"),
        "target": [1.5, 2.5, float("nan")],
        "unused": texts(b"\xff\xfecdef"),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")

    rows, bad, _ = read_with_side_file(tmp_path, tmp_path / "a.parquet")
    assert rows == [{"source": "ab", "target": "1.5"}]
    assert bad == [(2, "invalid UTF-8"), (3, "empty target")]


def test_columns_that_compress_well_are_read(tmp_path):
    path = tmp_path / "a.parquet"
    columns = {"source": ["a" * 1000] * 10_000, "target": [f"mot {number}" for number in range(10_000)]}
    pq.write_table(pa.table(columns), path, compression="zstd")

    assert path.stat().st_size < 100_000
    assert len(list(read_rows(path))) == 10_000


@pytest.fixture
def saved(tmp_path):
    """A dataset, saved in several ways."""
    sides = [{"en": "one", "fr": "un"}, {"en": "two", "fr": ""}]
    data = datasets.Dataset.from_dict({"translation": sides, "label": [1, 0], "lang": ["x", "y"]})
    data.with_format("numpy").save_to_disk(tmp_path / "single")
    datasets.DatasetDict(test=data.select([1]), train=data).save_to_disk(tmp_path / "splits")
    datasets.DatasetDict(dev=data, test=data).save_to_disk(tmp_path / "no_train")
    (tmp_path / "plain").mkdir()
    data.to_parquet(tmp_path / "plain" / "train.parquet")
    return tmp_path


COLUMNS = "translation.en=source,translation.fr=target,label=label"


@pytest.mark.parametrize("name", ["single", "splits", "plain"])
def test_saved_and_plain_folders(saved, name):
    rows, bad, _ = read_with_side_file(saved, saved / name, columns=COLUMNS)
    assert rows == [{"source": "one", "target": "un", "label": 1}]
    assert type(rows[0]["label"]) is int
    assert bad == [(2, "empty target")]


def test_parquet_of_a_repository(saved, monkeypatch):
    """Ranges of its files are read from the Hub, by a process of limited memory."""
    hub = HubOfOneFile("train.parquet", (saved / "plain" / "train.parquet").read_bytes())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    builder = object.__new__(Parquet)
    builder.config = SimpleNamespace(data_files={"train": ["hf://datasets/owner/name@main/train.parquet"]})
    builder.info = SimpleNamespace(features=None)
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda path, **options: builder)

    rows, bad, _ = read_with_side_file(saved, "owner/name", columns=COLUMNS)
    assert rows == [{"source": "one", "target": "un", "label": 1}]
    assert bad == [(2, "empty target")]
    assert hub.ranges


def test_split_of_a_saved_folder(saved):
    rows = list(read_rows(saved / "splits", required=("lang",), split="test"))
    assert rows == [{"lang": "y", "label": 0}]
    fails(saved / "splits", "'tset'", "test, train", columns=COLUMNS, split="tset")
    fails(saved / "no_train", "dev, test", columns=COLUMNS)


def test_unreachable_hub(monkeypatch):
    calls = []

    def unreachable(path, **options):
        calls.append((path, options))
        raise ConnectionError(f"Couldn't reach '{path}'")

    monkeypatch.setattr(datasets, "load_dataset_builder", unreachable)

    with pytest.raises(ConnectionError, match="some-data.v2"):
        list(read_rows("owner/some-data.v2", config="en-fr"))
    fails("owner/some-data.tvs", "did you mean '.tsv'?")
    assert calls == [("owner/some-data.v2", {"name": "en-fr"})]


def test_stream_that_breaks_off(monkeypatch):
    def rows():
        yield {"source": "a", "target": 1, "z": {"q": 2}}
        raise ConnectionResetError("reset by peer")

    stream = datasets.IterableDataset.from_generator(rows)
    builder = SimpleNamespace(config=SimpleNamespace(data_files={}), as_streaming_dataset=lambda: {"train": stream})
    monkeypatch.setattr(datasets, "load_dataset_builder", lambda path, **options: builder)

    assert next(read_rows("owner/name")) == {"source": "a", "target": "1"}
    fails("owner/name", "owner/name", "first 1 rows", "reset by peer")


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (None, {}),
        (" source = en , fr = target ", {"source": "en", "target": "fr"}),
        ("text=source", {"text": "source"}),  # both are ours: the left one counts
        ({"source": 0, "fr": "target"}, {"source": "0", "target": "fr"}),
        ({"source": "a=b,c"}, {"source": "a=b,c"}),
    ],
)
def test_parse_columns(columns, expected):
    assert parse_columns(columns) == expected


@pytest.mark.parametrize(
    ("mapping", "required", "expected"),
    [
        ({}, ["source", "target"], {"source": "source", "target": "target", "lang": "lang"}),
        ({}, ["id"], {"id": "id", "source": "source", "target": "target", "lang": "lang"}),
        ({"target": "translation.en"}, ["source", "target"], {"source": "source", "target": "translation.en"}),
    ],
)
def test_resolve_columns(mapping, required, expected):
    names = ["source", "target", "lang", "id", "translation.en"]
    assert resolve_columns(mapping, required, names, "f") == expected
