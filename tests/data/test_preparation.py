"""What cleaning and tokenising of every kind of row share: nothing is lost, and equal content is made once."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi
from tokenizer_helpers import framed_tokenizer

from hf_xlsr.data import conversion, preparation
from hf_xlsr.data.cleaning import build_steps, judge_rows
from hf_xlsr.data.conversion import DataConverter
from hf_xlsr.data.encoding import PAIRS, TokenCounts, encode_texts
from hf_xlsr.data.label_tasks import LabelledTask
from hf_xlsr.data.preparation import CleanRows
from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.data.sources import parse_sources
from hf_xlsr.data.tokenization import train_tokenizer, trained_tokenizer
from hf_xlsr.data.training_rows import clean_inference, clean_labelled, clean_pairs, clean_running_text, clean_texts
from hf_xlsr.utils.errors import XlsrError

ENGLISH = ["one", "two", "three", "four"]
GERMAN = ["eins", "zwei", "drei", "vier"]
WORDS = [*ENGLISH, *GERMAN, "un", "deux", "trois", "q"]
TASK = LabelledTask(labels=("0", "1"))
Prepared = tuple[CleanRows, PreparedRows]
Prepare = Callable[..., Prepared]


def of_kind(clean: Callable[..., CleanRows], form: str, columns: str, **cleaning: Any) -> Prepare:
    """Cleans the rows of a file with these columns, and converts them in a form."""

    def run(
        path: str, tokenizer: Any, evaluation_texts: Any = (), sample: int | None = None, **options: Any
    ) -> Prepared:
        sources = parse_sources({"path": path, "columns": columns, "sample": sample})
        settings: dict[str, Any] = {"languages": ["en", "de"], "evaluation_texts": evaluation_texts}
        cleaned = clean(sources, **settings, **cleaning, **options)
        convert = getattr(DataConverter(tokenizer, max_length=16), form)
        return cleaned, convert(cleaned.rows)

    return run


DEDUPLICATE = ["deduplicate"]
KINDS = {
    "pairs": of_kind(clean_pairs, "pairs", "source=first,target=second", cleaning=DEDUPLICATE),
    "texts": of_kind(clean_texts, "texts", "text=first", cleaning=DEDUPLICATE),
    "nli": of_kind(clean_inference, "inference", "premise=first,hypothesis=second,label=label"),
    "running text": of_kind(clean_running_text, "running_text", "text=first,document=label", cleaning=DEDUPLICATE),
    "labelled": of_kind(
        clean_labelled, "labelled", "first=first,second=second,label=label", task=TASK, cleaning=DEDUPLICATE
    ),
}
each_kind = pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
ROWS = {
    "first": [*ENGLISH, "one two", "one two", None],  # one duplicate, and one that is quarantined
    "second": [*GERMAN, "eins zwei", "eins zwei", "acht"],
    "label": [1] * 7,
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(ROWS), path)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return framed_tokenizer(WORDS)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_XLSR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(preparation, "SHARD_ROWS", 3)
    monkeypatch.setattr(conversion, "SHARD_ROWS", 3)
    return tmp_path / "cache"


def addresses(cache: Path, file: str) -> set[str]:
    """Folders of the cache with a file: `text.arrow` of clean rows, `rows.arrow` of tokenised ones."""
    folders = (path.parent for path in cache.glob(f"*/{file}"))
    return {folder.name for folder in folders if not folder.suffix}


PROMPTS = {"a": "two ", "b": "three "}


@pytest.mark.parametrize(
    ("prompts", "prompt"),
    [
        (None, ""),
        ("one ", "one "),
        ({"source": "four "}, "four "),
        (PromptTable(PROMPTS, "a"), "two "),
        (PromptTable(PROMPTS, "b"), "three "),
    ],
)
def test_each_prompt_has_prepared_data_of_its_own(file: str, tokenizer: Any, prompts: Any, prompt: str) -> None:
    clean, plain = KINDS["pairs"](file, tokenizer)
    data = DataConverter(tokenizer, max_length=16, prompts=prompts).pairs(clean.rows)
    assert data[0, 0]["source_ids"] == tokenizer(f"{prompt}one")["input_ids"]
    assert plain[0, 0]["source_ids"] == tokenizer("one")["input_ids"]


@pytest.mark.sample(2)
@each_kind
def test_every_row_is_kept_dropped_or_quarantined(run: Prepare, file: str, tokenizer: Any) -> None:
    clean, data = run(file, tokenizer, ["Two!"])

    steps = clean.report["cleaning"]
    num_in = next(iter(steps.values()))["in"]
    num_dropped = sum(step["in"] - step["out"] for step in steps.values())
    num_rejected = sum(clean.report["rejected"].values())
    assert num_in + num_rejected == len(ROWS["first"])
    assert num_in - num_dropped == len(clean.rows)
    single = clean.report.get("single", 0)  # of running text, sentences without a neighbour are not tokenised
    assert len(data.rows) == len(clean.rows) - single

    rejected = (clean.folder / "rejected.jsonl").read_text("utf-8")
    assert num_rejected == len(rejected.splitlines()) == 1
    assert steps["remove_evaluation"]["in"] - len(clean.rows) == 1
    assert data.report["num_truncated"] == 0
    assert data.report["tokens"] > 0


@pytest.mark.sample(2)
@each_kind
def test_equal_content_is_prepared_once(run: Prepare, file: str, tokenizer: Any, tmp_path: Path, cache: Path) -> None:
    first_clean, first = run(file, tokenizer)

    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(file, tmp_path / "elsewhere")
    os.utime(copy, (1, 1))
    second_clean, second = run(copy, tokenizer)

    assert second_clean.report == first_clean.report
    assert second.report == first.report
    assert second[3, 0] == first[3, 0]
    assert len(addresses(cache, "text.arrow")) == 1
    assert len(addresses(cache, "rows.arrow")) == 1


@pytest.mark.sample(2)
@each_kind
def test_only_results_stay_in_the_cache(run: Prepare, file: str, tokenizer: Any, cache: Path) -> None:
    run(file, tokenizer)
    assert not [*cache.glob("*/cleaned"), *cache.glob("*/shards")]
    assert {path.suffix for path in cache.iterdir() if path.name != "files"} == {"", ".lock"}


@pytest.mark.sample(4)
@each_kind
@pytest.mark.parametrize("change", ["file", "vocabulary", "held out", "version"])
def test_changed_input_is_prepared_anew(
    change: str, run: Prepare, file: str, tokenizer: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, first = run(file, tokenizer)

    evaluation_texts = []
    if change == "file":
        path = Path(file)
        modified = path.stat().st_mtime
        path.write_bytes(path.read_bytes().replace(b"four", b"size"))
        os.utime(path, (modified, modified + 1))
        tokenizer = framed_tokenizer([*WORDS[:-1], "size"])
    elif change == "vocabulary":
        tokenizer = framed_tokenizer(WORDS[::-1])
    elif change == "version":
        monkeypatch.setattr(preparation, "FORMAT", 0)
    else:
        evaluation_texts.append("four")
    _, second = run(file, tokenizer, evaluation_texts)

    assert len(addresses(cache, "text.arrow")) == (1 if change == "vocabulary" else 2)
    assert len(addresses(cache, "rows.arrow")) == 2
    assert (len(second) < len(first)) == (change == "held out")


@pytest.mark.sample(2)
@each_kind
def test_nothing_left_is_an_error(run: Prepare, file: str, tokenizer: Any, cache: Path) -> None:
    with pytest.raises(XlsrError, match="left|empty"):
        run(file, tokenizer, [*ENGLISH, "one two"])
    assert not addresses(cache, "text.arrow")


@pytest.mark.slow
@each_kind
def test_one_process_or_two(
    run: Prepare, file: str, tokenizer: Any, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def results(shard_rows: int, num_proc: int) -> list[Any]:
        monkeypatch.setattr(preparation, "SHARD_ROWS", shard_rows)
        monkeypatch.setattr(conversion, "SHARD_ROWS", shard_rows)
        monkeypatch.setenv("HF_XLSR_CACHE", str(tmp_path / f"cache {shard_rows}"))
        clean, data = run(file, tokenizer, ["two"], num_proc=num_proc)
        return [clean.rows[:], clean.report, data.rows[:], data.report]

    expected = results(shard_rows=3, num_proc=1)
    assert results(shard_rows=2, num_proc=2) == expected
    assert results(shard_rows=50, num_proc=1) == expected


# Sentences in rows of their own cannot be sampled.
SAMPLED = {**KINDS, "running text": of_kind(clean_running_text, "running_text", "first=first,second=second")}


@pytest.mark.sample(2)
@pytest.mark.parametrize("run", SAMPLED.values(), ids=SAMPLED)
def test_sampled_rows_follow_the_seed(run: Prepare, file: str, tokenizer: Any) -> None:
    samples = []
    for seed in (1, 2, 3, 1):
        clean, _ = run(file, tokenizer, sample=3, seed=seed)
        samples.append(str(clean.rows[:]))
    assert samples[0] == samples[3]
    assert len(set(samples)) == 3


def test_characters_that_were_removed_are_reported(file: str, tokenizer: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.tmx"
    unit = '<tu><tuv xml:lang="en"><seg>one\x01</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv></tu>'
    path.write_text(f'<tmx version="1.4"><body>{unit}</body></tmx>', "utf-8")
    clean = clean_pairs(parse_sources(str(path)), languages=["en", "de"])
    assert clean.report["repaired"] == {"control characters": 1}

    clean, _ = KINDS["pairs"](file, tokenizer)
    assert "repaired" not in clean.report


def test_revision_of_a_dataset_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: Any, **options: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(HfApi, "dataset_info", lambda *arguments, **options: SimpleNamespace(sha="abc"))
    assert preparation.hub_revision("owner/met") == "abc"
    monkeypatch.setattr(HfApi, "dataset_info", unreachable)
    assert preparation.hub_revision("owner/met") == "abc"
    assert preparation.hub_revision("owner/new") is None


def test_limit_reads_no_further(file: str, tokenizer: Any) -> None:
    clean, _ = KINDS["pairs"](file, tokenizer, limit=2)
    assert clean.rows["source"] == ENGLISH[:2]
    assert clean.report["cleaning"]["deduplicate"] == {"in": 2, "out": 2, "changed": 0}


KILLED = """
import sys, time
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from hf_xlsr.data import cleaning, conversion, preparation
from hf_xlsr.data.sources import parse_sources
from hf_xlsr.data.training_rows import clean_texts

class Slow(PreTrainedTokenizerFast):
    def __call__(self, *arguments, **options):
        time.sleep(0.05)
        return super().__call__(*arguments, **options)

class SlowStep(cleaning.Step):
    name = "slow"
    def __repr__(self):
        return "SlowStep()"
    def keeps(self, row):
        time.sleep(0.003)
        return True

if __name__ == "__main__":
    preparation.SHARD_ROWS = conversion.SHARD_ROWS = 10
    if sys.argv[3] == "cleaning":
        cleaning.register_step(SlowStep)
    steps = ["deduplicate", *(["slow"] if sys.argv[3] == "cleaning" else [])]
    options = {"evaluation_texts": ["one 7"], "cleaning": steps, "num_proc": 2}
    clean = clean_texts(parse_sources(sys.argv[1]), languages=["en"], **options)
    tokenizer = Slow.from_pretrained(sys.argv[2])
    data = conversion.DataConverter(tokenizer, num_proc=2).texts(clean.rows)
    print(len(data), clean.report["cleaning"]["deduplicate"]["in"])
"""


class Preparation:
    """A process of `KILLED`, with its files in a folder."""

    def __init__(self, folder: Path, stage: str) -> None:
        command = [sys.executable, "killed.py", "text.txt", "tokenizer", stage]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)

    def wait_for(self, files: Callable[[], Sequence[Path]], count: int) -> list[Path]:
        """The files, once there are as many, or none are to come."""
        while len(files()) < count and self.process.poll() is None:
            time.sleep(0.01)
        return list(files())

    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children()
        server = next(child for child in children if "forkserver" in "".join(child.cmdline()))
        return server.children()

    def finish(self) -> tuple[str, str]:
        return self.process.communicate(timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["worker", "parent"])
@pytest.mark.parametrize("stage", ["cleaning", "tokenising"])
def test_killed_preparation_goes_on(stage: str, victim: str, tokenizer: Any, tmp_path: Path, cache: Path) -> None:
    lines = [f"one {number}\ntwo {number}\n" for number in range(400)]
    (tmp_path / "text.txt").write_text("".join([*lines, "one 5\n"]), "utf-8")  # a duplicate
    (tmp_path / "killed.py").write_text(KILLED, "utf-8")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    folder = "cleaned" if stage == "cleaning" else "shards"

    run = Preparation(tmp_path, stage)
    finished = run.wait_for(lambda: list(cache.glob(f"*/{folder}/*.arrow")), 3)
    assert len(finished) >= 3, run.finish()

    workers = run.workers()
    killed = workers[0] if victim == "worker" else run.process
    killed.kill()
    output, errors = run.finish()
    psutil.wait_procs(workers, timeout=10)
    assert not any(worker.is_running() for worker in workers)

    if victim == "parent":
        times = {path: path.stat().st_mtime_ns for path in finished if path.exists()}
        assert times
        run = Preparation(tmp_path, stage)
        run.wait_for(lambda: list(cache.glob(f"*/{folder}/00002*.arrow")), 1)
        for path, written in times.items():
            assert not path.exists() or path.stat().st_mtime_ns == written
        output, errors = run.finish()

    assert run.process.returncode == 0, errors
    assert output.split() == ["799", "801"]


def test_unknown_script_is_an_error_and_few_unknown_tokens_a_warning() -> None:
    latin = train_tokenizer(["the cat sat", "the dog ran"] * 20, vocab_size=22, algorithm="bpe", frame=True)
    counts = TokenCounts(latin, max_length=90)
    counts.tokenize(["the cat sat the dog ran ж ж ж", "да"], ["en", "ru"])  # a few rows are no evidence
    assert counts.report()["unknown_tokens"] > 3

    with pytest.raises(XlsrError, match="'ru'"):
        for _ in range(400):
            counts.tokenize(["да", "the cat"], ["ru", "en"])


def test_counting_long_texts_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    tokenizer = framed_tokenizer(WORDS)
    tokenizer.model_max_length = 4
    counts = TokenCounts(tokenizer, max_length=4)

    counts.tokenize(["one two three four"], ["en"])
    _, num_truncated = encode_texts([["one two three four"]], tokenizer, 4)

    assert counts.report()["num_truncated"] == 1
    assert num_truncated == 1
    assert not caplog.records


def test_trained_tokenizer_is_kept(file: str, tokenizer: Any, tmp_path: Path, cache: Path) -> None:
    clean, _ = KINDS["pairs"](file, tokenizer)
    options = {"vocab_size": 20, "algorithm": "bpe"}
    columns = [("source", "source_lang"), ("target", "target_lang")]

    first = trained_tokenizer(clean.rows, options, columns=columns, max_length=16)
    again = trained_tokenizer(clean.rows, options, columns=columns, max_length=16)

    assert len(first) == 20
    assert again.get_vocab() == first.get_vocab()
    assert first.model_max_length == 16
    assert len(addresses(cache, "tokenizer.json")) == 1


@pytest.mark.parametrize(
    ("split", "texts"),
    [
        (False, ["one two. three four. One", "Two"]),
        (True, ["one two.", "three four.", "One", "Two"]),
    ],
)
def test_articles_are_split_into_sentences(tmp_path: Path, split: bool, texts: list[str]) -> None:
    articles = tmp_path / "articles.jsonl"
    articles.write_text('{"text": "one two.\\n\\nthree four. One"}\n{"text": "Two"}\n{"text": "Four"}\n', "utf-8")
    sources = parse_sources({"path": str(articles), "limit": 2, "split_sentences": split})

    clean = clean_texts(sources, languages=["en"])

    assert clean.rows["text"] == texts
    assert clean.report["texts"] == len(texts)


def test_verdicts_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Hashes of 64 bits, of which a float would keep 53, and the numbers of steps."""
    steps = build_steps(["normalize", "deduplicate", {"near_duplicates": {}}])
    languages = {"source_lang": "en", "target_lang": "fr"}
    rows = [{"source": f" text {number}", "target": f"texte {number}", **languages} for number in range(50)]
    rows[3]["source"] = " "
    _, verdicts = judge_rows(steps, rows)
    assert set(verdicts.dropped_by.tolist()) == {0, 3}
    assert (verdicts.keys[1] > 2**53).sum() > 40

    file = tmp_path / "judged.arrow"
    preparation.write_judged(steps, PAIRS, file, rows)
    _, read = preparation.read_judged(steps, file)

    np.testing.assert_array_equal(read.dropped_by, verdicts.dropped_by)
    np.testing.assert_array_equal(read.changed_by, verdicts.changed_by)
    assert read.keys.keys() == verdicts.keys.keys()
    for number, keys in verdicts.keys.items():
        assert read.keys[number].tolist() == keys.tolist()
