"""The commands and the code of docs/export.md run, one after the other."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from hf_xlsr.cli import main

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"


@pytest.mark.slow
def test_page(
    tiny_model: Any,
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_model.save_pretrained("outputs/quickstart")
    tokenizer.save_pretrained("outputs/quickstart")
    text = PAGE.read_text("utf-8")
    commands = re.findall(r"^hf-xlsr export (.*)$", text, re.MULTILINE)
    assert len(commands) == 1
    for command in commands:
        assert main(["export", *shlex.split(command)]) == 0
    names = [path.relative_to("my-encoder").as_posix() for path in Path("my-encoder").rglob("*")]
    for name in ("onnx/model.onnx", "onnx/model_quantized.onnx", "modules.json"):
        assert name in names
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == 'SentenceTransformer("my-encoder")'
    assert [line.split(":")[0] for line in printed[1:]] == [
        f"my-encoder/onnx/model{kind}.onnx" for kind in ("", "_quantized")
    ]
    namespace: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), namespace)
    assert len(blocks) == 4 and namespace["cosines"].min() > 0.98
    assert "'tatoeba/en-en/test/accuracy': 1.0" in capsys.readouterr().out
