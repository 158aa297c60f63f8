"""What a reporter of `training.report_to` gets: no tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightweight_trainers import arguments

from hf_xlsr.trainers import LightweightTrainer

TOKEN = "hf_thisisverysecret"


@pytest.mark.slow
def test_token_is_masked(
    tokenizer: Any, prepared: Any, tiny_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    options = {"report_to": "tensorboard", "hub_token": TOKEN, "save_strategy": "steps", "save_steps": 1}
    args = arguments(tmp_path, max_steps=1, **options)
    LightweightTrainer(tiny_model, args, train_dataset=prepared, processing_class=tokenizer).train()
    assert list(tmp_path.rglob("events.*"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in files if TOKEN.encode() in path.read_bytes()]
