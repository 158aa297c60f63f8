"""Weights are safetensors, and what a resume reads besides is read without running code."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from call_sites import call_sites, places_of
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture
def model(tiny_export: str, tmp_path: Path) -> Path:
    """An encoder with a `Dense` behind it."""
    modules = list(SentenceTransformer(tiny_export, device="cpu"))
    width = modules[0].get_embedding_dimension()
    whole = SentenceTransformer(modules=[*modules[:2], Dense(width, 4)], device="cpu")
    whole.save(str(tmp_path / "model"), create_model_card=False)
    return tmp_path / "model"


def pickled(file: Path) -> None:
    """Weights in the form of `torch.save`, in place of safetensors."""
    name = "adapter_model.bin" if file.name.startswith("adapter") else "pytorch_model.bin"
    torch.save(load_file(file), file.with_name(name))
    file.unlink()


def with_adapters(folder: Path) -> Path:
    """Adapters of another file format next to the weights."""
    shutil.copyfile(folder / "model.safetensors", folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "base_model_name_or_path": str(folder), "r": 1, "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    return folder / "adapter_model.safetensors"


WEIGHTS: dict[str, Callable[[Path], Path]] = {
    "encoder": lambda folder: folder / "model.safetensors",
    "dense": lambda folder: folder / "2_Dense" / "model.safetensors",
    "adapters": with_adapters,
}


@pytest.mark.parametrize("find", WEIGHTS.values(), ids=WEIGHTS)
@pytest.mark.parametrize("load", [load_encoder, read_encoder])
def test_pickled_weights_are_refused(
    find: Callable[[Path], Path], load: Callable[[str], object], model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = find(model)
    pickled(file)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was read"))
    with pytest.raises(XlsrError, match="safetensors"):
        load(str(model))


PICKLING = ("pickle.load", "pickle.loads", "dill.load", "joblib.load", "torch.load", "torch.save", "pd.read_pickle")
PICKLING += ("pickle.dump", "joblib.dump", "shelve.open", "marshal.loads", "torch.jit.load", "torch.hub.load")


def test_nothing_here_reads_or_writes_pickles() -> None:
    """Only Trainer itself does, of checkpoints, with `weights_only`."""
    assert not places_of(
        lambda site: site.name in PICKLING or site.method in ("read_pickle", "load_state_dict_from_url")
    )


def test_arrays_are_loaded_without_pickles() -> None:
    for site in call_sites():
        allowed = site.option("allow_pickle")
        assert allowed is None or ast.unparse(allowed) == "False", site.place


def test_models_are_loaded_from_safetensors() -> None:
    """Each call that reads weights says so; `XlsrModel.from_pretrained` does for models of this package."""
    for site in call_sites():
        is_auto = site.method == "load_auto" and "AutoModel" in ast.unparse(site.node.args[0])
        is_direct = site.name.startswith("AutoModel") and site.method == "from_pretrained"
        if is_auto or is_direct:
            value = site.option("use_safetensors")
            assert value is not None, site.place
            assert ast.unparse(value) == "True", site.place
