from __future__ import annotations

import json
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats_helpers import fails, read_with_side_file, write

from hf_xlsr.data.columns import parse_columns, resolve_columns
from hf_xlsr.data.formats import tables
from hf_xlsr.data.formats.reading import read_rows


def test_nested_columns_and_numbers(tmp_path):
    records: list[dict[str, Any]] = [
        {"translation": {"en": "one", "fr": "un"}, "label": 1, "score": 0.5, "source_lang": 7, "blob": b"skip"},
        {"translation": {"en": "two", "fr": None}, "label": 2, "score": 1.5, "source_lang": None, "blob": b"skip"},
        {"translation": {"en": "3", "fr": "trois"}, "label": None, "score": None, "source_lang": None, "blob": b""},
    ]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    write(tmp_path, "a.jsonl", "".join(json.dumps({**r, "blob": ""}) + "\n" for r in records))
    columns = "source=translation.en,target=translation.fr,label=label,score=score,source_lang=source_lang"
    for name in ("a.parquet", "a.jsonl"):
        rows, bad, _ = read_with_side_file(tmp_path, tmp_path / name, columns=columns)
        assert rows == [
            {"source": "one", "target": "un", "label": 1, "score": 0.5, "source_lang": "7"},
            {"source": "3", "target": "trois", "label": None, "score": None, "source_lang": None},
        ]
        assert type(rows[0]["label"]) is int
        assert type(rows[0]["score"]) is float
        assert bad == [(2, "empty target")]

        fails(tmp_path / name, "'translation.fe'", "did you mean 'translation.fr'?", columns="source=translation.fe")
        fails(tmp_path / name, "no column 'source'")
        rows, bad, _ = read_with_side_file(tmp_path, tmp_path / name, required=("label",))
        assert [row["label"] for row in rows] == [1, 2]
        assert bad == [(3, "empty label")]


def test_parquet_with_invalid_utf_8(tmp_path):
    offsets = pa.array(["ab", "cd", "ef"]).buffers()[:2]
    broken = pa.Array.from_buffers(pa.string(), 3, [*offsets, pa.py_buffer(b"ab\xff\xfeef")])
    nan = pa.array([1.5, 2.5, float("nan")])
    unused = pa.Array.from_buffers(pa.string(), 3, [*offsets, pa.py_buffer(b"\xff\xfecdef")])
    pq.write_table(pa.table({"source": broken, "target": nan, "unused": unused}), tmp_path / "a.parquet")
    rows, bad, _ = read_with_side_file(tmp_path, tmp_path / "a.parquet")
    assert rows == [{"source": "ab", "target": "1.5"}]
    assert bad == [(2, "invalid UTF-8"), (3, "empty target")]


def test_large_columns_are_read_unless_they_expand_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LARGE_COLUMN", 1 << 10)
    plain = [f"word {number}" for number in range(10_000)]
    repeated = ["a" * 1000] * 10_000
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    for name, target, unused in (("good", plain, repeated), ("bad", repeated, plain)):
        table = pa.table({"source": plain, "target": target, "unused": unused})
        pq.write_table(table, tmp_path / f"{name}.parquet", **options)
    assert len(list(read_rows(tmp_path / "good.parquet"))) == 10_000
    fails(tmp_path / "bad.parquet", "expands")


def test_saved_and_plain_folders(tmp_path):
    sides = [{"en": "one", "fr": "un"}, {"en": "two", "fr": ""}]
    data = datasets.Dataset.from_dict({"translation": sides, "label": [1, 0], "lang": ["x", "y"]})
    data.with_format("numpy").save_to_disk(tmp_path / "single")
    datasets.DatasetDict(test=data.select([1]), train=data).save_to_disk(tmp_path / "splits")
    datasets.DatasetDict(dev=data, test=data).save_to_disk(tmp_path / "no_train")
    (tmp_path / "plain").mkdir()
    data.to_parquet(tmp_path / "plain" / "train.parquet")

    columns = "translation.en=source,translation.fr=target,label=label"
    for name in ("single", "splits", "plain"):
        rows, bad, _ = read_with_side_file(tmp_path, tmp_path / name, columns=columns)
        assert rows == [{"source": "one", "target": "un", "label": 1}]
        assert type(rows[0]["label"]) is int
        assert bad == [(2, "empty target")]
    assert list(read_rows(tmp_path / "splits", required=("lang",), split="test")) == [{"lang": "y", "label": 0}]
    fails(tmp_path / "splits", "'tset'", "test, train", columns=columns, split="tset")
    fails(tmp_path / "no_train", "dev, test", columns=columns)


def test_unreachable_hub(monkeypatch):
    asked = []

    def unreachable(path, **options):
        asked.append((path, options))
        raise ConnectionError(f"Couldn't reach '{path}'")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ConnectionError, match="some-data.v2"):
        list(read_rows("owner/some-data.v2", config="en-fr"))
    fails("owner/some-data.tvs", "did you mean '.tsv'?")
    assert asked == [("owner/some-data.v2", {"name": "en-fr", "streaming": True})]


def test_stream_that_breaks_off(monkeypatch):
    def rows():
        yield {"source": "a", "target": 1, "z": {"q": 2}}
        raise ConnectionResetError("reset by peer")

    stream = datasets.IterableDataset.from_generator(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda path, **options: {"train": stream})
    assert next(read_rows("owner/name")) == {"source": "a", "target": "1"}
    fails("owner/name", "owner/name", "first 1 rows", "reset by peer")


@pytest.mark.parametrize(
    ("given_columns", "expected"),
    [
        (None, {}),
        (" source = en , fr = target ", {"source": "en", "target": "fr"}),
        ("text=source", {"text": "source"}),  # both are ours: the left one counts
        ({"source": 0, "fr": "target"}, {"source": "0", "target": "fr"}),
        ({"source": "a=b,c"}, {"source": "a=b,c"}),
    ],
)
def test_parse_columns(given_columns, expected):
    assert parse_columns(given_columns) == expected


def test_resolve_columns():
    names = ["source", "target", "lang", "id", "translation.en"]
    known = resolve_columns({}, ["source", "target"], names, "f")
    assert known == {"source": "source", "target": "target", "lang": "lang"}
    assert resolve_columns({}, ["id"], names, "f")["id"] == "id"
    mapped = resolve_columns({"target": "translation.en"}, ["source", "target"], names, "f")
    assert mapped == {"source": "source", "target": "translation.en"}
