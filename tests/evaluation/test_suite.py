"""Suites: several encoders, one file for each result, a table at the end, also after failures and kills."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli_helpers import failing
from conftest import make_pairs
from input_helpers import write_tsv
from mteb_helpers import shaken
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.evaluation.command import evaluate_files
from hf_xlsr.evaluation.protocol import DataOptions
from hf_xlsr.evaluation.results import load_results, measured
from hf_xlsr.evaluation.suites import suite as suite_module
from hf_xlsr.evaluation.suites.suite import SuiteTask, evaluate_suite, load_suite
from hf_xlsr.utils.files import disk_errors

PAIRS = make_pairs(30, seed=3)
TABLES = ("table.md", "table.csv", "table.tex", "table.json")


@pytest.fixture
def folder(tmp_path: Path, tiny_export: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, a wide table, and a suite over them."""
    shutil.copytree(tiny_export, tmp_path / "a")
    shaken(SentenceTransformer(tiny_export), seed=1).save(str(tmp_path / "b"))

    rows = [f"{row['source']}\t{row['target']}\t{row['target']} ja" for row in PAIRS]
    write_tsv(tmp_path / "wide.tsv", ["en\tfr\tde", *rows])
    (tmp_path / "suite.yaml").write_text(SUITE, "utf-8")
    monkeypatch.setenv("HF_XLSR_SUITE", str(tmp_path))
    return tmp_path


SUITE = """
encoders:
  a: ${HF_XLSR_SUITE}/a
  b: {model: "${HF_XLSR_SUITE}/b", prompt: "red "}
tasks:
  retrieval:
    protocol: tatoeba,xsim
    data: ${HF_XLSR_SUITE}/wide.tsv
    columns: {source: en, target: "{lang}"}
    languages: en,fr,de
    options: {k: 2, margin: null}
  bias:
    protocol: language-bias
    data: ${HF_XLSR_SUITE}/wide.tsv
    columns: {text: "{lang}"}
    languages: en,fr,de
"""


def edit_suite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the tasks of the suite."""
    file = folder / "suite.yaml"
    suite = yaml.safe_load(file.read_text("utf-8"))
    change(suite["tasks"])
    file.write_text(yaml.safe_dump(suite), "utf-8")


def command(folder: Path) -> list[str]:
    return ["evaluate", "--suite", str(folder / "suite.yaml"), "--output", str(folder / "out")]


def content(output: Path) -> dict[str, bytes]:
    tables = [output / name for name in TABLES]
    plots = sorted(output.glob("plots/*.png"))
    return {file.name: file.read_bytes() for file in tables + plots}


def test_results_equal_those_of_single_commands(folder: Path) -> None:
    tables = evaluate_suite(load_suite(folder / "suite.yaml"), folder / "out")

    data = DataOptions((str(folder / "wide.tsv"),), columns="source=en,target={lang}", languages=("en", "fr", "de"))
    expected = evaluate_files(str(folder / "a"), "tatoeba,xsim", data, {"k": 2})
    results = load_results(folder / "out/a/retrieval.json")
    assert results["metrics"] == pytest.approx(expected)
    assert results["metrics"].outcomes
    assert results["settings"]["options"]["xsim"]["k"] == 2

    for table in tables:
        assert list(table.rows) == ["a", "b"]
    pictures = {(table.name, table.metric.removeprefix("source_to_target_")) for table in tables}
    pictures = {(name, metric.removeprefix("target_to_source_")) for name, metric in pictures}
    assert len(content(folder / "out")) == len(TABLES) + len(pictures)


def test_each_text_is_encoded_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, int] = {}
    run = suite_module._Runner.run

    def counted(runner: Any, *arguments: Any) -> Any:
        result = run(runner, *arguments)
        counts[Path(runner.model).name] = runner.cached.encoded if "cached" in vars(runner) else 0
        return result

    monkeypatch.setattr(suite_module._Runner, "run", counted)
    suite = load_suite(folder / "suite.yaml")
    evaluate_suite(suite, folder / "out", vectors=folder / "vectors")
    texts = set()
    for row in PAIRS:
        texts |= {row["source"], row["target"], f"{row['target']} ja"}
    assert counts == {"a": len(texts), "b": len(texts)}

    monkeypatch.setattr(
        "hf_xlsr.evaluation.command.load_encoder", lambda *_: pytest.fail("nothing is left to measure")
    )
    evaluate_suite(suite, folder / "out", vectors=folder / "vectors")


def test_only_what_changed_is_measured_again(folder: Path) -> None:
    suite = load_suite(folder / "suite.yaml")
    evaluate_suite(suite, folder / "out")
    at_first = write_times(folder)

    suite.tasks["retrieval"].options["k"] = 3
    evaluate_suite(suite, folder / "out")
    with_new_option = write_times(folder)
    rewritten = {file for file in at_first if at_first[file] != with_new_option[file]}
    assert rewritten == {"a/retrieval.json", "b/retrieval.json"}

    with (folder / "wide.tsv").open("a", encoding="utf-8") as stream:
        stream.write("one\tun\tein\n")
    evaluate_suite(suite, folder / "out")
    with_new_data = write_times(folder)
    for file, time_of_option in with_new_option.items():
        assert with_new_data[file] != time_of_option


def write_times(folder: Path) -> dict[str, int]:
    return {name: (folder / "out" / name).stat().st_mtime_ns for name in result_files(folder / "out")}


def result_files(output: Path) -> set[str]:
    return {str(file.relative_to(output)) for file in output.glob("*/*.json")}


def test_goes_on_after_a_failure(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    measure = suite_module.measure

    def broken(task: Any, inputs: Any, loaded: Any, model: str, encoder: Any) -> Any:
        if model.endswith("a") and task.protocols[0].name == "tatoeba":
            raise RuntimeError("out of luck")
        return measure(task, inputs, loaded, model, encoder)

    monkeypatch.setattr(suite_module, "measure", broken)
    assert "a/retrieval: out of luck" in failing(capsys, *command(folder))
    assert result_files(folder / "out") == {"a/bias.json", "b/bias.json", "b/retrieval.json"}
    assert "tatoeba" in (folder / "out/table.md").read_text()

    monkeypatch.setattr(suite_module, "measure", measure)
    assert main(command(folder)) == 0
    evaluate_suite(load_suite(folder / "suite.yaml"), folder / "whole")
    assert content(folder / "out") == content(folder / "whole")


def test_a_full_disk_ends_a_suite(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def full(*arguments: Any) -> Any:
        with disk_errors("out/a/retrieval.json"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(suite_module, "measure", full)
    assert "out/a/retrieval.json" in failing(capsys, *command(folder))
    assert not list((folder / "out").rglob("table.*"))


def test_every_task_may_fail(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(suite_module, "measure", broken)
    assert "4 tasks failed" in failing(capsys, *command(folder))


def test_options_of_encoders_are_defaults_of_a_suite(folder: Path, capsys: Any) -> None:
    assert main([*command(folder), "--prompt", "blue ", "--batch-size", "8"]) == 0
    for label, prompt in (("a", "blue "), ("b", "red ")):
        encoder_settings = load_results(folder / f"out/{label}/bias.json")["settings"]
        assert encoder_settings["prompt"] == prompt
        assert encoder_settings["batch_size"] == 8
    assert "--split" in failing(capsys, *command(folder), "--split", "dev")


def test_two_tasks_may_have_an_average_of_the_same_name() -> None:
    metrics = measured("average-of-2", "sts", "en", "test", {"spearman_all": 0.5})
    task = {"metrics": metrics, "data_sha256": {}}
    assert suite_module._merged({"x": task, "y": task})["metrics"] == metrics


def test_tasks_that_measure_the_same_are_refused_before_a_model_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("hf_xlsr.evaluation.command.load_encoder", lambda *_: pytest.fail("a model was loaded"))
    edit_suite(folder, lambda tasks: tasks.update(again=tasks["bias"]))
    message = failing(capsys, *command(folder))
    assert "task 'again'" in message
    assert "task 'bias'" in message


def test_one_protocol_on_one_file_with_other_options_is_no_repetition(folder: Path) -> None:
    edit_suite(
        folder, lambda tasks: tasks.update(again={**tasks["retrieval"], "options": {"k": 3}, "protocol": "xsim"})
    )
    assert main(command(folder)) == 0


def test_tasks_that_share_a_language_stop_after_the_first_encoder(folder: Path, capsys: Any) -> None:
    edit_suite(folder, lambda tasks: tasks.update(again={**tasks["retrieval"], "languages": "en,fr"}))
    assert "measures 'wide-" in failing(capsys, *command(folder))
    assert (folder / "out/a").exists()
    assert not (folder / "out/b").exists()


@pytest.mark.parametrize("kind", ["encoders", "tasks"])
def test_labels_that_share_a_file_are_refused(kind: str, folder: Path, capsys: Any) -> None:
    file = folder / "suite.yaml"
    suite = yaml.safe_load(file.read_text("utf-8"))
    first = next(iter(suite[kind].values()))
    suite[kind] = {"x/y": first, "x-y": first}
    file.write_text(yaml.safe_dump(suite), "utf-8")
    message = failing(capsys, *command(folder))
    assert "'x/y'" in message
    assert "'x-y'" in message
    assert not (folder / "out").exists()


def test_a_suite_shows_every_metric(folder: Path, capsys: Any) -> None:
    assert main([*command(folder), "--metric", "all"]) == 0
    table = (folder / "out/table.md").read_text()
    for metric in ("with translations bias", "share fr", "error %", "accuracy %"):
        assert metric in table


@pytest.mark.slow
def test_killed_twice(folder: Path) -> None:
    words = [sys.executable, "-m", "hf_xlsr.cli", *command(folder)[:-1]]
    out = folder / "out"
    for stored_files in (1, 3):
        process = subprocess.Popen([*words, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(list(out.glob("vectors/*/*.keys.npy"))) < stored_files and process.poll() is None:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (out / "table.md").exists()

    whole = folder / "whole"
    subprocess.run([*words, str(out)], check=True)
    subprocess.run([*words, str(whole)], check=True)
    assert content(out) == content(whole)
    for name in result_files(whole):
        expected = json.loads((whole / name).read_text())
        resumed = json.loads((out / name).read_text())
        assert resumed | {"created": ""} == expected | {"created": ""}


@pytest.mark.parametrize(
    ("task", "key"), [({"data": "gone.tsv"}, "gone.tsv"), ({"options": {"margin": "ratio"}}, "margin")]
)
def test_everything_is_checked_before_a_model_is_loaded(
    task: dict[str, Any], key: str, folder: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr("hf_xlsr.evaluation.command.load_encoder", lambda *_: pytest.fail("a model was loaded"))
    edit_suite(folder, lambda tasks: tasks["bias"].update(task))
    assert key in failing(capsys, *command(folder))


def test_tasks_have_all_options_of_data() -> None:
    """Several models in one command are a suite of one task, which takes what `evaluate` takes."""
    names = {field.name for field in fields(DataOptions)}
    assert names - {"files"} <= SuiteTask.model_fields.keys()
