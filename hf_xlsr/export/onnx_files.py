"""ONNX files in an export: token ids to sentence embeddings in one graph, in float32 and in int8."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import Dense, Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.onnx import OnnxExporterError

from hf_xlsr.encoders.heads import run_head
from hf_xlsr.encoders.onnx import FLOAT_FILE, INPUTS, INT8_FILE, OUTPUT, ExportPart, export_parts, onnx_session
from hf_xlsr.encoders.stock import encoder_from_pretrained, max_positions
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

TOLERANCE = 1e-4
_LAYERS: dict[str, Any] = {"Dense": Dense, "Normalize": Normalize}


class SentenceGraph(nn.Module):
    """One encoder of an export with the modules after it, in float32.

    Linear layers behind mean or first-token pooling give the same before it, so the states have them too: transformers.js
    pools and normalises `last_hidden_state`. Behind max pooling only `sentence_embedding` is right.
    """

    def __init__(self, export: Path, part: ExportPart) -> None:
        super().__init__()
        self.encoder = encoder_from_pretrained(str(export / part.folder), place="the encoder of the export")
        (_, pooling), *layers = part.layers
        self.pooling = Pooling.load(str(export), subfolder=pooling)
        self.layers = nn.ModuleList(_LAYERS[kind].load(str(export), subfolder=folder) for kind, folder in layers)

        activations = [layer.activation_function for layer in self.layers if isinstance(layer, Dense)]
        is_linear = all(isinstance(activation, nn.Identity) for activation in activations)
        self.before_pooling = 0
        if is_linear and self.pooling.pooling_mode in ("mean", "cls"):
            self.before_pooling = len(list(takewhile(lambda layer: isinstance(layer, Dense), self.layers)))
        self.eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token states, `(batch, length, width)`, and sentence embeddings, `(batch, width)`."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        for layer in self.layers[: self.before_pooling]:
            states = layer({"sentence_embedding": states})["sentence_embedding"]
        features = {"token_embeddings": states, "attention_mask": attention_mask}
        head = [self.pooling, *self.layers[self.before_pooling :]]
        return states, run_head(head, features, normalize=True)


def write_onnx(export: str | Path, *, int8: bool = False) -> dict[str, dict[str, float]]:
    """Writes `onnx/model.onnx` and `onnx/model_quantized.onnx` to an export, in a folder per route if it has routes.

    A graph takes `input_ids` and `attention_mask`, `(batch, length)` int64 of any size, and returns
    `last_hidden_state`, `(batch, length, width)`, and `sentence_embedding`, `(batch, width)`, both float32; it includes
    pooling, linear layers and normalisation. In the quantised file the token embeddings and the weights of linear layers
    are int8, of which seven bits are used, so that processors without VNNI do not overflow.

    Returns by route (empty without routes) `difference`, the largest from torch, and `cosine_int8`, the lowest with
    torch, both on random token ids.
    """
    require_package("onnx", "onnxscript", "onnxruntime")
    report = {}
    for route, part in export_parts(export).items():
        graph = SentenceGraph(Path(export), part)
        folder = Path(export, "onnx", route)
        folder.mkdir(parents=True, exist_ok=True)
        batches = _batches(graph.encoder)
        with torch.no_grad():
            expected = torch.cat([graph(*batch)[1] for batch in batches])

        architecture = graph.encoder.config.model_type
        try:
            with _quiet():
                _write_graph(graph, folder / FLOAT_FILE)
        except (RuntimeError, OnnxExporterError) as error:
            raise XlsrError(
                f"torch has no ONNX graph for '{export}': architecture '{architecture}' is unsupported."
            ) from error
        difference = float((expected - _run(folder / FLOAT_FILE, batches)).abs().max())
        if not difference <= TOLERANCE:
            raise XlsrError(
                f"Embeddings of the ONNX graph must equal torch's, got a difference of {difference:.1e}: architecture "
                f"'{architecture}' is unsupported."
            )
        report[route] = {"difference": difference}

        if int8:
            with _quiet():
                _write_int8(folder / FLOAT_FILE, folder / INT8_FILE)
            cosines = torch.cosine_similarity(expected, _run(folder / INT8_FILE, batches))
            report[route]["cosine_int8"] = float(cosines.min())
    return report


def _write_graph(graph: SentenceGraph, file: Path) -> None:
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    program = torch.onnx.export(
        graph,
        kwargs=dict(zip(INPUTS, _batches(graph.encoder)[0], strict=True)),
        input_names=list(INPUTS),
        output_names=["last_hidden_state", OUTPUT],
        dynamic_shapes=dict.fromkeys(INPUTS, sizes),
        dynamo=True,
        verbose=False,
    )
    assert program is not None  # as `dynamo` is set
    program.save(str(file))


def _write_int8(source: Path, file: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    # onnxruntime transposes weights, to which the shapes stored by torch no longer apply.
    del model.graph.value_info[:]
    # Graphs of more than 2 GiB store their weights in separate files.
    large = any(source.parent.glob(f"{source.name}*.data"))
    quantize_dynamic(
        model,
        file,
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
        use_external_data_format=large,
    )


def _batches(encoder: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random sentences: a padded batch, a long one, and two of a single token."""
    generator = torch.Generator().manual_seed(0)
    positions = max_positions(encoder) or 64
    vocab_size = int(encoder.config.vocab_size)
    padding = getattr(encoder.config, "pad_token_id", None) or 0
    batches = []
    for rows, length in ((3, min(7, positions)), (1, min(64, positions)), (2, 1)):
        ids = torch.randint(vocab_size // 2, vocab_size, (rows, length), generator=generator)
        mask = torch.ones_like(ids)
        if rows > 1 and length > 1:
            mask[1, length // 2 :] = 0
        batches.append((ids.masked_fill(mask == 0, padding), mask))
    return batches


def _run(file: Path, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """The sentence embeddings of all batches by the graph in a file."""
    session = onnx_session(file)
    embeddings = []
    for batch in batches:
        arrays = [tensor.numpy() for tensor in batch]
        embeddings += session.run([OUTPUT], dict(zip(INPUTS, arrays, strict=True)))
    return torch.from_numpy(np.concatenate(embeddings))


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides warnings of torch and onnxruntime about their internals."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
