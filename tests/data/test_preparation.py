"""What every kind of prepared row shares, and the pairs and single texts of `prepare`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizer_helpers import framed_tokenizer

from hf_xlsr.data import preparation
from hf_xlsr.data.encoding import TokenCounts
from hf_xlsr.data.labelled import LabelledTask, prepare_labelled, prepare_nli
from hf_xlsr.data.pairs import PreparedData, prepare, prepare_texts
from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.data.running_text import prepare_running_text
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.utils.errors import XlsrError

ENGLISH, GERMAN = ["one", "two", "three", "four"], ["eins", "zwei", "drei", "vier"]
WORDS = [*ENGLISH, *GERMAN, "un", "deux", "trois", "q"]


def prepared(path: str, folder: Path, **options: Any) -> PreparedData:
    data = {"train": {"path": path, "columns": {"source": "first", "target": "second"}}, "cleaning": ["deduplicate"]}
    data |= {"fraction": 1.0, "limit": None, **options.pop("data", {})}
    more: dict[str, Any] = {"languages": ["en", "de"], "evaluation_texts": (), "seed": 1, **options}
    return prepare(data=data, folder=folder, max_length=16, **more)


def pairs_of(path: str, folder: Path, tokenizer: Any, held: Any = ()) -> PreparedRows:
    return prepared(path, folder, tokenizer=tokenizer, evaluation_texts=held).train


def rows_of(make: Any, columns: str, **options: Any) -> Prepare:
    """One of the other preparations, of a file with these columns."""

    def run(path: str, folder: Path, tokenizer: Any, held: Any = ()) -> PreparedRows:
        name = "tokenizer" if make is prepare_labelled else "tokenizers"
        more = {name: tokenizer, "languages": ["en"], "evaluation_texts": held, **options}
        return make({"path": path, "columns": columns}, folder=folder, **more)

    return run


Prepare = Callable[..., PreparedRows]
KINDS = {
    "pairs": pairs_of,
    "texts": rows_of(prepare_texts, "text=first", cleaning=["deduplicate"]),
    "nli": rows_of(prepare_nli, "premise=first,hypothesis=second,label=label"),
    "running text": rows_of(prepare_running_text, "text=first,document=label", cleaning=["deduplicate"]),
    "labelled": rows_of(
        prepare_labelled,
        "first=first,second=second,label=label",
        task=LabelledTask(labels=("0", "1")),
        cleaning=["deduplicate"],
    ),
}


def write(path: Path, rows: list[tuple[str | None, str, int]]) -> str:
    pq.write_table(
        pa.Table.from_pylist([dict(zip(("first", "second", "label"), row, strict=True)) for row in rows]), path
    )
    return str(path)


ROWS: list[tuple[str | None, str, int]] = [
    *((word, other, 1) for word, other in zip(ENGLISH, GERMAN, strict=True)),
    ("one two", "eins zwei", 1),
    ("one two", "eins zwei", 1),  # a duplicate
    (None, "acht", 1),  # quarantined
]


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "rows.parquet", ROWS)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return framed_tokenizer(WORDS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_XLSR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(preparation, "SHARD_ROWS", 3)
    return tmp_path / "cache"


def addresses(cache: Path) -> set[str]:
    return {path.parent.name for path in cache.glob("*/report.json")}


@pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
def test_every_row_is_kept_dropped_or_quarantined(run: Prepare, file: str, tokenizer: Any, tmp_path: Path) -> None:
    data = run(file, tmp_path / "out", tokenizer, ["Two!"])
    report = data.report
    steps = list(report["cleaning"].values())
    assert steps[0]["in"] + sum(report["rejected"].values()) == len(ROWS)
    assert steps[0]["in"] - sum(step["in"] - step["out"] for step in steps) == steps[-1]["out"]
    single = report.get("single", 0)  # running text also drops sentences without a neighbour
    assert len(data.rows) == steps[-1]["out"] - single
    assert sum(report["rejected"].values()) == 1
    assert len((tmp_path / "out" / "rejected.jsonl").read_text("utf-8").splitlines()) == 1
    assert report["cleaning"]["remove_evaluation"]["in"] - steps[-1]["out"] == 1
    assert report["num_truncated"] == 0 and report["tokens"] > 0


@pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
def test_equal_content_is_prepared_once(run: Prepare, file: str, tokenizer: Any, tmp_path: Path, cache: Path) -> None:
    first = run(file, tmp_path / "one", tokenizer)
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(file, tmp_path / "elsewhere")
    os.utime(copy, (1, 1))
    again = run(copy, tmp_path / "two", tokenizer)
    assert again.report == first.report and again[3, 0] == first[3, 0] and len(addresses(cache)) == 1
    assert again.rows._fingerprint == first.rows._fingerprint
    assert json.loads((tmp_path / "two" / "prepared.json").read_text("utf-8")).items() > first.report.items()
    assert {path.suffix for path in cache.iterdir() if path.name != "files"} == {"", ".lock"}


@pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("change", ["file", "vocabulary", "held out", "version"])
def test_changed_input_is_prepared_anew(
    change: str, run: Prepare, file: str, tokenizer: Any, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, held = run(file, tmp_path / "out", tokenizer), ["four"] if change == "held out" else []
    if change == "file":
        status, content = os.stat(file), Path(file).read_bytes()
        Path(file).write_bytes(content.replace(b"four", b"size"))
        os.utime(file, (status.st_atime, status.st_mtime + 1))
        tokenizer = framed_tokenizer([*WORDS[:-1], "size"])
    elif change == "vocabulary":
        tokenizer = framed_tokenizer(WORDS[::-1])
    elif change == "version":
        monkeypatch.setattr("hf_xlsr.data.preparation.FORMAT", 0)
    with pytest.raises(XlsrError, match="--overwrite true"):  # a run that is resumed
        run(file, tmp_path / "out", tokenizer, held)
    again = run(file, tmp_path / "other", tokenizer, held)
    assert len(addresses(cache)) == 2 and again.rows._fingerprint != first.rows._fingerprint
    assert (len(again) < len(first)) == (change == "held out")


@pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
def test_nothing_left_is_an_error(run: Prepare, file: str, tokenizer: Any, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(XlsrError, match="left|empty"):
        run(file, tmp_path / "out", tokenizer, [*ENGLISH, "one two"])
    assert not addresses(cache) and not (tmp_path / "out").exists()


def test_one_process_or_two(file: str, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for size, num_proc in ((3, 1), (2, 2), (50, 1)):
        monkeypatch.setattr(preparation, "SHARD_ROWS", size)
        monkeypatch.setenv("HF_XLSR_CACHE", str(tmp_path / f"cache {size}"))
        source = {"path": file, "columns": {"text": "first"}}
        options: dict[str, Any] = {"languages": ["en"], "evaluation_texts": ["two"], "num_proc": num_proc}
        texts = prepare_texts(source, tokenizers=tokenizer, folder=tmp_path / f"{size}", **options)
        results.append((texts.rows[:], texts.report))
    assert results[0] == results[1] == results[2] and results[0][1]["texts"] == 4


KILLED = """
import sys, time
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from hf_xlsr.data import preparation
from hf_xlsr.data.pairs import prepare_texts

class Slow(PreTrainedTokenizerFast):
    def __call__(self, *arguments, **options):
        time.sleep(0.02)
        return super().__call__(*arguments, **options)

if __name__ == "__main__":
    preparation.SHARD_ROWS = 10
    prepare_texts(sys.argv[1], languages=["en"], tokenizers=Slow.from_pretrained(sys.argv[2]), folder=sys.argv[3],
                  evaluation_texts=["one 7"], num_proc=2)
"""


@pytest.mark.parametrize("victim", ["worker", "parent"])
def test_killed_preparation_resumes(victim: str, tokenizer: Any, tmp_path: Path, cache: Path) -> None:
    lines = [f"{word} {number}" for number in range(400) for word in ("one", "two")]
    (tmp_path / "text.txt").write_text("\n".join([*lines, "one 5", ""]), "utf-8")  # a duplicate
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    (tmp_path / "killed.py").write_text(KILLED, "utf-8")
    names = ["killed.py", "text.txt", "tokenizer", "out"]
    process = subprocess.Popen([sys.executable, *names], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while len(done := list(cache.glob("*/shards/*.json"))) < 3:
        assert process.poll() is None
        time.sleep(0.01)
    servers = [child for child in psutil.Process(process.pid).children() if "forkserver" in "".join(child.cmdline())]
    workers = servers[0].children()
    (workers[0] if victim == "worker" else process).kill()
    errors = process.communicate(timeout=60)[1]
    assert process.returncode and ("num_proc" in errors or victim == "parent")
    psutil.wait_procs(workers, timeout=10)
    assert not any(worker.is_running() for worker in workers) and not addresses(cache)
    before = {path: path.stat().st_mtime_ns for path in done}

    written = []
    original = preparation.write_json
    options: dict[str, Any] = {"languages": ["en"], "tokenizers": tokenizer, "evaluation_texts": ["one 7"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "SHARD_ROWS", 10)
        patch.setattr(preparation, "write_json", lambda path, content: (written.append(path), original(path, content)))
        data = prepare_texts(str(tmp_path / "text.txt"), folder=tmp_path / "out", **options)
        assert written and not before.keys() & set(written)
        patch.setenv("HF_XLSR_CACHE", str(tmp_path / "whole"))
        whole = prepare_texts(str(tmp_path / "text.txt"), folder=tmp_path / "whole run", **options)
    assert data.rows[:] == whole.rows[:] and data.report == whole.report
    steps = list(data.report["cleaning"].values())
    assert steps[0]["in"] == 801 and len(data) == 801 - sum(step["in"] - step["out"] for step in steps) == 799


def test_unknown_script_is_an_error_and_few_unknown_tokens_a_warning() -> None:
    latin = train_tokenizer(["the cat sat", "the dog ran"] * 20, vocab_size=22, algorithm="bpe", frame=True)
    counts = TokenCounts(latin, max_length=90)
    counts.tokenize(["the cat sat the dog ran ж ж ж", "да"], ["en", "ru"])  # a few rows are no evidence
    assert counts.report()["unknown_tokens"] > 3
    with pytest.raises(XlsrError, match="'ru'"):
        for _ in range(400):
            counts.tokenize(["да", "the cat"], ["ru", "en"])


def test_trained_tokenizer_is_kept(file: str, tmp_path: Path) -> None:
    options = {"vocab_size": 20, "algorithm": "bpe"}
    first, again = (prepared(file, tmp_path / "run", tokenizer=options) for _ in range(2))
    assert len(first.tokenizer) == first.report["vocab_size"] == 20 and first.tokenizers == {}
    assert again.tokenizer.get_vocab() == first.tokenizer.get_vocab() and first.tokenizer.model_max_length == 16
    limited = prepared(file, tmp_path / "limited", tokenizer=options, data={"limit": 2}).train
    texts = [[data[0, index]["source_text"] for index in (0, 1)] for data in (limited, first.train)]
    assert len(limited) == 2 and texts[0] == texts[1]


def test_articles_are_split_into_sentences(tmp_path: Path, tokenizer: Any) -> None:
    articles = tmp_path / "articles.jsonl"
    articles.write_text('{"text": "one two.\\n\\nthree four. One"}\n{"text": "Two"}\n{"text": "Four"}\n', "utf-8")
    source, options = {"path": str(articles), "limit": 2}, {"languages": ["en"], "tokenizers": tokenizer}
    for split, expected in ((False, 2), (True, 4)):
        given = {**source, "split_sentences": split}
        texts = prepare_texts(given, folder=tmp_path / f"{split}", evaluation_texts=[], **options)
        assert texts.report["texts"] == expected
    first = [tokenizer.decode(texts[0, row]["text_ids"], skip_special_tokens=True) for row in (0, 1)]
    assert "two" in first[0] and "three" in first[1] and "three" not in first[0]
