from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from mining_fakes import Copies, NumberEncoder, numbered

from hf_xlsr.cli import app as cli
from hf_xlsr.mining import mine_bitext
from hf_xlsr.mining import plan as module
from hf_xlsr.mining.plan import Rates, measured_rates, parse_count, plan_mining, plan_table
from hf_xlsr.mining.search import block_search, cells
from hf_xlsr.utils.errors import XlsrError

RATES = Rates(lines=1e5, texts=100, products=1e10, bytes=1e9, rows=1e6, width=100, machine="a processor")


@pytest.mark.parametrize("method", ["exact", "ivf"])
def test_tasks_are_those_of_a_job(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, rows in (("SPAN_STEP", 32), ("SMALLEST_SPAN", 1024), ("ROWS_MERGED", 1024), ("ROWS_PROBED", 1024)):
        monkeypatch.setattr(block_search, name, rows)
    monkeypatch.setattr(cells, "NUMBERS_COPIED", 24 * 1000)
    rows = 2500
    sides = (numbered("en", rows), numbered("fr", rows, seed=1))
    runner = Copies()
    mine_bitext(*sides, encoder=NumberEncoder(), folder=tmp_path / "work", method=method, runner=runner)

    rates = dataclasses.replace(RATES, width=24)
    stages = plan_mining(rows, 2, rates, method=method)
    assert len(runner.finished) == sum(stage.tasks for stage in stages if stage.is_shared)


def test_only_shared_stages_take_less_with_more_workers():
    for alone, together in zip(plan_mining(10**9, 1, RATES), plan_mining(10**9, 64, RATES), strict=True):
        assert together.work_hours == alone.work_hours
        assert together.hours == pytest.approx(alone.hours / (64 if alone.is_shared else 1))


def test_budget_that_is_too_small_is_refused():
    with pytest.raises(XlsrError, match="`memory` must be at least"):
        plan_mining(10**8, 64, RATES, memory=10**6)


def test_exact_search_is_the_product_of_the_sides():
    stages = {stage.name: stage for stage in plan_mining(100_000, 4, RATES)}
    assert stages["encode"].work_hours == pytest.approx(200_000 / 100 / 3600)
    assert stages["compare"].work_hours == pytest.approx(1e5 * 1e5 * 100 / 1e10 / 3600)
    assert stages["compare"].hours == pytest.approx(stages["compare"].work_hours / 4)


def test_more_workers_than_tasks_change_nothing():
    few = {stage.name: stage for stage in plan_mining(100_000, 10**6, RATES)}
    assert few["compare"].hours == pytest.approx(few["compare"].work_hours / few["compare"].tasks)


def test_cells_take_less_than_all_products():
    exact = {stage.name: stage for stage in plan_mining(10**8, 64, RATES, method="exact")}
    cells = {stage.name: stage for stage in plan_mining(10**8, 64, RATES)}
    assert cells["search cells"].work_hours < 0.01 * exact["compare"].work_hours
    assert cells["encode"] == exact["encode"]


def test_memory_of_a_budget_is_kept_where_files_can_hold_the_rest():
    stages = {stage.name: stage for stage in plan_mining(10**9, 64, RATES, memory=16 * 10**9)}
    assert stages["read and deduplicate"].memory == 16e9 + 1e9  # and a byte a line


def test_table_sums_the_stages():
    stages = plan_mining(10**6, 8, RATES, method="ivf")
    *_, total = plan_table(stages)
    assert total[0] == "all"
    assert float(total[3]) == pytest.approx(sum(stage.hours for stage in stages), abs=0.01)


def test_rates_are_of_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "PROBE_ROWS", 600)
    rates = measured_rates()
    assert rates.encoder is None
    assert min(rates.lines, rates.products, rates.bytes, rates.rows) > 0


def test_command_prints_the_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(module, "measured_rates", lambda *arguments: RATES)
    assert cli.main("mine --plan --rows 1e9 --workers 64 --json".split()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["stages"] == [dataclasses.asdict(stage) for stage in plan_mining(10**9, 64, RATES)]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--plan", "--rows"),
        ("en.txt", "SOURCE"),
        ("a b --output c.tsv --rows 9", "--plan"),
        ("--plan --rows many", "many"),
    ],
)
def test_incomplete_plan_is_refused(words: str, named: str, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["mine", *words.split()]) != 0
    assert named in capsys.readouterr().err


def test_count_must_be_a_number():
    with pytest.raises(XlsrError, match="'-1'"):
        parse_count("-1")
