"""Encoding with the ONNX files of an export, by onnxruntime on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.data.collators import pad_rows
from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.encoders.parts import export_parts
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.pretrained import load_auto

FLOAT_FILE, INT8_FILE = "model.onnx", "model_quantized.onnx"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"
LONGEST = 2**20  # tokens; a greater `model_max_length` means that the tokenizer has none


class OnnxEncoder:
    """Encoder for evaluation and mining that runs the files of `write_onnx`.

    `routes` are the languages of a model with an encoder for each: `encode(sentences, task="zh")`.

    Args:
        export: Folder of the export.
        int8: Use `model_quantized.onnx`.
        threads: Threads of onnxruntime; the number of cores if None.
    """

    device = "cpu"

    def __init__(self, export: str | Path, *, int8: bool = False, threads: int | None = None) -> None:
        from transformers import AutoTokenizer

        require_package("onnxruntime")
        home, parts = Path(export), export_parts(export)
        self.precision = "int8" if int8 else "float32"
        self.routes = tuple(route for route in parts if route)
        self._sessions, self._tokenizers, self._lengths = {}, {}, {}
        for route, part in parts.items():
            file = route_folder(home, route) / (INT8_FILE if int8 else FLOAT_FILE)
            if not file.is_file():
                option = "--int8" if int8 else "--onnx"
                raise XlsrError(f"'{file}' is missing. Write it with `hf-xlsr export ... {option}`.")
            self._sessions[route] = onnx_session(file, threads)
            tokenizer = self._tokenizers[route] = load_auto(AutoTokenizer, str(home / part.folder))
            limit = int(tokenizer.model_max_length)  # 1e30 if it has none
            if limit > LONGEST and part.max_length is None:
                limit = _positions(home / part.folder) or LONGEST
            self._lengths[route] = limit if part.max_length is None else min(limit, part.max_length)

    @property
    def max_seq_length(self) -> int:
        """Tokens that sentences are truncated to; the most of any encoder."""
        return max(self._lengths.values())

    def get_embedding_dimension(self) -> int:
        outputs = next(iter(self._sessions.values())).get_outputs()
        return int(next(output for output in outputs if output.name == OUTPUT).shape[1])

    def encode(
        self,
        sentences: str | Sequence[str],
        batch_size: int = 32,
        show_progress_bar: bool = False,
        normalize_embeddings: bool = False,
        task: str | None = None,
        **_: Any,
    ) -> np.ndarray:
        """Embeddings, `(sentences, width)` or, of a single text, `(width,)`, float32; other options are ignored."""
        from tqdm import tqdm

        if isinstance(sentences, str):
            single: np.ndarray = self.encode([sentences], normalize_embeddings=normalize_embeddings, task=task)[0]
            return single
        route = (task or "") if self.routes else ""
        require_choice("task", route, self._sessions)
        tokenizer, session = self._tokenizers[route], self._sessions[route]
        vectors = np.empty((len(sentences), self.get_embedding_dimension()), np.float32)
        options: dict[str, Any] = {"truncation": True, "max_length": self._lengths[route], "verbose": False}
        ids = tokenizer(list(sentences), **options)["input_ids"] if len(sentences) else []
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        for start in tqdm(range(0, len(ids), batch_size), desc="encoding", disable=not show_progress_bar):
            rows = order[start : start + batch_size]
            batch = pad_rows([ids[row] for row in rows], tokenizer.pad_token_id)
            vectors[rows] = session.run([OUTPUT], dict(zip(INPUTS, batch, strict=True)))[0]
        return unit_length(vectors) if normalize_embeddings else vectors


def _positions(folder: Path) -> int | None:
    """Most tokens that an encoder takes, by a copy without weights."""
    import torch
    from transformers import AutoConfig

    from hf_xlsr.encoders.stock import encoder_from_config, max_positions

    with torch.device("meta"):
        return max_positions(encoder_from_config(load_auto(AutoConfig, str(folder))))


def route_folder(export: Path, route: str) -> Path:
    """Folder of the files of a route, which is empty for a model without routes."""
    return export / "onnx" / route if route else export / "onnx"


def onnx_session(file: Path, threads: int | None = None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if threads:
        options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
