"""Every format: what was written comes back, in bounded memory, and damage is reported."""

from __future__ import annotations

import gzip
import io
import random
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats_helpers import PACK, ROWS, WRITERS, as_csv, as_jsonl, as_tmx, as_tsv, fails, write, zstd_long
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.data.formats import parquet_child
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import READERS, read_rows, register_reader
from hf_xlsr.utils.errors import XlsrError

# Characters that break lines elsewhere (\x0b, \x85, U+2028) must not break ours.
WORDS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\t\n\r")).filter(
    lambda text: text.strip() and not text.startswith("\ufeff")
)
PRINTABLE = st.text(st.characters(blacklist_categories=["Cs", "Cc", "Cn"])).filter(str.strip)
ANY = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")).filter(str.strip)
EN_FR: dict[str, Any] = {"languages": ("en", "fr")}


def as_parquet(rows: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=2)
    return file.getvalue()


FORMS: dict[str, tuple[Any, str, Any, dict[str, Any]]] = {
    "tsv": (WORDS, "a.tsv", as_tsv, {}),
    "csv": (ANY, "a.csv", as_csv, {}),
    "jsonl": (ANY, "a.jsonl", as_jsonl, {}),
    "parquet": (ANY, "a.parquet", as_parquet, {}),
    "tmx": (PRINTABLE, "a.tmx", as_tmx, EN_FR),
}


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, marks=pytest.mark.slow) if form == "parquet" else form for form in FORMS],  # a process each
)
@settings(max_examples=30)
@given(data=st.data())
def test_rows_come_back(form: str, data: st.DataObject) -> None:
    texts, name, convert, options = FORMS[form]
    row = st.fixed_dictionaries({"source": texts, "target": texts})
    rows = data.draw(st.lists(row, min_size=1, max_size=6))
    quarantine = Quarantine()
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), name, convert(rows))
        assert list(read_rows(path, quarantine=quarantine, **options)) == rows
        assert quarantine.total == 0


@settings(max_examples=30)
@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=6))
def test_line_aligned_files_come_back(pairs: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for language, texts in zip(("en", "fr"), zip(*pairs, strict=True), strict=True):
            write(Path(folder), f"c.{language}", "\n".join(texts))
        rows = list(read_rows(f"{folder}/c.{{en,fr}}"))
    assert [(row["source"], row["target"]) for row in rows] == pairs


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", WRITERS)
def test_compressed(tmp_path: Path, kind: str, packing: str) -> None:
    content = WRITERS[kind](ROWS).encode()
    path = write(tmp_path, f"corpus.v1.{kind}{packing}", PACK[packing](content))
    assert list(read_rows(path, **EN_FR)) == ROWS


@pytest.mark.parametrize("packing", PACK)
def test_archives_one_after_the_other(tmp_path: Path, packing: str) -> None:
    pack = PACK[packing]
    path = write(tmp_path, f"two.tsv{packing}", pack(b"a\tb\n") + pack(b"c\td\n"))
    assert [row["source"] for row in read_rows(path)] == ["a", "c"]


@pytest.mark.parametrize("packing", PACK)
def test_file_that_is_not_compressed(tmp_path: Path, packing: str) -> None:
    fails(write(tmp_path, f"bad.tsv{packing}", b"a\tb\nnot compressed at all"), "first 0 rows")


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", ["tsv", "jsonl", "tmx"])
def test_truncated_archive_names_file_and_rows(tmp_path: Path, kind: str, packing: str) -> None:
    noise = random.Random(0)
    rows = [{"source": f"{noise.random()}", "target": f"{noise.random()}"} for _ in range(8_000)]
    content = WRITERS[kind](rows).encode()
    data = PACK[packing](content)
    path = write(tmp_path, f"a.{kind}{packing}", data[: len(data) // 2])

    rows_read: list[dict[str, Any]] = []
    with pytest.raises(XlsrError) as error:
        rows_read.extend(iter(read_rows(path, **EN_FR)))

    message = str(error.value)
    num_read = len(rows_read)
    assert str(path) in message
    assert f"first {num_read:,} rows" in message
    assert rows_read == rows[:num_read]
    assert rows_read or packing == ".bz2"  # whose blocks of 900 kB may leave none whole


@pytest.mark.parametrize("kind", ["parquet", "mo", "po", "tmx"])
def test_damaged_file(tmp_path: Path, kind: str) -> None:
    fails(write(tmp_path, f"a.{kind}", b"PAR1 nothing of the kind"), f"a.{kind}", **EN_FR)


def peak_of(path: Path, **options: Any) -> int:
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_rows(path, quarantine=Quarantine(), **options)) > 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tsv", "csv", "csv with an open quote", "jsonl", "tmx"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, kind: str) -> None:
    row = {"source": "s" * 900, "target": 'he said "t",' * 75}
    suffix = kind.split()[0]
    if kind == "tsv":
        content = as_tsv([row] * 11_000) + "x" * 8_000_000 + "\n"  # one endless line
    elif kind == "csv with an open quote":
        content = 'source,target\n"open,t\n' + f"{'s' * 900},{'t' * 900}\n" * 12_000
    elif kind == "tmx":
        content = as_tmx([row] * 6_000 + [{"source": "s" * 10_000_000, "target": "t"}])
    else:
        content = WRITERS[kind]([row] * 11_000)
    assert len(content) > 20_000_000

    path = write(tmp_path, f"a.{suffix}.gz", gzip.compress(content.encode(), 1))
    del content  # the reader's memory is measured, not the test's
    assert peak_of(path, **EN_FR) < 7_000_000


def test_parquet_memory_is_bounded_within_a_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    noise = random.Random(0)
    texts = [noise.randbytes(500).hex() for _ in range(20_000)]
    table = pa.table({"source": texts, "target": texts, "unused": texts})
    pq.write_table(table, path, row_group_size=20_000, use_dictionary=False, compression="none")
    del table, texts

    before = pa.total_allocated_bytes()
    allocated: list[int] = []

    class Answers(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, content: Any) -> int:
            allocated.append(pa.total_allocated_bytes())
            return len(content)

    parquet_child.send_rows(str(path), io.BytesIO(b'["source", "target"]'), Answers())
    assert before < max(allocated) < before + 20_000_000  # the two columns are 40 MB


@pytest.mark.parametrize("window_log", [28, 31])
def test_long_windows_of_zstd(tmp_path: Path, window_log: int) -> None:
    path = write(tmp_path, "a.tsv.zst", zstd_long(as_tsv(ROWS * 20_000).encode(), window_log))
    assert list(read_rows(path)) == ROWS * 20_000


@pytest.mark.parametrize("end", ["\r", "\r\n"])
@pytest.mark.parametrize("kind", [*WRITERS, "po", "moses"])
def test_line_ends(tmp_path: Path, kind: str, end: str) -> None:
    """Lines of old and of other systems, also without an end after the last one."""
    rows = [{"source": f"good {number}", "target": f"bon {number}"} for number in range(20_000)]
    if kind == "po":
        rows = rows[:20]
        content = "\n".join(f'msgid "{row["source"]}"\nmsgstr "{row["target"]}"\n' for row in rows)
    elif kind == "moses":
        content = "\n".join(row["source"] for row in rows)
        write(tmp_path, "b.fr", "\n".join(row["target"] for row in rows).replace("\n", end))
    else:
        content = WRITERS[kind](rows).replace("\r\n", "\n").rstrip("\n")

    path = write(tmp_path, f"a.{kind}", content.replace("\n", end))
    files = [path, tmp_path / "b.fr"] if kind == "moses" else path
    assert list(read_rows(files, **EN_FR)) == rows


MALFORMED = {
    "a.tsv": ("UTF-8", b"\xe9\tb\n", b"a\tb\n"),
    "a.en": ("UTF-8", b"\xe9\n", b"a\n"),
    "a.jsonl": ("JSON", b"a\n", b'{"source": "a", "target": "b"}\n'),
}
"""What is malformed, a bad line and a good line of each kind of file."""


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_file_stops_early(tmp_path: Path, name: str) -> None:
    cause, bad, good = MALFORMED[name]
    paths = [write(tmp_path, name, good * 1000 + bad * 251 + good)]
    if name == "a.en":
        paths.append(write(tmp_path, "b.fr", b"b\n" * 1252))
    fails(paths, name, cause, "251", "1,251")


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl"])
def test_file_with_fewer_malformed_lines_is_served(tmp_path: Path, name: str) -> None:
    _, bad, good = MALFORMED[name]
    path = write(tmp_path, name, good * 700 + bad * 150 + good * 500 + bad * 149)
    assert len(list(read_rows(path, quarantine=Quarantine()))) == 1200


def test_refused_reader_is_not_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(READERS, "_added", {})
    with pytest.raises(XlsrError, match=r"'\.tsv'"):
        register_reader("half", suffixes=[".tsv"])(lambda path: [])
    assert "half" not in READERS
