"""Runs the graph of a sentence encoder on the CPU, by onnxruntime or OpenVINO."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_xlsr.utils.devices import cpu_has_fast_bfloat16
from hf_xlsr.utils.extras import import_without_telemetry

OUTPUT = "sentence_embedding"
STATES = "last_hidden_state"
PRECISION_HINTS = {"float32": "f32", "bfloat16": "bf16"}
Batch = Mapping[str, np.ndarray]
"""Inputs of a graph by name."""


class GraphSession(ABC):
    """A loaded graph: the names of its `inputs`, the `width` of its embeddings, and batches at a time (`streams`).

    `precision` is what it computes in, apart from layers in int8.
    """

    inputs: tuple[str, ...]
    width: int
    streams = 1
    precision = "float32"

    @abstractmethod
    def __init__(self, file: Path, threads: int | None = None, *, exact: bool = False) -> None:
        """Loads the file for `threads` cores, by default all; `exact` computes in float32 on every processor."""

    @abstractmethod
    def embed(self, batches: Iterable[Batch]) -> list[np.ndarray]:
        """The embeddings of each batch, `(rows, width)`, float32, in the order of the batches."""


class OnnxSession(GraphSession):
    """A graph of onnxruntime: one batch at a time, on all cores."""

    def __init__(self, file: Path, threads: int | None = None, *, exact: bool = False) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors only
        options.intra_op_num_threads = threads or 0
        self._session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

        self.inputs = tuple(graph_input.name for graph_input in self._session.get_inputs())
        shapes = {output.name: output.shape for output in self._session.get_outputs()}
        self.width = int(shapes[OUTPUT][1])

    def embed(self, batches: Iterable[Batch]) -> list[np.ndarray]:
        return [self._session.run([OUTPUT], dict(batch))[0] for batch in batches]


class OpenvinoSession(GraphSession):
    """A graph of OpenVINO: as many batches at a time as cores, in bfloat16 where the processor multiplies it."""

    def __init__(self, file: Path, threads: int | None = None, *, exact: bool = False) -> None:
        openvino = import_without_telemetry("openvino")
        if cpu_has_fast_bfloat16() and not exact:
            self.precision = "bfloat16"

        cores = threads or torch.get_num_threads()
        options = {
            "INFERENCE_NUM_THREADS": cores,
            "NUM_STREAMS": cores,
            "INFERENCE_PRECISION_HINT": PRECISION_HINTS[self.precision],
            "ENABLE_CPU_PINNING": False,  # two processes would share the cores of one
        }
        self._model = openvino.Core().compile_model(str(file), "CPU", options)
        self.streams = int(self._model.get_property("NUM_STREAMS"))  # not more than cores
        self.inputs = tuple(graph_input.get_any_name() for graph_input in self._model.inputs)
        self.width = self._model.output(OUTPUT).partial_shape[1].get_length()

    def embed(self, batches: Iterable[Batch]) -> list[np.ndarray]:
        # Without `AsyncInferQueue`: a thread that is still in its callback, which is Python, stops the end of the model.
        requests = deque(self._model.create_infer_request() for _ in range(self.streams))
        running: deque[Any] = deque()
        embeddings = []
        for batch in batches:
            if not requests:
                requests.append(running.popleft())
                embeddings.append(_finished(requests[0]))
            request = requests.popleft()
            request.start_async(dict(batch))
            running.append(request)

        return embeddings + [_finished(request) for request in running]


def _finished(request: Any) -> np.ndarray:
    """The embeddings of a batch, when they are there."""
    request.wait()
    embeddings: np.ndarray = request.get_tensor(OUTPUT).data.copy()
    return embeddings


@dataclass(frozen=True)
class GraphFormat:
    """One kind of graph in an export: its folder and file, what runs it, and the options of `export` that write it."""

    folder: str
    file: str
    package: str
    session: type[GraphSession]
    options: str


FORMATS = {
    "onnx": GraphFormat("onnx", "model.onnx", "onnxruntime", OnnxSession, "--onnx"),
    "onnx-int8": GraphFormat("onnx", "model_quantized.onnx", "onnxruntime", OnnxSession, "--onnx --int8"),
    "openvino": GraphFormat("openvino", "openvino_model.xml", "openvino", OpenvinoSession, "--openvino"),
    "openvino-int8": GraphFormat(
        "openvino",
        "openvino_model_qint8_quantized.xml",
        "openvino",
        OpenvinoSession,
        "--openvino --int8",
    ),
}
"""The graphs by `dtype`, with the names that transformers.js and sentence-transformers expect."""
