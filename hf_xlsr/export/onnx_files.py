"""ONNX files in an export: token ids to sentence embeddings in one graph, in float32 and in int8."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import nn
from torch.onnx import OnnxExporterError

from hf_xlsr.data.sources import as_list
from hf_xlsr.encoders.assembly import EncoderPart, SentenceEncoder
from hf_xlsr.encoders.encoding import unit_length
from hf_xlsr.encoders.graph_sessions import FORMATS, OUTPUT, STATES
from hf_xlsr.encoders.graphs import INPUTS, PROMPT_LENGTH, GraphEncoder, export_parts
from hf_xlsr.encoders.heads import run_head
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.stock import max_positions
from hf_xlsr.export.sample_texts import sample_texts
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import require_package

TOLERANCE = 1e-4
LINEAR_POOLINGS = ("mean", "cls")


class PromptlessPooling(nn.Module):
    """A pooling that leaves out the prompt, in a graph, where the number of the prompt's tokens is a tensor, `(1,)`."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        modes = as_list(pooling.pooling_mode)
        self.poolings = nn.ModuleList(Pooling(pooling.embedding_dimension, mode) for mode in modes)

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        mask = features["attention_mask"]
        positions = mask.cumsum(1)
        counted = mask * (positions > features[PROMPT_LENGTH])

        vectors = []
        for pooling in self.poolings:
            inputs = {**features, "attention_mask": counted}
            if pooling.pooling_mode == "weightedmean":  # its weights begin with the first token of the prompt
                states = features["token_embeddings"] * counted.unsqueeze(-1)
                weights_sum = (counted * positions).sum(1)
                inputs = {"token_weights_sum": weights_sum, **features, "token_embeddings": states}
            vectors.append(pooling(inputs)[OUTPUT])
        return {**features, OUTPUT: torch.cat(vectors, dim=-1)}


class SentenceGraph(nn.Module):
    """One encoder with the modules after it, in float32.

    Linear layers behind mean or first-token pooling give the same before it. With `linear_first` the states have them
    too, for transformers.js, which pools and normalises `last_hidden_state`; behind another pooling, only
    `sentence_embedding` is right. Without it the states are the encoder's, for readers that run the modules behind it.
    """

    def __init__(self, part: EncoderPart, *, linear_first: bool) -> None:
        super().__init__()
        self.encoder = part.encoder
        head: list[Any] = list(part.head or ())
        linear: list[Any] = []
        if linear_first and isinstance(head[0], Pooling) and head[0].pooling_mode in LINEAR_POOLINGS:
            linear = list(takewhile(_is_linear, head[1:]))
            del head[1 : 1 + len(linear)]

        self.before_pooling = nn.ModuleList(linear)
        self.head = nn.ModuleList()
        self.inputs: tuple[str, ...] = INPUTS
        for module in head:
            if isinstance(module, Pooling) and not module.include_prompt:
                module = PromptlessPooling(module)
                self.inputs = (*INPUTS, PROMPT_LENGTH)
            self.head.append(module)
        self.eval()

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        prompt_length: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Token states, `(batch, length, width)`, and sentence embeddings, `(batch, width)`."""
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        for layer in self.before_pooling:
            states = layer({OUTPUT: states})[OUTPUT]
        features = {"token_embeddings": states, "input_ids": input_ids, "attention_mask": attention_mask}
        if prompt_length is not None:
            features[PROMPT_LENGTH] = prompt_length
        return states, run_head(list(self.head), features, normalize=True)


def _is_linear(module: nn.Module) -> bool:
    is_stock = isinstance(module, Dense) and module.module_input_name == module.module_output_name == OUTPUT
    return is_stock and isinstance(module.activation_function, nn.Identity)


def write_onnx(export: str | Path, *, int8: bool = False) -> dict[str, dict[str, Any]]:
    """Writes `onnx/model.onnx` and `onnx/model_quantized.onnx` to an export, in a folder per route if it has routes.

    A graph takes `input_ids` and `attention_mask`, `(batch, length)` int64 of any size, and returns
    `last_hidden_state`, `(batch, length, width)`, and `sentence_embedding`, `(batch, width)`, both float32; it includes
    all modules behind the encoder. If the pooling leaves out the prompt, a third input `prompt_length`, `(1,)` int64, is
    the number of its tokens with the special token before it, or 0. In the quantised file the token embeddings and the
    weights of linear layers are int8, of which seven bits are used, so that processors without VNNI do not overflow.

    Returns by route (empty without routes) `difference`, the largest from torch, on random token ids. With `int8` also
    `cosine_int8`, the cosines of the embeddings with those of torch: the `lowest` and their `mean` on the sentences of
    this package (`texts`, their number) in the `languages` of the route, or else in those that its tokenizer knows.

    Raises:
        XlsrError: A module or the architecture is unsupported, or embeddings differ from those of torch.
    """
    require_package("onnx", "onnxscript", "onnxruntime")
    return OnnxWriter().write(export, int8=int8)


class OnnxWriter:
    """Writes the ONNX files of an export, and compares them with torch."""

    dtype = "onnx"
    linear_first = True

    def write(self, export: str | Path, *, int8: bool) -> dict[str, dict[str, Any]]:
        """Writes the files in float32 and, if asked for, int8. Returns the report of `write_onnx`."""
        export_parts(export)
        encoder = read_encoder(str(export), "export")
        report: dict[str, dict[str, Any]] = {}
        for route, part in encoder.parts.items():
            graph = SentenceGraph(part, linear_first=self.linear_first)
            file = graph_file(export, self.dtype, route)
            file.parent.mkdir(parents=True, exist_ok=True)
            report[route] = {"difference": self._write_compared(graph, file)}
        if not int8:
            return report

        texts_by_route = {route: sample_texts(part.tokenizer, route) for route, part in encoder.parts.items()}
        for route, texts in texts_by_route.items():
            with _quiet():
                self.write_int8(export, route, list(chain.from_iterable(texts.values())))
        for route, numbers in _measure_int8(
            encoder, GraphEncoder(export, f"{self.dtype}-int8"), texts_by_route
        ).items():
            report[route] |= numbers
        return report

    def write_float(self, graph: SentenceGraph, file: Path) -> None:
        """Writes a graph in float32."""
        write_graph(graph, file)

    def write_int8(self, export: str | Path, route: str, texts: list[str]) -> None:
        """Writes the quantised graph of a route, next to the one in float32; `texts` are in its languages."""
        _quantize(graph_file(export, self.dtype, route), graph_file(export, f"{self.dtype}-int8", route))

    def _write_compared(self, graph: SentenceGraph, file: Path) -> float:
        """Writes the graph in float32, and returns the largest difference of its embeddings from those of torch."""
        batches = _batches(graph)
        with torch.no_grad():
            expected = torch.cat([graph(**batch)[1] for batch in batches])

        architecture = graph.encoder.config.model_type
        try:
            with _quiet():
                self.write_float(graph, file)
        except (RuntimeError, OnnxExporterError) as error:
            raise XlsrError(
                f"Architecture '{architecture}' has no {self.dtype} graph, which is unsupported."
            ) from error

        session = FORMATS[self.dtype].session(file, exact=True)
        arrays = [{name: tensor.numpy() for name, tensor in batch.items()} for batch in batches]
        embeddings = torch.from_numpy(np.concatenate(session.embed(arrays)))
        difference = float((expected - embeddings).abs().max())
        if not difference <= TOLERANCE:
            raise XlsrError(
                f"Embeddings of the {self.dtype} graph must equal torch's, got a difference of {difference:.1e}: "
                f"architecture '{architecture}' is unsupported."
            )
        return difference


def graph_file(export: str | Path, dtype: str, route: str = "") -> Path:
    """The file of a graph in an export."""
    graph_format = FORMATS[dtype]
    return Path(export, graph_format.folder, route, graph_format.file)


def write_graph(graph: SentenceGraph, file: Path) -> None:
    """Writes a graph as an ONNX file."""
    sizes: dict[str, dict[int, Any]] = dict.fromkeys(graph.inputs, {})
    sizes |= dict.fromkeys(INPUTS, {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")})
    program = torch.onnx.export(
        graph,
        kwargs=_batches(graph)[0],
        input_names=list(graph.inputs),
        output_names=[STATES, OUTPUT],
        dynamic_shapes=sizes,
        dynamo=True,
        verbose=False,
    )
    assert program is not None  # as `dynamo` is set
    program.save(str(file))


def _quantize(source: Path, file: Path) -> None:
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


def _batches(graph: SentenceGraph) -> list[dict[str, torch.Tensor]]:
    """Random sentences as inputs of a graph: a padded batch, a long one, and two of a single token."""
    generator = torch.Generator().manual_seed(0)
    config = graph.encoder.config
    positions = max_positions(graph.encoder) or 64
    vocab_size = int(config.vocab_size)
    padding = getattr(config, "pad_token_id", None) or 0

    batches = []
    for rows, length in ((3, min(7, positions)), (1, min(64, positions)), (2, 1)):
        ids = torch.randint(vocab_size // 2, vocab_size, (rows, length), generator=generator)
        mask = torch.ones_like(ids)
        if rows > 1 and length > 1:
            mask[1, length // 2 :] = 0
        tensors = (ids.masked_fill(mask == 0, padding), mask, torch.tensor([length // 4]))
        batches.append(dict(zip(graph.inputs, tensors, strict=False)))
    return batches


def _measure_int8(
    encoder: SentenceEncoder,
    quantised: GraphEncoder,
    texts_by_route: Mapping[str, Mapping[str, Sequence[str]]],
) -> dict[str, dict[str, Any]]:
    """Cosines of the int8 embeddings of sample texts with those of torch, by route."""
    exact = encoder.assemble()
    report = {}
    for route, texts in texts_by_route.items():
        sentences = list(chain.from_iterable(texts.values()))
        expected = unit_length(exact.encode(sentences, task=route or None))
        vectors = unit_length(quantised.encode(sentences, task=route or None))
        cosines = (expected * vectors).sum(1)
        report[route] = {
            "cosine_int8": {"lowest": round(float(cosines.min()), 4), "mean": round(float(cosines.mean()), 4)},
            "texts": len(sentences),
            "languages": list(texts),
        }
    return report


@contextmanager
def _quiet() -> Iterator[None]:
    """Hides warnings of torch and onnxruntime about their internals, and the progress bars of nncf."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
