"""Sizes in a stranger's files are compared with the stored weights before anything is built."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from transformers import AutoConfig

from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.modeling.cmlm import CmlmModel
from hf_xlsr.modeling.dual_momentum import DualMomentumModel
from hf_xlsr.utils.errors import XlsrError

DOORS = {
    "load_encoder": lambda path: load_encoder(path, "cpu"),
    "read_encoder": read_encoder,
    "from_encoder": CmlmModel.from_encoder,
}
SIZES: list[dict[str, Any]] = [
    {"num_hidden_layers": 10**6},
    {"num_hidden_layers": 10**4},
    {"vocab_size": 10**9},
    {"vocab_size": 10**30},
    {"vocab_size": 2**24 - 1},
    {"max_position_embeddings": 10**9},
    {"hidden_size": 10**8},
    {"intermediate_size": 10**9},
    {"type_vocab_size": 10**9},
    {"num_labels": 10**9},
    {"vocab_size": -1},
    {"hidden_size": 2**20, "max_position_embeddings": 2**20},
]


@pytest.fixture
def copies(tmp_path, tiny_encoder_folder, tiny_export):
    """Folders of an encoder and of an export that a test may change."""
    shutil.copytree(tiny_encoder_folder, tmp_path / "plain")
    shutil.copytree(tiny_export, tmp_path / "export")
    return tmp_path


def edit(file: Path, **values: Any) -> None:
    content = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({**content, **values}), "utf-8")


def stops(load: Any, *arguments: Any) -> None:
    start = perf_counter()
    with pytest.raises(XlsrError, match="at most|describes|larger than"):
        load(*arguments)
    assert perf_counter() - start < 20


@pytest.mark.parametrize("values", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["plain", "export"])
def test_sizes_of_an_encoder(values, kind, copies):
    edit(copies / kind / "config.json", **values)
    stops(DOORS["load_encoder"], str(copies / kind))


@pytest.mark.parametrize("door", ["read_encoder", "from_encoder"])
def test_every_door_compares_sizes(door, copies):
    edit(copies / "plain" / "config.json", num_hidden_layers=10**6)
    stops(DOORS[door], str(copies / "plain"))


@pytest.mark.parametrize("values", [{"num_hidden_layers": 10**6}, {"vocab_size": 10**9}], ids=str)
def test_sizes_of_a_new_encoder(values):
    stops(encoder_from_config, AutoConfig.for_model("bert", **values))


@pytest.mark.parametrize(
    "values",
    [
        {"queue_size": 10**9},
        {"nli_labels": 3, "nli_hidden_size": 10**9},
        {"projection_dim": 10**9},
        {"nli_labels": 10**9},
    ],
    ids=str,
)
def test_sizes_of_a_model_of_ours(values, copies, tmp_path):
    encoders = {"en": str(copies / "plain"), "fr": str(copies / "plain")}
    DualMomentumModel.from_encoders(encoders, queue_size=8).save_pretrained(tmp_path / "model")
    edit(tmp_path / "model" / "config.json", **values)
    stops(DualMomentumModel.from_pretrained, tmp_path / "model")


def test_encoders_inside_of_a_model_of_ours(copies, tmp_path):
    encoders = {"en": str(copies / "plain"), "fr": str(copies / "plain")}
    DualMomentumModel.from_encoders(encoders, queue_size=8).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text("utf-8"))
    config["encoder_configs"]["en"]["num_hidden_layers"] = 10**6
    (tmp_path / "model" / "config.json").write_text(json.dumps(config), "utf-8")
    stops(DualMomentumModel.from_pretrained, tmp_path / "model")


def test_a_module_behind_the_encoder(copies):
    folder = copies / "export"
    edit(
        folder / "2_Dense" / "config.json", in_features=10**6, out_features=10**6, activation_function="torch.nn.Tanh"
    )
    entry = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    (folder / "modules.json").write_text(json.dumps([*modules[:2], entry]), "utf-8")
    stops(load_encoder, str(folder), "cpu")


TOKENS = [f"<{number}>" for number in range(30_000)]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize(
    ("file", "values"),
    [
        ("tokenizer_config.json", {"extra_special_tokens": TOKENS}),
        ("tokenizer_config.json", {"added_tokens_decoder": {str(number): {} for number in range(30_000)}}),
        ("tokenizer.json", {"added_tokens": [{}] * 30_000}),
        ("special_tokens_map.json", {"additional_special_tokens": TOKENS}),
    ],
    ids=["extra", "decoder", "added", "map"],
)
def test_a_tokenizer_with_many_added_tokens(door, file, values, copies):
    edit(copies / "plain" / file, **values)
    stops(DOORS[door], str(copies / "plain"))


def test_ordinary_folders_load(copies):
    for door in DOORS.values():
        door(str(copies / "plain"))
