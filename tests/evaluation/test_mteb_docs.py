"""The code in docs/mteb.md runs, offline, with the tiny export."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mteb")

from mteb.models.model_implementations import MODEL_REGISTRY  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mteb.md"


def test_the_code_of_the_page_runs(
    tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    monkeypatch.setitem(MODEL_REGISTRY, "me/my-model", None)
    del MODEL_REGISTRY["me/my-model"]  # put back as it was when the test is over
    namespace: dict[str, Any] = {"MODEL": tiny_export}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)  # as a reader would run them, one after the other
    printed = capsys.readouterr().out
    assert len(blocks) == 4
    assert "True\n" in printed and "ModelMeta(" in printed
    for name in ("LocalTatoeba", "XlsrXSR-mine-mteb/de-en/test/precision@1", "XlsrSTSWeightedMean-mine-mteb/en/test"):
        assert name in printed
    assert (tmp_path / "mteb-results" / "results" / "me__my-model").is_dir()
