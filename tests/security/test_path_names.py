"""Names of others that become paths cannot lead out of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from huggingface_hub.errors import StrictDataclassClassValidationError

from hf_xlsr.encoders.assembly import SentenceEncoder, router_modules
from hf_xlsr.encoders.debias import Debias
from hf_xlsr.encoders.graphs import export_parts
from hf_xlsr.encoders.reading import encoder_folder
from hf_xlsr.evaluation.suites.suite import file_name
from hf_xlsr.modeling.dual_momentum import DualMomentumConfig
from hf_xlsr.runs.methods.dual_momentum import DualMomentumRecipe
from hf_xlsr.runs.recipe import read_recipe
from hf_xlsr.sentence_transformers import TatoebaEvaluator
from hf_xlsr.utils.files import inside, path_name

HOSTILE = ["../x", "/abs", "a/b", "..", ".", "", "a\0b", "x" * 300, "~root", ".hidden", "a\\b", "C:x", "a\nb", " "]
SMALL = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


def dual_config(name: str, _: Path) -> None:
    DualMomentumConfig(languages=[name, "en"], encoder_configs={name: SMALL, "en": SMALL})


def dual_config_shared(name: str, _: Path) -> None:
    DualMomentumConfig(languages=[name, "en"], encoder_configs={"shared": SMALL})


def debias_file(name: str, folder: Path) -> None:
    Debias({"en": np.ones((4, 1))}, counts={"en": 1}, shares={"en": 0.1}).save(folder)
    facts = json.loads((folder / "debias.json").read_text("utf-8"))
    facts["languages"] = {name: facts["languages"]["en"]}
    (folder / "debias.json").write_text(json.dumps(facts), "utf-8")
    from safetensors.numpy import save_file

    save_file({f"components/{name}": np.ones((4, 1))}, folder / "debias.safetensors")
    Debias.load(folder)


def recipe_languages(name: str, _: Path) -> None:
    DualMomentumRecipe(method="dual_momentum", languages=[name, "en"])


def recipe_name(name: str, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(json.dumps({"name": name, "method": "cmlm"}), "utf-8")
    read_recipe(str(folder / "recipe.yaml"))


def routes(name: str, _: Path) -> None:
    SentenceEncoder({name: SimpleNamespace(), "en": SimpleNamespace()})  # type: ignore[dict-item]


def router(name: str, _: Path) -> None:
    router_modules({name: [], "en": []}, "en", normalize=False)


def onnx_routes(name: str, folder: Path) -> None:
    modules = [{"type": "x.Router", "path": ""}]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    types = {"0_Transformer": "x.Transformer", "1_Pooling": "x.Pooling"}
    router_config = {"types": types, "structure": {name: list(types)}}
    (folder / "router_config.json").write_text(json.dumps(router_config), "utf-8")
    export_parts(folder)


BORDERS: list[Any] = [
    dual_config,
    dual_config_shared,
    debias_file,
    recipe_languages,
    recipe_name,
    routes,
    router,
    onnx_routes,
    lambda name, _: path_name(name, "name"),
]


@pytest.mark.parametrize("border", BORDERS, ids=lambda border: border.__name__)
@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_hostile_names_stop_at_each_border(border, name, tmp_path):
    with pytest.raises((ValueError, StrictDataclassClassValidationError), match="name|part of a path"):
        border(name, tmp_path)


@pytest.mark.parametrize("name", ["en", "zh-Hant", "zh_TW", "und", "x" * 100, "français", "a b", "a.b", "e5@2"])
def test_names_of_people_pass(name):
    assert path_name(name, "name") == name


@pytest.mark.parametrize("label", ["../../x", "/models/e5", "..", "a\0b"])
def test_labels_of_suites_become_one_name(label):
    assert Path(file_name(label)).name == file_name(label)


def test_names_of_evaluators():
    with pytest.raises(ValueError, match="part of a path"):
        TatoebaEvaluator(["a"], ["b"], name="a/../../b")


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b"])
def test_modules_are_inside_of_their_folder(path, tmp_path):
    (tmp_path / "modules.json").write_text(json.dumps([{"path": path}]), "utf-8")
    with pytest.raises(ValueError, match="inside"):
        encoder_folder(tmp_path)
    with pytest.raises(ValueError, match="inside"):
        inside(tmp_path, path)
