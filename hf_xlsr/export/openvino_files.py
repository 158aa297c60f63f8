"""OpenVINO files in an export: the graphs of its ONNX files, in float32 and in int8."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.encoders.graph_sessions import OUTPUT, STATES
from hf_xlsr.encoders.graphs import GraphEncoder
from hf_xlsr.export.onnx_files import OnnxWriter, SentenceGraph, graph_file, write_graph
from hf_xlsr.utils.extras import import_without_telemetry, require_package


def write_openvino(export: str | Path, *, int8: bool = False) -> dict[str, dict[str, Any]]:
    """Writes `openvino/openvino_model.xml` and `openvino/openvino_model_qint8_quantized.xml`, each with a `.bin` file.

    Folders by route, inputs, outputs, the report and the errors are those of `write_onnx`. But `last_hidden_state` are
    the states of the encoder alone, as sentence-transformers runs the modules behind it. In the quantised file weights
    and activations of linear layers are int8; their ranges are those of the sentences that the report is about.
    """
    require_package("openvino", "onnx", "onnxscript", *(["nncf"] if int8 else []))
    return OpenvinoWriter().write(export, int8=int8)


class OpenvinoWriter(OnnxWriter):
    """Writes the OpenVINO files of an export, and compares them with torch."""

    dtype = "openvino"
    linear_first = False

    def write_float(self, graph: SentenceGraph, file: Path) -> None:
        openvino = import_without_telemetry("openvino")
        with TemporaryDirectory() as folder:
            onnx_file = Path(folder, "model.onnx")
            write_graph(graph, onnx_file)
            model = openvino.Core().read_model(onnx_file)
            openvino.save_model(model, file, compress_to_fp16=False)

    def write_int8(self, export: str | Path, route: str, texts: list[str]) -> None:
        openvino = import_without_telemetry("openvino")
        nncf = import_without_telemetry("nncf")
        encoder = GraphEncoder(export, self.dtype)
        graph = encoder.models[route]
        prompt = PromptTable.of(encoder).text()
        prompt_length = graph.prompt_length(prompt)
        batches = [graph.batch(graph.token_ids([prompt + text]), prompt_length) for text in texts]

        # Half of the range of weights, as processors without VNNI add products of eight bits in sixteen.
        overflow_fix = nncf.AdvancedQuantizationParameters(overflow_fix=nncf.OverflowFix.ENABLE)
        exact = openvino.Core().read_model(graph_file(export, self.dtype, route))
        # Pooling and what is behind it see one vector a text: int8 would lose precision there and save no time.
        states, embeddings = [_computing_node(exact, output) for output in (STATES, OUTPUT)]
        behind_states = nncf.Subgraph(inputs=[states], outputs=[embeddings])
        quantised = nncf.quantize(
            exact,
            nncf.Dataset(batches),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(batches),
            ignored_scope=nncf.IgnoredScope(names=_single_rows(exact), subgraphs=[behind_states]),
            advanced_parameters=overflow_fix,
        )
        file = graph_file(export, f"{self.dtype}-int8", route)
        openvino.save_model(quantised, file, compress_to_fp16=False)


def _computing_node(model: Any, output: str) -> str:
    """The name of the node whose values a graph gives as one of its outputs."""
    name: str = model.output(output).get_node().input_value(0).get_node().get_friendly_name()
    return name


def _single_rows(model: Any) -> list[str]:
    """The names of the nodes that look up tables of one row, such as a single token type.

    OpenVINO computes them when it loads a model, and fails if they are int8.
    """
    names = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Gather" and list(node.input_value(0).get_partial_shape())[:1] == [1]:
            names.append(node.get_friendly_name())
    return names
