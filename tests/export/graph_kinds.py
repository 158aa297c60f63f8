"""The libraries that run graphs: what writes their files, and encoders in float32 on every processor."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hf_xlsr.encoders import graph_sessions
from hf_xlsr.encoders.graphs import GraphEncoder
from hf_xlsr.export.onnx_files import write_onnx
from hf_xlsr.export.openvino_files import write_openvino
from hf_xlsr.utils.extras import EXTRAS

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package)

WRITERS = {"onnx": write_onnx, "openvino": write_openvino}
NO_OPENVINO = any(find_spec(package) is None for package, extra in EXTRAS.items() if extra == "openvino")
KINDS: list[Any] = [
    "onnx",
    pytest.param("openvino", marks=pytest.mark.skipif(NO_OPENVINO, reason="needs the extra openvino")),
]


def cases(names: Iterable[Any], converted: Collection[Any]) -> list[Any]:
    """Kinds with names: OpenVINO's files are converted from those of ONNX, so `converted` names are enough of it."""
    onnx, openvino = KINDS
    marks = openvino.marks
    return [(onnx, name) for name in names] + [pytest.param("openvino", name, marks=marks) for name in converted]


def exact_encoder(folder: Path, dtype: str) -> GraphEncoder:
    """The encoder with two threads, of which each may have a stream."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_sessions, "cpu_has_fast_bfloat16", lambda: False)
        return GraphEncoder(folder, dtype, threads=2)
