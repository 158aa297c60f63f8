"""Suites by several processes: the tables, failures and kept results of one process."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import failing
from conftest import make_pairs
from input_helpers import write_tsv
from mteb_helpers import shaken
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.evaluation.suites.suite import evaluate_suite, load_suite
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.tasks import Task, Work, complete

SUITE = """
encoders:
  a: ${HF_XLSR_SUITE}/a
  b: {model: "${HF_XLSR_SUITE}/b", prompt: "red "}
tasks:
  retrieval:
    protocol: tatoeba,xsim
    data: ${HF_XLSR_SUITE}/wide.tsv
    columns: {source: en, target: "{lang}"}
    languages: en,fr
    options: {k: 2}
  bias:
    protocol: language-bias
    data: ${HF_XLSR_SUITE}/wide.tsv
    columns: {text: "{lang}"}
    languages: en,fr
"""


@pytest.fixture
def folder(tmp_path: Path, tiny_export: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, a table, and a suite over them."""
    shutil.copytree(tiny_export, tmp_path / "a")
    shaken(SentenceTransformer(tiny_export), seed=1).save(str(tmp_path / "b"))
    rows = [f"{row['source']}\t{row['target']}" for row in make_pairs(20, seed=3)]
    write_tsv(tmp_path / "wide.tsv", ["en\tfr", *rows])
    (tmp_path / "suite.yaml").write_text(SUITE, "utf-8")
    monkeypatch.setenv("HF_XLSR_SUITE", str(tmp_path))
    monkeypatch.setattr("hf_xlsr.evaluation.suites.suite.can_plot", lambda: False)
    return tmp_path


def command(folder: Path, output: str, *words: str) -> list[str]:
    return ["evaluate", "--suite", str(folder / "suite.yaml"), "--output", str(folder / output), *words]


def results(output: Path) -> dict[str, Any]:
    """The content of all results and tables, without times of writing and the versions of what a process has loaded."""
    contents: dict[str, Any] = {}
    for file in output.glob("*/*.json"):
        content = json.loads(file.read_text("utf-8"))
        contents[str(file.relative_to(output))] = content | {"created": "", "versions": ""}
    for file in output.glob("table.*"):
        contents[file.name] = file.read_bytes()
    return contents


def leftovers(output: Path) -> set[str]:
    return {file.name for file in output.iterdir()} - {"a", "b", "vectors"} - set(results(output))


@pytest.mark.slow
def test_two_processes_write_what_one_writes_and_keep_it(folder: Path) -> None:
    assert main(command(folder, "one")) == 0
    assert main(command(folder, "two", "--num-proc", "2")) == 0
    expected = results(folder / "one")
    assert len(expected) == 8
    assert results(folder / "two") == expected
    assert not leftovers(folder / "two")

    times = write_times(folder / "two")
    assert main(command(folder, "two")) == 0
    assert write_times(folder / "two") == times


def write_times(output: Path) -> dict[str, int]:
    return {str(file): file.stat().st_mtime_ns for file in output.glob("*/*.json")}


def test_failures_of_other_processes_are_reported(
    folder: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "a/model.safetensors").write_bytes(b"torn")
    message = failing(capsys, *command(folder, "out", "--num-proc", "2"))
    assert "2 tasks failed" in message
    assert "a/retrieval: " in message
    assert sorted(file.name for file in (folder / "out/b").glob("*.json")) == ["bias.json", "retrieval.json"]
    assert "b" in (folder / "out/table.md").read_text("utf-8")
    assert "a/bias failed" in caplog.text


def test_an_error_ends_the_tasks_before_their_folder_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended_with_folder = []

    class Watched:
        device = None

        def run(self, work: Work, tasks: Iterable[Task], *, description: str = "") -> Iterator[Task]:
            cells = list(tasks)
            try:
                for cell in cells:
                    complete(work, cell)
                    yield cell
            finally:
                ended_with_folder.append(cells[0].output.parent.is_dir())

    def broken(contents: Any) -> Any:
        raise XlsrError("broken")

    monkeypatch.setattr("hf_xlsr.evaluation.suites.suite._merged", broken)
    with pytest.raises(XlsrError, match="broken") as error:
        evaluate_suite(load_suite(folder / "suite.yaml"), folder / "out", runner=Watched())
    assert error.traceback  # which holds what ran
    assert ended_with_folder == [True]


def test_one_model_takes_one_process(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--protocol", "tatoeba", "--data", str(folder / "wide.tsv"), "--num-proc", "2"]
    assert "--num-proc" in failing(capsys, "evaluate", str(folder / "a"), *words)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cluster_writes_what_one_process_writes(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    assert main(command(folder, "one")) == 0
    try:
        monkeypatch.chdir(folder)
        words = ["evaluate", "--suite", "suite.yaml", "--output", "ray", "--engine", "ray"]
        assert main(words) == 0
    finally:
        ray.shutdown()
    assert results(folder / "ray") == results(folder / "one")
