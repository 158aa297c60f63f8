from __future__ import annotations

import gzip
import io
import json
import random
import tempfile
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats_helpers import PACK, ROWS, WRITERS, as_csv, as_jsonl, as_mo, as_po, as_tmx, as_tsv, fails, write
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.utils.errors import XlsrError

# Characters that break lines elsewhere (\x0b, \x85, U+2028) must not break ours.
words = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\t\n\r"), min_size=1).filter(
    lambda text: text.strip() and not text.startswith("\ufeff")
)
printable = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Cn"]), min_size=1).filter(str.strip)
free_text = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1).filter(
    str.strip
)


def pairs_of(texts):
    return st.lists(st.fixed_dictionaries({"source": texts, "target": texts}), min_size=1, max_size=6)


def roundtrip(content: str | bytes, name: str, rows, **options):
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), name, content)
        quarantine = Quarantine()
        assert list(read_rows(path, quarantine=quarantine, **options)) == rows
        assert quarantine.total == 0


@settings(max_examples=40, deadline=None)
@given(pairs_of(words))
def test_tsv_roundtrip(rows):
    roundtrip(as_tsv(rows), "a.tsv", rows)
    roundtrip(as_tsv(rows).replace("\n", "\r\n"), "a.tab", rows)
    headless = as_tsv(rows).partition("\n")[2]
    roundtrip(headless.removesuffix("\n"), "a.tsv", rows, columns={"source": 0, "target": 1})


@settings(max_examples=40, deadline=None)
@given(pairs_of(free_text))
def test_csv_roundtrip(rows):
    roundtrip(as_csv(rows), "a.csv", rows)


@settings(max_examples=40, deadline=None)
@given(pairs_of(free_text))
def test_jsonl_roundtrip(rows):
    roundtrip(as_jsonl(rows), "a.jsonl", rows)


@settings(max_examples=40, deadline=None)
@given(pairs_of(words))
def test_moses_roundtrip(rows):
    with tempfile.TemporaryDirectory() as folder:
        for name, lang in (("source", "en"), ("target", "fr")):
            write(Path(folder), f"c.{lang}", "".join(row[name] + "\n" for row in rows))
        assert list(read_rows(f"{folder}/c.{{en,fr}}")) == rows


@settings(max_examples=40, deadline=None)
@given(pairs_of(free_text))
def test_parquet_roundtrip(rows):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=2)
    roundtrip(file.getvalue(), "a.parquet", rows)


@settings(max_examples=40, deadline=None)
@given(pairs_of(printable))
def test_tmx_roundtrip(rows):
    roundtrip(as_tmx(rows), "a.tmx", rows, languages=("en", "fr"))
    roundtrip(as_tmx(rows).replace("UTF-8", "UTF-16").encode("utf-16"), "a.tmx", rows, languages=("en", "fr"))


@settings(max_examples=40, deadline=None)
@given(pairs_of(printable))
def test_po_roundtrip(rows):
    roundtrip(as_po(rows), "a.po", rows)


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(printable, printable, min_size=1, max_size=6))
def test_mo_roundtrip(texts):
    rows = [{"source": source, "target": texts[source]} for source in sorted(texts, key=str.encode)]
    roundtrip(as_mo(rows), "a.mo", rows)


@settings(max_examples=50, deadline=None)
@given(
    st.binary(max_size=80) | st.text('a",\n\r', max_size=40).map(str.encode), st.sampled_from(["tsv", "csv", "jsonl"])
)
def test_bad_bytes_never_stop_a_reader(content, kind):
    head = {"tsv": b"source\ttarget\n", "csv": b"source,target\n", "jsonl": b'{"source":"a","target":"b"}\n'}[kind]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), f"a.{kind}", head + content + b"\n" + (b"x\ty\n" if kind == "tsv" else b""))
        rows = list(read_rows(path, quarantine=Quarantine()))
    assert all(row["source"].strip() and row["target"].strip() for row in rows)
    if kind == "tsv":
        assert rows[-1] == {"source": "x", "target": "y"}


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", WRITERS)
def test_compressed(tmp_path, kind, packing):
    content = WRITERS[kind](ROWS)
    data = content if isinstance(content, bytes) else content.encode()
    path = write(tmp_path, f"corpus.v1.{kind}{packing}", PACK[packing](data))
    assert list(read_rows(path, languages=("en", "fr"))) == ROWS


@pytest.mark.parametrize("packing", PACK)
def test_concatenated_archives(tmp_path, packing):
    path = write(tmp_path, "a.tsv" + packing, PACK[packing](b"a\tb\n") + PACK[packing](b"c\td\n"))
    assert [row["source"] for row in read_rows(path)] == ["a", "c"]


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", ["tsv", "jsonl", "tmx"])
def test_truncated_archive_names_file_and_rows(tmp_path, kind, packing):
    noise = random.Random(0)
    rows = [{"source": f"{i} {noise.random()}", "target": f"{noise.random()}"} for i in range(8_000)]
    data = PACK[packing](WRITERS[kind](rows).encode())
    path = write(tmp_path, f"a.{kind}{packing}", data[: len(data) // 2])
    got, failure = [], ""
    try:
        for row in read_rows(path, languages=("en", "fr")):
            got.append(row)
    except XlsrError as error:
        failure = str(error)
    assert str(path) in failure and f"first {len(got):,} rows" in failure
    assert got == rows[: len(got)]
    if packing != ".bz2":  # its blocks of 900 kB may leave none whole
        assert got


@pytest.mark.parametrize(("name", "content"), [(f"a.tsv{packing}", b"a\tb\nnot packed at all") for packing in PACK])
def test_invalid_archive(tmp_path, name, content):
    fails(write(tmp_path, name, content), name, "first 0 rows")


@pytest.mark.parametrize("kind", ["parquet", "mo", "po", "tmx"])
def test_damaged_file(tmp_path, kind):
    fails(write(tmp_path, f"a.{kind}", b"PAR1 nothing of the kind"), f"a.{kind}", languages=("en", "fr"))


def peak_of(path, **options) -> int:
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows(path, quarantine=Quarantine(), **options)) > 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["tsv", "csv", "csv with an open quote", "jsonl", "tmx"])
def test_memory_does_not_grow_with_the_file(tmp_path, kind):
    row = {"source": "s" * 900, "target": 'he said "t",' * 75}
    if kind == "tsv":
        content = as_tsv([row] * 11_000) + "x" * 8_000_000 + "\n"  # one endless line
    elif kind == "csv with an open quote":
        content = 'source,target\n"open,t\n' + f"{'s' * 900},{'t' * 900}\n" * 12_000
    elif kind == "tmx":
        content = as_tmx([row] * 6_000 + [{"source": "s" * 10_000_000, "target": "t"}])
    else:
        content = WRITERS[kind]([row] * 11_000)
    assert len(content) > 20_000_000
    path = write(tmp_path, f"a.{kind.split()[0]}.gz", gzip.compress(content.encode(), 1))
    del content  # what the reader holds is measured, not the test
    assert peak_of(path, languages=("en", "fr")) < 5_000_000


def test_parquet_memory_is_bounded_within_a_row_group(tmp_path):
    noise = random.Random(0)
    texts = [noise.randbytes(500).hex() for _ in range(20_000)]
    table = pa.table({"source": texts, "target": texts, "unused": texts})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20_000, use_dictionary=False, compression="none")
    del table, texts
    before = pa.total_allocated_bytes()
    highest = 0
    for _ in read_rows(tmp_path / "a.parquet"):
        highest = max(highest, pa.total_allocated_bytes() - before)
    assert 0 < highest < 20_000_000  # the two columns hold 40 MB


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_optional_columns(kind, tmp_path):
    table = pa.table({"en": ["one", "two"], "split": ["test", None], "lang": ["x", "y"]})
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        lines = [["en", "split", "lang"], ["one", "test", "x"], ["two", "", "y"]]
        path.write_text("".join({"tsv": "\t", "csv": ","}[kind].join(line) + "\n" for line in lines))
    empty = None if kind in ("jsonl", "parquet") else ""
    options = {"columns": "text=en", "required": ("text",)}
    assert list(read_rows(path, optional=("split", "subset"), **options)) == [
        {"text": "one", "split": "test"},
        {"text": "two", "split": empty},
    ]
    assert [*read_rows(path, **options)][0] == {"text": "one"}
    assert [*read_rows(path, optional=(), required=("lang",))][0] == {"lang": "x"}
