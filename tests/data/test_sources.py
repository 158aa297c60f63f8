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

NUMBERS = range(400)
"""The rows of `table`."""


def is_held(text: str, modulus: int) -> bool:
    return zlib.crc32(text.encode()) % modulus == 0


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.parquet"
    columns = {
        "en": [f"word {number}" for number in NUMBERS],
        "xx": [f"mot {number}" for number in NUMBERS],
        "lang": ["de", "fr"] * 200,
        "key": list(map(str, NUMBERS)),
    }
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A table with a column for each language, and empty cells."""
    path = tmp_path / "wide.parquet"
    columns = {
        "english": ["a0", "a1", None, "a3"],
        "de": ["b0", None, "b2", None],
        "fr": ["c0", "c1", "c2", "  "],
        "key": ["x", "y", "x", "y"],
    }
    pq.write_table(pa.table(columns), path)
    return path


def numbers_of(path: Any, seed: int = 1, **options: Any) -> list[int]:
    """The numbers of the rows of `table` that a source gives."""
    source = {"path": str(path), "columns": "source=en,target=xx", **options}
    rows = open_source(Source.parse(source), languages=["en", "fr"], seed=seed)
    return [int(row["source"].removeprefix("word ")) for row in rows]


def parallel(wide: Path, **options: Any) -> list[str]:
    """Each pair that `wide` gives, as a line of its texts and languages."""
    options.setdefault("parallel", {"en": "english", "de": "de", "fr": "fr"})
    rows = open_source(Source(path=str(wide), **options), languages=["en", "de", "fr"])
    return ["{source} {target} {source_lang}-{target_lang}".format_map(row) for row in rows]


def texts_of(rows: Any) -> list[str]:
    return ["{source} {target}".format_map(row) for row in rows]


def test_where_keeps_rows_of_these_values(table: Path) -> None:
    assert numbers_of(table, where={"lang": "fr"}, limit=2) == [1, 3]
    assert len(numbers_of(table, where={"lang": ["fr", "de"]})) == 400


@pytest.mark.parametrize(("options", "modulus"), [({"hash_modulus": 10}, 10), ({}, 100)])
def test_hash_split_holds_out_by_the_key(table: Path, options: dict[str, int], modulus: int) -> None:
    held = numbers_of(table, hash_split="held", hash_key="key", **options)
    rest = numbers_of(table, hash_split="rest", hash_key="key", **options)

    assert held == [number for number in NUMBERS if is_held(str(number), modulus)]
    assert held
    assert sorted(rest + held) == list(NUMBERS)


def test_parallel_row_gives_all_pairs(wide: Path) -> None:
    assert parallel(wide) == ["a0 b0 en-de", "a0 c0 en-fr", "b0 c0 de-fr", "a1 c1 en-fr", "b2 c2 de-fr"]
    assert parallel(wide, parallel={"fr": "fr", "en": "english"}) == ["c0 a0 fr-en", "c1 a1 fr-en"]
    assert parallel(wide, languages=["fr", "en"]) == ["a0 c0 en-fr", "a1 c1 en-fr"]  # in the mapping's order


@pytest.mark.parametrize("hash_split", ["rest", "held"])
def test_parallel_rows_are_split_by_their_key(wide: Path, hash_split: str) -> None:
    key_of_row = {"0": "x", "1": "y", "2": "x"}
    expected = []
    for line in parallel(wide):
        row = line[1]
        if is_held(key_of_row[row], 2) == (hash_split == "held"):
            expected.append(line)

    assert parallel(wide, hash_split=hash_split, hash_key="key", hash_modulus=2) == expected


def test_parallel_rows_are_selected_limited_and_sampled(wide: Path) -> None:
    assert parallel(wide, where={"english": "a0"}, limit=2) == ["a0 b0 en-de", "a0 c0 en-fr"]

    sample = parallel(wide, sample=3)
    assert len(sample) == 3
    assert [line for line in parallel(wide) if line in sample] == sample


def test_sample_keeps_order_and_follows_the_seed(table: Path) -> None:
    sample = numbers_of(table, sample=50)
    assert len(sample) == 50
    assert sample == sorted(set(sample))

    assert numbers_of(table, sample=50) == sample
    assert numbers_of(table, sample=50, seed=2) != sample
    assert numbers_of(table, sample=1000) == list(NUMBERS)
    assert all(number % 2 for number in numbers_of(table, sample=30, where={"lang": "fr"}))


def test_distinct(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("yes\toui\nYes\tsi\nno\tnon\nnope\tNon\nwell\tbien\n", "utf-8")
    rows = open_source(Source(path=str(path), distinct=True), languages=["en", "fr"])
    assert texts_of(rows) == ["yes oui", "no non", "well bien"]


def test_distinct_rows_of_several_languages_and_files(tmp_path: Path) -> None:
    path = tmp_path / "wide.tsv"
    path.write_text("en\tde\tfr\nyes\tja\toui\n\tnein\tnon\n", "utf-8")
    languages = ["en", "de", "fr"]
    source = {"path": str(path), "parallel": {"en": "en", "de": "de", "fr": "fr"}, "distinct": True}

    rows = evaluation_pairs(parse_sources([source, source]), languages=languages, split="dev")
    assert texts_of(rows) == ["yes ja", "yes oui", "ja oui", "nein non"]

    # An empty cell is not held.
    held = {**source, "hash_split": "held", "hash_key": "en", "hash_modulus": 10**9}
    assert not evaluation_pairs(parse_sources(held), languages=languages, split="dev")


def test_languages_come_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    lines = [
        "source\ttarget\tsource_lang\ttarget_lang\tkind",
        "hi\tsalut\ten\tfr\ta",
        "hi\thallo\ten\tde\ta",
        "hi\tciao\t\tit\ta",
    ]
    path.write_text("\n".join(lines), "utf-8")

    source = Source(path=str(path), where={"kind": "a"})
    quarantine = Quarantine()
    rows = list(open_source(source, languages=["en", "fr"], quarantine=quarantine))

    assert [(row["target"], row["target_lang"]) for row in rows] == [("salut", "fr"), ("hallo", "de")]
    assert quarantine.counts == {"empty source_lang": 1}


def test_file_columns_select_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    words = [f"word {number}" for number in NUMBERS]
    sites = [f"site {number % 40}" for number in NUMBERS]
    columns = {"source": sites, "text": words, "other": [f"mot {number}" for number in NUMBERS]}
    pq.write_table(pa.table(columns), path)

    def source_of(hash_split: str, columns: Any) -> Source:
        settings = {"path": str(path), "hash_key": "source", "hash_modulus": 5}
        return Source.parse({**settings, "hash_split": hash_split, "columns": columns})

    def sources_of(hash_split: str) -> set[str]:
        source = source_of(hash_split, {"source": "text", "target": "other"})
        return {row["source"] for row in open_source(source, languages=["en", "de"])}

    held = sources_of("held")
    assert held == {word for word, site in zip(words, sites, strict=True) if is_held(site, 5)}
    assert sources_of("rest") == {*words} - held

    held_out = held_out_texts([source_of("held", "*")], languages=["en", "de"])
    assert held <= set(held_out)


@pytest.mark.parametrize("hash_key", ["target", "1"])
@pytest.mark.parametrize("name", ["c.{en,fr}", "c.tsv"])
def test_our_columns_select_rows_otherwise(tmp_path: Path, name: str, hash_key: str) -> None:
    english = [f"word {number}" for number in range(60)]
    french = [f"mot {number}" for number in range(60)]
    (tmp_path / "c.en").write_text("\n".join(english), "utf-8")
    (tmp_path / "c.fr").write_text("\n".join(french), "utf-8")
    (tmp_path / "c.tsv").write_text("\n".join(f"word {number}\tmot {number}" for number in range(60)), "utf-8")

    held = numbers_of(tmp_path / name, columns=None, hash_split="held", hash_key=hash_key, hash_modulus=4)
    assert held == [number for number in range(60) if is_held(french[number], 4)]


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

    assert len(texts) == 4 * len(NUMBERS) + 7
    assert {*"one un two three four five six".split(), "word 7", "mot 7"} <= set(texts)
