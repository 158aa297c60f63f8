"""The Python code in docs/train.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "train.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=["lightweight", "dual_momentum", "cmlm"])
def test_block_runs(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(PAGE), "exec"), {"__name__": "block"})
    assert re.search(r"\(1, \d+\)\n$", capsys.readouterr().out)
