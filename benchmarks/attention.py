"""Why training on a processor computes attention by plain matrix products under bfloat16.

Forward and backward of one encoder under each of transformers' attention implementations, in float32 and under bfloat16
autocast, for batches of the same number of pieces, all taking turns; medians of the rounds. `hf_xlsr.trainers.base`
follows it: `attention_for`.

usage: python benchmarks/attention.py [--layers 12] [--width 384] [--lengths 16 32 64 128 256 512] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

# Threads that wait by spinning take the processor from any other job beside, and then wait for it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModel, BertConfig

IMPLEMENTATIONS = ("sdpa", "eager")
PRECISIONS = {"bfloat16": torch.bfloat16, "float32": None}


def make_encoder(options: argparse.Namespace) -> Any:
    """A random encoder without dropout, as torch's fused attention on a processor wants it."""
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=1000,
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.width // 32,
        intermediate_size=4 * options.width,
        max_position_embeddings=max(options.lengths),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return AutoModel.from_config(config).train()


def seconds(encoder: Any, ids: torch.Tensor, dtype: torch.dtype | None) -> tuple[float, float]:
    """Of one forward and one backward pass."""
    mask = torch.ones_like(ids)
    mask[::2, -1] = 0
    started = time.perf_counter()
    with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    middle = time.perf_counter()
    states.float().sum().backward()
    return middle - started, time.perf_counter() - middle


def main() -> None:
    """Measures, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512])
    parser.add_argument("--pieces", type=int, default=4096, help="pieces of a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks/attention.json"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    encoder = make_encoder(options)
    table = Table(title=f"{options.layers} layers of width {options.width}, {options.pieces:,} pieces, seconds")
    for name in ("precision", "length", "sdpa forward", "backward", "eager forward", "backward", "sdpa / eager"):
        table.add_column(name, justify="right")
    report: list[dict[str, Any]] = []
    for precision, dtype in PRECISIONS.items():
        for length in options.lengths:
            ids = torch.randint(1, 1000, (max(options.pieces // length, 1), length))
            taken: dict[str, list[tuple[float, float]]] = {name: [] for name in IMPLEMENTATIONS}
            for turn in range(options.rounds + 1):
                for name in IMPLEMENTATIONS:
                    encoder.set_attn_implementation(name)
                    passes = seconds(encoder, ids, dtype)
                    if turn:  # the first one warms up
                        taken[name].append(passes)
            row: dict[str, Any] = {"precision": precision, "length": length}
            for name, passes_of in taken.items():
                for part, values in zip(("forward", "backward"), zip(*passes_of, strict=True), strict=True):
                    row[f"{name}_{part}"] = statistics.median(values)
            row["ratio"] = (row["sdpa_forward"] + row["sdpa_backward"]) / (
                row["eager_forward"] + row["eager_backward"]
            )
            report.append(row)
            cells = [f"{row[f'{name}_{part}']:.3f}" for name in IMPLEMENTATIONS for part in ("forward", "backward")]
            table.add_row(precision, str(length), *cells, f"{row['ratio']:.2f}")
    Console(soft_wrap=True).print(table)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2), "utf-8")


if __name__ == "__main__":
    main()
