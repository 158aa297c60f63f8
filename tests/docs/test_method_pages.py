"""The Python code of docs/train.md and docs/translate.md runs and prints what the pages say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from docs_helpers import blocks_of

DOCS = Path(__file__).resolve().parents[2] / "docs"


def code_of(page: str) -> list[str]:
    return [block.text for block in blocks_of(DOCS / page) if block.tag == "python"]


def run(code: str, names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> str:
    """Executes a block and returns the last line that it prints."""
    exec(compile(code, "page", "exec"), names)
    return capsys.readouterr().out.strip().splitlines()[-1]


@pytest.mark.parametrize("code", code_of("train.md"), ids=["lightweight", "dual_momentum", "cmlm"])
def test_train_page(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.fullmatch(r".*\(1, \d+\)", run(code, {"__name__": "page"}, capsys))


def test_translate_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    first, second, third = (run(code, names, capsys) for code in code_of("translate.md"))
    assert first.startswith("['rouge oiseau', ")
    assert re.fullmatch(r"\{'toy-bleu/en-fr/test/bleu': [\d.e-]+, 'toy-bleu/en-fr/test/sentences': 1\}", second)
    whole, small = map(int, third.split())
    assert small < whole
