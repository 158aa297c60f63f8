"""Speed and memory of the lightweight model's training, beside sentence-transformers and against its number of layers.

Every row is a process of its own, so that its peak memory is its own; the rows of a comparison take turns, and their
ratio is taken round by round. All train on the same pairs once, with the same encoder, batch, length and precision:

- `ours`: `LightweightTrainer` with every loss on (unified generative task, alignment, similarity).
- `sentence-transformers`: `SentenceTransformerTrainer` with `MultipleNegativesRankingLoss`.

usage: python benchmarks/lightweight.py [--pairs 5120] [--rounds 3] [--widths 256 512] [--layers 1 2 3]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARM_UP_STEPS = 4


def make_material(folder: Path, pairs: int) -> None:
    """Writes tokenised pairs and the tokenizer once; every row reads them."""
    import numpy as np
    from datasets import Dataset

    from hf_xlsr.data.corpora.bible import bible_pairs
    from hf_xlsr.data.preparation import tokenize_pairs
    from hf_xlsr.data.tokenization import train_tokenizer

    rows = list(bible_pairs("en", "fr", split="train"))
    tokenizer = train_tokenizer((row[side] for row in rows for side in ("source", "target")), vocab_size=16_000)
    tokenizer.save_pretrained(str(folder / "tokenizer"))
    order = np.random.default_rng(1).permutation(len(rows))
    stored = Dataset.from_list([rows[index] for index in order[:pairs]])
    started = time.perf_counter()
    tokenised, _ = tokenize_pairs(stored, tokenizer, max_length=128)
    (folder / "tokenising.json").write_text(json.dumps(time.perf_counter() - started))
    tokenised.save_to_disk(str(folder / "data"))
    stored.select_columns(["source", "target"]).save_to_disk(str(folder / "text"))


def encoder_values(width: int, layers: int, vocab_size: int) -> dict[str, Any]:
    """The paper's proportions at any width: heads 64 wide, the filter twice the width."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
    }


def run_worker(job: dict[str, Any]) -> dict[str, float]:
    """Trains one epoch over the material and measures it behind a short warm-up."""
    import torch
    from process_memory import status_bytes
    from transformers import AutoTokenizer, TrainerCallback
    from transformers import logging as transformers_logging
    from turns import synchronize

    transformers_logging.set_verbosity_error()
    folder, batch = Path(job["folder"]), job["batch"]
    tokenizer = AutoTokenizer.from_pretrained(str(folder / "tokenizer"))
    torch.manual_seed(1)
    clock: dict[str, float] = {}

    class Clock(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == WARM_UP_STEPS:
                synchronize()
                clock["start"] = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            synchronize()
            clock["end"], clock["steps"] = time.perf_counter(), state.global_step - WARM_UP_STEPS

    common: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "num_train_epochs": 1,
        "per_device_train_batch_size": batch,
        "learning_rate": 1e-3,
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "report_to": "none",
        "dataloader_drop_last": True,
    }
    values = encoder_values(job["width"], job["layers"], len(tokenizer))
    trainer = (_ours if job["side"] == "ours" else _peer)(folder, tokenizer, values, common)
    trainer.add_callback(Clock())
    trainer.train()
    seconds = clock["end"] - clock["start"]
    on_gpu = trainer.args.device.type == "cuda"
    peak = torch.cuda.max_memory_allocated() if on_gpu else status_bytes("VmHWM")
    return {
        "pairs_per_second": clock["steps"] * batch / seconds,
        "seconds_per_step": seconds / clock["steps"],
        "peak_mib": peak / 2**20,
    }


def _ours(folder: Path, tokenizer: Any, values: dict[str, Any], common: dict[str, Any]) -> Any:
    from datasets import load_from_disk

    from hf_xlsr import LightweightConfig, LightweightDualTransformer
    from hf_xlsr.data.prepared import PreparedPairs
    from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config
    from hf_xlsr.trainers import LightweightTrainer, LightweightTrainingArguments

    return LightweightTrainer(
        LightweightDualTransformer(LightweightConfig(text_config=paper_encoder_config(**values))),
        LightweightTrainingArguments(**common),
        train_dataset=PreparedPairs(load_from_disk(str(folder / "data"))),
        processing_class=tokenizer,
        max_length=128,
    )


def _peer(folder: Path, tokenizer: Any, values: dict[str, Any], common: dict[str, Any]) -> Any:
    import torch
    from datasets import load_from_disk
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from transformers import BertModel

    from hf_xlsr.export import to_sentence_transformer
    from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config
    from hf_xlsr.utils.precision import choose_precision

    encoder = BertModel(paper_encoder_config(**values), add_pooling_layer=False)
    model = to_sentence_transformer(encoder, tokenizer, max_length=128)
    cpu = not torch.accelerator.is_available()
    arguments = SentenceTransformerTrainingArguments(**common, bf16=choose_precision() == "bfloat16", use_cpu=cpu)
    return SentenceTransformerTrainer(
        model.to(arguments.device),
        arguments,
        train_dataset=load_from_disk(str(folder / "text")),
        loss=MultipleNegativesRankingLoss(model),
    )


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Runs a job in a fresh process."""
    command = [sys.executable, __file__, "--worker", json.dumps(job)]
    print(f"measuring {job['side']}, width {job['width']}, {job['layers']} layers", file=sys.stderr)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the row {job} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def compare(folder: Path, width: int, batch: int, rounds: int) -> dict[str, Any]:
    """Ours and the peer in turns; medians, and the ratios of each round."""
    sides: dict[str, list[dict[str, float]]] = {"ours": [], "sentence-transformers": []}
    for _ in range(rounds):
        for side, results in sides.items():
            job = {"folder": str(folder), "side": side, "width": width, "layers": 2, "batch": batch}
            results.append(measure(job))
    ratios = [one["pairs_per_second"] / other["pairs_per_second"] for one, other in zip(*sides.values(), strict=True)]
    medians = {
        side: {key: statistics.median(result[key] for result in results) for key in results[0]}
        for side, results in sides.items()
    }
    return {"width": width, "batch": batch, "medians": medians, "speed_ratios": ratios}


def print_tables(report: dict[str, Any]) -> None:
    """The report for people."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title=f"Training, {report['precision']}, {report['pairs']:,} pairs, {report['rounds']} rounds")
    for column in ("width", "batch", "trainer", "pairs / s", "peak MiB", "speed ratio"):
        table.add_column(column, justify="left" if column == "trainer" else "right")
    for row in report["comparison"]:
        for side, medians in row["medians"].items():
            low, high = min(row["speed_ratios"]), max(row["speed_ratios"])
            ratio = f"{statistics.median(row['speed_ratios']):.2f} ({low:.2f}-{high:.2f})" if side == "ours" else "1"
            numbers = (f"{medians['pairs_per_second']:.0f}", f"{medians['peak_mib']:.0f}", ratio)
            table.add_row(str(row["width"]), str(row["batch"]), side, *numbers)
    console.print(table)
    console.print(f"Tokenising once, before training: {report['tokenising_seconds']:.1f} s, not in the rates of ours.")
    layers = Table(title="Ours against layers (the paper's table 5), width 512, batch 128")
    for column in ("layers", "s / step", "minutes / 10,000 steps", "peak MiB"):
        layers.add_column(column, justify="right")
    for row in report["layers"]:
        step = row["seconds_per_step"]
        layers.add_row(str(row["layers"]), f"{step:.3f}", f"{step * 10_000 / 60:.0f}", f"{row['peak_mib']:.0f}")
    console.print(layers)


def main() -> None:
    """Measures everything, prints the tables and writes the JSON."""
    import torch

    from hf_xlsr.runs.train import hardware_name
    from hf_xlsr.utils.precision import choose_precision

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5120, help="pairs of the Bible, English and French")
    parser.add_argument("--layer-pairs", type=int, default=2560, help="pairs for the table of layers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--widths", type=int, nargs="*", default=[256, 512], help="widths of the comparison")
    parser.add_argument(
        "--layers", type=int, nargs="*", default=[1, 2, 3, 4, 5, 6], help="rows of the table of layers"
    )
    parser.add_argument("--output", default="outputs/benchmarks/lightweight.json")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(run_worker(json.loads(options.worker))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder, small = Path(scratch) / "all", Path(scratch) / "small"
        make_material(folder, options.pairs)
        make_material(small, options.layer_pairs)
        comparison = [compare(folder, width, 128, options.rounds) for width in options.widths]
        layers = []
        for count in options.layers:
            job = {"folder": str(small), "side": "ours", "width": 512, "layers": count, "batch": 128}
            layers.append({"layers": count, **measure(job)})
        report = {
            "pairs": options.pairs,
            "rounds": options.rounds,
            "processor": hardware_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            "precision": choose_precision(),
            "tokenising_seconds": json.loads((folder / "tokenising.json").read_text()),
            "comparison": comparison,
            "layers": layers,
        }
    print_tables(report)
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(report, indent=2))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
