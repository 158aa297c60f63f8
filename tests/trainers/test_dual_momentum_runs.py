"""Dual momentum contrast through recipes: stop and resume, two processes, export."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

QUEUES = """
import sys, torch
sys.path[:0] = sys.argv[1:3]
from accelerate import PartialState
state = PartialState(cpu=True)
from dual_momentum_runs import pairs_data, trainer_of, tiny_dual
assert state.num_processes == 2
from pathlib import Path
three = sys.argv[4] == "three"
languages = ["en", "fr", "de"] if three else ["en", "fr"]
pairs = [("en", "fr"), ("en", "de"), ("fr", "de")] if three else [("en", "fr")]
trainer = trainer_of(Path(sys.argv[3]), model=tiny_dual(dropout=0.1, in_batch_negatives=True, languages=languages),
                     languages=languages, train_dataset=pairs_data(pairs), max_steps=9 if three else 5,
                     per_device_train_batch_size=8, queue_prefill=not three)
trainer.train()
for name, value in trainer.model.state_dict().items():
    if name.startswith(("queues.", "momentum_encoders.", "encoders.")):
        parts = [torch.empty_like(value) for _ in range(2)]
        torch.distributed.all_gather(parts, value.contiguous())
        assert torch.equal(*parts), name
counts = {language: trainer.model.queues[language].count for language in languages}
assert all(count >= (16 if three else 64) for count in counts.values()), counts
print("equal on", state.num_processes, flush=True)
import os
os._exit(0)
"""


@pytest.mark.parametrize("case", ["filled before", "three"])
def test_queues_and_averages_are_equal_on_all_ranks(case: str, tmp_path: Path) -> None:
    script = tmp_path / "queues.py"
    script.write_text(QUEUES, "utf-8")
    tests = Path(__file__).resolve().parents[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    command = [*torchrun, str(tests), str(tests / "trainers"), str(tmp_path / "out"), case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.stdout.count("equal on") == 2, done.stdout + done.stderr
