"""`push_to_hub` of every trainer, to a Hub in memory."""

from __future__ import annotations

import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi
from seven_trainers import KINDS, trainer_of

sys.path.append(str(Path(__file__).resolve().parents[1] / "export"))
from hub_helpers import READER, TOKEN, Hub  # noqa: E402


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    return Hub(monkeypatch)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_token_and_message_of_the_call(kind: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READER)
    trainer = trainer_of(kind, tmp_path, settings={"hub_model_id": "me/live"})
    trainer.push_to_hub("Better weights", token=TOKEN)

    files = hub.repos["me/live"].files
    assert any(name.endswith("model.safetensors") for name in files)
    assert b"me/live" in files["README.md"]
    assert any(b"Better weights" in sent for sent in hub.sent)


class Running(Future[Any]):
    """A push that is not over yet; waiting for it takes no time."""

    def done(self) -> bool:
        return False


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("push", "always", "pushed_steps"),
    [(Future, False, [1, 2, 3, 4]), (Running, False, [1]), (Running, True, [1, 2, 3, 4])],
)
def test_saves_push_unless_a_push_is_running(
    push: Any, always: bool, pushed_steps: list[int], hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"push_to_hub": True, "hub_model_id": "me/live", "hub_strategy": "every_save"}
    settings |= {"hub_always_push": always, "save_strategy": "steps", "save_steps": 1}
    trainer = trainer_of("FineTune", tmp_path, settings=settings)
    steps = []

    def upload(api: HfApi, **options: Any) -> Any:
        steps.append(trainer.state.global_step)
        job = push()
        job.set_result(None)
        return job

    monkeypatch.setattr(HfApi, "upload_folder", upload)
    trainer.train()
    assert steps == pushed_steps
