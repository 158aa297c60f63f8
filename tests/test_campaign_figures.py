"""The figures that a campaign keeps: what is taken in, what is trained again, and those of the repository itself."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import campaign
import pytest
from campaign_figures import Figures, Spread, value_of
from campaign_fingerprint import row_fingerprint, training_fingerprint
from campaign_helpers import example_tables, measured
from campaign_jobs import DONE, Outcome, measurement_of
from campaign_plan import ROOT, Column, Row, read_tables, resolved, run_of
from campaign_report import BEGIN, END

from hf_xlsr.encoders.fingerprint import content_hash
from hf_xlsr.evaluation.report import save_results
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.utils.errors import XlsrError


def ended(*_: Any) -> bool:
    return True


@pytest.fixture
def tables(tmp_path: Path) -> list[Any]:
    return example_tables(tmp_path)


def kept_of(tables: list[Any], folder: Path) -> Figures:
    kept = Figures(folder / "figures.json")
    kept.update(tables, folder / "runs", folder / "measured", ended)
    kept.save()
    return kept


def test_figures_of_columns(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    log = [{"queue/stale": 0.5, "step": 1}, {"queue/stale": 0.25, "step": 2}, {"train_loss": 1.0}]
    (tmp_path / "training" / "log.json").write_text(json.dumps(log), "utf-8")
    save_results(tmp_path / "results.json", {}, settings={"seconds": {"training": 120.0}})
    metrics = {"t/en-de/test/accuracy": 0.5, "t/en-fr/test/accuracy": 0.7}
    assert value_of(Column("a", "t/*/test/accuracy"), metrics, None) == pytest.approx(60.0)
    assert value_of(Column("a", "t/en-d[!k]/test/accuracy x/y/z/w"), metrics, None) == pytest.approx(50.0)
    assert value_of(Column("b", "log:queue/stale", scale=1), metrics, tmp_path) == 0.25
    assert value_of(Column("c", "settings:seconds.training", scale=1 / 60), metrics, tmp_path) == pytest.approx(2.0)
    for column in (Column("d", "x/*"), Column("e", "log:none"), Column("f", "settings:seconds.none.deeper")):
        assert value_of(column, metrics, tmp_path) is None


def test_spreads_add_up_as_if_all_seeds_were_known() -> None:
    whole = Spread.of({1: 2.0, 2: 5.0, 3: 11.0})
    assert (whole.count, whole.mean, whole.low, whole.high) == (3, 6.0, 2.0, 11.0)
    assert Spread.of({1: 2.0}).with_more(Spread.of({2: 5.0, 3: 11.0})) == whole
    of_two = Spread(2, 3.5, 2.0, 5.0)  # by mean and range alone
    assert of_two.with_more(Spread.of({3: 11.0})) == replace(whole, by_seed={3: 11.0})


def test_what_is_kept_comes_back_and_is_done(tables: list[Any], tmp_path: Path) -> None:
    table = tables[0]
    measured(table, "short", 1, 0.5, tmp_path)
    measured(table, "long", 2, 0.61, tmp_path)
    kept_of(tables, tmp_path)
    again = Figures(tmp_path / "figures.json")
    assert again.spreads(table) == {
        "STS": {"short": Spread.of({1: 50.0}), "long": Spread.of({2: 61.0})},
        "steps": {"short": Spread.of({1: 600.0}), "long": Spread.of({2: 600.0})},
    }
    trained = again.trained(table)
    assert trained is not None
    assert (trained.trainings, trained.seconds, trained.hardware) == (2, 120.0, ("A processor",))
    by_table = campaign.plan(tables, tmp_path / "another machine", again, tmp_path)
    names = [job.name for job in campaign._in_order(by_table)]
    assert "train moco_en_de_open short seed-2" in names and "train moco_en_de_open long seed-1" in names
    assert "train moco_en_de_open short seed-1" not in names and "train moco_en_de_open long seed-2" not in names
    assert not any("short-seed-1" in name or "long-seed-2" in name for name in names)
    shown = campaign.status_table({"queue": by_table["queue"]}, Outcome(states={names[0]: DONE}))
    assert [list(column.cells) for column in shown.columns] == [["queue"], ["5"], ["10"], ["0"]]


def test_a_start_is_trained_again_for_a_row_that_is_not_kept(tables: list[Any], tmp_path: Path) -> None:
    table = tables[1]  # "after" starts from "half"
    for name in ("half", "whole"):
        measured(table, name, 1, 0.5, tmp_path)
    kept = kept_of(tables, tmp_path)
    names = [job.name for job in campaign._in_order(campaign.plan([table], tmp_path / "out", kept, tmp_path))]
    assert names == [
        *("calibrate moco_en_de_open-30s", "train moco_en_de_open-30s seed-1"),
        *("calibrate moco_en_de_open-30s after", "train moco_en_de_open-30s after seed-1"),
    ]
    measured(table, "after", 1, 0.6, tmp_path)
    assert not campaign._in_order(campaign.plan([table], tmp_path / "out", kept_of(tables, tmp_path), tmp_path))


def test_a_row_with_another_unit_is_measured_whole_and_replaced(tables: list[Any], tmp_path: Path) -> None:
    measured(tables[0], "short", 1, 0.5, tmp_path)
    kept_of(tables, tmp_path)
    grown = [replace(tables[0], units=("sts", "senteval"))]
    kept = Figures(tmp_path / "figures.json")
    assert not kept.has(grown[0], grown[0].row("short"), 1)
    elsewhere = tmp_path / "elsewhere"
    measured(grown[0], "short", 1, 0.7, elsewhere)  # sts of the new training, not yet senteval
    kept.update(grown, elsewhere / "runs", elsewhere / "measured", ended)
    assert kept.spreads(grown[0])["STS"]["short"].mean == 70.0
    job = measurement_of(grown[0], grown[0].row("short"), 1, elsewhere / "runs", elsewhere / "measured")
    save_results(job.output / job.label / "senteval.json", {}, settings={"revision": content_hash(job.model)})
    kept.update(grown, elsewhere / "runs", elsewhere / "measured", ended)
    assert kept.has(grown[0], grown[0].row("short"), 1)


def test_a_training_that_was_not_measured_takes_nothing_away(tables: list[Any], tmp_path: Path) -> None:
    measured(tables[0], "short", 1, 0.5, tmp_path)
    kept_of(tables, tmp_path)
    model = measurement_of(tables[0], tables[0].row("short"), 1, tmp_path / "runs", tmp_path / "measured").model
    (model / "config.json").write_text('{"hidden_size": 8}', "utf-8")
    assert kept_of(tables, tmp_path).spreads(tables[0])["STS"]["short"].mean == 50.0


def test_seeds_that_are_known_by_their_range_stay_and_new_ones_join(tables: list[Any], tmp_path: Path) -> None:
    table = tables[0]
    of_two = {
        **{"seeds": [1, 2], "recipe": row_fingerprint(table, table.row("long")), "units": ["sts"]},
        "figures": {"STS": [60.0, 50.0, 70.0]},
    }
    before = {"trainings": 4, "seconds": 60.0, "hardware": ["An old processor"], "threads": [1]}
    found = {"queue": {"trained": before, "rows": {"long": [of_two]}}}
    (tmp_path / "figures.json").write_text(json.dumps(found), "utf-8")
    measured(table, "long", 2, 0.9, tmp_path)  # one of the two again
    measured(table, "long", 3, 0.9, tmp_path)
    kept = kept_of(tables, tmp_path)
    assert kept.spreads(table)["STS"]["long"] == Spread(3, 70.0, 50.0, 90.0, {3: 90.0})
    assert all(kept.has(table, table.row("long"), seed) for seed in (1, 2, 3))
    trained = kept.trained(table)
    assert trained is not None
    assert (trained.trainings, trained.seconds, trained.threads) == (5, 120.0, (1, 2))
    assert trained.hardware == ("A processor", "An old processor")
    assert kept_of(tables, tmp_path).spreads(table) == kept.spreads(table)


def test_rows_whose_recipe_has_changed_are_told_and_trained_again(tables: list[Any], tmp_path: Path) -> None:
    for name in ("short", "long"):
        measured(tables[0], name, 1, 0.5, tmp_path)
    kept = kept_of(tables, tmp_path)
    assert kept.forget_changed(tables) == []
    rows = tuple(replace(row, options=(*row.options, "--max_steps", "7")) for row in tables[0].rows[:1])
    changed = replace(tables[0], rows=(*rows, *tables[0].rows[1:]))
    assert kept.forget_changed([changed]) == ["queue, short"]
    assert not kept.has(changed, changed.row("short"), 1) and kept.has(changed, changed.row("long"), 1)
    assert kept.forget_changed([tables[1]]) == ["queue, long"]


def test_figures_of_other_languages_are_not_those_of_a_table(tables: list[Any], tmp_path: Path) -> None:
    measured(tables[0], "short", 1, 0.5, tmp_path)
    kept_of(tables, tmp_path)
    other = replace(tables[0], languages="en-de+fr")
    again = Figures(tmp_path / "figures.json")
    assert again.forget_changed(tables) == [] and again.has(tables[0], tables[0].row("short"), 1)
    assert again.forget_changed([other, tables[1]]) == ["queue, short"]
    assert not again.has(other, other.row("short"), 1)
    # What a run says of itself at its end is of languages, too.
    measured(tables[1], "whole", 1, 0.5, tmp_path)
    kept_of(tables, tmp_path)
    wider = replace(tables[1], languages="en-de+fr")
    assert Figures(tmp_path / "figures.json").forget_changed([tables[0], wider]) == ["sequence, whole"]


def test_runs_of_an_earlier_recipe_are_not_taken_for_those_of_this_one(
    tables: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, kept = tables[0], Figures(tmp_path / "figures.json")
    monkeypatch.setenv("HF_XLSR_ENCODERS", str(tmp_path / "encoders"))
    measured(table, "e5-small", 1, 0.9, tmp_path)
    for seed in (1, 2):
        run = run_of(table, table.row("short"), seed, tmp_path / "runs")
        (recipe,) = resolved(run)
        RunFolder(recipe["output_dir"]).claim({**recipe, "languages": ["en", "de" if seed == 1 else "fr"]})
        measured(table, "short", seed, 0.5, tmp_path)
    kept.update([table], tmp_path / "runs", tmp_path / "measured", partial(campaign.is_trained, tmp_path))
    assert [kept.has(table, table.row("short"), seed) for seed in (1, 2)] == [True, False]
    assert kept.has(table, table.row("e5-small"), 1)


def test_a_recipe_is_the_same_wherever_its_data_lie(
    tables: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(tables[0].row("short"), options=("--model.encoders.en", "${HF_XLSR_ENCODERS}/x"))
    table = replace(tables[0], rows=(row,))
    found = set()
    for data, encoders in (("a", "b"), ("text", "text/encoders"), ("models/text", "models")):
        monkeypatch.setenv("HF_XLSR_DATA", str(tmp_path / data))
        monkeypatch.setenv("HF_XLSR_ENCODERS", str(tmp_path / encoders))
        found.add(row_fingerprint(table, row))
    assert len(found) == 1
    assert row_fingerprint(tables[0], tables[0].row("long")) not in found
    # What a row starts from is part of it.
    after, half = tables[1].row("after"), replace(tables[1].row("half"), options=("--max_steps", "7"))
    changed = replace(tables[1], rows=(half, *tables[1].rows[1:]))
    changed.siblings.update(tables[1].siblings)
    assert row_fingerprint(changed, after) != row_fingerprint(tables[1], after)


def test_a_first_call_that_finds_nothing_leaves_an_empty_file(tables: list[Any], tmp_path: Path) -> None:
    assert json.loads(kept_of(tables, tmp_path).file.read_text("utf-8")) == {}


def test_a_call_with_relative_folders_keeps_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("HF_XLSR_DATA", "HF_XLSR_ENCODERS"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    tables = example_tables(tmp_path)
    for name in ("short", "long"):
        measured(tables[0], name, 1, 0.5, tmp_path / "there")
    kept = Figures(tmp_path / "figures.json")
    kept.update(tables, tmp_path / "there" / "runs", tmp_path / "there" / "measured", ended)
    kept.save()
    before = kept.file.read_text("utf-8")
    (tmp_path / "page.md").write_text(f"{BEGIN}\n{END}\n", "utf-8")
    for name, place in {"ROOT": "", "TABLES": "tables.yaml", "PAGE": "page.md", "FIGURES": "figures.json"}.items():
        monkeypatch.setattr(campaign, name, tmp_path / place)
    monkeypatch.setattr("sys.argv", ["campaign.py", "--budget-minutes", "0", "--output", "out"])
    monkeypatch.setattr(campaign.signal, "signal", lambda *_: None)
    # A word that recipes have as a key, too.
    monkeypatch.setenv("HF_XLSR_DATA", "data")
    assert campaign.main() == 0
    assert kept.file.read_text("utf-8") == before
    assert "| long | 50.0 |" in (tmp_path / "page.md").read_text("utf-8").replace("4,096 \\| more", "long")
    # What another call has added meanwhile stays.
    measured(tables[0], "long", 2, 0.7, tmp_path / "there")
    kept.update(tables, tmp_path / "there" / "runs", tmp_path / "there" / "measured", ended)
    monkeypatch.setattr(campaign, "work_off", lambda *_, **__: kept.save() or Outcome())
    assert campaign.main() == 0
    assert set(Figures(kept.file).spreads(tables[0])["STS"]["long"].by_seed) == {1, 2}
    monkeypatch.setenv("HF_XLSR_ENCODERS", "")
    with pytest.raises(SystemExit, match="HF_XLSR_ENCODERS is not set; docs/data.md says what it names"):
        campaign.main()


def test_stages_of_one_training_are_rows_of_their_own(tables: list[Any]) -> None:
    stages = [Row(name, recipe="cmlm_open_then_br", run=name) for name in ("br", "nli")]
    table = replace(tables[0], rows=tuple(stages))
    assert len({training_fingerprint(table, row) for row in stages}) == 1
    assert [row_fingerprint(table, row).partition(".")[2] for row in stages] == ["br", "nli"]


def test_a_table_counts_a_training_once_when_its_figures_are_replaced(tables: list[Any], tmp_path: Path) -> None:
    table = tables[0]
    rows = {
        name: [{"seeds": seeds, "recipe": row_fingerprint(table, table.row(name)), "units": ["sts"], "figures": {}}]
        for name, seeds in (("short", [1, 2]), ("long", [1]), ("e5-small", [1]))
    }
    before = {"trainings": 3, "seconds": 90.0, "hardware": ["An old processor"], "threads": [1]}
    (tmp_path / "figures.json").write_text(json.dumps({"queue": {"trained": before, "rows": rows}}), "utf-8")
    measured(table, "short", 1, 0.5, tmp_path)
    kept = kept_of(tables, tmp_path)
    assert (kept.trained(table).trainings, kept.trained(table).seconds) == (3, 90.0)  # one of two is not both
    measured(table, "short", 2, 0.7, tmp_path)
    measured(table, "long", 1, 0.9, tmp_path)
    kept = kept_of(tables, tmp_path)
    trained = kept.trained(table)
    assert trained is not None and (trained.trainings, trained.seconds) == (3, 180.0)
    assert trained.hardware == ("A processor",)
    assert kept.spreads(table)["STS"]["short"] == Spread.of({1: 50.0, 2: 70.0})


def test_what_a_table_took_shrinks_with_what_is_forgotten(tables: list[Any], tmp_path: Path) -> None:
    table = tables[0]
    now = row_fingerprint(table, table.row("long"))
    rows = {
        name: [{"seeds": seeds, "recipe": recipe, "units": ["sts"], "figures": {}}]
        for name, seeds, recipe in (("short", [1, 2], "0123456789ab"), ("long", [1], now))
    }
    before = {"trainings": 3, "seconds": 90.0, "hardware": [], "threads": []}
    (tmp_path / "figures.json").write_text(json.dumps({"queue": {"trained": before, "rows": rows}}), "utf-8")
    kept = Figures(tmp_path / "figures.json")
    assert kept.forget_changed(tables) == ["queue, short"]
    trained = kept.trained(table)
    assert trained is not None and trained.trainings == 1 and trained.seconds == pytest.approx(30.0)


A_PAIR = '{"queue": {"rows": {"short": [{"seeds": [1, 2], "recipe": "", "units": [], "figures": {"STS": [1, 2]}}]}}}'


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"queue": {}}', '{"queue": {"rows": {"short": [{"seeds": [1]}]}}}', A_PAIR]
)
def test_a_file_of_another_kind_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    file.write_text(text, "utf-8")
    with pytest.raises(XlsrError, match="is no file of a campaign's figures .*; take that of the repository again"):
        Figures(file)


def test_figures_of_the_repository_are_of_its_recipes_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever edits a recipe that the page has figures of trains it again, or takes them off the page."""
    monkeypatch.chdir(ROOT)
    for variable in ("HF_XLSR_DATA", "HF_XLSR_ENCODERS"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    tables = read_tables(campaign.TABLES)
    kept = Figures(campaign.FIGURES)
    assert kept.forget_changed(tables) == []
    assert all(kept.trained(table) for table in tables)
    told = json.loads(kept.file.read_text("utf-8"))
    assert {table.name: told[table.name]["languages"] for table in tables} == {
        table.name: table.languages for table in tables
    }
    text = kept.file.read_text("utf-8")
    kept.file = tmp_path / "again.json"
    kept.save()
    assert kept.file.read_text("utf-8") == text
