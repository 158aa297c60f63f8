from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import failing

from hf_xlsr.cli.app import main
from hf_xlsr.data.cleaning import tasks
from hf_xlsr.data.formats.reading import read_rows

PAIRS = "source\ttarget\n1 dog\t1 Hund\n1 dog!\t1 Hund\nhello\thello\n2 cats\t3 Katzen\nbad line\n4 birds\t4 Vögel\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "pairs.tsv").write_text(PAIRS, "utf-8")
    known = "".join(f"word {number}\tWort {number}\n" for number in range(200))
    (tmp_path / "known.tsv").write_text(f"source\ttarget\n{known}", "utf-8")
    return tmp_path


def cleaned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["clean", *arguments, "--json"]) == 0
    summary: dict[str, Any] = json.loads(capsys.readouterr().out)
    return summary


def test_clean_writes_the_pairs_that_are_left(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = files / "clean.tsv"
    summary = cleaned(
        capsys,
        str(files / "pairs.tsv"),
        "--steps",
        "drop_identical, deduplicate, numbers: {min_share: 1.0}",
        "--languages",
        "en,de",
        "--output",
        str(output),
    )
    rows = list(read_rows(output))
    assert [(row["source"], row["target"]) for row in rows] == [("1 dog", "1 Hund"), ("4 birds", "4 Vögel")]
    assert summary["pairs"] == 2
    assert [count["in"] - count["out"] for count in summary["cleaning"].values()] == [1, 1, 1]
    assert "1 wrong column count" in summary["bad_lines"]


@pytest.mark.parametrize("suffix", ["tsv", "jsonl", "parquet"])
def test_scores_and_languages_are_written(suffix: str, files: Path) -> None:
    table = "score\tsource\ttarget\tsource_lang\ttarget_lang\n1.5\ta\tb\ten\tfr\n0.5\tc\td\ten\tde\n"
    (files / "more.tsv").write_text(table, "utf-8")
    output = files / f"clean.{suffix}"
    options = ["--languages", "en,de", "--steps", "normalize", "--output", str(output)]
    assert main(["clean", str(files / "more.tsv"), *options]) == 0
    rows = list(read_rows(output))
    assert [(row["source"], row["target_lang"], float(row["score"])) for row in rows] == [
        ("a", "fr", 1.5),
        ("c", "de", 0.5),
    ]


def test_tmx_holds_one_pair_of_languages(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (files / "more.tsv").write_text("source\ttarget\tsource_lang\ttarget_lang\na\tb\ten\tfr\n", "utf-8")
    words = ["clean", str(files / "more.tsv"), "--languages", "en,de", "--output", str(files / "clean.tmx")]
    assert "en-fr" in failing(capsys, *words)


def test_report_has_what_known_pairs_show(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = files / "report.md"
    summary = cleaned(
        capsys,
        str(files / "pairs.tsv"),
        "--known",
        str(files / "known.tsv"),
        "--steps",
        "length: {min_chars: 7}, drop_identical",
        "--report",
        str(report),
    )
    assert summary["cost"]["length"]["good"][1] == 200
    assert summary["cost"]["drop_identical"]["untranslated"] == [200, 200]
    text = report.read_text("utf-8")
    assert "hello" in text and "word 3" in text
    assert "--known" not in text


def test_a_step_that_removes_good_pairs_is_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = str(files / "known.tsv")
    assert main(["clean", known, "--known", known, "--steps", "length: {min_chars: 8}"]) == 0
    warning = capsys.readouterr().err
    assert "'length'" in warning and "of 200" in warning


def test_without_known_pairs_the_cost_is_said_to_be_unknown(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clean", str(files / "pairs.tsv")]) == 0
    assert "--known" in capsys.readouterr().out


def test_folders_of_outputs_are_made(files: Path) -> None:
    report = files / "no" / "such" / "r.md"
    assert main(["clean", str(files / "pairs.tsv"), "--report", str(report)]) == 0
    assert report.is_file()


def test_mistakes_are_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = str(files / "pairs.tsv")
    assert "lenght" in failing(capsys, "clean", pairs, "--steps", "lenght")
    assert "'source'" in failing(capsys, "clean", pairs, "--steps", "language")
    assert "'NFKC'" in failing(capsys, "clean", pairs, "--steps", "normalize: NFKC")
    assert "{1: 2}" in failing(capsys, "clean", pairs, "--steps", "length: {1: 2}")
    assert "['normalize']" in failing(capsys, "clean", pairs, "--steps", "[normalize]")
    assert "'text'" in failing(capsys, "clean", pairs, "--steps", "deduplicate: {on: text}")
    assert "--num-proc" in failing(capsys, "clean", pairs, "--work", str(files / "work"))
    same = [str(files / "r.tsv"), "--report", f"{files}/./r.tsv"]
    assert "one file" in failing(capsys, "clean", pairs, "--output", *same)
    assert "removes every pair" in failing(
        capsys, "clean", pairs, "--steps", "length: {min_chars: 99}", "--output", str(files / "none.tsv")
    )
    assert not (files / "none.tsv").exists()


STEPS = "normalize, length: {min_chars: 3}, near_duplicates, drop_identical, deduplicate: {on: target}"


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file for several tasks, with rows that each step changes or removes, also for rows of other tasks."""
    monkeypatch.setattr(tasks, "TASK_ROWS", 50)
    lines = ["source\ttarget\tscore"]
    for number in range(230):
        lines.append(f"dog  {'x' * (number % 70)}\tHund {'y' * (number % 35)}\t{number / 7}")
    lines += ["same\tsame\t1", "x\ty\t1", "bad line"]
    file = tmp_path / "many.tsv"
    file.write_text("\n".join(lines) + "\n", "utf-8")
    return str(file)


def outputs(capsys: pytest.CaptureFixture[str], pairs: str, name: str, *words: str) -> list[Any]:
    """What a call prints and writes."""
    folder = Path(pairs).parent
    output = folder / f"{name}.jsonl"
    report = folder / f"{name}.md"
    arguments = ["--steps", STEPS, "--languages", "en,de", "--output", str(output), "--report", str(report)]
    summary = cleaned(capsys, pairs, *arguments, *words)
    assert not list(folder.glob("*.work"))
    return [summary, output.read_bytes(), report.read_text("utf-8")]


def test_several_processes_write_what_one_writes(many: str, capsys: pytest.CaptureFixture[str]) -> None:
    alone = outputs(capsys, many, "one")
    for name, count in alone[0]["cleaning"].items():
        assert count["changed"] or count["out"] < count["in"], name
    assert outputs(capsys, many, "by 2", "--num-proc", "2") == alone
    assert outputs(capsys, many, "by 3", "--num-proc", "3", "--work", str(Path(many).parent / "kept")) == alone


@pytest.mark.slow
def test_ray_writes_what_one_process_writes(many: str, capsys: pytest.CaptureFixture[str]) -> None:
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    alone = outputs(capsys, many, "one")
    try:
        assert outputs(capsys, many, "ray", "--engine", "ray") == alone
    finally:
        ray.shutdown()


def test_work_folder_must_be_writable(many: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--work" in failing(capsys, "clean", many, "--work", many)
