"""Dual momentum contrast on two processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from dual_momentum_runs import pairs_data, tiny_dual, trainer_of
from two_processes import run_on_two_processes

TWO = [("en", "fr")]
THREE = [("en", "fr"), ("en", "de"), ("fr", "de")]


def train(folder: Path, pairs: list[tuple[str, str]], prefill: bool) -> None:
    """Trains on each process and compares weights, averages and queues with the other."""
    import torch
    from accelerate import PartialState

    assert PartialState(cpu=True).num_processes == 2
    languages = sorted({language for pair in pairs for language in pair})
    model = tiny_dual(dropout=0.1, in_batch_negatives=True, languages=languages)
    options = {"max_steps": 3 * len(pairs), "per_device_train_batch_size": 8, "queue_prefill": prefill}
    trainer = trainer_of(folder, model=model, languages=languages, train_dataset=pairs_data(pairs), **options)
    trainer.train()
    for name, value in trainer.model.state_dict().items():
        if name.startswith(("queues.", "momentum_encoders.", "encoders.")):
            parts = [torch.empty_like(value) for _ in range(2)]
            torch.distributed.all_gather(parts, value.contiguous())
            assert torch.equal(*parts), name
    assert all(trainer.model.queues[language].count >= (64 if prefill else 16) for language in languages)


@pytest.mark.parametrize(
    ("pairs", "prefill"), [(TWO, True), pytest.param(THREE, False, marks=pytest.mark.slow)], ids=["two", "three"]
)
def test_queues_are_equal_on_both_processes(pairs: list[tuple[str, str]], prefill: bool, tmp_path: Path) -> None:
    run_on_two_processes(train, tmp_path / "run", pairs, prefill, folder=tmp_path)
