"""Fine-tuning with `trainable_rows` against the whole table: `DualMomentumTrainer`, one encoder for both languages.

Encoders have the sizes of multilingual ones and random weights; pairs are made, with some 8,000 distinct tokens. The
options are those of the recipe `finetune`. Peak memory is that of the process at the ends of steps.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.harness import Job, Step
from benchmarks.training import WARM_UP, StepClock, encoder_sizes, make_material, read_pairs

ALONE = True
WARM_UP_STEPS = WARM_UP
MEMORY = False
GRID = {"size": "sizes"}
SIDES = ("trained rows", "whole table")
# Vocabulary, width and layers.
ENCODERS = {"e5-small": (250_037, 384, 12), "LaBSE": (501_153, 768, 12), "tiny": (9_000, 64, 1)}
DEFAULTS: Job = {"sizes": ["e5-small", "LaBSE"], "batch": 64, "steps": 6, "words": 12, "queue": 1024}
QUICK: Job = {"sizes": ["tiny"], "batch": 8, "steps": 2}


def prepare(job: Job, chosen: list[str]) -> Step:
    def step(side: str, warm_up: bool) -> dict[str, Any]:
        if warm_up:
            return {}
        with TemporaryDirectory() as folder:
            return train(Path(folder), job, trainable_rows=side == SIDES[0])

    return step


def train(folder: Path, job: Job, *, trainable_rows: bool) -> dict[str, Any]:
    """Figures of the steps of a training, and the number of rows that it trained."""
    from hf_xlsr import DualMomentumModel
    from hf_xlsr.encoders.trainable_rows import tables_of
    from hf_xlsr.trainers import DualMomentumTrainer, DualMomentumTrainingArguments

    vocabulary, width, layers = ENCODERS[job["size"]]
    material = {**encoder_sizes(width, layers, vocabulary), "vocabulary": vocabulary, "width": width, "layers": layers}
    make_material(folder, {**job, **material})
    model = DualMomentumModel.from_encoders(
        str(folder / "encoder"),
        languages=["en", "fr"],
        queue_size=job["queue"],
        in_batch_negatives=True,
        dropout=0.0,
    )
    arguments = DualMomentumTrainingArguments(
        str(folder / "run"),
        max_steps=job["steps"] + WARM_UP_STEPS,
        per_device_train_batch_size=job["batch"],
        trainable_rows=trainable_rows,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    clock = StepClock()
    trainer = DualMomentumTrainer(model, arguments, train_dataset=read_pairs(folder), callbacks=[clock])
    trainer.train()
    rows = sum(len(table.ids) for table in tables_of(model.encoders))
    return {**clock.figures(job["batch"]), "rows": rows or vocabulary}
