"""What a campaign says of its figures: verdicts, tables, pictures and cards. Nothing is trained."""

from __future__ import annotations

import io
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import campaign
import pytest
from campaign_figures import Figures, Spread
from campaign_helpers import example_tables, measured
from campaign_jobs import FINGERPRINT
from campaign_plan import Claim, run_of
from campaign_report import (
    BEGIN,
    CONTRADICTED,
    END,
    NOT_SHOWN,
    OPEN,
    SHOWN,
    campaign_lines,
    claim_line,
    draw,
    figure,
    table_lines,
    verdict,
    write_page,
)
from rich.console import Console

from hf_xlsr.utils.errors import XlsrError


@pytest.fixture
def tables(tmp_path: Path) -> list[Any]:
    return example_tables(tmp_path)


def spread(*values: float) -> Spread | None:
    return Spread.of(dict(enumerate(values, 1))) if values else None


def page_lines(tables: list[Any], folder: Path) -> list[str]:
    """As campaign.py writes them, from what lies in the folder."""
    kept = Figures(folder / "figures.json")
    kept.update(tables, folder / "runs", folder / "measured", lambda *_: True)
    kept.save()
    return campaign_lines(tables, kept, folder / "runs", folder / "measured", folder / "images", "images")


@pytest.mark.parametrize(
    ("better", "worse", "fixed", "expected"),
    [
        ([2.0, 2.1, 2.2], [1.0, 1.1, 1.9], False, SHOWN),
        ([2.0, 2.1, 2.2], [1.0, 1.1, 2.0], False, NOT_SHOWN),
        ([1.0, 1.1, 0.9], [1.2, 1.3, 1.4], False, CONTRADICTED),
        ([2.0, 2.1], [1.0, 1.1, 1.9], False, OPEN),
        ([2.0], [1.0], False, OPEN),
        ([2.0, 2.1, 2.2], [1.0], True, SHOWN),
        ([2.0], [1.0], True, OPEN),
        ([2.0, 2.1, 2.2], [], True, OPEN),
    ],
)
def test_verdicts(better: list[float], worse: list[float], fixed: bool, expected: str) -> None:
    assert verdict(spread(*better), spread(*worse), fixed) == expected


def test_a_margin_is_what_the_better_row_may_lack() -> None:
    below = (spread(1.0, 1.1, 0.9), spread(1.2, 1.3, 1.4))
    assert [verdict(*below, margin=margin) for margin in (0.0, 0.15, 0.4, 0.6)] == [
        *(CONTRADICTED, NOT_SHOWN),
        *(NOT_SHOWN, SHOWN),
    ]


def test_two_figures_of_one_run_are_compared_seed_by_seed(tables: list[Any]) -> None:
    claim = Claim("It helps", better="long", worse="long", column="STS", against="steps", ours=True)
    figures = {"STS": {"long": spread(2.0, 5.0, 8.0)}, "steps": {"long": spread(1.0, 4.0, 7.0)}}
    assert claim_line(tables[0], claim, figures) == (
        "It helps (ours) (STS against steps: 5.0 (2.0-8.0) against 4 (1-7)): **shown**."
    )
    figures["steps"]["long"] = spread(1.0, 4.0)
    assert claim_line(tables[0], claim, figures).endswith(f"**{OPEN}**.")
    # Known by their range alone, seeds cannot be compared one by one.
    figures["steps"]["long"] = Spread(3, 4.0, 1.0, 7.0)
    assert claim_line(tables[0], claim, figures).endswith(f"**{OPEN}**.")


def test_a_row_that_goes_on_from_another_is_compared_with_it_seed_by_seed(tables: list[Any]) -> None:
    claim = Claim("It hurts", better="short", worse="long", column="STS", goes_on=True)
    figures = {"STS": {"short": spread(2.0, 5.0, 8.0), "long": spread(1.9, 4.8, 7.0)}, "steps": {}}
    assert claim_line(tables[0], claim, figures).endswith(f"**{SHOWN}**.")
    assert claim_line(tables[0], replace(claim, goes_on=False), figures).endswith(f"**{NOT_SHOWN}**.")
    figures["STS"]["long"] = spread(1.9, 4.8, 8.1)
    assert claim_line(tables[0], claim, figures).endswith(f"**{NOT_SHOWN}**.")


def test_a_table_says_which_figures_have_fewer_seeds_and_which_rows_are_not_equal(tables: list[Any]) -> None:
    table = replace(tables[0], but="the long one has more")
    figures = {
        "STS": {"short": spread(2.0, 5.0, 8.0), "middle": spread(3.0)},
        "steps": {"short": spread(6.0, 6.0), "middle": spread(6.0)},
    }
    lines = table_lines(table, figures, "")
    assert "| short | 5.0 (2.0-8.0) | 6; of 2 |" in lines and "| middle | 3.0 | 6 |" in lines
    assert "equal steps in all rows, but the long one has more. Several seeds of short (3); seed 1" in lines[2]
    every = {row.name: spread(1.0, 2.0) for row in table.rows}
    caption = table_lines(table, {"STS": every, "steps": every}, "")[2]
    assert "Several seeds of" in caption and "seed 1" not in caption


def test_a_point_of_one_seed_is_hollow(tables: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.axes import Axes

    filled, plot = [], Axes.plot

    def noted(axes: Axes, *args: Any, **options: Any) -> Any:
        filled.extend([options["markerfacecolor"] != "white"] if "markerfacecolor" in options else [])
        return plot(axes, *args, **options)

    monkeypatch.setattr(Axes, "plot", noted)
    draw(tables[0], {"STS": {"short": spread(1.0), "long": spread(1.0, 2.0)}, "steps": {}}, tmp_path / "plot.png")
    assert filled == [False, True] and (tmp_path / "plot.png").is_file()


def test_a_column_that_is_one_value_has_no_plot(tables: list[Any], tmp_path: Path) -> None:
    draw(tables[0], {"STS": {"short": spread(1.0), "long": spread(1.0)}, "steps": {}}, tmp_path / "plot.png")
    assert not (tmp_path / "plot.png").exists()


def test_figures_are_means_with_their_range() -> None:
    assert [figure(spread(), 1), figure(spread(2.04), 1), figure(spread(1.0, 2.0, 3.0), 1)] == [
        *("-", "2.0", "2.0 (1.0-3.0)"),
    ]


def test_the_page_has_tables_verdicts_and_a_plot_between_its_marks(
    tables: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tables[0]
    monkeypatch.setenv("HF_XLSR_ENCODERS", str(tmp_path / "encoders"))
    measured(table, "e5-small", 1, 0.9, tmp_path)
    nothing = page_lines(tables, tmp_path)
    assert not any("Size of the queue" in line for line in nothing)  # an encoder as it came is no comparison
    for seed in (1, 2, 3):
        measured(table, "short", seed, 0.5 + seed / 100, tmp_path)
        measured(table, "long", seed, 0.6 + seed / 100, tmp_path)
    page = tmp_path / "results.md"
    page.write_text(f"# Results\n\n{BEGIN}\n\nold\n\n{END}\n\n## Speed\n", "utf-8")
    for _ in range(2):  # writing it again changes nothing
        write_page(page, page_lines(tables, tmp_path))
    text = page.read_text("utf-8")
    assert text.startswith("# Results\n") and text.endswith("## Speed\n") and "old" not in text
    assert "| 4,096 \\| more | 62.0 (61.0-63.0) | 600 |" in text
    assert "| middle | - | - |" in text and "| e5-small | 90.0 | - |" in text
    assert "- Longer is better (STS: 62.0 (61.0-63.0) against 52.0 (51.0-53.0)): **shown**." in text
    assert "6 trainings, 6 minutes in all, on A processor, 2 thread(s) each." in text
    assert text.count("Size of the queue") == 3 and "One after the other" not in text
    assert (tmp_path / "images" / "campaign_queue.png").stat().st_size > 5000


def test_a_picture_is_of_a_run_of_the_recipe_as_it_is(tables: list[Any], tmp_path: Path) -> None:
    table = replace(tables[0], cards=("long",))
    for name in ("short", "long"):
        measured(table, name, 1, 0.5, tmp_path)
    run = run_of(table, table.row("long"), 1, tmp_path / "runs")
    assert run is not None
    (run.folder / "tsne.png").write_bytes(b"a picture")
    fingerprint = (run.folder / FINGERPRINT).read_text("utf-8")
    (run.folder / FINGERPRINT).write_text("of another", "utf-8")
    link = "images/campaign_queue_tsne.png"
    assert not any(link in line for line in page_lines([table], tmp_path))
    (run.folder / FINGERPRINT).write_text(fingerprint, "utf-8")
    assert any(link in line for line in page_lines([table], tmp_path))


def test_pictures_of_figures_that_are_kept_no_more_go(
    tables: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_XLSR_ENCODERS", str(tmp_path / "encoders"))
    table = replace(tables[0], cards=("long",))
    for name, value in (("short", 0.5), ("long", 0.7), ("e5-small", 0.9)):
        measured(table, name, 1, value, tmp_path)
    run = run_of(table, table.row("long"), 1, tmp_path / "runs")
    assert run is not None
    (run.folder / "tsne.png").write_bytes(b"a picture")
    pictures = [tmp_path / "images" / f"campaign_queue{ending}.png" for ending in ("", "_tsne")]
    page_lines([table], tmp_path)
    assert all(picture.is_file() for picture in pictures)
    long = replace(table.row("long"), options=("--model.queue_size", "4096", "--max_steps", "7"))
    changed = replace(table, rows=tuple(long if row.name == "long" else row for row in table.rows))
    kept = Figures(tmp_path / "figures.json")
    assert kept.forget_changed([changed]) == ["queue, long"]
    lines = campaign_lines([changed], kept, tmp_path / "runs", tmp_path / "measured", tmp_path / "images", "images")
    assert any("| short | 50.0 |" in line for line in lines)
    assert not any("images/" in line for line in lines) and not any(picture.exists() for picture in pictures)


def test_the_page_is_the_same_where_the_runs_are_not(tables: list[Any], tmp_path: Path) -> None:
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    table = replace(tables[0], cards=("long",))
    for seed in (1, 2, 3):
        measured(table, "short", seed, 0.5 + seed / 100, there)
        measured(table, "long", seed, 0.6 + seed / 100, there)
    (there / "runs" / "moco_en_de_open" / "long" / "seed-1" / "tsne.png").write_bytes(b"a picture")
    lines = page_lines([table], there)
    assert "![Size of the queue: translations of 4,096 \\| more](images/campaign_queue_tsne.png)" in lines
    elsewhere.mkdir()
    (there / "figures.json").rename(elsewhere / "figures.json")
    (there / "images").rename(elsewhere / "images")
    assert page_lines([table], elsewhere) == lines
    assert (elsewhere / "images" / "campaign_queue_tsne.png").read_bytes() == b"a picture"


def test_the_page_shows_histograms_of_languages_where_they_are_measured(tables: list[Any], tmp_path: Path) -> None:
    table = replace(tables[0], units=("sts", "removal"), histograms=("short",), axis="")
    picture = tmp_path / "images" / "campaign_queue_languages.png"
    start = "ntrex-language-bias/de/test"
    bias = {f"{start}/bias": 1.5, f"{start}/share_de": 0.75, f"{start}/share_en": 0.25}
    measured(table, "long", 1, 0.6, tmp_path, removal=bias)
    measured(table, "middle", 1, 0.6, tmp_path)
    assert not any("languages" in line for line in page_lines([table], tmp_path))  # nor of another row's
    measured(table, "short", 1, 0.5, tmp_path, removal=bias)
    what = "Size of the queue: languages of the sentences retrieved, seed 1, and the mean bias of these queries"
    assert f"![{what}](images/campaign_queue_languages.png)" in page_lines([table], tmp_path)
    assert picture.stat().st_size > 5000


def test_cards_bear_the_names_of_recipes(tables: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    said = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(campaign.subprocess, "run", lambda command, **_: commands.append(command) or said)
    table = replace(tables[0], cards=("long", "middle"))
    measured(table, "long", 1, 0.5, tmp_path)
    console = Console(file=io.StringIO(), soft_wrap=True)
    cards = [table], tmp_path / "runs", tmp_path, console
    assert campaign.write_cards(*cards) == [tmp_path / "moco_en_de_open.md"]
    ((*_, folder, _, file),) = commands
    assert folder == str(tmp_path / "runs" / "moco_en_de_open" / "long" / "seed-1")
    assert file == str(tmp_path / "moco_en_de_open.md")
    # One that cannot be written is told; the others, and the page, are there all the same.
    said.returncode, said.stderr = 1, "card: no results"
    assert campaign.write_cards(*cards) == []
    assert "no card moco_en_de_open.md: card: no results" in console.file.getvalue()
    # A run of an earlier recipe has none.
    (Path(folder) / FINGERPRINT).write_text("of another", "utf-8")
    assert campaign.write_cards(*cards) == [] and len(commands) == 2


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    page.write_text("# Results\n", "utf-8")
    with pytest.raises(XlsrError, match="put both where the campaign's part belongs"):
        write_page(page, ["x"])
