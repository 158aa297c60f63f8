"""Code inside exports: read without this package, equal to the export, and trusted only where it is ours."""

from __future__ import annotations

import builtins
import json
import shutil
import symtable
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import tiny_encoder
from routed_helpers import CHINESE, ENGLISH, MAX_LENGTH, Parts, run_elsewhere
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from torch import nn
from transformers import AutoConfig, AutoModel

from hf_xlsr.encoders.debias import Debias
from hf_xlsr.encoders.parts import export_parts
from hf_xlsr.export import (
    export_routed_sentence_transformer,
    export_sentence_transformer,
    remote_code,
    standalone,
)
from hf_xlsr.export.debias_module import debias_sentence_transformer
from hf_xlsr.export.inference import RoutedSentenceEncoder, SentenceEncoder
from hf_xlsr.export.remote_code import add_remote_code, carry_modules, has_only_our_code, model_source, modules_source
from hf_xlsr.export.standalone import standalone_source
from hf_xlsr.modeling.cmlm.projections import SentenceProjections
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.pooling import pool

# Run in a process where neither this package nor, for AutoModel, sentence-transformers can be imported.
AWAY = """
import importlib.abc, json, sys
class Away(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in AWAY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
home, output, texts = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sys.meta_path.insert(0, Away())
import numpy as np
vectors = {}
"""
AUTO = (
    "AWAY = {'hf_xlsr', 'sentence_transformers'}"
    + AWAY
    + """
import torch
from transformers import AutoModel, AutoTokenizer
for name in ("linear", "projected", "stock"):
    model = AutoModel.from_pretrained(f"{home}/{name}", trust_remote_code=True)
    tokenizer = AutoTokenizer.from_pretrained(f"{home}/{name}")
    batch = tokenizer(texts["en"], padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        vectors[name] = model(**batch).pooler_output.numpy()
        vectors[f"{name}-tuple"] = model(**batch, return_dict=False)[1].numpy()
    model.save_pretrained(f"{home}/again-{name}")
    again = AutoModel.from_pretrained(f"{home}/again-{name}", trust_remote_code=True)
    with torch.no_grad():
        vectors[f"{name}-again"] = again(**batch).pooler_output.numpy()
model = AutoModel.from_pretrained(f"{home}/routed", trust_remote_code=True)
model.save_pretrained(f"{home}/again-routed")
again = AutoModel.from_pretrained(f"{home}/again-routed", trust_remote_code=True)
half = AutoModel.from_pretrained(f"{home}/routed", trust_remote_code=True, dtype=torch.bfloat16)
assert {weight.dtype for weight in half.parameters()} == {torch.bfloat16}
for language in ("en", "zh"):
    tokenizer = AutoTokenizer.from_pretrained(f"{home}/routed", subfolder=model.config.routes[language])
    batch = tokenizer(texts[language], padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        vectors[f"routed-{language}"] = model(**batch, language=language).pooler_output.numpy()
        vectors[f"routed-{language}-again"] = again(**batch, language=language).pooler_output.numpy()
np.savez(output, **vectors)
"""
)
SENTENCE_TRANSFORMERS = (
    "AWAY = {'hf_xlsr'}"
    + AWAY
    + """
from sentence_transformers import SentenceTransformer
for name, trust in (("linear", False), ("linear", True), ("projected", True), ("routed", False)):
    model = SentenceTransformer(f"{home}/{name}", device="cpu", trust_remote_code=trust)
    if name == "routed":
        vectors["routed"] = np.concatenate([model.encode(texts[language], task=language) for language in texts])
        continue
    vectors[f"{name}-{trust}"] = model.encode(texts["en"])
    model.save(f"{home}/saved-{name}")
model = SentenceTransformer(f"{home}/saved-projected", device="cpu", trust_remote_code=True)
vectors["saved"] = model.encode(texts["en"])
model = SentenceTransformer(f"{home}/detecting", device="cpu", trust_remote_code=True)
vectors["detecting"] = model.encode(texts["en"] + texts["zh"])
np.savez(output, **vectors)
"""
)


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


@pytest.fixture(scope="module")
def exports(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One export of each make, with code for AutoModel."""
    home = tmp_path_factory.mktemp("exports")
    english: Any = (parts.encoders["en"], parts.tokenizers["en"])
    torch.manual_seed(1)
    common = {"max_length": MAX_LENGTH}
    export_sentence_transformer(*english, home / "linear", projection=nn.Linear(16, 8), pooling="cls", **common)
    projections = SentenceProjections(16, 3, std=0.5)
    export_sentence_transformer(*english, home / "projected", projection=projections, **common)
    values = tiny_encoder(len(parts.tokenizers["en"])) | {"model_type": "xlm-roberta", "pad_token_id": 0}
    stock = AutoModel.from_config(AutoConfig.for_model(**values))
    export_sentence_transformer(stock, english[1], home / "stock", pooling="max", normalize=False, **common)
    both: Any = (parts.encoders, parts.tokenizers)
    export_routed_sentence_transformer(*both, home / "routed", projections=parts.projections, **common)
    export_routed_sentence_transformer(
        *both, home / "detecting", projections=parts.projections, detect_language=True, **common
    )
    for name in ("linear", "projected", "stock", "routed", "detecting"):
        add_remote_code(home / name)
    return home


@pytest.fixture(scope="module")
def expected(exports: Path) -> dict[str, np.ndarray]:
    """What the exports give here."""
    vectors = {}
    for name in ("linear", "projected", "stock"):
        model = SentenceTransformer(str(exports / name), device="cpu", trust_remote_code=name == "projected")
        vectors[name] = model.encode(ENGLISH)
    routed = SentenceTransformer(str(exports / "routed"), device="cpu")
    vectors["routed-en"], vectors["routed-zh"] = routed.encode(ENGLISH, task="en"), routed.encode(CHINESE, task="zh")
    return vectors


@pytest.fixture
def elsewhere(exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))

    def run(code: str) -> Any:
        output = tmp_path / "vectors.npz"
        done = run_elsewhere(code, exports, output, json.dumps({"en": ENGLISH, "zh": CHINESE}))
        assert done.returncode == 0, done.stderr[-3000:]
        assert "MISSING" not in done.stderr and "UNEXPECTED" not in done.stderr
        return np.load(output)

    return run


def close(found: Any, wanted: Any) -> bool:
    return np.shape(found) == np.shape(wanted) and np.allclose(found, wanted, rtol=0, atol=1e-6)


def test_auto_model_without_this_package(elsewhere: Any, expected: dict[str, np.ndarray]) -> None:
    vectors = elsewhere(AUTO)
    for name in vectors.files:
        assert close(vectors[name], expected[name.removesuffix("-tuple").removesuffix("-again")]), name
    assert len(vectors.files) == 3 * 3 + 2 * 2


def test_sentence_transformers_without_this_package(elsewhere: Any, expected: dict[str, np.ndarray]) -> None:
    vectors = elsewhere(SENTENCE_TRANSFORMERS)
    both = np.concatenate([expected["routed-en"], expected["routed-zh"]])
    assert close(vectors["linear-False"], expected["linear"]) and close(vectors["linear-True"], expected["linear"])
    assert close(vectors["projected-True"], expected["projected"]) and close(vectors["saved"], expected["projected"])
    assert close(vectors["routed"], both) and close(vectors["detecting"], both)


def test_the_package_reads_the_same_weights(exports: Path, parts: Parts, expected: dict[str, np.ndarray]) -> None:
    batch = parts.tokenizers["en"](ENGLISH, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    model = SentenceEncoder.from_pretrained(exports / "linear")
    routed = RoutedSentenceEncoder.from_pretrained(exports / "routed")
    with torch.no_grad():
        assert close(model(**batch).pooler_output.numpy(), expected["linear"])
        assert close(routed(**batch, language="en").pooler_output.numpy(), expected["routed-en"])
        with pytest.raises(ValueError, match="language is 'de'; give one of en, zh"):
            routed(**batch, language="de")
    assert model.get_input_embeddings() is model.encoder.get_input_embeddings()


def test_weights_that_are_unknown_are_told_by_their_place(exports: Path, tmp_path: Path) -> None:
    shutil.copytree(exports / "routed", tmp_path / "routed")
    file = tmp_path / "routed" / "en_0_Transformer" / "model.safetensors"
    save_file({**load_file(file), "spare.weight": torch.zeros(2)}, file, {"format": "pt"})
    model, info = RoutedSentenceEncoder.from_pretrained(tmp_path / "routed", output_loading_info=True)
    assert set(model.encoders) == {"en_0_Transformer", "zh_0_Transformer"}
    told = {"missing_keys": set(), "mismatched_keys": set(), "error_msgs": []}
    assert info == {**told, "unexpected_keys": {"encoders.en_0_Transformer.spare.weight"}}


def undefined(source: str) -> set[str]:
    """Names that a file uses and nobody has defined."""
    top = symtable.symtable(source, "written", "exec")
    known = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    found: set[str] = set()

    def look(table: symtable.SymbolTable) -> None:
        for symbol in table.get_symbols():
            if symbol.is_referenced() and symbol.is_global() and symbol.get_name() not in known:
                found.add(symbol.get_name())
        for child in table.get_children():
            look(child)

    look(top)
    return found - {*dir(builtins), "__file__", "__name__"}


def test_written_code_needs_nothing_of_the_package() -> None:
    assert undefined("def f(x):\n    return x + missing + len(x)\n") == {"missing"}
    every = modules_source(tuple(sorted(remote_code.MODULE_CLASSES)))
    for source in (model_source(), every, *(modules_source((name,)) for name in remote_code.MODULE_CLASSES)):
        assert not undefined(source)
        lines = [line for line in source.splitlines() if line.startswith(("import ", "from "))]
        assert not any("hf_xlsr" in line for line in lines) and lines[0] == "from __future__ import annotations"


def test_a_standalone_file_is_whole_and_of_one_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    namespace: dict[str, Any] = {}
    exec(standalone_source([pool], "Pooling."), namespace)
    states, mask = torch.rand(2, 3, 4), torch.tensor([[1, 1, 0], [1, 1, 1]])
    torch.testing.assert_close(namespace["pool"](states, mask, "max"), pool(states, mask, "max"))
    with pytest.raises(ValueError, match="pooling mode is 'sum'"):
        namespace["pool"](states, mask, "sum")
    (tmp_path / "hf_twice.py").write_text("def pool():\n    return normalize\n\n\ndef normalize():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import hf_twice  # type: ignore[import-not-found]

    monkeypatch.setattr(standalone, "PACKAGE", "hf_twice")
    with pytest.raises(ValueError, match="'pool' is in hf_twice and in hf_xlsr.utils.pooling; give one another name"):
        standalone_source([hf_twice.pool, pool], "Two.")


def test_only_our_code_is_trusted(exports: Path, tmp_path: Path) -> None:
    assert has_only_our_code(exports / "projected") and has_only_our_code(exports / "detecting")
    assert not has_only_our_code(exports / "linear")  # stock modules ask for no trust
    assert not has_only_our_code(tmp_path)

    def spoiled(change: Callable[[Path], Any]) -> bool:
        folder = tmp_path / "spoiled"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(exports / "projected", folder)
        change(folder)
        return not has_only_our_code(folder)

    def rewrite(name: str, **values: Any) -> Callable[[Path], Any]:
        def change(folder: Path) -> None:
            content = json.loads((folder / name).read_text("utf-8"))
            (folder / name).write_text(json.dumps({**content, **values}), "utf-8")

        return change

    def modules(kind: str) -> Callable[[Path], Any]:
        def change(folder: Path) -> None:
            content = json.loads((folder / "modules.json").read_text("utf-8"))
            content[2]["type"] = kind
            (folder / "modules.json").write_text(json.dumps(content), "utf-8")

        return change

    assert not spoiled(lambda folder: None)
    assert spoiled(lambda folder: (folder / "sentence_modules.py").open("a").write("print()\n"))
    assert spoiled(lambda folder: (folder / "more.py").touch())
    assert spoiled(lambda folder: (folder / "1_Pooling" / "sentence_modules.py").write_text("import os"))
    assert spoiled(modules("sentence_modules.Other")) and spoiled(modules("os.ProjectedMean"))
    assert spoiled(rewrite("config.json", auto_map={"AutoModel": "other/repo--modeling_sentence_encoder.Evil"}))
    assert spoiled(rewrite("tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]}))
    assert spoiled(rewrite("1_Pooling/config.json", activation_function="os.abort"))
    assert spoiled(rewrite("1_Pooling/config.json", types={"a": "subprocess.Popen"}))
    assert spoiled(rewrite("config.json", auto_map={"AutoModel": "modeling_sentence_encoder.x--evil.Evil"}))
    # Adapters have their base model loaded, from wherever they say.
    assert spoiled(lambda folder: (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "evil"}'))


def test_modules_of_several_models_come_together(exports: Path, tmp_path: Path) -> None:
    model = SentenceTransformer(str(exports / "projected"), device="cpu", trust_remote_code=True)
    fitted = Debias(components={"en": np.eye(16, 1)}, counts={"en": 9}, shares={"en": 0.5})
    debiased = debias_sentence_transformer(model, fitted)
    debiased.save(str(tmp_path / "debiased"), create_model_card=False)
    assert carry_modules(tmp_path / "debiased") and not carry_modules(tmp_path / "debiased")
    assert has_only_our_code(tmp_path / "debiased")
    loaded = SentenceTransformer(str(tmp_path / "debiased"), device="cpu", trust_remote_code=True)
    assert close(loaded.encode(ENGLISH, task="en"), debiased.encode(ENGLISH, task="en"))
    assert {type(module).__module__.rpartition(".")[2] for module in (loaded[2], loaded[4])} == {"sentence_modules"}


def test_routes_write_nothing_outside(exports: Path, tmp_path: Path) -> None:
    shutil.copytree(exports / "routed", tmp_path / "copy")
    file = tmp_path / "copy" / "router_config.json"
    content = json.loads(file.read_text("utf-8"))
    for route in ("../../evil", "/evil"):
        structure = {route: content["structure"]["en"]}
        file.write_text(json.dumps({**content, "structure": structure}), "utf-8")
        with pytest.raises(XlsrError, match="outside of its folder"):
            export_parts(tmp_path / "copy")


def test_what_is_taken(exports: Path, tmp_path: Path, parts: Parts) -> None:
    assert export_parts(exports / "routed")["zh"].folder == "zh_0_Transformer"
    with pytest.raises(XlsrError, match="is no sentence-transformers folder"):
        export_parts(tmp_path)

    def changed(name: str, values: Any) -> str:
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(exports / "linear", tmp_path / "copy")
        file = tmp_path / "copy" / name
        content = json.loads(file.read_text("utf-8"))
        file.write_text(json.dumps({**content, **values} if isinstance(values, dict) else values(content)), "utf-8")
        with pytest.raises(XlsrError) as raised:
            add_remote_code(tmp_path / "copy")
        return str(raised.value)

    assert "has pooling ['mean', 'max']" in changed("1_Pooling/config.json", {"pooling_mode": ["mean", "max"]})
    assert "Tanh behind the pooling" in changed("2_Dense/config.json", {"activation_function": "torch.nn.Tanh"})
    assert "lowers all letters" in changed("sentence_bert_config.json", {"do_lower_case": True})
    assert "puts the prompt 'query'" in changed("config_sentence_transformers.json", {"default_prompt_name": "query"})

    def elsewhere_path(rows: Any) -> Any:
        return [rows[0], {**rows[1], "path": "../1_Pooling"}, *rows[2:]]

    assert "names a module '../1_Pooling', outside of its folder" in changed("modules.json", elsewhere_path)
    assert "is made of encoder, linear" in changed("modules.json", lambda rows: [rows[0], rows[2]])
