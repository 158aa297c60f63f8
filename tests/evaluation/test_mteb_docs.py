"""The code in docs/mteb.md runs, offline, with the tiny export."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mteb")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mteb.md"


def test_the_code_of_the_page_runs(
    tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    namespace: dict[str, Any] = {"MODEL": tiny_export}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)  # as a reader would run them, one after the other
    printed = capsys.readouterr().out
    assert len(blocks) == 3
    for name in ("LocalTatoeba", "XlsrXSR-mine-mteb/de-en/test/precision@1", "XlsrSTSWeightedMean-mine-mteb/en/test"):
        assert name in printed
    assert (tmp_path / "mteb-results" / "results" / "me__my-model").is_dir()
