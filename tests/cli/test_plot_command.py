"""The verb `plot`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import failing

from hf_xlsr.cli import main


def test_plots_of_translation_pairs(tiny_export: str, write_pairs: Any, tmp_path: Path, capsys: Any) -> None:
    for kind in ("tsne", "heatmap"):
        picture = tmp_path / f"{kind}.png"
        command = [
            "plot",
            kind,
            str(tiny_export),
            "--data",
            str(write_pairs()),
            "--output",
            str(picture),
            "--pairs",
            "8",
        ]
        assert main([*command, "--languages", "en,fr"]) == 0
        assert capsys.readouterr().out.strip() == str(picture) and picture.stat().st_size > 1000


def test_plot_of_spaces(tiny_export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide, picture = tmp_path / "wide.tsv", tmp_path / "spaces.png"
    rows = [f"one {number}\tun {number}\teins {number}" for number in range(12)]
    wide.write_text("\n".join(["en\tfr\tde", *rows]) + "\n")
    reading = ["--data", str(wide), "--columns", "source=en,target={lang}", "--languages", "en,fr,de"]
    command = ["plot", "spaces", f"ours={tiny_export}", f"again={tiny_export}", *reading, "--output", str(picture)]
    assert main(command) == 0
    assert capsys.readouterr().out.strip() == str(picture) and picture.stat().st_size > 1000
    assert "5" in failing(capsys, *command, "--limit", "3")


def test_plot_refusals_before_a_model_is_loaded(
    tiny_export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hf_xlsr.encoders import loading as encoders

    monkeypatch.setattr(encoders, "load_encoder", lambda *arguments: pytest.fail("a model is loaded"))
    wide = tmp_path / "wide.tsv"
    others = ["fr", "de", "es", "it", "pt", "nl", "sv"]
    rows = ["\t".join(["one", *others])] * 12
    wide.write_text("\n".join(["\t".join(["en", *others]), *rows]) + "\n")
    model, reading = str(tiny_export), ["--data", str(wide), "--columns", "source=en,target={lang}", "--languages"]
    one, all_languages = [model, *reading, "en,fr"], [model, *reading, ",".join(["en", *others])]
    for kind, words, output, key in [
        *((kind, one, "x.xyz", ".xyz") for kind in ("tsne", "heatmap", "spaces")),
        ("tsne", one, "wide.tsv/x.png", "wide.tsv"),
        ("tsne", [model, "--data", "none.tsv", "--device", "gpu"], "x.png", "gpu"),
        ("tsne", [*one, "--pairs", "-1"], "x.png", "--pairs"),
        ("tsne", [*one, "--seed", "-1"], "x.png", "--seed"),
        ("tsne", [*one, "--metric", "x"], "x.png", "--metric"),
        ("retrieval", ["x", "--data", "x"], "x.png", "--data"),
        ("spaces", [*one, "--pairs", "3000"], "x.png", "--pairs"),
        ("spaces", [*[f"{n}={model}" for n in range(7)], *one[1:]], "x.png", "7"),
        ("spaces", [model, "./nowhere", *reading, "en,fr"], "x.png", "./nowhere"),
        ("spaces", [model, model, *reading, "en,fr"], "x.png", "labelled"),
        ("spaces", all_languages, "x.png", "6"),
        ("tsne", all_languages, "x.png", "--languages"),
        ("heatmap", [model], "x.png", "--data"),
    ]:
        assert key in failing(capsys, "plot", kind, *words, "--output", str(tmp_path / output))
    assert [path.name for path in tmp_path.iterdir()] == ["wide.tsv"]


def test_plots_of_results_and_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from hf_xlsr.evaluation.report import save_results

    for name, value in (("one", 0.5), ("two", 0.75)):
        (tmp_path / name / "training").mkdir(parents=True)
        save_results(tmp_path / f"{name}.json", {"t-xsr/en-fr/test/precision@1": value}, settings={})
        log = [{"loss": value + step, "step": step} for step in (1, 2, 3)]
        (tmp_path / name / "training" / "log.json").write_text(json.dumps(log))
        (tmp_path / f"{name}-state").mkdir()
        (tmp_path / f"{name}-state" / "trainer_state.json").write_text(json.dumps({"log_history": log}))
    picture = str(tmp_path / "picture.svg")
    results = [str(tmp_path / "one.json"), f"second={tmp_path / 'two.json'}"]
    assert main(["plot", "retrieval", *results, "--output", picture]) == 0
    drawn = Path(picture).read_text()
    assert main(["plot", "retrieval", *results, "--output", picture, "--protocol", "t-xsr"]) == 0
    assert Path(picture).read_text() == drawn
    for runs in (
        [tmp_path / "one"],
        [tmp_path / "one", tmp_path / "two-state"],
        [tmp_path / "two" / "training" / "log.json"],
    ):
        assert main(["plot", "curves", *map(str, runs), "--output", picture]) == 0
    assert "did you mean 'precision@1'" in failing(
        capsys, "plot", "retrieval", *results, "--output", picture, "--metric", "precision@3"
    )
    assert "'tsne'" in failing(capsys, "plot", "tsn", "x", "--output", picture)
    assert "log" in failing(capsys, "plot", "curves", str(tmp_path), "--output", picture)
    assert "log" in failing(capsys, "plot", "curves", results[0], "--output", picture)
    assert "'a'" in failing(capsys, "plot", "curves", "a=x", "a=y", "--output", picture)
