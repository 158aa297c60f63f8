"""The verb `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_helpers import failing

from hf_xlsr.cli import main

WIDE = ["--columns", "source=en,target={lang}", "--languages"]


@pytest.fixture
def wide(tmp_path: Path) -> str:
    """Twelve rows in three languages."""
    rows = [f"en {number}\tfr {number}\tde {number}" for number in range(12)]
    file = tmp_path / "wide.tsv"
    file.write_text("\n".join(["en\tfr\tde", *rows]) + "\n")
    return str(file)


@pytest.mark.parametrize(
    ("kind", "languages", "models"),
    [
        ("tsne", "en,fr", ["MODEL"]),
        ("spaces", "en,fr,de", ["one=MODEL", "two=MODEL"]),
    ],
)
def test_plots_of_translation_pairs(
    kind: str, languages: str, models: list[str], tiny_export: str, wide: str, tmp_path: Path, capsys: Any
) -> None:
    picture = tmp_path / "plot.png"
    words = ["plot", kind, *models, "--data", wide, *WIDE, languages, "--pairs", "8", "--output", str(picture)]
    words = [word.replace("MODEL", tiny_export) for word in words]
    assert main(words) == 0
    assert capsys.readouterr().out.strip() == str(picture)
    assert picture.stat().st_size > 1000

    if kind == "tsne":
        default = picture.read_bytes()
        assert main([*words, "--seed", "0"]) == 0
        assert picture.read_bytes() != default
        assert main([*words, "--seed", "1"]) == 0
        assert picture.read_bytes() == default


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("tsne MODEL --output x.png", "--data"),
        ("tsne MODEL --data none.tsv --output x.xyz", ".svg"),
        ("tsne MODEL --data none.tsv --output wide.tsv/x.png", "wide.tsv"),
        ("tsne MODEL --data wide.tsv WIDE en,fr,de --output x.png", "--languages"),
        ("spaces MODEL --data wide.tsv WIDE en,fr --output x.png --pairs 4", "--pairs"),
    ],
)
def test_invalid_plots(
    words: str, key: str, tiny_export: str, wide: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Each is found before a model is loaded."""
    monkeypatch.setattr("hf_xlsr.evaluation.command.load_encoder", lambda *_: pytest.fail("a model is loaded"))
    monkeypatch.chdir(Path(wide).parent)
    Path("MODEL").symlink_to(tiny_export)
    command = words.replace("WIDE", " ".join(WIDE)).split()
    assert key in failing(capsys, "plot", *command)
    assert not Path("x.png").exists()
