"""Speed and quality of an export's ONNX and OpenVINO files against torch, from text to embeddings, on the CPU.

All encode both sides of the same pairs. Cosines are to the embeddings of torch float32, accuracy is that of `tatoeba`.
Without `--export` the encoder is the lightweight method's 2 x 512 one with random weights. Ratios are to torch float32,
or to the encoder `--baseline` in float32, whose texts start with `--prompt`. `--export` may lack any of the files.

`of_limit` compares with the hardware: the time of the matrix products of all linear layers, for the same batches in the
same precision on all cores, measured right after, divided by the time of encoding. `by streams` is torch with an encoder
of one thread a core, each of which takes the next batch. torch in bfloat16 is left out on a processor without it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
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
from hf_xlsr.encoders.graph_sessions import FORMATS
from hf_xlsr.encoders.graphs import GraphEncoder
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.evaluation.pairs import both_ways, right_both_ways
from hf_xlsr.export import save_export, to_sentence_transformer
from hf_xlsr.export.onnx_files import write_onnx
from hf_xlsr.export.openvino_files import write_openvino
from hf_xlsr.modeling.lightweight.configuration_lightweight import paper_encoder_config
from hf_xlsr.utils.devices import cpu_has_fast_bfloat16

GRAPHS = {"onnx float32": "onnx", "onnx int8": "onnx-int8", "openvino": "openvino", "openvino int8": "openvino-int8"}
STREAMS = " by streams"
TORCH = ("torch bfloat16", f"torch bfloat16{STREAMS}", f"torch float32{STREAMS}", "torch float32")
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
    graphs = []
    for side, dtype in GRAPHS.items():
        graph = FORMATS[dtype]
        is_written = not job["export"] or any(Path(job["export"], graph.folder).rglob(graph.file))
        if is_written and find_spec(graph.package):
            graphs.append(side)
    fast = [side for side in TORCH if "float32" in side or cpu_has_fast_bfloat16()]
    return [*graphs, *fast, *([BASELINE] if job["baseline"] else [])]


class Streams:
    """An encoder of torch with one thread a core, each of which takes the next batch, the longest first."""

    def __init__(self, load: Callable[[], Any], threads: int) -> None:
        self.free = [load() for _ in range(threads)]
        self.pool = ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1))

    def encode(self, texts: list[str], *, batch_size: int, **options: Any) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda row: len(texts[row]), reverse=True)
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

        def encode_batch(rows: list[int]) -> np.ndarray:
            encoder = self.free.pop()
            vectors = encoder.encode([texts[row] for row in rows], batch_size=batch_size, **options)
            self.free.append(encoder)
            return vectors

        vectors = np.concatenate(list(self.pool.map(encode_batch, batches)))
        return vectors[np.argsort(order)]


def products_of(encoder: Any, encode: Callable[[], Any]) -> list[tuple[int, int, int]]:
    """Rows, inputs and outputs of the linear layers during a call."""
    shapes = []

    def keep(layer: Any, inputs: Any, output: Any) -> None:
        shapes.append((inputs[0].numel() // layer.in_features, layer.in_features, layer.out_features))

    layers = [module for module in encoder.modules() if isinstance(module, torch.nn.Linear)]
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    encode()
    for hook in hooks:
        hook.remove()
    return shapes


def seconds_of_products(shapes: list[tuple[int, int, int]], dtype: torch.dtype) -> float:
    weights = {shape[1:]: torch.randn(shape[2], shape[1]).to(dtype) for shape in shapes}
    inputs = {width: torch.randn(max(shape[0] for shape in shapes), width).to(dtype) for width, _ in weights}
    started = time.perf_counter()
    with torch.inference_mode():
        for rows, width, outputs in shapes:
            torch.nn.functional.linear(inputs[width][:rows], weights[width, outputs])
    return time.perf_counter() - started


def prepare(job: Job, chosen: list[str]) -> Step:
    source = {"path": job["pairs"], "columns": job["columns"] or None} if job["pairs"] else {"corpus": "bible"}
    rows = list(islice(open_source(Source.parse(source), languages=job["languages"], split="test"), job["limit"]))
    texts = [[row[side] for row in rows] for side in ("source", "target")]
    scratch = tempfile.TemporaryDirectory()
    folder = Path(job["export"] or Path(scratch.name) / "model")
    if not job["export"]:
        random_export(folder, job)
        write_onnx(folder, int8=True)
        if find_spec("openvino"):
            write_openvino(folder, int8=True)

    @cache
    def encoder_of(side: str) -> Any:
        if side in GRAPHS:
            return GraphEncoder(folder, GRAPHS[side], threads=job["threads"])
        place = job["baseline"] if side == BASELINE else str(folder)

        def load() -> SentenceTransformer:
            return SentenceTransformer(place, device="cpu", model_kwargs={"dtype": side.split()[1]})

        return Streams(load, job["threads"]) if side.endswith(STREAMS) else load()

    def encode(side: str, texts: list[list[str]]) -> list[np.ndarray]:
        pairs = zip(texts, job["languages"], strict=True)
        options = {"batch_size": job["batch"], "prompt": (job["prompt"] or None) if side == BASELINE else None}
        return [embed(encoder_of(side), part, language=code, **options) for part, code in pairs]

    shapes = products_of(encoder_of("torch float32"), lambda: encode("torch float32", texts))
    exact = encode("torch float32", texts)
    quality: dict[str, dict[str, float]] = {}
    for side in chosen:
        vectors = encode(side, texts)
        quality[side] = both_ways("accuracy", *right_both_ways(*vectors))[0]
        if side != BASELINE:
            cosines = np.concatenate([(one * base).sum(1) for one, base in zip(vectors, exact, strict=True)])
            quality[side] |= {"file_bytes": bytes_of(folder, side), "lowest_cosine": float(cosines.min())}

    def step(side: str, warm_up: bool) -> dict[str, float]:
        _ = scratch  # lives as long as the step
        started = time.perf_counter()
        encode(side, [part[:2] for part in texts] if warm_up else texts)
        figures = {"seconds": time.perf_counter() - started, **quality[side]}
        if side in TORCH and not warm_up:
            dtype = getattr(torch, side.split()[1])
            figures["of_limit"] = seconds_of_products(shapes, dtype) / figures["seconds"]
        return figures

    return step


def bytes_of(folder: Path, side: str) -> int:
    """The size of the files of a side; torch stores float32, of which bfloat16 takes half."""
    if side in GRAPHS:
        graph = FORMATS[GRAPHS[side]]
        files = list((folder / graph.folder).rglob(f"{Path(graph.file).stem}.*"))
    else:
        files = list(folder.rglob("*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    return size // 2 if "bfloat16" in side else size
