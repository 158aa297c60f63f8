"""Trainings that keep freed memory for the next step compute what others compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dual_momentum_runs import tiny_dual, trainer_of

from hf_xlsr.utils.memory import freed_memory_kept


def trained(folder: Path) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor], torch.Tensor]:
    """Losses and norms of the gradient of each step, the weights with averages and queues, and the random state."""
    options: dict[str, Any] = {"per_device_train_batch_size": 16, "max_steps": 5, "logging_steps": 1}
    trainer = trainer_of(folder, model=tiny_dual(dropout=0.1), **options)
    trainer.train()
    logs = [(entry["loss"], entry["grad_norm"]) for entry in trainer.state.log_history if "grad_norm" in entry]
    return logs, trainer.model.state_dict(), torch.get_rng_state()


def test_kept_memory_changes_no_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs, state, random_state = trained(tmp_path / "kept")
    monkeypatch.setenv("GLIBC_TUNABLES", "")  # the choice of a user, which the trainer respects
    logs_anew, state_anew, random_state_anew = trained(tmp_path / "anew")

    assert len(logs) == 5
    assert logs == logs_anew
    assert all(torch.equal(value, state_anew[name]) for name, value in state.items())
    assert torch.equal(random_state, random_state_anew)


def test_training_keeps_freed_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = mallopt_calls(monkeypatch)
    trainer = trainer_of(tmp_path, max_steps=1, per_device_train_batch_size=8)
    trainer.model.forward = fail
    with pytest.raises(ZeroDivisionError):
        trainer.train()
    kept, given_back = calls[:2], calls[2:]
    assert [setting for setting, _ in kept] == [setting for setting, _ in given_back]
    assert kept != given_back


def test_choice_of_the_user_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = mallopt_calls(monkeypatch)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1000000")
    with freed_memory_kept():
        assert calls == []
    assert calls == []


def mallopt_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The settings of the allocator from now on, which are not made."""
    calls: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, setting: int, value: int) -> int:
            calls.append((setting, value))
            return 1

        def malloc_trim(self, padding: int) -> int:
            return 1

    for name in ("GLIBC_TUNABLES", "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr("ctypes.CDLL", lambda name: Library())
    return calls


def fail(**inputs: Any) -> Any:
    raise ZeroDivisionError
