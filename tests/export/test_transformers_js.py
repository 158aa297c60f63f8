"""transformers.js on ONNX exports, where HF_XLSR_NODE names a folder with its node_modules.

`npm install --ignore-scripts @huggingface/transformers` makes one; without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_pairs, tiny_encoder
from routed_helpers import with_dense
from torch import nn
from transformers import AutoConfig

from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.export import save_export, to_sentence_transformer

NODE = os.environ.get("HF_XLSR_NODE", "")
TEXTS = ["Red house, bird!", "un oiseau bleu", "house of stone; three fish"]
# Linear layers behind mean pooling are folded into the states, so the pipeline has them too.
CASES: dict[str, tuple[str, int]] = {"plain": ("mean", 0), "projected": ("mean", 12), "max": ("max", 8)}


@pytest.mark.slow
@pytest.mark.skipif(not NODE, reason="needs HF_XLSR_NODE")
@pytest.mark.parametrize("algorithm", ["bpe", "unigram"])
@pytest.mark.parametrize("name", CASES)
def test_embeddings_equal_torch(name: str, algorithm: str, tmp_path: Path) -> None:
    from hf_xlsr.export.onnx_files import write_onnx

    texts = [text for pair in make_pairs(300) for text in (pair["source"], pair["target"])]
    texts += ["house, of! stone; x? "] * 20
    tokenizer = train_tokenizer(texts, vocab_size=80, algorithm=algorithm, frame=True, max_length=32)
    torch.manual_seed(0)
    encoder = encoder_from_config(AutoConfig.for_model(**tiny_encoder(len(tokenizer)), initializer_range=0.3))
    pooling, dimension = CASES[name]
    model = to_sentence_transformer(encoder, tokenizer, pooling=pooling, max_length=32)
    if dimension:
        model = with_dense(model, nn.Linear(16, dimension))
    model = save_export(model, tmp_path / name)
    write_onnx(tmp_path / name, int8=True)

    expected = model.encode(TEXTS)
    script = shutil.copy(Path(__file__).with_name("transformers_js.mjs"), NODE)
    for dtype, lowest in (("fp32", 0.999999), ("q8", 0.999)):
        command = ["node", script, f"{tmp_path}/", name, dtype, *TEXTS]
        vectors = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        if name == "max":
            del vectors["pipeline"]
        for source, source_vectors in vectors.items():
            cosines = (np.array(source_vectors) * expected).sum(1)
            assert cosines.min() >= lowest, (dtype, source)
