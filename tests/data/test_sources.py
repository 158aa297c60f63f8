"""Sources of a recipe, and texts that are held out of training."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_xlsr.data.evaluation_sets import evaluation_pairs
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.sources import Source, open_source, parse_sources
from hf_xlsr.runs.inputs import held_out_texts

COLUMNS = {"en": "english", "de": "de", "fr": "fr"}


def is_held(text: str, modulus: int) -> bool:
    return zlib.crc32(text.encode()) % modulus == 0


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [{"en": f"word {i}", "xx": f"mot {i}", "lang": "fr" if i % 2 else "de", "key": str(i)} for i in range(400)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet")
    return tmp_path / "table.parquet"


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    names = ("english", "de", "fr", "key")
    rows = [("a0", "b0", "c0", "x"), ("a1", None, "c1", "y"), (None, "b2", "c2", "x"), ("a3", None, "  ", "y")]
    pq.write_table(pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows]), tmp_path / "w.parquet")
    return tmp_path / "w.parquet"


def read(path: Any, seed: int = 1, **options: Any) -> list[int]:
    source = {"path": str(path), "columns": "source=en,target=xx", **options}
    rows = open_source(Source.parse(source), languages=["en", "fr"], seed=seed)
    return [int(row["source"].removeprefix("word ")) for row in rows]


def parallel(wide: Path, **options: Any) -> list[str]:
    rows = open_source(Source(**{"path": str(wide), "parallel": COLUMNS, **options}), languages=["en", "de", "fr"])
    return [f"{row['source']} {row['target']} {row['source_lang']}-{row['target_lang']}" for row in rows]


def test_where_and_hash_split(table: Path) -> None:
    assert read(table, where={"lang": "fr"}, limit=2) == [1, 3]
    assert len(read(table, where={"lang": ["fr", "de"]})) == 400
    rest, held = (read(table, hash_split=part, hash_key="key", hash_modulus=10) for part in ("rest", "held"))
    assert held == [i for i in range(400) if is_held(str(i), 10)] and sorted(rest + held) == list(range(400))


def test_one_of_a_hundred_rows_is_held_by_default(table: Path) -> None:
    held = read(table, hash_split="held", hash_key="key")
    assert held == [number for number in range(400) if is_held(str(number), 100)]
    assert 0 < len(held) < len(read(table, hash_split="held", hash_key="key", hash_modulus=10))
    assert Source.model_fields["hash_modulus"].default == 100  # as the documentation says


def test_parallel_row_gives_all_pairs(wide: Path) -> None:
    assert parallel(wide) == ["a0 b0 en-de", "a0 c0 en-fr", "b0 c0 de-fr", "a1 c1 en-fr", "b2 c2 de-fr"]
    assert parallel(wide, parallel={"fr": "fr", "en": "english"}) == ["c0 a0 fr-en", "c1 a1 fr-en"]
    assert parallel(wide, languages=["fr", "en"]) == ["a0 c0 en-fr", "a1 c1 en-fr"]  # a subset, in the mapping's order


def test_parallel_rows_are_selected_limited_and_sampled(wide: Path) -> None:
    assert parallel(wide, where={"english": "a0"}, limit=2) == ["a0 b0 en-de", "a0 c0 en-fr"]
    key_of = {"0": "x", "1": "y", "2": "x"}  # by the number of the row
    for part in ("rest", "held"):
        expected = [line for line in parallel(wide) if is_held(key_of[line[1]], 2) == (part == "held")]
        assert parallel(wide, hash_split=part, hash_key="key", hash_modulus=2) == expected
    some = parallel(wide, sample=3)
    assert len(some) == 3 and [line for line in parallel(wide) if line in some] == some


def test_sample_keeps_order_and_follows_the_seed(table: Path) -> None:
    chosen = read(table, sample=50)
    assert len(chosen) == len(set(chosen)) == 50 and chosen == sorted(chosen)
    assert read(table, sample=50) == chosen != read(table, sample=50, seed=2)
    assert read(table, sample=1000) == list(range(400))
    assert all(number % 2 for number in read(table, sample=30, where={"lang": "fr"}))


def test_distinct(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("yes\toui\nYes\tsi\nno\tnon\nnope\tNon\nwell\tbien\n", "utf-8")
    rows = list(open_source(Source(path=str(file), distinct=True), languages=["en", "fr"]))
    assert [(row["source"], row["target"]) for row in rows] == [("yes", "oui"), ("no", "non"), ("well", "bien")]


def test_distinct_rows_of_several_languages_and_files(tmp_path: Path) -> None:
    file = tmp_path / "wide.tsv"
    file.write_text("en\tde\tfr\nyes\tja\toui\n\tnein\tnon\n", "utf-8")
    source = {"path": str(file), "parallel": {name: name for name in ("en", "de", "fr")}, "distinct": True}
    rows = evaluation_pairs(parse_sources([source, source]), languages=["en", "de", "fr"], split="dev")
    assert [(row["source"], row["target"]) for row in rows] == [
        ("yes", "ja"), ("yes", "oui"), ("ja", "oui"), ("nein", "non"),
    ]  # fmt: skip
    held = {**source, "hash_split": "held", "hash_key": "en", "hash_modulus": 10**9}
    # An empty cell is not held.
    assert not evaluation_pairs(parse_sources(held), languages=["en", "de", "fr"], split="dev")


def test_languages_come_from_the_file(tmp_path: Path) -> None:
    lines = ["source\ttarget\tsource_lang\ttarget_lang\tkind", "hi\tsalut\ten\tfr\ta", "hi\thallo\ten\tde\ta"]
    (tmp_path / "a.tsv").write_text("\n".join([*lines, "hi\tciao\t\tit\ta"]), "utf-8")
    source, quarantine = {"path": str(tmp_path / "a.tsv"), "where": {"kind": "a"}}, Quarantine()
    rows = list(open_source(Source.parse(source), languages=["en", "fr"], quarantine=quarantine))
    assert [(row["target"], row["target_lang"]) for row in rows] == [("salut", "fr"), ("hallo", "de")]
    assert quarantine.counts == {"empty source_lang": 1}


def test_file_columns_select_rows(tmp_path: Path) -> None:
    rows = [{"source": f"site {i % 40}", "text": f"word {i}", "other": f"mot {i}"} for i in range(400)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    chosen = {"path": str(tmp_path / "a.parquet"), "hash_key": "source", "hash_modulus": 5}
    mapped = {**chosen, "columns": {"source": "text", "target": "other"}}
    rest, held = (
        {row["source"] for row in open_source(Source.parse({**mapped, "hash_split": part}), languages=["en", "de"])}
        for part in ("rest", "held")
    )
    assert held == {row["text"] for row in rows if is_held(row["source"], 5)}
    assert rest == {row["text"] for row in rows} - held
    source = Source.parse({**chosen, "columns": "*", "hash_split": "held"})
    assert held <= set(held_out_texts([source], languages=["en", "de"]))


@pytest.mark.parametrize("key", ["target", "1"])
def test_our_columns_select_rows_otherwise(tmp_path: Path, key: Any) -> None:
    for name, word in (("en", "word"), ("fr", "mot")):
        (tmp_path / f"c.{name}").write_text("".join(f"{word} {i}\n" for i in range(60)), "utf-8")
    (tmp_path / "c.tsv").write_text("".join(f"word {i}\tmot {i}\n" for i in range(60)), "utf-8")
    options: dict[str, Any] = {"columns": None, "hash_split": "held", "hash_key": key, "hash_modulus": 4}
    expected = [i for i in range(60) if is_held(f"mot {i}", 4)]
    assert read(f"{tmp_path}/c.{{en,fr}}", **options) == expected
    assert read(tmp_path / "c.tsv", **options) == expected


# Held-out texts.


def test_held_out_reads_every_text_of_a_pattern(table: Path) -> None:
    nested = pa.table(
        {
            "translation": [{"en": "one", "fr": "un"}, None],
            "answers": [["two", "three"], []],
            "category": pa.array(["four", "five"]).dictionary_encode(),
            "view": pa.array(["six", None], pa.string_view()),
            "number": [1, 2],
        }
    )
    pq.write_table(nested, table.parent / "nested.parquet")
    source = Source(path=str(table.parent / "*.parquet"), columns="*")
    texts = list(held_out_texts([source], languages=["en", "fr"]))
    assert len(texts) == 4 * 400 + 7 and {*"one un two three four five six".split(), "word 7", "mot 7"} <= set(texts)
