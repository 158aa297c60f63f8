"""Exports read as other programs read them, by their own code where it installs: reader by architecture.

`CONTRIBUTING.md` says how to get the programs that `HF_XLSR_NODE` and `HF_XLSR_LANGCHAIN_PYTHON` name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_pairs, texts_of
from old_server import OldServer, read
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from tokenizers import Tokenizer
from torch import nn
from transformers import BertConfig, XLMRobertaConfig

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "encoders"), str(TESTS / "trainers")]
from given_encoders import (  # noqa: E402
    BERT_SIZE,
    GIVEN,
    ROBERTA_SIZE,
    SENTENCES,
    WIDTH,
    assembled,
    dense,
    of_config,
    tiny_transformer,
)
from seven_trainers import arguments_of  # noqa: E402

from hf_xlsr.data.tokenization import train_tokenizer  # noqa: E402
from hf_xlsr.export.card import EXAMPLES, PLACE  # noqa: E402
from hf_xlsr.modeling.lightweight import LightweightDualTransformer  # noqa: E402
from hf_xlsr.trainers import LightweightTrainer  # noqa: E402

NODE = os.environ.get("HF_XLSR_NODE", "")
LANGCHAIN = os.environ.get("HF_XLSR_LANGCHAIN_PYTHON", "")
LANGCHAIN_CODE = """
import json, sys
from langchain_huggingface import HuggingFaceEmbeddings
folder, *texts = sys.argv[1:]
embeddings = HuggingFaceEmbeddings(model_name=folder, model_kwargs={"device": "cpu"})
print(json.dumps([*embeddings.embed_documents(texts[:-1]), embeddings.embed_query(texts[-1])]))
"""
TEXTS = [text.strip() for text in SENTENCES]
LONG = "bleu red " * 30
POSITIONS = 40


def unigram(folder: Path) -> SentenceTransformer:
    """An encoder whose tokenizer is of the kind of XLM-R's, with a linear layer, which ONNX files have in the states."""
    texts = [*texts_of(make_pairs(300)), *["house, of! stone; x? "] * 20]
    tokenizer = train_tokenizer(texts, vocab_size=80, algorithm="unigram", frame=True, max_length=32)
    transformer = tiny_transformer(folder, BertConfig(**BERT_SIZE), tokenizer)
    return assembled([transformer, Pooling(WIDTH, "mean"), dense(WIDTH, 12, nn.Identity()), Normalize()])


ENCODERS: dict[str, Callable[[Path], SentenceTransformer]] = {
    **GIVEN,
    "unigram": unigram,
    "xlmr_left": of_config(XLMRobertaConfig(**ROBERTA_SIZE), "cls", padding_side="left"),
}


def server(folder: Path, texts: Sequence[str]) -> Any:
    """text-embeddings-inference."""
    return OldServer(folder).embed(list(texts))


def card(folder: Path, texts: Sequence[str]) -> Any:
    """The code of the model's card for transformers alone, as it is printed there, but for the folder and the texts."""
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text("utf-8"), re.DOTALL)
    (code,) = [block for block in blocks if "AutoTokenizer" in block]
    prompt = default_prompt(folder)
    examples = ", ".join(json.dumps(prompt + example) for example in EXAMPLES)
    assert f"[{examples}]" in code

    names: dict[str, Any] = {}
    exec(code.replace(examples, json.dumps(list(texts))[1:-1]).replace(PLACE, str(folder)), names)  # noqa: S102
    return names["vectors"]


def onnxruntime(folder: Path, texts: Sequence[str]) -> Any:
    """A session of onnxruntime and the file of the tokenizer."""
    import onnxruntime as ort

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = read(folder / "tokenizer_config.json")
    pad = config["pad_token"]
    side = config.get("padding_side", "right")
    tokenizer.enable_padding(direction=side, pad_id=tokenizer.token_to_id(pad), pad_token=pad)
    tokenizer.enable_truncation(config["model_max_length"])
    batch = tokenizer.encode_batch(list(texts))
    inputs = {
        "input_ids": np.array([text.ids for text in batch]),
        "attention_mask": np.array([text.attention_mask for text in batch]),
    }

    session = ort.InferenceSession(folder / "onnx" / "model.onnx")
    return session.run(["sentence_embedding"], inputs)[0]


def transformers_js(folder: Path, texts: Sequence[str], dtype: str = "fp32") -> Any:
    """The model of transformers.js, and its pipeline, which pools by itself, for mean pooling."""
    script = shutil.copy(Path(__file__).with_name("transformers_js.mjs"), NODE)
    printed = output_of("node", script, f"{folder.parent}/", folder.name, dtype, *texts)
    if read(folder / "1_Pooling" / "config.json")["pooling_mode_mean_tokens"]:
        np.testing.assert_allclose(printed["pipeline"], printed["direct"], atol=1e-5)
    return printed["direct"]


def transformers_js_int8(folder: Path, texts: Sequence[str]) -> Any:
    return transformers_js(folder, texts, "q8")


def langchain(folder: Path, texts: Sequence[str]) -> Any:
    """`HuggingFaceEmbeddings`, which puts in the default prompt by itself."""
    prompt = default_prompt(folder)
    return output_of(LANGCHAIN, "-c", LANGCHAIN_CODE, folder, *[text.removeprefix(prompt) for text in texts])


def output_of(*command: Any) -> Any:
    words = [str(word) for word in command]
    run = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ""})
    assert run.returncode == 0, run.stderr[-2000:]
    return json.loads(run.stdout.splitlines()[-1])


def default_prompt(folder: Path) -> str:
    settings = read(folder / "config_sentence_transformers.json")
    return str(settings["prompts"].get(settings["default_prompt_name"], ""))


needs_node = pytest.mark.skipif(not NODE, reason="needs HF_XLSR_NODE")
needs_langchain = pytest.mark.skipif(not LANGCHAIN, reason="needs HF_XLSR_LANGCHAIN_PYTHON")
IN_GRAPHS = ["bert_prompts", "labse", "modernbert", "qwen", "xlmr_left", "unigram", "bert_max"]
# Reader, architectures, lowest cosine with sentence-transformers, and what a test needs.
READERS: dict[Callable[..., Any], tuple[list[str], float, list[Any]]] = {
    server: (["bert_prompts", "labse", "modernbert", "qwen", "gemma", "unigram"], 1 - 1e-6, []),
    card: (["bert_prompts", "bert_cls", "bert_max", "modernbert", "qwen", "t5", "xlmr_left"], 1 - 1e-6, []),
    onnxruntime: (IN_GRAPHS, 1 - 1e-6, [pytest.mark.slow]),
    transformers_js: (IN_GRAPHS, 1 - 1e-6, [pytest.mark.slow, needs_node]),
    transformers_js_int8: (IN_GRAPHS, 0.98, [pytest.mark.slow, needs_node]),
    langchain: (["bert_prompts", "labse", "qwen"], 1 - 1e-6, [pytest.mark.slow, needs_langchain]),
}
FAST = ("bert_prompts", "qwen", "t5")


def cases() -> list[Any]:
    parameters = []
    for reader, (names, lowest, marks) in READERS.items():
        for name in names:
            slow = [] if name in FAST else [pytest.mark.slow]
            parameters.append(
                pytest.param(reader, name, lowest, marks=[*marks, *slow], id=f"{reader.__name__}-{name}")
            )
    return parameters


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Path]:
    """Makes the export of an encoder by a trainer, which writes the card; once for all tests."""

    def export_of(name: str, with_onnx: bool) -> Path:
        home = tmp_path_factory.getbasetemp() / "readers" / name
        folder = home / "model"
        if not folder.is_dir():
            model = LightweightDualTransformer.from_encoder(ENCODERS[name](home / "raw"), generative_weight=0.0)
            args = arguments_of("Lightweight", home / "run", max_length=POSITIONS)
            trainer = LightweightTrainer(model=model, args=args, train_dataset=make_pairs(16))
            trainer.save_sentence_transformer(folder)
        if with_onnx and not (folder / "onnx").is_dir():
            from hf_xlsr.export.onnx_files import write_onnx

            write_onnx(folder, int8=True)
        return folder

    return export_of


@pytest.mark.parametrize(("reader", "name", "lowest"), cases())
def test_reader_gives_the_embeddings(reader: Any, name: str, lowest: float, exports: Any) -> None:
    in_javascript = reader in (transformers_js, transformers_js_int8)
    folder = exports(name, in_javascript or reader is onnxruntime)
    model = SentenceTransformer(str(folder), device="cpu")
    texts = TEXTS if in_javascript else [*TEXTS, LONG]  # transformers.js cuts the last token of long texts

    prompt = default_prompt(folder)
    vectors = torch.as_tensor(reader(folder, [prompt + text for text in texts]))

    cosines = torch.nn.functional.cosine_similarity(vectors, model.encode(texts, convert_to_tensor=True))
    assert cosines.min() >= lowest
