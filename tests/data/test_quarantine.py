from __future__ import annotations

import json
from pathlib import Path

from hf_xlsr.data.formats.quarantine import Quarantine


def entries(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_bytes().decode("utf-8").split("\n")[:-1]]


def test_counts_by_reason_without_a_side_file():
    bad = Quarantine()
    assert (bad.total, bad.counts, bad.report()) == (0, {}, "")
    for reason in ("empty source", "invalid UTF-8", "empty source"):
        bad.reject("a.tsv", 1, reason, "")
    assert bad.total == 3
    assert bad.counts == {"empty source": 2, "invalid UTF-8": 1}
    assert bad.report() == "3 bad lines were skipped (2 empty source, 1 invalid UTF-8)."


def test_side_file_is_made_at_the_first_bad_line(tmp_path):
    path = tmp_path / "new" / "bad.jsonl"
    with Quarantine(path) as bad:
        assert not path.exists()
        bad.reject(Path("a.tsv"), 12, "wrong column count", "a \u2028 b")
        bad.reject("b.tsv", 3, "invalid UTF-8", b"caf\xe9")
        # On disk at once: a job that is killed keeps what it found.
        assert entries(path) == [
            {"file": "a.tsv", "line": 12, "reason": "wrong column count", "text": "a \u2028 b"},
            {"file": "b.tsv", "line": 3, "reason": "invalid UTF-8", "text": "caf\\xe9"},
        ]
        assert str(path) in bad.report()


def test_long_and_unencodable_texts(tmp_path):
    path = tmp_path / "bad.jsonl"
    with Quarantine(path) as bad:
        bad.reject("a", 1, "r", "\U0001f600" * 2000)
        bad.reject("a", 2, "r", b"\xff" * 5000)
        bad.reject("a", 3, "r", "half \ud800")
    texts = [entry["text"] for entry in entries(path)]
    assert texts == ["\U0001f600" * 1000, "\\xff" * 250, "half \\ud800"]


def test_a_new_run_starts_its_side_file_afresh(tmp_path):
    path = tmp_path / "bad.jsonl"
    with Quarantine(path) as bad:
        bad.reject("a", 1, "r", "old")
    with Quarantine(path):
        pass
    assert not path.exists()  # a clean run leaves no report of the one before
    bad = Quarantine(path)
    bad.reject("a", 1, "r", "one")
    bad.close()
    bad.reject("a", 2, "r", "two")  # the same run goes on
    bad.close()
    assert [entry["text"] for entry in entries(path)] == ["one", "two"]
