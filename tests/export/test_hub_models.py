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
    names: set[str] = set()
    for path, content in hub.repos[repo].files.items():
        if path.endswith(".safetensors"):
            names.update(load(content))
    return names


@pytest.fixture
def pushed(hub: Hub, tmp_path: Path) -> Any:
    """A trainer after training, and a last push."""
    trainer = pushing(tmp_path / "run", hub_strategy="every_save", hub_token=TOKEN)
    trainer.train()
    trainer.push_to_hub()
    return trainer


def test_trainer_pushes_the_export(pushed: Any, hub: Hub, tmp_path: Path) -> None:
    pulled = SentenceTransformer(str(hub.pull("me/live", tmp_path / "pulled")), device="cpu")
    trained = pushed.model.to_sentence_transformer(pushed.tokenizers)
    np.testing.assert_array_equal(pulled.encode(["red house"], task="fr"), trained.encode(["red house"], task="fr"))


def test_checkpoints_are_not_pushed(pushed: Any, hub: Hub, tmp_path: Path) -> None:
    assert len(list((tmp_path / "run").glob("checkpoint-*"))) == 2
    assert len(hub.commits) > 1

    sent = {path for changed, _ in hub.commits for path in changed}
    assert {"en_0_Transformer/model.safetensors", "modules.json"} <= sent
    for path in sent:
        assert "checkpoint" not in path
        assert not path.endswith((".pt", ".pth", ".bin"))
    for name in weights_of(hub, "me/live"):
        assert "momentum" not in name
        assert "queue" not in name


def test_token_is_neither_written_nor_sent(pushed: Any, hub: Hub, tmp_path: Path) -> None:
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert any(path.name == "training_args.bin" for path in files)
    for content in [*hub.sent, *(path.read_bytes() for path in files)]:
        assert TOKEN.encode() not in content


def test_trainer_pushes_merged_adapters(hub: Hub, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    trainer = pushing(tmp_path, model=add_adapters(tiny_dual(), rank=2), hub_strategy="end")
    trainer.push_to_hub()
    assert any("lora" in name for name, _ in trainer.model.named_parameters())  # training could go on

    names = weights_of(hub, "me/live")
    assert names
    for name in names:
        assert "lora" not in name
        assert "base_layer" not in name


def test_checkpoints_cannot_be_asked_for(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="hub_strategy 'checkpoint'"):
        pushing(tmp_path, hub_strategy="checkpoint")


def test_invalid_token_is_noticed_before_training(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "Wrong" * 7)
    with pytest.raises(XlsrError, match="401"):
        pushing(tmp_path, hub_strategy="end")


def test_training_goes_on_after_a_failed_push(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = pushing(tmp_path, hub_strategy="every_save")
    failed: Any = Future()
    failed.set_exception(ConnectionError(f"gone with {TOKEN}"))
    monkeypatch.setattr(HfApi, "upload_folder", lambda api, **_: failed)

    trainer.train()

    assert trainer.state.global_step == 4
    assert "Upload of me/live failed" in caplog.text
    assert TOKEN not in caplog.text
