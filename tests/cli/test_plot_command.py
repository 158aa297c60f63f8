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
    languages = ["en", "fr", "de"]
    rows = ["\t".join(f"{language} {number}" for language in languages) for number in range(12)]
    (tmp_path / "wide.tsv").write_text("\n".join(["\t".join(languages), *rows]) + "\n")
    return str(tmp_path / "wide.tsv")


@pytest.mark.parametrize(("kind", "languages", "models"), [("tsne", "en,fr", 1), ("spaces", "en,fr,de", 2)])
def test_plots_of_translation_pairs(
    kind: str, languages: str, models: int, tiny_export: str, wide: str, tmp_path: Path, capsys: Any
) -> None:
    picture, given = tmp_path / "plot.png", ["one=" * (models > 1) + tiny_export, f"two={tiny_export}"][:models]
    pairs = ["--pairs", "8"]
    assert main(["plot", kind, *given, "--data", wide, *WIDE, languages, *pairs, "--output", str(picture)]) == 0
    assert capsys.readouterr().out.strip() == str(picture) and picture.stat().st_size > 1000
    if kind == "tsne":
        drawn = [picture.read_bytes()]  # by default of seed 1
        for seed in ("0", "1"):
            words = ["plot", kind, *given, "--data", wide, *WIDE, languages, *pairs, "--output", str(picture)]
            assert main([*words, "--seed", seed]) == 0
            drawn.append(picture.read_bytes())
        assert drawn[0] == drawn[2] != drawn[1]


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
    monkeypatch.setattr("hf_xlsr.encoders.loading.load_encoder", lambda *_: pytest.fail("a model is loaded"))
    monkeypatch.chdir(Path(wide).parent)
    Path("MODEL").symlink_to(tiny_export)
    given = [part for word in words.split() for part in (WIDE if word == "WIDE" else [word])]
    assert key in failing(capsys, "plot", *given)
    assert not Path("x.png").exists()
