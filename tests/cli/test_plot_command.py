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
    assert "--data is missing" in failing(capsys, "plot", "tsne", str(tiny_export), "--output", "x.png")
    few = ["plot", "tsne", "a", "--data", "x.tsv", "--output", "x.png"]
    assert "--pairs is -1; draw 2 or more" in failing(capsys, *few, "--pairs", "-1")
    assert "--seed is -1; give a whole number" in failing(capsys, *few, "--seed", "-1")
    assert "draws one model" in failing(capsys, "plot", "heatmap", "a", "b", "--output", "x.png")
    wide = tmp_path / "wide.tsv"
    wide.write_text("en\tfr\tde\none\tun\teins\ntwo\tdeux\tzwei\n")
    several = [
        "plot",
        "tsne",
        str(tiny_export),
        "--data",
        str(wide),
        "--columns",
        "source=en,target={lang}",
        "--output",
    ]
    error = failing(capsys, *several, "x.png", "--languages", "en,fr,de")
    assert "the data hold the pairs en-fr, en-de; choose one by --languages" in error


def test_plot_of_spaces(tiny_export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide, picture = tmp_path / "wide.tsv", tmp_path / "spaces.png"
    rows = [f"one {number}\tun {number}\teins {number}" for number in range(12)]
    wide.write_text("\n".join(["en\tfr\tde", *rows]) + "\n")
    reading = ["--data", str(wide), "--columns", "source=en,target={lang}", "--languages", "en,fr,de"]
    command = ["plot", "spaces", f"ours={tiny_export}", f"again={tiny_export}", *reading, "--output", str(picture)]
    assert main(command) == 0
    assert capsys.readouterr().out.strip() == str(picture) and picture.stat().st_size > 1000
    assert "'ours' has 3 and 3 sentences of en-fr" in failing(capsys, *command, "--limit", "3")
    twice = ["plot", "spaces", str(tiny_export), str(tiny_export), *reading, "--output", "x.png"]
    assert "two sources are called" in failing(capsys, *twice)
    assert "does not exist" in failing(
        capsys, "plot", "spaces", str(tiny_export), "./nowhere", *reading, "--output", "x.png"
    )
    assert "--data is missing" in failing(capsys, "plot", "spaces", str(tiny_export), "--output", "x.png")


def test_limits_of_pictures_are_told_before_a_model_is_loaded(
    tiny_export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hf_xlsr.encoders import loading as encoders

    monkeypatch.setattr(encoders, "load_encoder", lambda *arguments: pytest.fail("a model is loaded"))
    wide = tmp_path / "wide.tsv"
    others = ["fr", "de", "es", "it", "pt", "nl", "sv"]
    rows = ["\t".join(["one", *others])] * 12
    wide.write_text("\n".join(["\t".join(["en", *others]), *rows]) + "\n")
    reading = ["--data", str(wide), "--columns", "source=en,target={lang}", "--languages"]

    def error(kind: str, *arguments: str, output: str = "x.png") -> str:
        return failing(capsys, "plot", kind, *arguments, "--output", str(tmp_path / output))

    model = str(tiny_export)
    one = [model, *reading, "en,fr"]
    for kind in ("tsne", "heatmap", "spaces"):
        assert "ends in '.xyz'; use .png, .pdf or .svg" in error(kind, *one, output="x.xyz")
        assert "ends in ''; use .png" in error(kind, *one, output="x")
        assert "wide.tsv is a file; give another place" in error(kind, *one, output="wide.tsv/x.png")
        assert "device is 'gpu', which torch" in error(kind, model, "--data", "none.tsv", "--device", "gpu")
    assert "--pairs is 3000; spaces draws 5 to 2,000" in error("spaces", *one, "--pairs", "3000")
    assert "--pairs is 4; spaces draws 5 to 2,000" in error("spaces", *one, "--pairs", "4")
    assert "6 models at most, and 7 are given" in error("spaces", *[f"{n}={model}" for n in range(7)], *one[1:])
    several = [model, *reading, ",".join(["en", *others])]
    assert "1 encoders and 7 pairs of languages are to be drawn" in error("spaces", *several)
    assert [path.name for path in tmp_path.iterdir()] == ["wide.tsv"]


@pytest.mark.parametrize(
    ("kind", "words", "message"),
    [
        ("tsne", ["--metric", "foo"], "--metric is for plot retrieval or curves; leave it out with tsne"),
        ("spaces", ["--protocol", "xsr"], "--protocol is for plot retrieval or languages; leave it out with spaces"),
        ("retrieval", ["--data", "x"], "--data is for plot tsne or heatmap or spaces; leave it out with retrieval"),
        ("retrieval", ["--pairs", "7"], "--pairs is for plot tsne or heatmap or spaces"),
        ("retrieval", ["--languages", "en"], "--languages is for plot tsne or heatmap or spaces"),
        ("languages", ["--metric", "foo"], "--metric is for plot retrieval or curves; leave it out with languages"),
        ("curves", ["--protocol", "xsr"], "--protocol is for plot retrieval or languages; leave it out with curves"),
        # Given as they are without being given: it is a mistake all the same.
        ("curves", ["--seed", "1"], "--seed is for plot tsne"),
        ("curves", ["--batch-size", "128"], "--batch-size is for plot tsne"),
        ("curves", ["--prompt", ""], "--prompt is for plot tsne"),
        ("languages", ["--split", "test"], "--split is for plot tsne"),
    ],
)
def test_options_of_other_plots_are_refused(
    kind: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failing(capsys, "plot", kind, "x", "--output", "x.png", *words)


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
    assert "did you mean 'tsne'" in failing(capsys, "plot", "tsn", "x", "--output", picture)
    assert "holds no log of training" in failing(capsys, "plot", "curves", str(tmp_path), "--output", picture)
    assert "holds no log of training" in failing(capsys, "plot", "curves", results[0], "--output", picture)
    assert "two sources are called 'a'" in failing(capsys, "plot", "curves", "a=x", "a=y", "--output", picture)
