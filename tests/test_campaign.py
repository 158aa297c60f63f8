"""The campaign of benchmarks/: its tables and its plan. Nothing is trained."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import campaign
import pytest
import yaml
from campaign_figures import Figures
from campaign_helpers import TABLES, example_tables, measured
from campaign_jobs import FINGERPRINT, Measurement, Training
from campaign_plan import ROOT, Run, read_tables, resolved, run_of, starts_of_all

from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.evaluation.report import save_results
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.utils.errors import XlsrError

NOTHING = Figures(Path("there-is-no-such-file.json"))


@pytest.fixture
def tables(tmp_path: Path) -> list[Any]:
    return example_tables(tmp_path)


def test_ends_have_three_seeds_and_seed_one_of_every_table_comes_first(tables: list[Any], tmp_path: Path) -> None:
    by_table = campaign.plan(tables, tmp_path, NOTHING, tmp_path)
    names = [job.name for job in campaign._in_order(by_table) if job.name.startswith("train moco_en_de_open ")]
    assert names == [
        *("train moco_en_de_open short seed-1", "train moco_en_de_open middle seed-1"),
        *(
            "train moco_en_de_open long seed-1",
            "train moco_en_de_open short seed-2",
            "train moco_en_de_open long seed-2",
        ),
        *("train moco_en_de_open short seed-3", "train moco_en_de_open long seed-3"),
    ]
    measured = [job.name for job in by_table["queue"] if job.name.startswith("measure")]
    assert len(measured) == 8 and "measure e5-small" in measured


def test_a_calibration_that_seeds_share_takes_what_it_needs_along(tables: list[Any], tmp_path: Path) -> None:
    table = replace(tables[1], ends=("half", "after"))
    for name in ("half", "after"):
        measured(table, name, 1, 0.5, tmp_path)
    kept = Figures(tmp_path / "figures.json")
    kept.update([table], tmp_path / "runs", tmp_path / "measured", lambda *_: True)
    names = [job.name for job in campaign._in_order(campaign.plan([table], tmp_path / "out", kept, tmp_path))]
    assert "calibrate moco_en_de_open-30s after" in names and "train moco_en_de_open-30s seed-1" in names
    assert "train moco_en_de_open-30s after seed-1" not in names and "train moco_en_de_open-30s after seed-2" in names


def test_a_row_starts_from_the_run_of_another_and_has_the_time_of_its_share(tables: list[Any], tmp_path: Path) -> None:
    jobs = {job.name: job for job in campaign.plan(tables, tmp_path, NOTHING, tmp_path)["sequence"]}
    after = jobs["train moco_en_de_open-30s after seed-1"]
    assert isinstance(after, Training)
    assert [need.name for need in after.needs] == [
        "train moco_en_de_open-30s seed-1",
        "calibrate moco_en_de_open-30s after",
    ]
    half = tmp_path / "runs" / "moco_en_de_open-30s" / "seed-1"
    assert after.run.options[-1] == str(half / "model")
    assert not jobs["train moco_en_de_open-30s seed-1"].started_from  # but from its export
    assert {str(half / "model"), "--model.queue_size"} <= starts_of_all(tables[1], tmp_path / "runs")
    whole = jobs["train moco_en_de_open-60s seed-1"]
    assert isinstance(whole, Training) and whole.calibration is not None
    whole.calibration.file.parent.mkdir(parents=True)
    whole.calibration.file.write_text(json.dumps({"steps": 77}), "utf-8")
    (recipe,) = resolved(whole.run, whole.calibration.steps())
    assert recipe["training"]["max_steps"] == 77
    assert "--max_steps" in whole.command() and not whole.done()


def test_a_training_is_done_once_its_own_recipe_has_results(tmp_path: Path) -> None:
    run = Run(tmp_path / "seed-1" / "n5", "cmlm_en_open_ablation", "n5", (), 1)
    job = Training("train", run=run, fingerprint="now")
    job.begin()
    (recipe,) = resolved(run)
    folder = RunFolder(recipe["output_dir"])
    folder.claim({**recipe, "processes": 1})
    assert folder.path == run.folder and not job.done()
    save_results(folder.results, {}, settings={})
    assert job.done()
    assert not replace(job, run=replace(run, options=("--max_steps", "7"))).done()
    # Others that start from it need its last weights, which go where nobody does.
    assert not replace(job, started_from=True).done()
    folder.final.mkdir()
    assert replace(job, started_from=True).done()


def test_a_run_of_another_recipe_or_start_makes_way(tmp_path: Path) -> None:
    run = Run(tmp_path / "mnrl", "quickstart", None, (), 1, control="mnrl", seconds=60.0)
    before, now = (Training("train", run=run, fingerprint=of) for of in ("before", "now"))
    before.begin()
    save_results(run.folder / "results.json", {}, settings={})
    (run.folder / "model").mkdir()
    assert before.done() and not now.done()
    before.begin()  # of the same: nothing goes
    assert before.done()
    now.begin()
    assert not now.done() and not (run.folder / "results.json").exists()


def test_a_removal_that_was_killed_leaves_no_run_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path / "mnrl", "quickstart", None, (), 1, control="mnrl", seconds=60.0)
    before, now = (Training("train", run=run, fingerprint=of) for of in ("before", "now"))
    before.begin()
    save_results(run.folder / "results.json", {}, settings={})
    (run.folder / "model").mkdir()

    def killed(folder: Path, **_: Any) -> None:
        if folder.exists():
            (folder / FINGERPRINT).unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        now.begin()
    now.begin()
    assert not now.done() and not (run.folder / "results.json").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["mnrl"]


def test_a_training_that_was_stopped_between_its_stages_stays(tmp_path: Path) -> None:
    run = Run(tmp_path / "seed-1" / "br", "cmlm_open_then_br", "br", (), 1)
    job = Training("train", run=run, fingerprint="now", started_from=True)
    job.begin()
    first, *later = [RunFolder(recipe["output_dir"]) for recipe in resolved(run)]
    assert later
    first.final.mkdir(parents=True)
    save_results(first.results, {}, settings={})
    job.begin()
    assert first.results.is_file()
    # Without the weights of its first stage the later ones, too, have nothing to start from: all of it goes.
    first.final.rmdir()
    job.begin()
    assert not first.results.exists()


def test_a_run_without_the_weights_that_others_start_from_makes_way(tmp_path: Path) -> None:
    run = Run(tmp_path / "seed-1" / "n5", "cmlm_en_open_ablation", "n5", (), 1)
    job = Training("train", run=run, fingerprint="now", started_from=True)
    job.begin()
    save_results(run.folder / "results.json", {}, settings={})
    job.begin()
    assert not (run.folder / "results.json").exists()


def test_a_measurement_is_done_while_every_unit_has_measured_these_weights(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", "utf-8")
    job = Measurement("measure", label="en.a", model=model, units=["sts", "senteval"], output=tmp_path / "measured")
    for unit in job.units:
        assert not job.done()
        save_results(tmp_path / "measured" / "en.a" / f"{unit}.json", {}, settings={"revision": content_hash(model)})
    assert job.done()
    (model / "config.json").write_text('{"hidden_size": 8}', "utf-8")
    assert not job.done()


def test_commands_of_jobs(tmp_path: Path) -> None:
    run = Run(tmp_path / "base", "quickstart", None, ("--model.x", "1"), 2, control="distillation", seconds=60.0)
    _, script, *rest = Training("train", run=run, fingerprint="").command()
    assert script == str(ROOT / "benchmarks" / "distillation_peers.py") and rest[0] == "quickstart"
    assert " ".join(rest[1:]) == f"--seconds 60.0 --output {tmp_path / 'base'} --model.x 1 --seed 2"
    job = Measurement("measure", label="e5-small", model=None, units=["sts"], output=tmp_path)
    assert " ".join(job.command()[2:]) == f"--peers e5-small --units sts --output {tmp_path}"


def test_what_a_finished_run_needs_no_more_goes_and_what_others_need_stays(tmp_path: Path) -> None:
    run = Run(tmp_path / "seed-1" / "n5", "cmlm_en_open_ablation", "n5", (), 1)
    training, other = run.folder / "training", tmp_path / "seed-1" / "n1" / "training"
    kept = [run.folder / "model", other / "checkpoint-4", other / "final"]
    gone = [training / "checkpoint-2", training / "checkpoint-4"]
    for folder in (*kept, *gone, training / "final"):
        folder.mkdir(parents=True)
    Training("train", run=run, fingerprint="", started_from=True).tidy()
    assert all(folder.is_dir() for folder in (*kept, training / "final")) and not any(map(Path.exists, gone))
    Training("train", run=run, fingerprint="").tidy()
    assert all(folder.is_dir() for folder in kept) and not (training / "final").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tilte": "x"}, "table 'queue' has key 'tilte'; did you mean 'title'"),
        ({"ends": ["shrt"]}, "table 'queue' names row 'shrt'; did you mean 'short'"),
        ({"rows": [{"name": "a", "optoins": []}]}, "row 'a' has key 'optoins'; did you mean 'options'"),
        ({"rows": ["a"]}, "a row is 'a'; write it as a mapping of keys to values"),
        ({"rows": [{"label": "a"}]}, "row '' has no 'name'; give it one"),
        ({"rows": [{"name": "a"}, {"name": "a"}]}, "table 'queue' has two rows of the name 'a'"),
        ({"name": "sequence"}, "has two tables of the name 'sequence'"),
        (
            {"rows": [{"name": "a", "options": ["--x", "{sequence/haf}/model"]}]},
            "row 'a' starts from 'sequence/haf'; did you mean 'sequence/half'",
        ),
        (
            {"options": ["--start_from", "{short}"]},
            "table 'queue' has all of its rows start from 'short'; give this option to the rows",
        ),
        (
            {"seconds": 60, "recipe": "cmlm_open_then_br", "equal": "processor time"},
            "row 'short' a recipe of stages, whose steps do not follow from a time",
        ),
        (
            {"claims": [{"text": "t", "better": "long", "worse": "short", "column": "STTS"}]},
            "a claim has column 'STTS'; did you mean 'STS'",
        ),
    ],
)
def test_mistakes_in_tables_are_told(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    entries = yaml.safe_load(TABLES)
    entries[0].update(change)
    file = tmp_path / "tables.yaml"
    file.write_text(yaml.safe_dump(entries), "utf-8")
    with pytest.raises(XlsrError, match=message):
        read_tables(file)


@pytest.mark.parametrize("text", ["", "queue: {}", "[]"])
def test_a_file_without_tables_is_told(text: str, tmp_path: Path) -> None:
    file = tmp_path / "tables.yaml"
    file.write_text(text, "utf-8")
    with pytest.raises(XlsrError, match=r"tables.yaml holds no list of tables; begin each with '- name:'"):
        read_tables(file)


def test_a_start_that_is_no_run_is_refused(tables: list[Any], tmp_path: Path) -> None:
    entries = yaml.safe_load(TABLES)
    entries[0]["rows"][0]["options"] = ["--model.encoders.de", "{e5-small}"]
    file = tmp_path / "tables.yaml"
    file.write_text(yaml.safe_dump(entries), "utf-8")
    table = read_tables(file)[0]
    with pytest.raises(XlsrError, match="row 'short': 'e5-small' is no run that it could start from"):
        run_of(table, table.row("short"), 1, tmp_path)


def test_unknown_tables_are_refused() -> None:
    with pytest.raises(XlsrError, match="--only names 'moco-que'; did you mean 'moco-queue'"):
        read_tables(campaign.TABLES, ["moco-que"])


def test_every_run_of_the_campaign_resolves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipes, options and rows of the real tables fit each other; no two jobs of different content share a folder."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_XLSR_DATA", str(tmp_path))
    monkeypatch.setenv("HF_XLSR_ENCODERS", str(tmp_path))
    by_table = campaign.plan(read_tables(campaign.TABLES), tmp_path / "out", NOTHING, tmp_path)
    started = {job.name for job in campaign._in_order(by_table) if isinstance(job, Training) and job.started_from}
    levels = "train hictl_open_ablation-hictl-levels"
    assert {f"{levels} seed-{seed} {run}" for seed in (1, 2, 3) for run in ("lm", "lm-sentence-word")} <= started
    assert f"{levels} seed-1 lm-word" not in started and "train hictl_open_task task seed-1" in started
    runs: dict[str, Any] = {}
    for job in campaign._in_order(by_table):
        if isinstance(job, Training):
            for recipe in resolved(job.run, 10 if job.calibration else None):
                content = {key: value for key, value in recipe.items() if key != "output_dir"}
                place = recipe["output_dir"] if not job.run.control else f"{job.run.folder}"
                assert runs.setdefault(place, content) == content
                assert recipe["seed"] == job.run.seed
    assert len(runs) > 80
