"""The parts of an export by route, and encoding with its ONNX files by onnxruntime on the CPU."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.data.collators import pad_rows
from hf_xlsr.encoders.arguments import EncodeMethods
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.extras import require_package

FLOAT_FILE, INT8_FILE = "model.onnx", "model_quantized.onnx"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "sentence_embedding"
LONGEST = 2**20  # tokens; a greater `model_max_length` means that the tokenizer has none


@dataclass(frozen=True)
class ExportPart:
    """One encoder of an export, in `folder` (empty for the export itself), and the modules after it.

    `layers` are their classes and folders, in order; `max_length` is None if only the tokenizer has a limit.
    """

    folder: str
    layers: tuple[tuple[str, str], ...]
    max_length: int | None = None


def export_parts(export: str | Path) -> dict[str, ExportPart]:
    """The encoders of a folder of sentence-transformers by route, which is empty for a model without routes."""
    home = Path(export)
    if not (home / "modules.json").is_file():
        raise XlsrError(f"'{export}' must be a folder of sentence-transformers, but it has no modules.json.")
    modules = [(_name(module["type"]), _inside(home, module["path"])) for module in _json(home / "modules.json")]
    (first, folder), rest = modules[0], modules[1:]
    if first != "Router":
        return {"": _part(home, modules)}
    router = _json(home / folder / "router_config.json")
    parts = {}
    for route, names in router["structure"].items():
        own = [(_name(router["types"][name]), _inside(home, folder, name)) for name in names]
        parts[_inside(home, route)] = _part(home, own + rest)
    return parts


def _part(home: Path, modules: list[tuple[str, str]]) -> ExportPart:
    names = [name for name, _ in modules]
    if names[:2] != ["Transformer", "Pooling"] or not set(names[2:]) <= {"Dense", "Normalize"}:
        raise XlsrError(f"'{home}' must be a Transformer, Pooling, then Dense and Normalize, got {', '.join(names)}.")
    folder = modules[0][1]
    settings = _json(home / folder / "sentence_bert_config.json")
    if "message" in settings.get("modality_config", {}):
        raise XlsrError(f"'{home}' reads texts as messages of a chat, which ONNX files do not.")
    if settings.get("do_lower_case") or not _json(home / modules[1][1] / "config.json").get("include_prompt", True):
        raise XlsrError(
            f"'{home}' has do_lower_case, or include_prompt: false in its pooling, which ONNX files ignore."
        )
    return ExportPart(folder, tuple(modules[1:]), settings.get("max_seq_length"))


def _name(module_type: str) -> str:
    return module_type.rpartition(".")[2]


def _inside(home: Path, *names: str) -> str:
    """A path inside the export, where files will be written."""
    place = Path(*names)
    if place.is_absolute() or ".." in place.parts:
        raise XlsrError(f"Modules must be inside of '{home}', got '{place}'.")
    return "" if place == Path() else place.as_posix()


def _json(file: Path) -> Any:
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


class OnnxEncoder(EncodeMethods):
    """Encoder for evaluation and mining that runs the files that `write_onnx` wrote to the folder of an export.

    `int8` chooses `model_quantized.onnx`; `threads` are by default as many as cores. `routes` are the languages of a
    model with an encoder for each: `encode(sentences, task="zh")`.
    """

    device = "cpu"

    def __init__(self, export: str | Path, *, int8: bool = False, threads: int | None = None) -> None:
        from transformers import AutoTokenizer

        require_package("onnxruntime")
        home, parts = Path(export), export_parts(export)
        config = _json(home / "config_sentence_transformers.json")
        self.truncate_dim = config.get("truncate_dim")
        # sentence-transformers adds these two when it loads a model.
        self.prompts: dict[str, str] = {"query": "", "document": "", **(config.get("prompts") or {})}
        self.default_prompt_name: str | None = config.get("default_prompt_name")
        self.precision = "int8" if int8 else "float32"
        self.routes = tuple(route for route in parts if route)
        self._sessions, self._tokenizers, self._lengths = {}, {}, {}
        for route, part in parts.items():
            file = home / "onnx" / route / (INT8_FILE if int8 else FLOAT_FILE)
            if not file.is_file():
                option = "--int8" if int8 else "--onnx"
                raise XlsrError(f"'{file}' is missing. Write it with `hf-xlsr export ... {option}`.")
            self._sessions[route] = onnx_session(file, threads)
            tokenizer = self._tokenizers[route] = load_auto(AutoTokenizer, str(home / part.folder))
            limit = min(int(tokenizer.model_max_length), LONGEST)  # 1e30 if it has none
            self._lengths[route] = limit if part.max_length is None else min(limit, part.max_length)

    @property
    def max_seq_length(self) -> int:
        """Tokens that sentences are truncated to; the most of any encoder."""
        return max(self._lengths.values())

    def get_embedding_dimension(self) -> int:
        outputs = next(iter(self._sessions.values())).get_outputs()
        return self.truncate_dim or int(next(output for output in outputs if output.name == OUTPUT).shape[1])

    def vectors_of(self, texts: list[str], *, prompt: str, task: str | None, **options: Any) -> np.ndarray:
        """Embeddings of the whole width, computed on the CPU, the longest texts first."""
        from tqdm import tqdm

        require_choice("device", str(options.get("device", self.device)), [self.device])
        route = (task or "") if self.routes else ""
        require_choice("task", route, self._sessions)
        tokenizer, session = self._tokenizers[route], self._sessions[route]
        limits: dict[str, Any] = {"truncation": True, "max_length": self._lengths[route], "verbose": False}
        ids = tokenizer([prompt + text for text in texts], **limits)["input_ids"]
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))

        batch_size = options["batch_size"]
        width = int(next(output for output in session.get_outputs() if output.name == OUTPUT).shape[1])
        vectors = np.empty((len(texts), width), np.float32)
        starts = range(0, len(ids), batch_size)
        for start in tqdm(starts, desc="encoding", disable=not options["show_progress_bar"]):
            rows = order[start : start + batch_size]
            batch = pad_rows([ids[row] for row in rows], tokenizer.pad_token_id)
            vectors[rows] = session.run([OUTPUT], dict(zip(INPUTS, batch, strict=True)))[0]
        return vectors


def onnx_session(file: Path, threads: int | None = None) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, threads or 0
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
