"""Speed and quality of an export's ONNX files against torch, from text to embeddings, on the CPU.

All encode both sides of the same pairs. Cosines are to the embeddings of torch float32, accuracy is that of `tatoeba`.
Without `--export` the encoder is the lightweight method's 2 x 512 one with random weights. Ratios are to torch float32,
or to the encoder `--baseline` in float32, whose texts start with `--prompt`. `--export` may lack the ONNX files.
"""

from __future__ import annotations

import tempfile
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.harness import Job, Step
from hf_xlsr.data.corpora.bible import bible_pairs
from hf_xlsr.data.sources import Source, open_source
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.encoding import embed
from hf_xlsr.encoders.onnx import OnnxEncoder
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.evaluation.pairs import both_ways, right_both_ways
from hf_xlsr.export import save_export, to_sentence_transformer
from hf_xlsr.export.onnx_files import write_onnx
from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config

FILES = {"torch bfloat16": "*.safetensors", "onnx float32": "onnx/model.onnx*"}
FILES |= {"onnx int8": "onnx/model_quantized.onnx*", "torch float32": "*.safetensors"}
BASELINE = "baseline float32"
DEFAULTS: Job = {"export": "", "pairs": "", "columns": "", "languages": ["en", "fr"], "limit": 1000, "batch": 64}
DEFAULTS |= {"baseline": "", "prompt": "", "vocabulary": 50_000, "width": 512}
QUICK: Job = {"limit": 8, "vocabulary": 2000, "width": 64}
MEMORY = False  # not compared; sides take turns in one process


def random_export(folder: Path, job: Job) -> None:
    rows = list(islice(bible_pairs("en", "fr", split="train"), job["vocabulary"]))
    texts = [row[side] for row in rows for side in ("source", "target")]
    tokenizer = train_tokenizer(texts, vocab_size=min(16_000, job["vocabulary"]), algorithm="bpe", max_length=128)
    torch.manual_seed(1)
    width = job["width"]
    sizes = {"hidden_size": width, "num_attention_heads": width // 64, "intermediate_size": 2 * width}
    config = paper_encoder_config(vocab_size=max(job["vocabulary"], len(tokenizer)), **sizes)
    save_export(to_sentence_transformer(encoder_from_config(config), tokenizer, max_length=128), folder)


def sides(job: Job) -> list[str]:
    held = [side for side, files in FILES.items() if not job["export"] or any(Path(job["export"]).rglob(files))]
    return [*held, BASELINE] if job["baseline"] else held


def prepare(job: Job, chosen: list[str]) -> Step:
    source = {"path": job["pairs"], "columns": job["columns"] or None} if job["pairs"] else {"corpus": "bible"}
    rows = list(islice(open_source(Source.parse(source), languages=job["languages"], split="test"), job["limit"]))
    texts = [[row[side] for row in rows] for side in ("source", "target")]
    scratch = tempfile.TemporaryDirectory()
    folder = Path(job["export"] or Path(scratch.name) / "model")
    if not job["export"]:
        random_export(folder, job)
        write_onnx(folder, int8=True)

    @cache
    def encoder_of(side: str) -> Any:
        kind, precision = side.split()
        if kind == "onnx":
            return OnnxEncoder(folder, int8=precision == "int8", threads=job["threads"])
        place = job["baseline"] if side == BASELINE else str(folder)
        return SentenceTransformer(place, device="cpu", model_kwargs={"dtype": precision})

    def encode(side: str, texts: list[list[str]]) -> list[np.ndarray]:
        pairs = zip(texts, job["languages"], strict=True)
        options = {"batch_size": job["batch"], "prompt": (job["prompt"] or None) if side == BASELINE else None}
        return [embed(encoder_of(side), part, language=code, **options) for part, code in pairs]

    exact = encode("torch float32", texts)
    quality: dict[str, dict[str, float]] = {}
    for side in chosen:
        found = encode(side, texts)
        quality[side] = both_ways("accuracy", *right_both_ways(*found))[0]
        if side != BASELINE:
            size = sum(file.stat().st_size for file in folder.rglob(FILES[side])) // (1 + (side == "torch bfloat16"))
            cosines = np.concatenate([(one * base).sum(1) for one, base in zip(found, exact, strict=True)])
            quality[side] |= {"file_bytes": size, "lowest_cosine": float(cosines.min())}

    def step(side: str, warm_up: bool) -> dict[str, float]:
        _ = scratch  # lives as long as the step
        encode(side, [part[:2] for part in texts] if warm_up else texts)
        return quality[side]

    return step
