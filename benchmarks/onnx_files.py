"""Quality and speed of an export's ONNX files beside torch, on the processor.

- `torch float32`, `torch bfloat16`: sentence-transformers.
- `onnx float32`, `onnx int8`: `OnnxEncoder` with what `hf-xlsr export --onnx --int8` writes.

All encode both sides of the same pairs, from text to vectors, in one process, where they take turns; times are medians
and ratios to `torch float32` are taken round by round. Cosines are to the vectors of `torch float32`; accuracy is that of
finding each sentence's translation among all of the pairs (protocol `tatoeba`, the mean of both directions). Without
`--export` the encoder is the 2 x 512 one of the lightweight method with random weights: cosines and speed then mean
something, accuracy does not.

usage: python benchmarks/onnx_files.py [--export outputs/quickstart/model] [--threads 2]
       [--pairs $HF_XLSR_DATA/multi30k/test_2016_flickr.parquet --columns source=en,target=de --languages en de]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sentence_transformers import SentenceTransformer
from transformers import logging as transformers_logging
from turns import ratios, time_in_turns

from hf_xlsr.data.columns import parse_columns
from hf_xlsr.data.corpora.bible import bible_pairs
from hf_xlsr.data.sources import open_source
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.onnx import OnnxEncoder
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.evaluation.metrics import retrieval_accuracy
from hf_xlsr.export import export_sentence_transformer
from hf_xlsr.export.onnx_files import write_onnx
from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config
from hf_xlsr.utils.errors import XlsrError

BASE = "torch float32"


def read_pairs(options: argparse.Namespace) -> tuple[list[str], list[str]]:
    """Both sides of the first pairs."""
    source: dict[str, Any] = {"path": options.pairs, "columns": parse_columns(options.columns)}
    chosen = source if options.pairs else {"corpus": "bible"}
    rows = list(islice(open_source(chosen, languages=options.languages, split="test"), options.limit))
    return [row["source"] for row in rows], [row["target"] for row in rows]


def random_export(folder: Path, vocabulary: int) -> None:
    """The 2 x 512 encoder, untrained, with a tokenizer of the Bible and room for a full vocabulary."""
    texts = [row[side] for row in bible_pairs("en", "fr", split="train") for side in ("source", "target")]
    tokenizer = train_tokenizer(texts, vocab_size=16_000, algorithm="bpe", max_length=128)
    torch.manual_seed(1)
    encoder = encoder_from_config(paper_encoder_config(vocab_size=max(vocabulary, len(tokenizer))))
    export_sentence_transformer(encoder, tokenizer, folder, max_length=128)


def load_sides(folder: Path, threads: int) -> dict[str, Any]:
    """The encoders by name."""
    trust = (folder / "sentence_modules.py").is_file()
    sides: dict[str, Any] = {
        f"torch {dtype}": SentenceTransformer(
            str(folder), device="cpu", trust_remote_code=trust, model_kwargs={"dtype": dtype}
        )
        for dtype in ("float32", "bfloat16")
    }
    sides["onnx float32"] = OnnxEncoder(folder, threads=threads)
    return sides | {"onnx int8": OnnxEncoder(folder, int8=True, threads=threads)}


def vectors_of(encoder: Any, texts: Sequence[Sequence[str]], languages: Sequence[str], batch: int) -> list[np.ndarray]:
    """Unit vectors of both sides."""
    pairs = zip(texts, languages, strict=True)
    return [embed(encoder, side, language=language, batch_size=batch) for side, language in pairs]


def size_of(folder: Path, side: str) -> int:
    """Bytes of weights."""
    if side.startswith("torch"):
        files = folder.rglob("*.safetensors")
        return sum(file.stat().st_size for file in files) // (2 if side.endswith("bfloat16") else 1)
    wanted = "model_int8.onnx" if side.endswith("int8") else "model.onnx"
    return sum(file.stat().st_size for file in (folder / "onnx").rglob(f"{wanted}*"))


def measure(folder: Path, options: argparse.Namespace, texts: tuple[list[str], list[str]]) -> list[dict[str, Any]]:
    """A row for each encoder."""
    sides = load_sides(folder, options.threads)
    encode = partial(vectors_of, texts=texts, languages=options.languages, batch=options.batch)
    found = {side: encode(encoder) for side, encoder in sides.items()}
    seconds = time_in_turns(lambda side: encode(sides[side]), list(sides), options.rounds)
    sentences = sum(len(set(side)) for side in texts)  # `embed` encodes a text once
    rows = []
    for side, vectors in found.items():
        cosines = np.concatenate([(ours * base).sum(1) for ours, base in zip(vectors, found[BASE], strict=True)])
        rows.append(
            {
                "side": side,
                "bytes": size_of(folder, side),
                "sentences_per_second": sentences / statistics.median(seconds[side]),
                "speed_ratios": ratios(seconds[BASE], seconds[side]),
                "cosine_mean": float(cosines.mean()),
                "cosine_lowest": float(cosines.min()),
                "accuracy": retrieval_accuracy(*vectors)["accuracy"],
            }
        )
    return rows


def print_table(report: dict[str, Any], console: Console) -> None:
    """The report for people."""
    title = f"{report['model']}, {report['pairs']:,} pairs, batch {report['batch']}, {report['threads']} threads"
    table = Table(title=title)
    for column in ("encoder", "MiB", "sentences / s", "times torch float32", "mean cosine", "lowest", "accuracy %"):
        table.add_column(column, justify="left" if column == "encoder" else "right")
    for row in report["rows"]:
        times = row["speed_ratios"]
        table.add_row(
            row["side"],
            f"{row['bytes'] / 2**20:.1f}",
            f"{row['sentences_per_second']:,.0f}",
            f"{statistics.median(times):.2f} ({min(times):.2f}-{max(times):.2f})",
            f"{row['cosine_mean']:.5f}",
            f"{row['cosine_lowest']:.5f}",
            f"{100 * row['accuracy']:.2f}",
        )
    console.print(table)


def main() -> None:
    """Measures everything, prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--export", type=Path, help="sentence-transformers folder of an export (default: random weights)"
    )
    parser.add_argument("--pairs", help="file of pairs (default: the Bible's test split)")
    parser.add_argument("--columns", help="their columns: source=en,target=de")
    parser.add_argument("--languages", nargs=2, default=["en", "fr"], help="of the pairs")
    parser.add_argument("--limit", type=int, default=1000, help="pairs at most")
    parser.add_argument("--batch", type=int, default=64, help="sentences encoded at a time")
    parser.add_argument("--vocabulary", type=int, default=50_000, help="rows of the random encoder's embeddings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=Path("outputs/benchmarks/onnx_files.json"))
    options = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    try:
        texts = read_pairs(options)
    except XlsrError as error:
        raise SystemExit(f"onnx_files: {error}") from None
    console = Console(width=160)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        if options.export:
            folder.symlink_to(options.export.resolve(), target_is_directory=True)
        else:
            random_export(folder, options.vocabulary)
        if not list((folder / "onnx").rglob("model_int8.onnx")):
            if options.export:
                parser.error(f"{options.export} has no int8 files; write them with hf-xlsr export --onnx --int8")
            write_onnx(folder, int8=True)
        load = os.getloadavg()[0]
        rows = measure(folder, options, texts)
    report = {
        "model": options.export.name if options.export else "2 x 512, random weights",
        "pairs": len(texts[0]),
        **{name: getattr(options, name) for name in ("languages", "batch", "rounds", "threads")},
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "load_before": load,
        "load_after": os.getloadavg()[0],
        "rows": rows,
    }
    print_table(report, console)
    console.print(f"Load before {report['load_before']:.1f} and after {report['load_after']:.1f}.")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2), "utf-8")
    console.print(f"written to {options.output}")


if __name__ == "__main__":
    main()
