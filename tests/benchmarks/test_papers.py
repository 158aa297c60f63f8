"""The papers' comparisons: the page from the kept figures, verdicts, and the loop over trainings and evaluations."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from result_helpers import results

import benchmarks.papers.__main__ as loop
from benchmarks.papers.evaluate import UNITS, calls
from benchmarks.papers.figures import Figures
from benchmarks.papers.report import BEGIN, END, SETTINGS_BEGIN, SETTINGS_END, TABLES_BEGIN, TABLES_END, write_report
from benchmarks.papers.settings import read_papers
from benchmarks.papers.tables import ROOT, Book, read_tables
from hf_xlsr.evaluation.results import Results, save_results
from hf_xlsr.runs.recipe import load_runs

TABLES = """
tables:
  - name: queue
    title: Size of the queue
    paper: Figure 2.
    recipe: moco_en_de_open
    equal: steps
    languages: en-de
    units: [sts]
    ends: [short, long]
    rows:
      - {name: short, options: ["--model.queue_size", "64"]}
      - {name: long, label: "4,096 | more", options: ["--model.queue_size", "4096"]}
      - {name: after, options: ["--model.encoders.de", "{long}/model", "--data.prompt", "${HF_XLSR_DATA}/{lang}"]}
      - {name: peer, control: [mnrl, --run, "{long}", --steps, "5"]}
      - {name: e5-small, encoder: e5-small}
    columns: [{title: STS, metric: "sts-*/*/test/spearman_all"}]
    claims: [{text: Longer is better, better: long, worse: short, column: STS}]
"""


@pytest.fixture
def book(tmp_path: Path) -> Book:
    (tmp_path / "tables.yaml").write_text(TABLES, "utf-8")
    return read_tables(tmp_path / "tables.yaml")


def finish(folder: Path, value: float = 0.5) -> None:
    settings = {"steps": 5, "hardware": "A processor", "threads": 2, "seconds": {"training": 60.0}}
    save_results(folder / "results.json", Results(), settings=settings)
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}", "utf-8")

    metrics = {
        "sts-average-of-5/en/test/spearman_all": value,
        "sts-average-of-5/fr/test/spearman_all": 0.1,
    }
    save_results(folder / "evaluations" / "en-de" / "sts-1.json", results(metrics), settings={})


def test_published_pages_follow_from_kept_figures(tmp_path: Path) -> None:
    docs = ROOT / "docs"
    images = tmp_path / "images"
    images.mkdir()
    for file in (docs / "images").glob("papers_*.png"):  # plots are drawn over the empty pictures
        (images / file.name).touch()
    published = (docs / "results.md").read_text("utf-8")
    stale = published
    for begin, end in ((BEGIN, END), (TABLES_BEGIN, TABLES_END)):
        stale = f"{stale.split(begin)[0]}{begin}\nold\n{end}{stale.split(end)[1]}"
    page = tmp_path / "results.md"
    page.write_text(stale, "utf-8")
    pages_of_tables = tmp_path / "results"
    pages_of_tables.mkdir()

    for name in read_papers().pages:
        text = (docs / "results" / f"{name}.md").read_text("utf-8")
        begin, end = (text.index(mark) for mark in (SETTINGS_BEGIN, SETTINGS_END))
        (pages_of_tables / f"{name}.md").write_text(f"{text[:begin]}{SETTINGS_BEGIN}\nold\n{text[end:]}", "utf-8")

    book = read_tables(ROOT / "benchmarks/papers/tables.yaml")
    figures = Figures(docs / "figures.json")
    write_report(book, figures, tmp_path)
    figures.file = tmp_path / "figures.json"
    figures.save()

    assert figures.file.read_text("utf-8") == (docs / "figures.json").read_text("utf-8")
    assert page.read_text("utf-8") == published
    written = list(pages_of_tables.iterdir())
    measured = [table for table in book.tables if table.name in figures.tables]
    assert len(written) == len(measured) + len(read_papers().pages)
    for page_of_table in written:
        expected = docs / "results" / page_of_table.name
        assert page_of_table.read_text("utf-8") == expected.read_text("utf-8"), page_of_table.name


def test_every_published_row_resolves_to_one_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for name in ("HF_XLSR_DATA", "HF_XLSR_ENCODERS"):
        monkeypatch.setenv(name, str(tmp_path))
    folders: dict[Path, tuple[Any, ...]] = {}
    for table in read_tables(ROOT / "benchmarks/papers/tables.yaml").tables:
        for row in table.rows:
            if row.encoder:
                continue
            options = table.filled((*table.options, *row.options), 1, tmp_path)
            recipe = row.recipe or table.recipe
            run = (recipe, row.run, row.stage, *options, *row.control)
            assert folders.setdefault(table.folder(row, 1, tmp_path), run) == run

            if not row.control:
                runs = load_runs(recipe, options, [row.run] if row.run else None)
                stages = [loaded.recipe.name.split("/")[-1] for loaded in runs]
                assert len(stages) <= 1 or row.stage in stages
        assert set(table.units) <= UNITS.keys()


class Shell:
    """Takes the place of subprocess.run: notes commands and leaves what they would leave."""

    def __init__(self, fails: str = "") -> None:
        self.commands: list[list[str]] = []
        self.fails = fails

    def __call__(self, command: list[str], **_: Any) -> None:
        self.commands.append(command[1:])
        if self.fails and self.fails in " ".join(command):
            raise subprocess.CalledProcessError(1, command)
        values = dict(zip(command, command[1:], strict=False))
        output = values.get("--output") or values.get("--output_dir", "")
        if not output.endswith(".json"):
            finish(Path(output), value=0.6 if "long" in output else 0.4)


def run_loop(tmp_path: Path, book: Book, monkeypatch: pytest.MonkeyPatch, shell: Shell, *words: str) -> int:
    docs = tmp_path / "docs"
    docs.mkdir(exist_ok=True)
    (docs / "results.md").write_text(f"before\n{BEGIN}\n{END}\nafter\n", "utf-8")
    (tmp_path / "e5-small").mkdir(exist_ok=True)
    (tmp_path / "e5-small" / "config.json").touch()
    monkeypatch.setenv("HF_XLSR_ENCODERS", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", shell)
    monkeypatch.setattr(loop, "read_tables", lambda _: book)
    monkeypatch.setattr(loop.signal, "signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["papers", "--output", str(tmp_path / "runs"), "--docs", str(docs), *words])
    return loop.main()


def test_loop_trains_each_run_once_and_keeps_its_figures(
    book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = Shell()
    assert run_loop(tmp_path, book, monkeypatch, shell, "--", "--max_steps", "2") == 0

    trainings = [" ".join(command) for command in shell.commands if "evaluate" not in command]
    assert len(trainings) == 8  # two rows of three seeds, one that starts from another, one control
    for training in trainings:
        assert "--max_steps 2" in training or "controls" in training
    all_trainings = "\n".join(trainings)
    first_long_run = tmp_path / "runs" / "moco_en_de_open-queue" / "long" / "seed-1"
    assert f"{first_long_run}/model --data.prompt ${{HF_XLSR_DATA}}/{{lang}}" in all_trainings
    assert f"controls mnrl --run {first_long_run} --steps 5" in all_trainings

    evaluations = [command for command in shell.commands if "evaluate" in command]
    prompts = [command[-1] for command in evaluations if "e5-small" in " ".join(command)]
    assert prompts == ["query: "]

    page = (tmp_path / "docs" / "results.md").read_text("utf-8")
    assert "(results/queue.md) | Longer is better | STS | 60.0 | 40.0 | shown |" in page
    assert page.endswith("after\n")
    page_of_table = (tmp_path / "docs" / "results" / "queue.md").read_text("utf-8")
    assert "| 4,096 \\| more | 60.0 |" in page_of_table

    again = Shell()
    assert run_loop(tmp_path, book, monkeypatch, again) == 0
    assert not again.commands


def test_other_rows_continue_after_a_failure(book: Book, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_loop(tmp_path, book, monkeypatch, Shell(fails="short/seed-2")) == 1
    figures = Figures(tmp_path / "docs" / "figures.json")
    table = book.tables[0]
    assert [figures.has(table, table.row("short"), seed) for seed in (1, 2, 3)] == [True, False, True]


def test_evaluations_are_calls_of_the_command() -> None:
    from hf_xlsr.evaluation.protocol import PROTOCOLS

    for unit in UNITS:
        for _, words in calls(unit, "en-de+fr+zh"):
            options = dict(zip(words, words[1:], strict=False))
            assert set(options["--protocol"].split(",")) <= PROTOCOLS.keys()
    assert not list(calls("bucc", "en-fr"))
