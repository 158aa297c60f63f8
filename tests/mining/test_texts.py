from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_xlsr.mining import texts as module
from hf_xlsr.mining.texts import TextStore, read_texts
from hf_xlsr.utils.errors import XlsrError

LINE = st.one_of(
    st.sampled_from([b"", b"  \t", b"\xff\xfe", b"a\0b", b"same", b"same", b"same\r", b"other", "\u2028 x".encode()]),
    st.text(st.characters(exclude_characters="\n\0", exclude_categories=["Cs"]), max_size=6).map(str.encode),
)


def naive(lines: list[bytes], duplicates: str) -> list[tuple[int, str]]:
    """Line numbers from 0 and texts of the sentences."""
    usable = []
    for number, line in enumerate(lines):
        try:
            text = line.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip() and "\0" not in text:
            usable.append((number, text))
    if duplicates == "keep":
        return usable

    merged: dict[str, tuple[int, str]] = {}
    for number, text in usable:
        merged.setdefault(text, (number, text))
    return list(merged.values())


def store_of(sentences: Any, folder: Path, **options: Any) -> tuple[TextStore, dict[str, Any]]:
    counts = read_texts(sentences, folder, name="side", **options)
    return TextStore(folder, "side"), counts


@settings(max_examples=150)
@given(
    lines=st.lists(LINE, max_size=25),
    duplicates=st.sampled_from(["merge", "keep"]),
    block=st.sampled_from([1, 3, 100]),
    classes=st.sampled_from([1, 2, 5]),
)
def test_equals_a_naive_reading(lines: list[bytes], duplicates: str, block: int, classes: int):
    expected = naive(lines, duplicates)
    # A file that begins like UTF-16 is an error.
    if not expected or lines[0].startswith((b"\xff\xfe", "\ufeff".encode())):
        return

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", block)
        patch.setattr(module, "BYTES_PER_HASH", classes << 24)  # residue classes for each line
        folder = Path(name)
        file = folder / "file.txt"
        file.write_bytes(b"\n".join(lines) + b"\n")

        store, counts = store_of(file, folder, duplicates=duplicates, memory=2 << 20)
        rows = np.arange(len(store))
        sentences = list(zip(store.lines(rows).tolist(), store.texts(rows), strict=True))

    assert sentences == expected
    skipped = sum(counts["skipped"].values())
    assert skipped == len(lines) - len(naive(lines, "keep"))
    assert counts["lines"] == len(lines)
    assert skipped + counts["duplicates"] + counts["sentences"] == len(lines)


def test_skipped_lines(tmp_path: Path):
    file = tmp_path / "file.txt"
    file.write_bytes(b"one\n\nsecond \xff\n \t\n" + b"x" * (1 << 20) + b"y\nlast")

    store, counts = store_of(file, tmp_path)

    assert store.texts(np.array([1, 0])) == ["last", "one"]
    assert store.lines(np.array([0, 1])).tolist() == [0, 5]
    assert counts["skipped"] == {"blank": 2, "invalid UTF-8": 1, "over-long line": 1}
    report = (tmp_path / "skipped.jsonl").read_text()
    entries = [json.loads(line) for line in report.splitlines()]
    assert [entry["line"] for entry in entries] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"", "empty"),
        ("a\n".encode("utf-16"), "UTF-16"),
        (gzip.compress(b"one\n" * 1000, mtime=0)[:-9], "side"),
    ],
)
def test_unusable_files(content: bytes, key: str, tmp_path: Path):
    file = tmp_path / ("file.txt.gz" if content.startswith(b"\x1f\x8b") else "file.txt")
    file.write_bytes(content)
    with pytest.raises(XlsrError, match=key):
        store_of(file, tmp_path)


def test_torn_texts_are_refused(tmp_path: Path) -> None:
    read_texts(["one", "two", "three"], tmp_path, name="side")
    file = tmp_path / module.TEXTS
    file.write_bytes(file.read_bytes()[:5])
    with pytest.raises(XlsrError, match="remove the folder"):
        TextStore(tmp_path, "side")


@settings(max_examples=50)
@given(
    texts=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30),
    block=st.sampled_from([1, 3, 100]),
    classes=st.sampled_from([1, 2, 5]),
)
def test_rows_of_lines(texts: list[str], block: int, classes: int) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", block)
        patch.setattr(module, "BYTES_PER_HASH", classes << 24)
        store, _ = store_of(texts, Path(name))
        rows = store.rows_of_lines(memory=2 << 20)
        is_held = store.holds(["a", "z", "h", "a"])

        assert store.texts(rows) == texts
        assert is_held.tolist() == ["a" in texts, False, "h" in texts, "a" in texts]


@settings(max_examples=50)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=25), rows=st.integers(1, 6), size=st.integers(1, 20))
def test_shards_are_as_long_as_they_may_be(lengths: list[int], rows: int, size: int) -> None:
    texts = [f"{number:02}" + "x" * length for number, length in enumerate(lengths)]
    with tempfile.TemporaryDirectory() as name:
        store, _ = store_of(texts, Path(name))
        ranges = store.shards(rows, size)

    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == len(texts)

    def fits(start: int, stop: int) -> bool:
        return stop - start <= rows and (stop - start == 1 or sum(map(len, texts[start:stop])) <= size)

    for start, stop in ranges:
        assert fits(start, stop)
        assert stop == len(texts) or not fits(start, stop + 1)
