"""The Python code in docs/translate.md runs, one block after the other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "translate.md"


def test_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": "block"}
    printed = []
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
        printed.append(capsys.readouterr().out.strip().splitlines()[-1])
    assert len(printed) == 3
    assert printed[0].startswith("['rouge oiseau', ")
    assert re.fullmatch(r"\{'toy-bleu/en-fr/test/bleu': [\d.e-]+, 'toy-bleu/en-fr/test/sentences': 1\}", printed[1])
    whole, small = map(int, printed[2].split())
    assert small < whole
