"""`push_to_hub` of models, exports and trainers: slim, and checkpoints never."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_helpers import TOKEN, Hub
from huggingface_hub import HfApi
from safetensors.torch import load
from sentence_transformers import SentenceTransformer

from hf_xlsr.trainers.adapters import add_adapters
from hf_xlsr.utils.errors import XlsrError

sys.path.append(str(Path(__file__).resolve().parents[1] / "trainers"))
from dual_momentum_runs import tiny_dual, trainer_of  # noqa: E402


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


def pushing(folder: Path, **options: Any) -> Any:
    return trainer_of(folder, push_to_hub=True, hub_model_id="me/live", save_steps=2, **options)


def weights_of(hub: Hub, repo: str) -> set[str]:
    files = hub.repos[repo].files
    return {name for path, content in files.items() if path.endswith(".safetensors") for name in load(content)}


def test_trainer_pushes_the_export(hub: Hub, tmp_path: Path) -> None:
    trainer = pushing(tmp_path / "run", hub_strategy="every_save", hub_token=TOKEN)
    trainer.train()
    trainer.push_to_hub()
    pulled = SentenceTransformer(str(hub.pull("me/live", tmp_path / "pulled")), device="cpu")
    trained = trainer.model.to_sentence_transformer(trainer.tokenizers)
    np.testing.assert_array_equal(pulled.encode(["red house"], task="fr"), trained.encode(["red house"], task="fr"))
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == 2
    assert len(hub.commits) > 1
    sent = {path for commit, _ in hub.commits for path in commit}
    assert {"en_0_Transformer/model.safetensors", "modules.json"} <= sent
    assert not [path for path in sent if "checkpoint" in path or path.endswith((".pt", ".pth", ".bin"))]
    assert not [name for name in weights_of(hub, "me/live") if "momentum" in name or "queue" in name]
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert [path for path in files if path.name == "training_args.bin"]
    for content in [*hub.sent, *(path.read_bytes() for path in files)]:
        assert TOKEN.encode() not in content


def test_trainer_pushes_merged_adapters(hub: Hub, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    trainer = pushing(tmp_path, model=add_adapters(tiny_dual(), rank=2), hub_strategy="end")
    trainer.push_to_hub()
    assert any("lora" in name for name, _ in trainer.model.named_parameters())  # training could go on
    names = weights_of(hub, "me/live")
    assert names
    assert not [name for name in names if "lora" in name or "base_layer" in name]


def test_failed_pushes(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    with pytest.raises(XlsrError, match="hub_strategy 'checkpoint'"):
        pushing(tmp_path, hub_strategy="checkpoint")
    monkeypatch.setenv("HF_TOKEN", "hf_" + "Wrong" * 7)
    with pytest.raises(XlsrError, match="401"):
        pushing(tmp_path, hub_strategy="end")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    trainer = pushing(tmp_path, hub_strategy="every_save")
    # In the background, a failure is logged and training goes on.
    failed: Any = Future()
    failed.set_exception(ConnectionError(f"gone with {TOKEN}"))
    monkeypatch.setattr(HfApi, "upload_folder", lambda api, **_: failed)
    trainer.train()
    assert trainer.state.global_step == 4
    assert "Upload of me/live failed" in caplog.text and TOKEN not in caplog.text
