"""Graphs of every pooling, with and without the prompt, and of the modules in front of it and behind it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers.backend.utils import backend_should_export
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import CNN, Dropout, LayerNorm, Pooling, WordWeights
from torch import nn
from transformers import BertConfig

sys.path.append(str(Path(__file__).parents[1] / "encoders"))
from given_encoders import (  # noqa: E402
    BERT_SIZE,
    PROMPTS,
    SENTENCES,
    WIDTH,
    assembled,
    build,
    dense,
    tiny_tokenizer,
    tiny_transformer,
)
from graph_kinds import KINDS, WRITERS, cases, exact_encoder  # noqa: E402

from hf_xlsr.encoders.graph_sessions import OnnxSession  # noqa: E402
from hf_xlsr.encoders.graphs import INPUTS, GraphModel  # noqa: E402
from hf_xlsr.export import save_export
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import import_without_telemetry

POOLINGS: list[Any] = [*Pooling.POOLING_MODES, ("cls", "mean"), Pooling.POOLING_MODES]


def word_weights() -> WordWeights:
    tokenizer = tiny_tokenizer()
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return WordWeights(words, {word: 1 + number % 3 for number, word in enumerate(words)})


# Modules in front of the pooling, and behind it for embeddings of a width.
HEADS: dict[str, tuple[list[nn.Module], Callable[[int], list[nn.Module]]]] = {
    "nothing": ([], lambda width: []),
    "Normalize first": ([], lambda width: [Normalize(), dense(width, 12, nn.Tanh()), Dropout(0.1)]),
    "LayerNorm between": (
        [],
        lambda width: [dense(width, 24, nn.Identity()), LayerNorm(24), dense(24, 12, nn.GELU()), Normalize()],
    ),
    "WordWeights": ([word_weights()], lambda width: [Normalize()]),
    "WordWeights and Dense": ([word_weights()], lambda width: [dense(width, 12, nn.Identity()), LayerNorm(12)]),
}
CASES = {
    f"{pooling}-{include_prompt}-{head}": (pooling, include_prompt, head)
    for (pooling, include_prompt), head in zip(product(POOLINGS, (True, False)), cycle(HEADS), strict=False)
}


def with_head(folder: Path, *modules: nn.Module) -> Any:
    config = BertConfig(**{**BERT_SIZE, "num_hidden_layers": 1})
    transformer = tiny_transformer(folder / "raw", config, tiny_tokenizer())
    return assembled([transformer, *modules], prompts=PROMPTS, default_prompt_name="query")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "case"), cases(CASES, list(CASES)[-4:]))
def test_vectors_equal_torch(case: str, kind: str, tmp_path: Path) -> None:
    pooling, include_prompt, head = CASES[case]
    in_front, behind = HEADS[head]
    pool = Pooling(WIDTH, pooling, include_prompt=include_prompt)
    model = with_head(tmp_path, *in_front, pool, *behind(pool.get_embedding_dimension()))
    model = save_export(model, tmp_path / "export")

    WRITERS[kind](tmp_path / "export")
    encoder = exact_encoder(tmp_path / "export", kind)

    options: dict[str, Any]
    for options in (
        {},
        {"prompt": ""},
        {"prompt_name": "document"},
        {"prompt": "red blue one two: ", "batch_size": 3},
    ):
        expected = model.encode(SENTENCES, **options)
        np.testing.assert_allclose(encoder.encode(SENTENCES, **options), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [pytest.param("t5", marks=pytest.mark.slow), "static", "chat"])
def test_encoders_without_graphs_are_refused(name: str, kind: str, tmp_path: Path) -> None:
    save_export(build(name, tmp_path / "raw"), tmp_path / "export")
    with pytest.raises(XlsrError) as caught:
        WRITERS[kind](tmp_path / "export", int8=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_modules_that_read_padding_are_refused(kind: str, tmp_path: Path) -> None:
    convolution = CNN(WIDTH, out_channels=4)
    pool = Pooling(convolution.get_embedding_dimension())
    save_export(with_head(tmp_path, convolution, pool), tmp_path / "export")
    with pytest.raises(XlsrError, match="CNN"):
        WRITERS[kind](tmp_path / "export")


@pytest.mark.slow
def test_sentence_transformers_finds_the_states_of_the_encoder(tmp_path: Path) -> None:
    """Its OpenVINO backend needs a package for older versions; it runs the modules behind the encoder itself."""
    pytest.importorskip("openvino")
    model = with_head(tmp_path, Pooling(WIDTH), dense(WIDTH, WIDTH, nn.Identity()))
    folder = tmp_path / "export"
    save_export(model, folder)
    WRITERS["openvino"](folder)

    exports_itself, place = backend_should_export(folder, True, {}, "openvino_model.xml", "openvino*.xml", "OpenVINO")
    assert not exports_itself
    core = import_without_telemetry("openvino").Core()
    file = folder / place["subfolder"] / place["file_name"]
    graph = core.compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    features = model.preprocess(SENTENCES)
    states = graph({name: features[name].numpy() for name in INPUTS})["last_hidden_state"]
    expected = model[0](features)["token_embeddings"].detach().numpy()
    is_token = features["attention_mask"].numpy() == 1
    np.testing.assert_allclose(states[is_token], expected[is_token], rtol=0, atol=2e-6)


@pytest.mark.parametrize("prompt", ["", "one two: ", "three"])
def test_prompts_are_counted_as_in_torch(prompt: str, tmp_path: Path) -> None:
    model = with_head(tmp_path, Pooling(WIDTH, include_prompt=False))
    expected = model.preprocess(SENTENCES, prompt=prompt).get("prompt_length", 0)
    no_session = OnnxSession.__new__(OnnxSession)
    length = GraphModel(no_session, model.tokenizer, 32).prompt_length(prompt)
    assert length == expected
