"""The picture of a table's spaces: when a campaign draws it, what it draws, and the page that shows it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import campaign
import pyarrow
import pyarrow.parquet
import pytest
from campaign_figures import Figures
from campaign_helpers import example_tables, measured
from campaign_jobs import spaces_of
from campaign_report import campaign_lines, drop_pictures


@pytest.fixture
def table(tmp_path: Path) -> Any:
    return replace(example_tables(tmp_path)[0], spaces=("long", "short", "e5-small"), axis="")


def kept_of(table: Any, folder: Path) -> Figures:
    kept = Figures(folder / "figures.json")
    kept.update([table], folder / "runs", folder / "measured", lambda *_: True)
    kept.save()
    return kept


def wanted(table: Any, folder: Path, kept: Figures) -> list[str]:
    return [job.name for job in campaign._in_order(campaign.plan([table], folder / "out", kept, folder / "images"))]


def test_it_is_drawn_where_it_is_not_there_and_dropped_where_a_row_of_it_has_changed(
    table: Any, tmp_path: Path
) -> None:
    for name in ("long", "short"):
        for seed in (1, 2, 3):
            measured(table, name, seed, 0.5, tmp_path)
    measured(table, "middle", 1, 0.5, tmp_path)
    kept = kept_of(table, tmp_path)
    trainings = ["train moco_en_de_open long seed-1", "train moco_en_de_open short seed-1"]
    e5_small = "measure e5-small"
    assert sorted(wanted(table, tmp_path, kept)) == sorted([*trainings, e5_small, "draw spaces of queue"])
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "campaign_queue_spaces.png").write_bytes(b"a picture")
    assert wanted(table, tmp_path, kept) == [e5_small]
    drop_pictures([table], ["queue, middle", "other, long"], tmp_path / "images")
    assert wanted(table, tmp_path, kept) == [e5_small]
    drop_pictures([table], ["queue, long"], tmp_path / "images")
    assert "draw spaces of queue" in wanted(table, tmp_path, kept)


def page_lines(table: Any, folder: Path, kept: Figures) -> list[str]:
    return campaign_lines([table], kept, folder / "runs", folder / "measured", folder / "images", "images")


def test_the_page_shows_it_and_drops_it_with_its_rows(table: Any, tmp_path: Path) -> None:
    table = replace(table, spaces=("long", "short"))
    for name in ("long", "short", "middle"):
        measured(table, name, 1, 0.5, tmp_path)
    kept = kept_of(table, tmp_path)
    picture = tmp_path / "images" / "campaign_queue_spaces.png"
    assert not any("spaces" in line for line in page_lines(table, tmp_path, kept)) and not picture.exists()
    spaces_of(table, tmp_path / "runs", tmp_path / "measured").file.write_bytes(b"a picture")
    said = "Size of the queue: sentences of Tatoeba on a plane (t-SNE), seed 1"
    assert f"![{said}](images/campaign_queue_spaces.png)" in page_lines(table, tmp_path, kept)
    assert picture.read_bytes() == b"a picture"
    # On another machine the one that was drawn before stays, as long as its rows are kept.
    shutil.rmtree(tmp_path / "runs")
    assert f"![{said}](images/campaign_queue_spaces.png)" in page_lines(table, tmp_path, kept)
    without = replace(table, rows=tuple(row for row in table.rows if row.name != "short"))
    kept.forget_changed([without])
    assert not any("spaces" in line for line in page_lines(table, tmp_path, kept)) and not picture.exists()


def test_it_is_drawn_from_the_encoders(
    table: Any, tmp_path: Path, tiny_export: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, encoders = tmp_path / "data", tmp_path / "encoders"
    (data / "tatoeba").mkdir(parents=True)
    rows = [
        {"src_lang": code, "english": f"day {number}", "text": f"{word} {number}"}
        for code, word in (("fra", "jour"), ("deu", "Tag"), ("spa", "dia"))
        for number in range(12)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), data / "tatoeba" / "tatoeba_v1_xnli15.parquet")
    monkeypatch.setenv("HF_XLSR_DATA", str(data))
    monkeypatch.setenv("HF_XLSR_ENCODERS", str(encoders))
    shutil.copytree(tiny_export, encoders / "e5-small")
    table = replace(table, languages="en-fr+de", spaces=("short", "e5-small"))
    job = spaces_of(table, tmp_path / "runs", tmp_path / "measured")
    model = next(one.model for one in job.encoders.values() if one.model)
    shutil.copytree(tiny_export, model)
    assert not job.done()
    done = subprocess.run(job.command(), cwd=campaign.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert job.done() and job.file.read_bytes().startswith(b"\x89PNG") and job.file.stat().st_size > 5000
    later = time.time() + 60
    os.utime(model, (later, later))  # trained again since
    assert not job.done()
    without = [*job.command()[:2], "--output", str(job.file)]
    none = subprocess.run(without, cwd=campaign.ROOT, capture_output=True, text=True, check=False)
    assert (
        none.returncode == 1
        and none.stderr.strip() == "peer_spaces: no encoder is named; give --peers, --ours or both."
    )
