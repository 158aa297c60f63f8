"""Dual momentum contrast on two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from dual_momentum_runs import pairs_data, tiny_dual, trainer_of
from safetensors.torch import load_file, save_file
from two_processes import run_on_two_processes

TWO = [("en", "fr")]
THREE = [("en", "fr"), ("en", "de"), ("fr", "de")]
GLOBAL_BATCH = 16


def train(folder: Path, pairs: list[tuple[str, str]], prefill: bool) -> None:
    """Trains on each process and saves weights, averages and queues."""
    from accelerate import PartialState

    processes = PartialState(cpu=True).num_processes
    languages = sorted({language for pair in pairs for language in pair})
    model = tiny_dual(in_batch_negatives=True, languages=languages)
    options = {
        "max_steps": 3 * len(pairs),
        "per_device_train_batch_size": GLOBAL_BATCH // processes,
        "queue_prefill": prefill,
        "optim": "sgd",  # Adam would blow up the rounding of gradients that are zero in truth
        "learning_rate": 0.1,
    }
    trainer = trainer_of(folder, model=model, languages=languages, train_dataset=pairs_data(pairs), **options)
    trainer.train()
    save_file(trainer.model.state_dict(), folder / f"{processes}-{PartialState().process_index}.safetensors")


@pytest.mark.parametrize(
    ("pairs", "prefill"), [(TWO, True), pytest.param(THREE, False, marks=pytest.mark.slow)], ids=["two", "three"]
)
def test_two_processes_train_like_one(pairs: list[tuple[str, str]], prefill: bool, tmp_path: Path) -> None:
    run_on_two_processes(train, tmp_path, pairs, prefill, folder=tmp_path)
    train(tmp_path, pairs, prefill)

    first, second, alone = (load_file(tmp_path / f"{name}.safetensors") for name in ("2-0", "2-1", "1-0"))

    languages = {language for pair in pairs for language in pair}
    start = tiny_dual(languages=sorted(languages)).state_dict()
    moved = [name for name in start if name.startswith("encoders.") and not torch.equal(alone[name], start[name])]
    assert len(moved) > 20 * len(languages)
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-4, atol=1e-5, msg=name)
    for language in languages:
        assert int(alone[f"queues.{language}.filled"]) >= (64 if prefill else 2 * GLOBAL_BATCH)
