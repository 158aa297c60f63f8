"""ONNX files inside an export: from pieces to sentence vectors in one graph, in float32 and in int8."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig

from hf_xlsr.encoders.onnx import FLOAT_FILE, INPUTS, INT8_FILE, OUTPUT, import_onnx, onnx_session, route_folder
from hf_xlsr.encoders.parts import EncoderPart, export_parts
from hf_xlsr.encoders.stock import max_positions
from hf_xlsr.export.inference import SentenceEncoder
from hf_xlsr.utils.errors import XlsrError, error_line

TOLERANCE = 1e-4


class _Graph(nn.Module):
    def __init__(self, encoder: SentenceEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask)
        return output.pooler_output


def write_onnx(export: str | Path, *, int8: bool = False) -> dict[str, dict[str, float]]:
    """Writes `onnx/model.onnx` into an export, and `onnx/model_int8.onnx`; with routes a folder in `onnx` for each.

    A graph takes `input_ids` and `attention_mask`, `(batch, length)` int64 of any size, and gives `sentence_embedding`,
    `(batch, width)` float32: pooling, projection and normalisation are inside. In int8 are the weights of linear layers,
    channel by channel, and the embeddings; activations are quantised as they come; CMLM's projections stay as they are.
    Every file is run against torch before this returns.

    Args:
        export: A folder that sentence-transformers has written.
        int8: Write the small files too.

    Returns:
        By route (an empty name without): `difference`, the largest from torch, and `cosine_int8`, the lowest with it;
        both on made-up sentences.

    Raises:
        XlsrError: a package is missing, the modules are others than this package writes, or the graph gives other
            vectors than torch.
    """
    import_onnx("onnx", "onnxscript", "onnxruntime")
    home, report = Path(export), {}
    for route, part in export_parts(home).items():
        encoder = sentence_encoder(home, part)
        folder = route_folder(home, route)
        folder.mkdir(parents=True, exist_ok=True)
        batches = _batches(encoder)
        with torch.no_grad():
            expected = [encoder(*batch).pooler_output.numpy() for batch in batches]
        with _quiet():
            _write_graph(encoder, folder / FLOAT_FILE)
        found = _run(folder / FLOAT_FILE, batches)
        difference = max(float(np.abs(one - other).max()) for one, other in zip(expected, found, strict=True))
        if not difference <= TOLERANCE:
            raise XlsrError(
                f"the graph of '{home}' gives vectors that are {difference:.1e} away from torch's; architecture "
                f"'{encoder.config.model_type}' does not export to ONNX here."
            )
        report[route] = {"difference": difference}
        if int8:
            with _quiet():
                _write_int8(folder / FLOAT_FILE, folder / INT8_FILE)
            report[route]["cosine_int8"] = _lowest_cosine(expected, _run(folder / INT8_FILE, batches))
    return report


def sentence_encoder(export: str | Path, part: EncoderPart) -> SentenceEncoder:
    """One encoder of an export with its pooling, in evaluation mode and float32.

    Args:
        export: The folder.
        part: From `export_parts`.

    Raises:
        XlsrError: it does not load.
    """
    config = AutoConfig.from_pretrained(export, subfolder=part.folder)
    config.sentence_encoder = part.section
    try:
        encoder: SentenceEncoder = SentenceEncoder.from_pretrained(
            export, subfolder=part.folder, config=config, dtype=torch.float32
        )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        reason = error_line(error, 300)
        raise XlsrError(
            f"the encoder of '{export}' does not load outside of sentence-transformers: {reason}"
        ) from None
    return encoder


def _write_graph(encoder: SentenceEncoder, file: Path) -> None:
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    ids, mask = _batches(encoder)[0]
    program = torch.onnx.export(
        _Graph(encoder),
        kwargs=dict(zip(INPUTS, (ids, mask), strict=True)),
        input_names=list(INPUTS),
        output_names=[OUTPUT],
        dynamic_shapes=dict.fromkeys(INPUTS, sizes),
        dynamo=True,
        verbose=False,
    )
    if program is None:
        raise XlsrError("torch gave no ONNX graph; use torch 2.11 or newer.")
    program.save(str(file))


def _write_int8(source: Path, file: Path) -> None:
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(source)
    # onnxruntime turns weights round and would stumble over the shapes that torch has noted of them.
    del model.graph.value_info[:]
    # Graphs of more than 2 GiB keep their weights beside them.
    large = any(source.parent.glob(f"{source.name}*.data"))
    stacked = {weight.name for weight in model.graph.initializer if len(weight.dims) > 2}
    quantize_dynamic(
        model,
        file,
        per_channel=True,
        # Processors with AVX2 and no VNNI add pairs of unsigned times signed products in 16 bits, which overflow.
        weight_type=QuantType.QUInt8,
        nodes_to_exclude=[node.name for node in model.graph.node if stacked.intersection(node.input)],
        use_external_data_format=large,
    )


def _batches(encoder: SentenceEncoder) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Made-up sentences of several sizes: a batch, one long sentence, one of a single piece."""
    generator = torch.Generator().manual_seed(0)
    positions, pieces = max_positions(encoder.encoder) or 64, int(encoder.config.vocab_size)
    batches = []
    for rows, length in ((3, min(7, positions)), (1, min(64, positions)), (2, 1)):
        ids = torch.randint(pieces // 2, pieces, (rows, length), generator=generator)
        mask = torch.ones_like(ids)
        if rows > 1 and length > 1:
            mask[1, length // 2 :] = 0
        padding = getattr(encoder.config, "pad_token_id", None) or 0
        batches.append((ids.masked_fill(mask == 0, padding), mask))
    return batches


def _run(file: Path, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> list[np.ndarray]:
    session = onnx_session(file)
    feeds = (dict(zip(INPUTS, (one.numpy() for one in batch), strict=True)) for batch in batches)
    return [session.run([OUTPUT], feed)[0] for feed in feeds]


def _lowest_cosine(ones: list[np.ndarray], others: list[np.ndarray]) -> float:
    first, second = np.concatenate(ones), np.concatenate(others)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(((first * second).sum(1) / lengths).min())


@contextmanager
def _quiet() -> Iterator[None]:
    """Leaves out what torch and onnxruntime remark about their own insides."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
