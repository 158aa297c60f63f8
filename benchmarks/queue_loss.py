"""Our queue loss against two losses of sentence-transformers, inside its trainer, in equal CPU time each.

`--pairs`, `--dev`, `--test` are sources as in recipes, e.g. `{path: pairs.tsv, columns: "source=en,target=zh"}`.
`--run` takes the pairs of a finished `hf-xlsr train` run instead, such as `across_moco.yaml`.

A training ends after `--budget` seconds of CPU time, over which the learning rate rises and falls linearly. Filling the
queues, tokenization and padding count. Figures are means over `--seeds`. Finished trainings are not repeated.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer import losses
from transformers import TrainerCallback

from benchmarks import training
from benchmarks.harness import Job, Step
from benchmarks.papers.controls import encoder_modules, training_pairs
from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.sentence_transformers import DualMomentumCallback, DualMomentumLoss, TatoebaEvaluator, XsimEvaluator
from hf_xlsr.utils.devices import choose_precision
from hf_xlsr.utils.files import write_json

SIDES = ("dual_momentum", "cached", "ranking")
ALONE, MEMORY, WARM_UP = True, False, False
DEFAULTS: Job = {"run": "", "pairs": "", "dev": "", "test": "", "encoder": "", "budget": 240.0, "seeds": [1, 2, 3]}
DEFAULTS |= {"rate": 5e-5, "temperature": 0.04, "batch": 64, "queue": 4096, "momentum": 0.99, "length": 64}
DEFAULTS |= {"cached_batches": 2, "languages": ["en", "zh"], "folder": "outputs/benchmarks/queue_loss"}
QUICK: Job = {"budget": 0.5, "seeds": [1], "batch": 8, "queue": 64}
TINY: Job = {"width": 64, "layers": 1, "vocabulary": 1000, "words": 8, "batch": 8, "steps": 20}


class Budget(TrainerCallback):
    def __init__(self, seconds: float) -> None:
        self.seconds, self.started, self.steps = seconds, time.process_time(), 0

    def rate(self, step: int) -> float:
        """Factor of the learning rate: up in a tenth of the time, then down to 0."""
        spent = (time.process_time() - self.started) / self.seconds
        return max(0.0, min(0.01 + spent / 0.1, (1 - spent) / 0.9))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.steps = state.global_step
        control.should_training_stop = time.process_time() - self.started >= self.seconds


def sentences(source: str, languages: list[str]) -> Dataset:
    options = yaml.safe_load(os.path.expandvars(source))
    rows = list(open_source(Source.parse(options), languages=languages))
    return Dataset.from_list(rows).select_columns(["source", "target"])


def train(side: str, job: Job, seed: int) -> dict[str, Any]:
    """Trains once and measures on dev and test; a finished training is read."""
    rate, temperature = job["rate"], job["temperature"]
    file = Path(job["folder"]) / f"{side}-{seed}-{rate:g}-{temperature:g}.json"
    if file.is_file():
        return json.loads(file.read_text("utf-8"))
    torch.manual_seed(seed)
    languages = job["languages"]
    encoder = encoder_modules(os.path.expandvars(job["encoder"]), job["length"], dropout=0.0)
    model = SentenceTransformer(modules=[*encoder, Normalize()])
    pairs = training_pairs(Path(job["run"]), 200_000, seed) if job["run"] else sentences(job["pairs"], languages)
    pairs = pairs.shuffle(seed=seed)
    half = choose_precision("auto") == "bfloat16"
    budget = Budget(job["budget"])
    both, loss = training.both_directions(1 / temperature), None
    if side == "dual_momentum":
        sizes = (job["queue"], job["momentum"], temperature)
        loss = DualMomentumLoss(model, *sizes, mask_stale_keys=True, mask_duplicates=True)
        last = pairs[-job["queue"] :]
        with torch.autocast("cpu", torch.bfloat16, enabled=half and not torch.accelerator.is_available()):
            loss.fill_queues(last["source"], last["target"])
    elif side == "cached":
        loss = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=job["batch"], **both)
    else:
        loss = losses.MultipleNegativesRankingLoss(model, **both)
    size = job["batch"] * (job["cached_batches"] if side == "cached" else 1)
    longest = {"num_train_epochs": 1000, "max_grad_norm": 10.0}
    arguments = training.peer_arguments(file.with_suffix(""), size, seed=seed, **longest)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, budget.rate)
    SentenceTransformerTrainer(
        model, arguments, train_dataset=pairs, loss=loss, callbacks=[DualMomentumCallback(loss), budget],
        optimizers=(optimizer, schedule),
    ).train()  # fmt: skip
    found = {"seconds": time.process_time() - budget.started, "steps": budget.steps}
    for name in ("dev", "test"):
        data = sentences(job[name], languages)
        for evaluator in (TatoebaEvaluator, XsimEvaluator):
            measured = evaluator(data["source"][:], data["target"][:], name, languages=tuple(languages))
            found[measured.primary_metric] = measured(model)[measured.primary_metric]
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json(file, found)
    return found


def prepare(job: Job, sides: list[str]) -> Step:
    if not (job["run"] or job["pairs"]):
        folder = Path(job["folder"]) / "material"
        if not folder.is_dir():
            folder.mkdir(parents=True)
            training.make_material(folder, TINY)
        source = f'{{path: "{folder}/pairs.tsv"}}'
        job = {**job, "pairs": source, "dev": source, "test": source, "encoder": f"{folder}/encoder"}

    def step(side: str, warm_up: bool) -> dict[str, Any]:
        runs = [train(side, job, seed) for seed in job["seeds"]]
        columns = {name: [run[name] for run in runs] for name in runs[0]}
        figures: dict[str, Any] = {"seconds": statistics.mean(columns.pop("seconds"))}
        for name, values in columns.items():
            figures[name] = f"{statistics.mean(values):.4g} ({min(values):.4g}-{max(values):.4g})"
        return figures

    return step
