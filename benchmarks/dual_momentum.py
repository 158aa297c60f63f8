"""Where a step of dual momentum contrast spends its time: encoders, momentum encoders, loss, average, enqueue.

Trains a few steps on synthetic pairs with `DualMomentumTrainer` as it is, and times its parts from outside. Momentum and
enqueue together should take 3 % of a step at most.

usage: python benchmarks/dual_momentum.py [--batch 128] [--queue 204800] [--dropout 0.1] [--encoders en=DIR fr=DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Threads that wait by spinning take the processor from any other job beside, and then wait for it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, TrainerCallback
from transformers import logging as transformers_logging
from turns import check_device, synchronize

from hf_xlsr import DualMomentumConfig, DualMomentumModel
from hf_xlsr.data.prepared import PreparedPairs
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.modeling.dual_momentum import direction_loss
from hf_xlsr.runs.train import hardware_name
from hf_xlsr.trainers import DualMomentumTrainer, DualMomentumTrainingArguments
from hf_xlsr.utils.errors import XlsrError

WARM_UP_STEPS = 3
LANGUAGES = ("en", "fr")
PARTS = ("encoders", "momentum encoders", "loss", "backward", "optimiser", "momentum", "enqueue", "gradient check")
SHARE_OF = ("momentum", "enqueue")


class Clock:
    """Seconds by part; on a GPU it waits for the device before and after each."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.running = False

    def wrap(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, timed."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            name = "momentum encoders" if part == "encoders" and kwargs.get("keys") else part
            synchronize()
            started = time.perf_counter()
            result = function(*args, **kwargs)
            synchronize()
            if self.running:
                self.seconds[name] += time.perf_counter() - started
            return result

        return timed


class StepClock(TrainerCallback):
    """Starts the clock behind the warm-up and counts steps."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.steps, self.started, self.ended = clock, 0, 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == WARM_UP_STEPS:
            synchronize()
            self.clock.running, self.started = True, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        synchronize()
        self.steps, self.ended = state.global_step - WARM_UP_STEPS, time.perf_counter()


def make_model(options: argparse.Namespace) -> DualMomentumModel:
    """Encoders of the given folders, or random ones of MiniLM's size (12 layers, width 384)."""
    values = {"queue_size": options.queue, "queue_storage": options.storage}
    if options.encoders:
        if wrong := [piece for piece in options.encoders if "=" not in piece]:
            raise XlsrError(f"--encoders has '{wrong[0]}'; write LANGUAGE=FOLDER.")
        paths = dict(piece.split("=", 1) for piece in options.encoders)
        return DualMomentumModel.from_encoders(paths, dropout=options.dropout, **values)
    encoder = {
        "model_type": "bert",
        "vocab_size": 30_522,
        "hidden_size": options.width,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.width // 32,
        "intermediate_size": 4 * options.width,
        "hidden_dropout_prob": options.dropout,
        "attention_probs_dropout_prob": options.dropout,
    }
    configs = {language: dict(encoder) for language in LANGUAGES}
    return DualMomentumModel(DualMomentumConfig(languages=list(LANGUAGES), encoder_configs=configs, **values))


def make_pairs(model: DualMomentumModel, count: int, length: int) -> PreparedPairs:
    """Random pieces, sentences of half to one and a half times the length."""
    rng = np.random.default_rng(1)
    rows: dict[str, list[Any]] = {"length": []}
    for side, language in zip(("source", "target"), model.config.languages or (), strict=True):
        size = model.encoders[model.config.encoder_of(language)].config.vocab_size
        lengths = rng.integers(length // 2, 3 * length // 2 + 1, count)
        rows[f"{side}_ids"] = [rng.integers(10, size, n).tolist() for n in lengths]
        rows[f"{side}_lang"] = [language] * count
        rows[f"{side}_text"] = rng.integers(0, 2**62, count).tolist()
        rows["length"] = np.maximum(rows["length"] or 0, lengths).tolist()
    return PreparedPairs(Dataset.from_dict(rows))


def tokenizer_for(path: str | None) -> Any:
    """Any tokenizer will do: only its padding is used."""
    return (
        AutoTokenizer.from_pretrained(path) if path else train_tokenizer(["a b c"] * 9, vocab_size=9, algorithm="bpe")
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Trains and times."""
    torch.manual_seed(1)
    torch.set_num_threads(options.threads)
    model = make_model(options)
    languages = list(model.config.languages or ())
    paths = dict(piece.split("=", 1) for piece in options.encoders or ())
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = DualMomentumTrainingArguments(
            output_dir=folder,
            max_steps=WARM_UP_STEPS + options.steps,
            per_device_train_batch_size=options.batch,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            report_to="none",
            max_grad_norm=10.0,
            use_cpu=options.device == "cpu",
        )
        pairs = make_pairs(model, options.batch * (WARM_UP_STEPS + options.steps + 1), options.length)
        tokenizers = {language: tokenizer_for(paths.get(language)) for language in languages}
        trainer = DualMomentumTrainer(model, arguments, tokenizers=tokenizers, train_dataset=pairs)
        for language in languages:  # full queues from the first step on
            keys = torch.nn.functional.normalize(torch.randn(options.queue, model.config.hidden_size), dim=-1)
            numbers = torch.arange(options.queue) + 10**9
            model.enqueue(language, *(part.to(model.device) for part in (keys, numbers, numbers)))
        timer = StepClock(clock)
        trainer.add_callback(timer)
        parts: Any = direction_loss
        original = parts.queue_info_nce
        parts.queue_info_nce = clock.wrap("loss", original)
        watched: Any = model
        watched.encode_sentences = clock.wrap("encoders", model.encode_sentences)
        watched.momentum_update = clock.wrap("momentum", model.momentum_update)
        watched.enqueue = clock.wrap("enqueue", model.enqueue)
        trainer.accelerator.backward = clock.wrap("backward", trainer.accelerator.backward)
        torch.nn.utils.get_total_norm = clock.wrap("gradient check", torch.nn.utils.get_total_norm)
        trainer.create_optimizer()
        trainer.optimizer.step = clock.wrap("optimiser", trainer.optimizer.step)
        trainer.train()
        parts.queue_info_nce = original
    step = (timer.ended - timer.started) / timer.steps
    seconds = {part: clock.seconds[part] / timer.steps for part in PARTS}
    return {
        "processor": hardware_name(arguments.device),
        "device": arguments.device.type,
        "precision": "bfloat16" if arguments.bf16 else "float16" if arguments.fp16 else "float32",
        "threads": torch.get_num_threads(),
        "batch": options.batch,
        "queue": options.queue,
        "storage": options.storage,
        "dropout": options.dropout,
        "parameters": sum(parameter.numel() for parameter in model.encoders.parameters()),
        "seconds_per_step": step,
        "seconds": {**seconds, "everything else": step - sum(seconds.values())},
        "momentum_and_enqueue": sum(seconds[part] for part in SHARE_OF) / step,
    }


def main() -> None:
    """Measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", nargs=2, metavar="LANGUAGE=FOLDER")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--queue", type=int, default=204_800)
    parser.add_argument("--storage", default="float32")
    parser.add_argument("--length", type=int, default=24, help="mean pieces of a sentence")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu" if not torch.cuda.is_available() else "cuda")
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks/dual_momentum.json"))
    options = parser.parse_args()
    check_device(parser, options.device)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        report = measure(options)
    except XlsrError as error:
        raise SystemExit(f"dual_momentum: {error}") from None
    table = Table(
        title=f"A step of {report['batch']} pairs, queues of {report['queue']:,} in {report['storage']}, "
        f"{report['precision']}, {report['device']}, {report['threads']} threads"
    )
    table.add_column("part")
    for name in ("seconds", "share"):
        table.add_column(name, justify="right")
    for part, seconds in report["seconds"].items():
        table.add_row(part, f"{seconds:.3f}", f"{seconds / report['seconds_per_step']:.1%}")
    table.add_row("step", f"{report['seconds_per_step']:.3f}", "", style="bold")
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(f"momentum and enqueue together: {report['momentum_and_enqueue']:.1%} of a step (aim: at most 3 %)")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2), "utf-8")
    console.print(f"written to {options.output}")


if __name__ == "__main__":
    main()
