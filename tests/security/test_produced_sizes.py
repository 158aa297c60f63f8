"""Attacks: small files that become large when they are read. Each ends in one sentence, in bounded memory."""

from __future__ import annotations

import gzip
import lzma
import resource
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_xlsr.data.formats import parquet_child
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.evaluation.outcomes import Outcomes
from hf_xlsr.evaluation.results import Results, load_results, save_results
from hf_xlsr.utils.errors import XlsrError

MEGABYTE = 1 << 20


@contextmanager
def little_memory() -> Iterator[None]:
    """An attack that succeeds ends the test, not the machine."""
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 31), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def shared_texts(file: Path) -> None:
    """An MO file with 20,000 entries that are all the same text of a megabyte."""
    count = 20_000
    start = 28 + 16 * count
    header = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    originals = struct.pack("<2I", 8, start) * count
    translations = struct.pack("<2I", MEGABYTE, start + 9) * count
    file.write_bytes(header + originals + translations + b"kkkkkkkk\0" + b"a" * MEGABYTE + b"\0")


def endless_tag(file: Path) -> None:
    file.write_bytes(b'<tmx><body><tu><tuv lang="' + b"a" * 16 * MEGABYTE)


def endless_comment(file: Path) -> None:
    file.write_bytes(b"<tmx><body><!-- " + b"a" * 16 * MEGABYTE)


def endless_instruction(file: Path) -> None:
    file.write_bytes(b"<tmx><?work " + b"a" * 16 * MEGABYTE)


def large_dictionary(file: Path) -> None:
    """A file of xz whose header asks for 4 GB."""
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 22, "preset": 0}]
    content = bytearray(lzma.compress(b"one two\tun deux\n" * 10, filters=filters))
    header = content[12 : 12 + (content[12] + 1) * 4]
    header[header.index(b"\x21\x01") + 2] = 40
    header[-4:] = struct.pack("<I", zlib.crc32(header[:-4]))
    content[12 : 12 + len(header)] = header
    file.write_bytes(content)


def large_window(file: Path) -> None:
    """A file of zstd whose header asks for 32 GB."""
    magic = b"\x28\xb5\x2f\xfd"
    window = bytes([0, (35 - 10) << 3])
    last_block = b"\x09\0\0a"  # of the letter `a`
    file.write_bytes(magic + window + last_block)


def long_page(file: Path) -> None:
    table = pa.table({"source": ["a" * 300_000_000], "target": ["b"]})
    pq.write_table(table, file, compression="zstd", use_dictionary=False)


def shared_value(file: Path) -> None:
    """A text of 20 megabytes that stands in 1,024 rows."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1024, pa.int32()), pa.array(["a" * 20_000_000]))
    table = pa.table({"source": texts, "target": ["b"] * 1024})
    pq.write_table(table, file, compression="zstd", dictionary_pagesize_limit=1 << 30)


def nested_value(file: Path) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1024, pa.int32()), pa.array(["a" * 20_000_000]))
    table = pa.table({"translation": pa.StructArray.from_arrays([texts, texts], ["source", "target"])})
    pq.write_table(table, file, compression="zstd", dictionary_pagesize_limit=1 << 30)


def torn_footer(file: Path) -> None:
    file.write_bytes(b"PAR1" + b"\xff" * 64 + struct.pack("<I", 60) + b"PAR1")


SLOW = pytest.mark.slow
ATTACKS = [
    (shared_texts, "mo"),
    (endless_tag, "tmx"),
    (endless_comment, "tmx"),
    (endless_instruction, "tmx"),
    (large_dictionary, "tsv.xz"),
    (large_window, "tsv.zst"),
    (torn_footer, "parquet"),
    pytest.param(long_page, "parquet", marks=SLOW),
    pytest.param(shared_value, "parquet", marks=SLOW),
    pytest.param(nested_value, "parquet", marks=SLOW),
]


@pytest.mark.parametrize(("write", "suffix"), ATTACKS)
def test_file_that_expands(write: Callable[[Path], None], suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"attack.{suffix}"
    write(file)
    columns = "source=translation.source,target=translation.target" if write is nested_value else None
    languages = ("en", "fr") if suffix == "tmx" else None

    with little_memory(), pytest.raises(XlsrError, match=f"attack.{suffix} cannot be read"):
        list(read_rows(file, columns=columns, languages=languages))


@SLOW
@pytest.mark.parametrize("write", [long_page, shared_value, torn_footer])
def test_parquet_of_a_dataset_that_expands(write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.parquet")
    with little_memory(), pytest.raises(XlsrError):
        list(read_rows(tmp_path))


def test_unit_with_many_pairs(tmp_path: Path) -> None:
    """500 variants in each of two languages are 250,000 pairs."""
    variants = "<tuv lang='en'><seg>a</seg></tuv>" * 500 + "<tuv lang='fr'><seg>b</seg></tuv>" * 500
    kept = "<tuv lang='en'><seg>c</seg></tuv><tuv lang='fr'><seg>d</seg></tuv>"
    file = tmp_path / "attack.tmx"
    file.write_text(f"<tmx><body><tu>{variants}</tu><tu>{kept}</tu></body></tmx>")

    bad = Quarantine()
    assert list(read_rows(file, languages=("en", "fr"), quarantine=bad)) == [{"source": "c", "target": "d"}]
    assert bad.counts == {"over-long unit": 1}


def test_whole_streams_of_xz(tmp_path: Path) -> None:
    """Streams that follow each other, with padding between them, as `xz` and `cat` write them."""
    first = lzma.compress(b"source\ttarget\na\tb\n")
    second = lzma.compress(b"c\td\n" * 30_000)
    file = tmp_path / "pairs.tsv.xz"
    file.write_bytes(first + b"\0" * 8 + second)
    assert len(list(read_rows(file))) == 30_001


def test_process_of_parquet_ends_with_the_reader(tmp_path: Path) -> None:
    file = tmp_path / "pairs.parquet"
    pq.write_table(pa.table({"source": ["a"] * 5000, "target": ["b"] * 5000}), file)

    rows = read_rows(file)
    assert next(rows) == {"source": "a", "target": "b"}
    rows.close()  # a process that went on would be a ResourceWarning, and so an error


@pytest.mark.parametrize(
    ("kind", "shared"),
    [
        (pa.string(), False),
        (pa.list_(pa.struct({"a": pa.int64()})), False),
        (pa.dictionary(pa.int8(), pa.string()), True),
        (pa.list_(pa.struct({"a": pa.string_view()})), True),
    ],
)
def test_types_that_share_values(kind: pa.DataType, shared: bool) -> None:
    assert parquet_child.shares_values(kind) == shared


def test_outcomes_that_expand(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    outcomes = Outcomes("mean", (np.ones(3),))
    save_results(file, Results([], {"k": outcomes}), settings={}, predictions=True)
    header = {"descr": "|u1", "fortran_order": False, "shape": (1 << 29,)}
    archive = zipfile.ZipFile(tmp_path / "results.npz", "a", zipfile.ZIP_DEFLATED)
    with archive, archive.open("more.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for _ in range(1 << 9):
            stream.write(bytes(MEGABYTE))

    with pytest.raises(XlsrError, match=r"results\.json"):
        load_results(file)


def test_limit_is_for_what_is_read(tmp_path: Path) -> None:
    """A file may be larger than the limit of a tag."""
    unit = "<tu><tuv lang='en'><seg>a</seg></tuv><tuv lang='fr'><seg>b</seg></tuv></tu>"
    file = tmp_path / "large.tmx.gz"
    file.write_bytes(gzip.compress(f"<tmx><body>{unit * 80_000}</body></tmx>".encode()))
    assert sum(1 for _ in read_rows(file, languages=("en", "fr"))) == 80_000
