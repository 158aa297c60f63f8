"""The parts of an export by route, and encoding with its graphs, of ONNX or OpenVINO, on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_xlsr.data.collators import pad_rows
from hf_xlsr.encoders.arguments import EncodeMethods
from hf_xlsr.encoders.encoding import LONGEST
from hf_xlsr.encoders.graph_sessions import FORMATS, Batch, GraphSession
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.extras import require_package
from hf_xlsr.utils.files import inside, path_name, read_json

INPUTS = ("input_ids", "attention_mask")
PROMPT_LENGTH = "prompt_length"
"""Input of a graph whose pooling leaves out the prompt: the number of its tokens."""
GRAPH_MODULES = ("Pooling", "Dense", "LayerNorm", "Normalize", "Dropout", "WordWeights")
"""Modules that a graph may have behind the encoder, in any order. A `CNN` would read the padding."""


@dataclass(frozen=True)
class ExportPart:
    """One encoder of an export, in `folder` (empty for the export itself), and how it reads texts.

    `max_length` is None if only the tokenizer has a limit.
    """

    folder: str
    max_length: int | None = None
    lower_case: bool = False


def export_parts(export: str | Path) -> dict[str, ExportPart]:
    """The encoders of a folder of sentence-transformers by route, which is empty for a model without routes."""
    home = Path(export)
    if not (home / "modules.json").is_file():
        raise XlsrError(f"'{export}' must be a folder of sentence-transformers, but it has no modules.json.")

    modules = []
    for entry in read_json(home / "modules.json"):
        modules.append((entry["type"], inside(home, entry["path"])))

    first_type, first_folder = modules[0]
    if not first_type.endswith(".Router"):
        return {"": _part(home, modules)}

    router = read_json(home / first_folder / "router_config.json")
    types = router["types"]
    parts_by_route = {}
    for route, names in router["structure"].items():
        of_route = [(types[name], inside(home, first_folder, name)) for name in names]
        parts_by_route[path_name(route, "route")] = _part(home, of_route + modules[1:])
    return parts_by_route


def _part(home: Path, modules: Sequence[tuple[str, str]]) -> ExportPart:
    """The encoder whose modules, type and folder, are these; an error for what a graph cannot hold."""
    classes = [module_type.rpartition(".")[2] for module_type, _ in modules]
    folder = modules[0][1]
    if classes[0] != "Transformer" or "Pooling" not in classes or not set(classes[1:]) <= set(GRAPH_MODULES):
        raise XlsrError(
            f"'{home}' must be a Transformer with a Pooling behind it, for a graph only with modules of "
            f"{', '.join(GRAPH_MODULES)}, got {', '.join(classes)}."
        )

    settings = _settings(home / folder / "sentence_bert_config.json")
    if "message" in settings.get("modality_config", {}):
        raise XlsrError(f"'{home}' reads texts as messages of a chat, which graphs do not.")
    return ExportPart(folder, settings.get("max_seq_length"), settings.get("do_lower_case", False))


def _settings(file: Path) -> Any:
    """The content of a file of settings; empty without one."""
    return read_json(file) if file.is_file() else {}


@dataclass(frozen=True)
class GraphModel:
    """The graph of one encoder, with its tokenizer and the number of tokens that it reads."""

    session: GraphSession
    tokenizer: Any
    max_length: int

    def token_ids(self, texts: list[str]) -> list[list[int]]:
        encoded = self.tokenizer(texts, truncation=True, max_length=self.max_length, verbose=False)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def prompt_length(self, prompt: str) -> int:
        """Tokens of a prompt with the special token before it, as sentence-transformers counts them."""
        if not prompt:
            return 0
        (ids,) = self.token_ids([prompt])
        ends_specially = ids[-1:] and ids[-1] in self.tokenizer.all_special_ids
        return len(ids) - bool(ends_specially)

    def batch(self, rows: list[list[int]], prompt_length: int = 0) -> Batch:
        """Inputs of the graph from rows of token ids."""
        inputs = dict(zip(INPUTS, pad_rows(rows, self.tokenizer.pad_token_id), strict=True))
        if PROMPT_LENGTH in self.session.inputs:
            inputs[PROMPT_LENGTH] = np.array([prompt_length])
        return inputs


class GraphEncoder(EncodeMethods):
    """Encoder for evaluation and mining that runs the graphs that `hf-xlsr export` wrote to the folder of an export.

    `dtype` is `onnx`, `onnx-int8`, `openvino` or `openvino-int8`; `threads` are by default as many as cores. `routes` are
    the languages of a model with an encoder for each: `encode(sentences, task="zh")`.
    """

    device = "cpu"

    def __init__(
        self,
        export: str | Path,
        dtype: str = "onnx",
        *,
        threads: int | None = None,
    ) -> None:
        from transformers import AutoTokenizer

        require_choice("dtype", dtype, FORMATS)
        graph_format = FORMATS[dtype]
        require_package(graph_format.package)
        home = Path(export)
        config = _settings(home / "config_sentence_transformers.json")
        self.truncate_dim = config.get("truncate_dim")
        # sentence-transformers adds these two when it loads a model.
        self.prompts: dict[str, str] = {"query": "", "document": "", **(config.get("prompts") or {})}
        self.default_prompt_name: str | None = config.get("default_prompt_name")

        self.models: dict[str, GraphModel] = {}
        for route, export_part in export_parts(home).items():
            file = home / graph_format.folder / route / graph_format.file
            if not file.is_file():
                raise XlsrError(f"'{file}' is missing. Write it with `hf-xlsr export ... {graph_format.options}`.")
            session = graph_format.session(file, threads)
            tokenizer = load_auto(AutoTokenizer, str(home / export_part.folder))
            if export_part.lower_case:
                _lower_case(tokenizer.backend_tokenizer)
            max_length = min(tokenizer.model_max_length, export_part.max_length or LONGEST, LONGEST)
            self.models[route] = GraphModel(session, tokenizer, int(max_length))

        self.routes = tuple(filter(None, self.models))
        self.precision = "int8" if dtype.endswith("int8") else session.precision

    @property
    def max_seq_length(self) -> int:
        """Tokens that sentences are truncated to; the most of any encoder."""
        return max(model.max_length for model in self.models.values())

    def get_embedding_dimension(self) -> int:
        first_model = next(iter(self.models.values()))
        return self.truncate_dim or first_model.session.width

    def vectors_of(
        self,
        texts: list[str],
        *,
        prompt: str,
        task: str | None,
        **options: Any,
    ) -> np.ndarray:
        """Embeddings of the whole width, computed on the CPU, the longest texts first."""
        from tqdm import tqdm

        require_choice("device", str(options.get("device", self.device)), [self.device])
        route = task if task and self.routes else ""
        require_choice("task", route, self.models)
        model = self.models[route]

        ids = model.token_ids([prompt + text for text in texts])
        prompt_length = model.prompt_length(prompt)
        longest_first = sorted(range(len(ids)), key=lambda row: len(ids[row]), reverse=True)

        # Every stream gets a batch, also of few texts.
        batch_size = min(options["batch_size"], math.ceil(len(ids) / model.session.streams))
        starts = range(0, len(ids), batch_size)

        def batches() -> Iterator[Batch]:
            for start in tqdm(starts, desc="encoding", disable=not options["show_progress_bar"]):
                rows = longest_first[start : start + batch_size]
                yield model.batch([ids[row] for row in rows], prompt_length)

        vectors = np.empty((len(texts), model.session.width), np.float32)
        vectors[longest_first] = np.concatenate(model.session.embed(batches()))
        return vectors


def _lower_case(backend: Any) -> None:
    """Lets a tokenizer lower texts first, as sentence-transformers does for `do_lower_case`."""
    from tokenizers import normalizers

    steps = [normalizers.Lowercase()]
    if backend.normalizer is not None:
        steps.append(backend.normalizer)
    backend.normalizer = normalizers.Sequence(steps)
