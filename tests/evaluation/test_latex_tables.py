"""LaTeX tables, compiled where a TeX is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_xlsr.cli import main
from hf_xlsr.evaluation.comparison import ComparisonTable, compare_encoders
from hf_xlsr.evaluation.comparison_files import LEGEND, render_tables
from hf_xlsr.evaluation.results import Results, measured, save_results

ENGINE = next(filter(None, map(shutil.which, ("tectonic", "xelatex", "lualatex", "pdflatex"))), None)
LABELS = ("[CLS]", "a_b & 50% #1", r"{~^\}", 'x < y > "z" | w', "é × – …")


def encoder(right_count: int, name: str = "news") -> Results:
    results = Results()
    for language in ("de", "pt-BR"):
        right = np.arange(100) < right_count
        results |= measured(name, "tatoeba-xtreme", ("en", language), "test", {"pairs": 100}, {"accuracy": right})
    return results


def tables(name: str = "news") -> list[ComparisonTable]:
    encoders = {label: encoder(90 - 9 * number, name) for number, label in enumerate(LABELS)}
    return compare_encoders(encoders, ["accuracy"])


def test_no_label_is_an_option_of_a_rule() -> None:
    text = render_tables(tables(), ".tex")
    assert r"{[}CLS{]} & \textbf{90.0} (82.4--95.1)" in text
    assert not re.search(r"(\\\\|rule)\s*\[", text)


def test_notes_are_printed() -> None:
    """Nothing that a reader needs is a comment."""
    text = render_tables(tables(), ".tex")
    printed = [line for line in text.splitlines() if not line.startswith("%")]
    for words in (r"\%", r"$^\dagger$: another test set", "Means are unweighted"):
        assert any(words in line for line in printed)
    assert "†" in LEGEND


def test_counts_are_rows() -> None:
    assert r"n & 100 & 100 &  \\" in render_tables(tables(), ".tex")


def test_caption_and_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.json"
    save_results(file, encoder(50), settings={})
    words = ["compare", str(file), "--caption", "Ours & theirs.", "--label", "tab:news"]

    assert main([*words, "--output", str(tmp_path / "a.tex")]) == 0
    text = (tmp_path / "a.tex").read_text()
    assert r"\caption{Ours \& theirs.}" + "\n" + r"\label{tab:news}" in text
    assert r"\footnotesize news-tatoeba-xtreme, test: accuracy \%." in text
    assert main([*words, "--output", str(tmp_path / "a.md")]) != 0
    assert "--caption" in capsys.readouterr().err


def test_each_table_has_its_own_label() -> None:
    text = render_tables([*tables("a"), *tables("b")], ".tex", label="tab")
    assert re.findall(r"\\label\{(.*)\}", text) == ["tab-1", "tab-2"]


@pytest.mark.slow
@pytest.mark.skipif(ENGINE is None, reason="no TeX is installed")
def test_compiles_as_pasted(tmp_path: Path) -> None:
    text = render_tables(tables(), ".tex", caption="[x] & y", label="tab:x")
    document = ["\\documentclass{article}", "\\usepackage{booktabs}", "\\begin{document}", text, "\\end{document}"]
    (tmp_path / "x.tex").write_text("\n".join(document), "utf-8")
    options: list[Any] = (
        [] if ENGINE and ENGINE.endswith("tectonic") else ["-interaction=nonstopmode", "-halt-on-error"]
    )
    done = subprocess.run([ENGINE, *options, "x.tex"], cwd=tmp_path, capture_output=True, text=True, check=False)  # type: ignore[list-item]
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / "x.pdf").is_file()
