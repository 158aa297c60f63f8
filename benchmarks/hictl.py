"""Time and memory of a HICTL pre-training step, forward and backward, beside the same encoder with full logits.

All compute equation 7 on the same random pairs, with the same encoder, head, attention and precision:

- `ours`: `HictlForPreTraining`. Masked positions alone are decoded, in chunks, and 512 negative words are drawn for
  each pair.
- `ours, one pass`: the same with `word_query: masked`, which spares the third pass through the encoder.
- `full logits`: transformers' masked LM, which decodes all positions; all words of the vocabulary that are not in the
  pair as its negatives, compared at once; the sentence-level contrast is ours.

Then the masked-LM head alone, forward and backward, at vocabularies of several sizes: of its memory above states and
parameters, so much is the gradient of the embedding table, which every head has to give, and so much is the rest.

Times are medians in one process, where all take turns, and ratios are taken round by round. Extra memory is the peak
above the state in which model and batch are allocated, in a process of its own. Threads wait asleep
(`OMP_WAIT_POLICY=passive`), so that another job on the machine slows all alike. Needs Linux.

usage: python benchmarks/hictl.py [--layers 12] [--width 384] [--batch 8] [--length 64] [--vocabulary 250002]
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
import torch.nn.functional as F
from queue_info_nce import memory_of
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForMaskedLM
from transformers import logging as transformers_logging
from turns import Job, check_device, ratios, run_job, time_in_turns

from hf_xlsr.losses import bags_of_words, masked_lm_loss, sentence_contrast_loss
from hf_xlsr.losses.word_contrast import Bags
from hf_xlsr.modeling.hictl import HictlConfig, HictlForPreTraining
from hf_xlsr.runs.train import hardware_name
from hf_xlsr.trainers.base import attention_for
from hf_xlsr.utils.memory import readable_size
from hf_xlsr.utils.precision import choose_precision

OURS, ONE_PASS, FULL = "ours", "ours, one pass", "full logits"
FIRST, PAD, END, MASK = 0, 1, 2, 3
WORDS_FROM = 5


def make_batch(job: Job, pairs: int) -> dict[str, torch.Tensor]:
    """Pairs of random pieces in the form that `HictlCollator` gives them, all of one length."""
    generator = torch.Generator().manual_seed(1)
    shape = 2 * pairs, job["length"]
    sentences = torch.randint(WORDS_FROM, job["vocabulary"], shape, generator=generator)
    sentences[:, 0], sentences[:, -1] = FIRST, END
    source, target = sentences.chunk(2)
    both = torch.cat([source, target[:, 1:]], 1)
    hidden = (torch.rand(both.shape, generator=generator) < 0.15) & (both >= WORDS_FROM)
    batch = {
        "input_ids": sentences,
        "joint_input_ids": both,
        "lm_input_ids": both.masked_fill(hidden, MASK),
        "lm_labels": both.masked_fill(~hidden, -100),
        "special_ids": torch.arange(WORDS_FROM),
    }
    return {name: tensor.to(job["device"]) for name, tensor in batch.items()}


def make_models(job: Job) -> tuple[Any, HictlForPreTraining]:
    """transformers' masked LM, and ours on the same encoder with the same head."""
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        "xlm-roberta",
        vocab_size=job["vocabulary"],
        hidden_size=job["width"],
        num_hidden_layers=job["layers"],
        num_attention_heads=max(1, job["width"] // 64),
        intermediate_size=4 * job["width"],
        max_position_embeddings=2 * job["length"] + 2,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    dtype = torch.bfloat16 if job["precision"] == "bfloat16" else None
    attention = attention_for("sdpa", job["device"], dtype, 2 * job["length"])
    full = AutoModelForMaskedLM.from_config(config, attn_implementation=attention)
    ours = HictlForPreTraining(HictlConfig(text_config=full.base_model.config), full.base_model)
    head: Any = ours.lm_head
    head.dense, head.norm, head.bias = full.lm_head.dense, full.lm_head.layer_norm, full.lm_head.bias
    return full.to(job["device"]).train(), ours.to(job["device"]).train()


def full_word_contrast(queries: torch.Tensor, table: torch.Tensor, bags: Bags, special: torch.Tensor) -> torch.Tensor:
    """Equation 5 with all other words as negatives, every cosine at once."""
    logits = (F.normalize(queries) @ F.normalize(table).T).float()  # (batch, vocabulary)
    rows, pieces = bags
    excluded = torch.zeros_like(logits, dtype=torch.bool)
    excluded[:, special] = True
    excluded[rows, pieces] = True
    others = logits.masked_fill(excluded, -torch.inf).logsumexp(1)[rows]
    positives = logits[rows, pieces]
    losses = torch.logaddexp(others, positives) - positives
    return (losses / rows.bincount()[rows]).sum() / len(queries)


def full_losses(full: Any, ours: HictlForPreTraining, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Equation 7 by transformers' masked LM and the whole vocabulary."""
    both, special = batch["joint_input_ids"], batch["special_ids"]
    source, target = ours.encode_sentences(batch["input_ids"]).chunk(2)
    query = ours.first_states(both)
    bags = bags_of_words(both, torch.ones_like(both), special)
    return {
        "sentence": sentence_contrast_loss(source, target),
        "lm": full(input_ids=batch["lm_input_ids"], labels=batch["lm_labels"]).loss,
        "word": full_word_contrast(query, full.get_input_embeddings().weight, bags, special),
    }


def step_losses(side: str, full: Any, ours: HictlForPreTraining, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The parts of equation 7."""
    if side == FULL:
        return full_losses(full, ours, batch)
    ours.config.word_query = "masked" if side == ONE_PASS else "plain"
    losses = ours(**batch).losses
    assert losses is not None
    return losses


def head_losses(side: str, full: Any, ours: HictlForPreTraining, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The language model's loss of random states."""
    labels, head = batch["lm_labels"], full.lm_head
    width = full.config.hidden_size
    states = torch.randn(*labels.shape, width, device=labels.device).requires_grad_()
    if side == FULL:
        return {"lm": F.cross_entropy(head(states).flatten(0, 1).float(), labels.flatten())}
    table, own, size = full.get_input_embeddings().weight, ours.lm_head, ours.config.logits_chunk_size
    assert own is not None
    return {"lm": masked_lm_loss(states, labels, table, own.bias, transform=own, chunk_size=size)}


def run_worker(job: Job) -> dict[str, Any]:
    """The sides in turns for time, or one alone for memory."""
    transformers_logging.set_verbosity_error()
    torch.set_num_threads(job["threads"])
    full, ours = make_models(job)
    compute = head_losses if job["layers"] == 0 else step_losses
    dtype = torch.bfloat16 if job["precision"] == "bfloat16" else None

    values: dict[str, dict[str, float]] = {}

    def step(side: str, batch: dict[str, torch.Tensor]) -> None:
        for parameter in (*full.parameters(), *ours.parameters()):
            parameter.grad = None
        with torch.autocast(job["device"], dtype or torch.bfloat16, enabled=dtype is not None):
            losses = compute(side, full, ours, batch)
        sum(losses.values()).backward()
        values[side] = {name: float(loss.detach()) for name, loss in losses.items()}  # waits for the device too

    few, batch = make_batch(job | {"length": 4}, 2), make_batch(job, job["batch"])
    for side in job["sides"]:
        step(side, few)  # loads the libraries, which is not the step's own memory or time
    for parameter in (*full.parameters(), *ours.parameters()):
        parameter.grad = None
    if job["rounds"] == 0:
        (side,) = job["sides"]
        return memory_of(lambda: step(side, batch), job["device"])
    seconds = time_in_turns(lambda side: step(side, batch), job["sides"], job["rounds"])
    return {"seconds": seconds, "losses": values}


def measure_steps(job: Job) -> list[dict[str, Any]]:
    """Time and memory of each side, and their ratios to full logits."""
    sides = [OURS, ONE_PASS, FULL]
    turns = run_job(__file__, job | {"sides": sides})
    memory = {side: run_job(__file__, job | {"sides": [side], "rounds": 0}) for side in sides}
    return [
        {
            "side": side,
            "seconds": turns["seconds"][side],
            "time_ratios": ratios(turns["seconds"][side], turns["seconds"][FULL]),
            "losses": turns["losses"][side],
            **memory[side],
            "share_of_memory": memory[side]["extra_bytes"] / memory[FULL]["extra_bytes"],
        }
        for side in sides
    ]


def measure_head(job: Job, vocabulary: int) -> list[dict[str, Any]]:
    """Memory of both heads at one size of the vocabulary."""
    alone = job | {"layers": 0, "vocabulary": vocabulary, "rounds": 0}
    table_bytes = 4 * vocabulary * job["width"]
    rows = []
    for side in (OURS, FULL):
        extra = run_job(__file__, alone | {"sides": [side]})["extra_bytes"]
        rows.append({"vocabulary": vocabulary, "side": side, "extra_bytes": extra, "table_bytes": table_bytes})
    return rows


def print_tables(report: dict[str, Any], write: Callable[[Any], None]) -> None:
    """The report for people."""
    shape = f"{report['layers']} layers of width {report['width']}, {report['batch']} pairs of 2 x {report['length']}"
    setting = (
        f"{report['vocabulary']:,} pieces, {report['precision']}, {report['device']}, {report['threads']} threads"
    )
    steps = Table(title=f"HICTL step, forward and backward, {shape}, {setting}")
    for name in ("step", "seconds", "time / full", "extra memory", "memory / full", "lm", "sentence", "word"):
        steps.add_column(name, justify="left" if name == "step" else "right")
    for row in report["steps"]:
        ratios = row["time_ratios"]
        steps.add_row(
            row["side"],
            f"{statistics.median(row['seconds']):.3f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            readable_size(row["extra_bytes"]),
            f"{row['share_of_memory']:.1%}",
            *(f"{row['losses'][name]:.4f}" for name in ("lm", "sentence", "word")),
        )
    write(steps)
    heads = Table(title="Masked-LM head alone, forward and backward")
    for name in ("pieces", "head", "extra memory", "gradient of the table", "the rest"):
        heads.add_column(name, justify="left" if name == "head" else "right")
    for row in report["heads"]:
        rest = row["extra_bytes"] - row["table_bytes"]
        sizes = (readable_size(size) for size in (row["extra_bytes"], row["table_bytes"], rest))
        heads.add_row(f"{row['vocabulary']:,}", row["side"], *sizes)
    write(heads)


def main() -> None:
    """Measures everything, prints the tables and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--batch", type=int, default=8, help="pairs")
    parser.add_argument("--length", type=int, default=64, help="pieces of a sentence")
    parser.add_argument("--vocabulary", type=int, default=250_002, help="pieces of the step")
    parser.add_argument("--head-vocabularies", type=int, nargs="*", default=[50_000, 250_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks/hictl.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run_worker(json.loads(options.worker))))
        return
    check_device(parser, options.device)
    names = ("layers", "width", "batch", "length", "vocabulary", "rounds", "threads", "device")
    job: Job = {name: getattr(options, name) for name in names}
    job["precision"] = choose_precision(options.precision, cpu=options.device == "cpu")
    report = job | {
        "processor": hardware_name(torch.device(options.device)),
        "torch": torch.__version__,
        "load_before": os.getloadavg()[0],
        "steps": measure_steps(job),
        "heads": [row for vocabulary in options.head_vocabularies for row in measure_head(job, vocabulary)],
        "load_after": os.getloadavg()[0],
    }
    console = Console(width=160)
    print_tables(report, console.print)
    console.print(f"Load before {report['load_before']:.1f} and after {report['load_after']:.1f}.")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2), "utf-8")
    console.print(f"written to {options.output}")


if __name__ == "__main__":
    main()
