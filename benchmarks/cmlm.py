"""Time and memory of a CMLM step, forward and backward, beside transformers' own masked LM on one sentence.

All fill in the same share of the pieces of the same random sentences, with the same encoder, head, attention and
precision:

- `ours`: `CmlmModel`. Two sentences are encoded, 15 vectors stand before the second; masked positions alone are decoded,
  in chunks.
- `ours, one sentence`: the same with `conditioning: none`.
- `full logits`: transformers' masked LM on the second sentence, which decodes all positions.

Times are medians in one process, where all take turns, and ratios are taken round by round. Extra memory is the peak
above the state in which model and batch are allocated, in a process of its own. Threads wait asleep
(`OMP_WAIT_POLICY=passive`), so that another job on the machine slows all alike. Needs Linux.

usage: python benchmarks/cmlm.py [--layers 12] [--width 384] [--batch 16] [--length 64] [--vocabulary 250002]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from queue_info_nce import memory_of
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForMaskedLM
from transformers import logging as transformers_logging
from turns import Job, check_device, ratios, run_job, time_in_turns

from hf_xlsr.modeling.cmlm import CmlmConfig, CmlmModel
from hf_xlsr.runs.train import hardware_name
from hf_xlsr.trainers.base import attention_for
from hf_xlsr.utils.memory import readable_size
from hf_xlsr.utils.precision import choose_precision

OURS, ALONE, FULL = "ours", "ours, one sentence", "full logits"
FIRST, END, MASK = 0, 2, 3
WORDS_FROM = 5
SHARE = 80 / 256


def make_batch(job: Job, rows: int) -> dict[str, torch.Tensor]:
    """Pairs of random sentences in the form that `CmlmCollator` gives them, all of one length."""
    generator = torch.Generator().manual_seed(1)
    shape = 2, rows, job["length"]
    first, second = torch.randint(WORDS_FROM, job["vocabulary"], shape, generator=generator)
    for sentences in (first, second):
        sentences[:, 0], sentences[:, -1] = FIRST, END
    chosen = torch.rand(second.shape, generator=generator).argsort(1).argsort(1) < round(SHARE * job["length"])
    hidden = chosen & (second >= WORDS_FROM)
    batch = {
        "first_input_ids": first,
        "first_attention_mask": torch.ones_like(first),
        "second_input_ids": second.masked_fill(hidden, MASK),
        "second_attention_mask": torch.ones_like(second),
        "labels": second.masked_fill(~hidden, -100),
    }
    return {name: tensor.to(job["device"]) for name, tensor in batch.items()}


def make_models(job: Job) -> tuple[Any, CmlmModel]:
    """transformers' masked LM, and ours on the same encoder with the same head."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        "xlm-roberta",
        vocab_size=job["vocabulary"],
        hidden_size=job["width"],
        num_hidden_layers=job["layers"],
        num_attention_heads=max(1, job["width"] // 64),
        intermediate_size=4 * job["width"],
        max_position_embeddings=job["length"] + job["projections"] + 2,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    dtype = torch.bfloat16 if job["precision"] == "bfloat16" else None
    attention = attention_for("sdpa", job["device"], dtype, job["length"])
    full = AutoModelForMaskedLM.from_config(config, attn_implementation=attention)
    ours = CmlmModel(CmlmConfig(text_config=full.base_model.config, projections=job["projections"]), full.base_model)
    head: Any = ours.lm_head
    head.dense, head.norm, head.bias = full.lm_head.dense, full.lm_head.layer_norm, full.lm_head.bias
    return full.to(job["device"]).train(), ours.to(job["device"]).train()


def run_worker(job: Job) -> dict[str, Any]:
    """The sides in turns for time, or one alone for memory."""
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(job["threads"])
    full, ours = make_models(job)
    dtype = torch.bfloat16 if job["precision"] == "bfloat16" else None
    losses: dict[str, float] = {}

    def step(side: str, batch: dict[str, torch.Tensor]) -> None:
        for parameter in (*full.parameters(), *ours.parameters()):
            parameter.grad = None
        with torch.autocast(job["device"], dtype or torch.bfloat16, enabled=dtype is not None):
            if side == FULL:
                ids, mask = batch["second_input_ids"], batch["second_attention_mask"]
                loss = full(input_ids=ids, attention_mask=mask, labels=batch["labels"]).loss
            else:
                ours.config.conditioning = "none" if side == ALONE else "input"
                loss = ours(**batch).loss
        loss.backward()
        losses[side] = float(loss.detach())  # waits for the device too

    few, batch = make_batch(job | {"length": 4}, 2), make_batch(job, job["batch"])
    for side in job["sides"]:
        step(side, few)  # loads the libraries, which is not the step's own memory or time
    for parameter in (*full.parameters(), *ours.parameters()):
        parameter.grad = None
    if job["rounds"] == 0:
        (side,) = job["sides"]
        return memory_of(lambda: step(side, batch), job["device"])
    return {"seconds": time_in_turns(lambda side: step(side, batch), job["sides"], job["rounds"]), "losses": losses}


def measure(job: Job) -> list[dict[str, Any]]:
    """Time and memory of each side, and their ratios to full logits."""
    sides = [OURS, ALONE, FULL]
    turns = run_job(__file__, job | {"sides": sides})
    memory = {side: run_job(__file__, job | {"sides": [side], "rounds": 0}) for side in sides}
    return [
        {
            "side": side,
            "seconds": turns["seconds"][side],
            "time_ratios": ratios(turns["seconds"][side], turns["seconds"][FULL]),
            "loss": turns["losses"][side],
            **memory[side],
            "share_of_memory": memory[side]["extra_bytes"] / memory[FULL]["extra_bytes"],
        }
        for side in sides
    ]


def print_table(report: dict[str, Any], write: Callable[[Any], None]) -> None:
    """The report for people."""
    shape = f"{report['layers']} layers of width {report['width']}, {report['batch']} pairs of 2 x {report['length']}"
    setting = (
        f"{report['vocabulary']:,} pieces, {report['precision']}, {report['device']}, {report['threads']} threads"
    )
    table = Table(title=f"CMLM step, forward and backward, {shape}, {setting}")
    for name in ("step", "seconds", "time / full", "extra memory", "memory / full", "loss"):
        table.add_column(name, justify="left" if name == "step" else "right")
    for row in report["steps"]:
        table.add_row(
            row["side"],
            f"{statistics.median(row['seconds']):.3f}",
            f"{statistics.median(row['time_ratios']):.2f} ({min(row['time_ratios']):.2f}-{max(row['time_ratios']):.2f})",
            readable_size(row["extra_bytes"]),
            f"{row['share_of_memory']:.1%}",
            f"{row['loss']:.4f}",
        )
    write(table)


def main() -> None:
    """Measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=16, help="pairs of sentences")
    parser.add_argument("--length", type=int, default=64, help="pieces of a sentence")
    parser.add_argument("--vocabulary", type=int, default=250_002, help="pieces")
    parser.add_argument("--projections", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks/cmlm.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run_worker(json.loads(options.worker))))
        return
    check_device(parser, options.device)
    names = ("layers", "width", "batch", "length", "vocabulary", "projections", "rounds", "threads", "device")
    job: Job = {name: getattr(options, name) for name in names}
    job["precision"] = choose_precision(options.precision, cpu=options.device == "cpu")
    report = job | {
        "processor": hardware_name(torch.device(options.device)),
        "torch": torch.__version__,
        "load_before": os.getloadavg()[0],
        "steps": measure(job),
        "load_after": os.getloadavg()[0],
    }
    console = Console(width=160)
    print_table(report, console.print)
    console.print(f"Load before {report['load_before']:.1f} and after {report['load_after']:.1f}.")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2), "utf-8")
    console.print(f"written to {options.output}")


if __name__ == "__main__":
    main()
