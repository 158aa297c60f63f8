from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_xlsr.data.held_out import held_out_texts
from hf_xlsr.data.sources import open_source
from hf_xlsr.errors import XlsrError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [{"en": f"word {i}", "xx": f"mot {i}", "lang": "fr" if i % 2 else "de", "key": str(i)} for i in range(400)]
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def read(table: Path, **options: Any) -> list[dict[str, Any]]:
    source = {"path": str(table), "columns": "source=en,target=xx", **options}
    return list(open_source(source, languages=["en", "fr"]))


def test_rows_have_our_columns_and_languages(table: Path) -> None:
    assert read(table)[1] == {"source": "word 1", "target": "mot 1", "source_lang": "en", "target_lang": "fr"}


def test_where_keeps_rows_with_one_of_the_values(table: Path) -> None:
    assert [row["source"] for row in read(table, where={"lang": "fr"}, limit=2)] == ["word 1", "word 3"]
    assert len(read(table, where={"lang": ["fr", "de"]})) == 400


def test_hash_split_parts_are_disjoint_and_cover_all(table: Path) -> None:
    options = {"hash_key": "key", "hash_modulus": 10}
    rest, held = read(table, hash_split="rest", **options), read(table, hash_split="held", **options)
    assert len(rest) + len(held) == 400 and not {r["source"] for r in rest} & {r["source"] for r in held}
    assert {row["source"] for row in held} == {
        f"word {i}" for i in range(400) if zlib.crc32(str(i).encode()) % 10 == 0
    }
    assert 10 < len(held) < 80


def test_hash_of_one_of_our_columns(table: Path) -> None:
    held = read(table, hash_split="held", hash_key="source", hash_modulus=10)
    assert all(zlib.crc32(row["source"].encode()) % 10 == 0 for row in held) and held


def test_environment_variables_are_filled_in(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLSR_TEST_FOLDER", str(table.parent))
    assert len(read("${XLSR_TEST_FOLDER}/table.parquet")) == 400  # type: ignore[arg-type]
    monkeypatch.delenv("XLSR_TEST_FOLDER")
    with pytest.raises(XlsrError, match="XLSR_TEST_FOLDER, which is not set"):
        read("${XLSR_TEST_FOLDER}/table.parquet")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"pth": "x"}, "unknown key 'pth'; did you mean 'path'"),
        ({}, "needs either 'corpus', a name, or 'path'"),
        ({"corpus": "bible", "path": "x"}, "needs either"),
        ({"path": "x.tsv", "hash_split": "train"}, "use rest"),
        ({"path": "x.tsv", "hash_split": "rest", "hash_key": "a", "hash_modulus": "x"}, "hash_modulus is 'x'"),
        ({"path": "x.tsv", "source_version": "k"}, "'source_version' does not go with 'path'"),
        ({"corpus": "bible", "hash_split": "rest", "hash_key": "id"}, "'hash_split' does not go with 'corpus'"),
    ],
)
def test_mistakes(source: dict[str, Any], message: str) -> None:
    with pytest.raises(XlsrError, match=message):
        list(open_source(source, languages=["en", "fr"]))


def test_pairs_of_more_than_two_languages_have_to_be_named(table: Path) -> None:
    with pytest.raises(XlsrError, match="en, fr, de a source of pairs holds two"):
        list(open_source({"corpus": "bible"}, languages=["en", "fr", "de"]))


def test_splits_of_a_data_set_are_not_mixed_up(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    splits = {name: Dataset.from_list([{"source": f"{name} a", "target": f"{name} b"}]) for name in ("train", "test")}
    DatasetDict(splits).save_to_disk(str(tmp_path / "both"))
    DatasetDict({"train": splits["train"]}).save_to_disk(str(tmp_path / "one"))
    for split in ("train", "test"):
        (row,) = open_source({"path": str(tmp_path / "both")}, languages=["en", "fr"], split=split)
        assert row["source"] == f"{split} a"
    with pytest.raises(XlsrError, match="no split 'test'; give split, one of train"):
        list(open_source({"path": str(tmp_path / "one")}, languages=["en", "fr"], split="test"))
    chosen = {"path": str(tmp_path / "one"), "split": "train"}
    assert len(list(open_source(chosen, languages=["en", "fr"], split="test"))) == 1


def test_held_out_reads_every_text_column_of_every_file(table: Path) -> None:
    other = table.parent / "other.parquet"
    pq.write_table(pa.table({"anything": ["a text", None], "number": [1, 2]}), other)
    texts = list(held_out_texts([{"path": str(table.parent / "*.parquet"), "columns": "*"}], languages=["en", "fr"]))
    assert {"a text", "word 7", "mot 7"} <= set(texts) and len(texts) == 400 * 4 + 1


def test_held_out_chooses_rows(table: Path) -> None:
    source = {"path": str(table), "columns": "*", "where": {"lang": ["de"]}, "hash_split": "held", "hash_key": "key"}
    texts = set(held_out_texts([source], languages=["en", "fr"]))
    wanted = {i for i in range(0, 400, 2) if zlib.crc32(str(i).encode()) % 100 == 0}
    assert wanted and {text for text in texts if text.startswith("word")} == {f"word {i}" for i in wanted}


def test_held_out_pairs(table: Path) -> None:
    source = {"path": str(table), "columns": "source=en,target=xx", "limit": 2}
    assert list(held_out_texts([source], languages=["en", "fr"])) == ["word 0", "mot 0", "word 1", "mot 1"]


def test_held_out_mistakes(table: Path) -> None:
    with pytest.raises(XlsrError, match="no file fits"):
        list(held_out_texts([{"path": str(table.parent / "*.none"), "columns": "*"}], languages=[]))
    with pytest.raises(XlsrError, match="no column 'year'"):
        list(held_out_texts([{"path": str(table), "columns": "*", "where": {"year": 1}}], languages=[]))
