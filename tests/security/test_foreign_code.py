"""No code runs that a folder names: in a configuration at any depth, a list of modules, options or a tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, BertConfig

from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.modeling.cmlm import CmlmConfig, CmlmModel
from hf_xlsr.modeling.dual_momentum import DualMomentumConfig
from hf_xlsr.utils.auto_classes import load_auto
from hf_xlsr.utils.errors import XlsrError

CLASSES = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoModelForTextEncoding")
AUTO_MAP = {name: f"evil.{name}" for name in CLASSES}
EVIL = """
from pathlib import Path
Path({ran!r}).touch()
"""


class Trap:
    """A folder of a stranger, and the file that its code would write."""

    def __init__(self, folder: Path, source: str) -> None:
        shutil.copytree(source, folder)
        self.folder = folder
        self.ran = folder.parent / "RAN"
        (folder / "evil.py").write_text(EVIL.format(ran=str(self.ran)), "utf-8")

    def edit(self, name: str, change: Callable[[Any], Any]) -> None:
        file = self.folder / name
        content = change(json.loads(file.read_text("utf-8")) if file.is_file() else {})
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content), "utf-8")

    def pickle_of_code(self, file: str) -> None:
        """Replaces weights by a pickle that writes the file when it is loaded."""
        ran = str(self.ran)

        class Code:
            def __reduce__(self) -> Any:
                return open, (ran, "w")

        for weights in self.folder.glob("*.safetensors"):
            weights.unlink()
        torch.save({"x": Code()}, self.folder / file)


@pytest.fixture(autouse=True)
def no_question(monkeypatch):
    """A question is a fault, and its answer would be yes."""
    asked = []

    def answer(question: str = "") -> str:
        asked.append(question)
        return "y"

    monkeypatch.setattr("builtins.input", answer)
    yield
    assert asked == []


@pytest.fixture
def plain(tmp_path, tiny_encoder_folder):
    return Trap(tmp_path / "plain", tiny_encoder_folder)


@pytest.fixture
def export(tmp_path, tiny_export):
    return Trap(tmp_path / "export", tiny_export)


def nested(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a model of ours around one with code, of a type that `AutoModel` has no class for."""
    inner = {**config, "model_type": "clap_text_model", "auto_map": AUTO_MAP, "_name_or_path": "evil"}
    return {"model_type": "cmlm", "architectures": ["CmlmModel"], "text_config": inner, "auto_map": AUTO_MAP}


def loads_nothing(trap: Trap, load: Callable[[str], Any]) -> None:
    with pytest.raises(Exception, match=r"\w"):
        load(str(trap.folder))
    assert not trap.ran.exists()


def loads_stock(trap: Trap, load: Callable[[str], Any]) -> None:
    load(str(trap.folder))
    assert not trap.ran.exists()


DOORS = {
    "load_encoder": lambda path: load_encoder(path, "cpu"),
    "read_encoder": read_encoder,
    "AutoModel, refused": lambda path: AutoModel.from_pretrained(path, trust_remote_code=False),
    "AutoModel": AutoModel.from_pretrained,
    "AutoModel, allowed": lambda path: AutoModel.from_pretrained(path, trust_remote_code=True),
    "CmlmModel": CmlmModel.from_pretrained,
    "from_encoder": CmlmModel.from_encoder,
}


@pytest.mark.parametrize("door", DOORS)
def test_nested_code(door, plain):
    plain.edit("config.json", nested)
    loads_nothing(plain, DOORS[door])


@pytest.mark.parametrize("door", ["load_encoder", "read_encoder", "from_encoder"])
def test_code_beside_a_stock_model(door, plain):
    plain.edit("config.json", lambda config: {**config, "auto_map": AUTO_MAP})
    loads_stock(plain, DOORS[door])


@pytest.mark.parametrize("door", ["load_encoder", "read_encoder", "from_encoder"])
def test_code_of_a_tokenizer(door, plain):
    tokenizer = {"AutoTokenizer": ["evil.Tokenizer", "evil.Tokenizer"]}
    plain.edit("tokenizer_config.json", lambda config: {**config, "auto_map": tokenizer})
    loads_stock(plain, DOORS[door])
    part = read_encoder(str(plain.folder)).single()
    assert "auto_map" not in part.tokenizer.init_kwargs


def test_encoders_of_languages():
    small = {"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "auto_map": AUTO_MAP}
    config = DualMomentumConfig(languages=["en", "fr"], encoder_configs={"en": small, "fr": small}, auto_map=AUTO_MAP)
    assert "auto_map" not in str(config.to_dict())


def test_sub_configurations_forget_their_code(plain):
    config = CmlmConfig(text_config=BertConfig(hidden_size=8, num_attention_heads=2, auto_map=AUTO_MAP))
    config.save_pretrained(plain.folder)
    assert "auto_map" not in (plain.folder / "config.json").read_text("utf-8")


def test_loaded_configurations_forget_their_code(plain):
    plain.edit("config.json", lambda config: {**config, "auto_map": AUTO_MAP, "extra": {"auto_map": AUTO_MAP}})
    assert "auto_map" not in str(load_auto(AutoConfig, plain.folder).to_dict())


def test_kernels_of_the_hub(plain):
    plain.edit("config.json", lambda config: {**config, "attn_implementation": "owner/kernel"})
    with pytest.raises(XlsrError, match="owner/kernel"):
        read_encoder(str(plain.folder))


@pytest.mark.parametrize(
    "kind",
    [
        "evil.Module",
        "os.path",
        "subprocess.Popen",
        "sentence_transformers.SentenceTransformer",
        "sentence_transformers.sparse_encoder.modules.MLMTransformer",
        "sentence_transformers.base.model.torch",
        "sentence_transformers.base.sampler.pickle",
    ],
)
@pytest.mark.parametrize("place", ["modules", "a router", "a router in a router"])
def test_modules_by_name(kind, place, export):
    outer = {"idx": 0, "name": "0", "path": "", "type": kind}
    router = {"types": {"inner": kind}, "structure": {"en": ["inner"]}, "parameters": {"default_route": "en"}}
    stock_router = "sentence_transformers.base.modules.router.Router"
    if place != "modules":
        outer |= {"path": "0_Router", "type": stock_router}
        file = "0_Router/router_config.json"
        if place == "a router in a router":
            file = "0_Router/inner/router_config.json"
            export.edit("0_Router/router_config.json", lambda _: {**router, "types": {"inner": stock_router}})
        export.edit(file, lambda _: router)
    export.edit("modules.json", lambda modules: [outer, *modules[1:]])
    with pytest.raises(XlsrError, match="unsupported"):
        load_encoder(str(export.folder), "cpu")
    assert not export.ran.exists()


@pytest.mark.parametrize(
    "options",
    [
        {"model_args": {"weights_only": False, "use_safetensors": False}},
        {"model_kwargs": {"weights_only": False}},
        {"model_kwargs": {"allow_all_kernels": True, "attn_implementation": "owner/kernel"}},
        {"model_kwargs": {"attn_implementation": "owner/kernel"}},
        {"model_kwargs": {"offload_folder": "/tmp", "device_map": "disk"}},
        {"processor_kwargs": {"vocab_file": "/etc/passwd"}},
        {"config_kwargs": {"_configuration_file": "../x.json"}},
        {"tokenizer_name_or_path": "owner/other"},
        {"encoder": 1},
    ],
    ids=str,
)
def test_options_of_a_folder(options, export):
    export.pickle_of_code("pytorch_model.bin")
    export.edit("sentence_bert_config.json", lambda config: {**config, **options})
    with pytest.raises(XlsrError, match="sets `"):
        load_encoder(str(export.folder), "cpu")
    assert not export.ran.exists()


def test_harmless_options_of_a_folder(export):
    options = {"model_kwargs": {"attn_implementation": "eager"}, "processor_kwargs": {"padding_side": "right"}}
    export.edit("sentence_bert_config.json", lambda config: {**config, **options})
    assert load_encoder(str(export.folder), "cpu")[0].model.config._attn_implementation == "eager"  # noqa: SLF001


@pytest.mark.parametrize("activation", ["os.system", "evil.Module", "torch.load", "torch.hub.load"])
def test_activations(activation, export):
    dense = {"in_features": 16, "out_features": 16, "bias": False, "activation_function": activation}
    export.edit("2_Dense/config.json", lambda _: dense)
    kind = "sentence_transformers.base.modules.dense.Dense"
    entry = {"idx": 2, "name": "2", "path": "2_Dense", "type": kind}
    export.edit("modules.json", lambda modules: [*modules[:2], entry])
    with pytest.raises(XlsrError, match="ctivation"):
        load_encoder(str(export.folder), "cpu")
    assert not export.ran.exists()


def test_modules_keep_their_stock_classes(export):
    model = load_encoder(str(export.folder), "cpu")
    assert {type(module).__module__.partition(".")[0] for module in model} == {"sentence_transformers"}
