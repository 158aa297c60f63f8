"""The fifth method of docs/extend.md: its five files work as they stand on the page. The plug-in is in tests/package."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from conftest import make_pairs
from page_blocks import blocks_of
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

from hf_xlsr.cli import main
from hf_xlsr.evaluation.protocol import PROTOCOLS
from hf_xlsr.evaluation.reading import RowInputs
from hf_xlsr.runs.methods import METHODS
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.errors import XlsrError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extend.md"
FILES = ("model.py", "trainer.py", "method.py", "en_fr.yaml", "test_contrast.py")
SMALL = (
    "--max_steps 12 --per_device_train_batch_size 16 --precision float32 --vocab_size 80 --algorithm bpe "
    "--hidden_size 16 --intermediate_size 32 --num_attention_heads 2 --logging_steps 2 --save_steps 6 --eval_steps 6 "
    "--learning_rate 1e-2 --max_length 32"
).split()


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the files of the page in `contrast/`, which can be imported."""
    (tmp_path / "contrast").mkdir()
    block_with_name = re.compile(r"^`(contrast/[\w.]+)`.*?^```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for path, content in block_with_name.findall(PAGE.read_text("utf-8")):
        (tmp_path / path).write_text(content, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(METHODS, "_added", {})

    yield tmp_path

    for name in list(sys.modules):
        if name.split(".")[0] == "contrast":
            del sys.modules[name]


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"contrast.{name}")


def line_of(heading: str) -> int:
    return PAGE.read_text("utf-8").splitlines().index(heading) + 1


def data_of(folder: Path) -> list[str]:
    """Small files in place of the recipe's corpus."""
    words = []
    for split, count, seed in (("train", 160, 1), ("dev", 12, 2), ("test", 12, 3)):
        lines = [f"{pair['source']}\t{pair['target']}\n" for pair in make_pairs(count, seed)]
        (folder / f"{split}.tsv").write_text("".join(lines), "utf-8")
        words += [f"--data.{split}.path", f"{split}.tsv"]
    return words


def test_protocol_with_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROTOCOLS, "_added", {})
    (block,) = [block for block in blocks_of(PAGE) if '"short-texts"' in block.text]
    exec(compile(block.text, "extend.md", "exec", dont_inherit=True), {"__name__": "short_texts_page"})

    protocol = PROTOCOLS["short-texts"]
    rows = [{"text": "one", "lang": "en"}, {"text": "eleven", "lang": "en"}]
    results = protocol.run(None, RowInputs(name="set", split="test", rows=rows), protocol.options(longest=5))
    assert results == {"set-short-texts-longest5/en/test/short": 0.5, "set-short-texts-longest5/en/test/rows": 2}


@pytest.mark.slow
def test_method_trains_and_exports(page_folder: Path) -> None:
    module_of("method")
    command = ["train", "contrast/en_fr.yaml", *data_of(page_folder), *SMALL]
    assert main([*command, "--output_dir", "whole"]) == 0

    model = SentenceTransformer("whole/model")
    assert model.encode(["one red bird"]).shape == (1, 16)
    log = (page_folder / "whole/training/log.json").read_text("utf-8")
    assert "eval_dev-tatoeba/en-fr/dev/accuracy" in log
    losses = [float(value) for value in re.findall(r'"loss/contrast": ([\d.]+)', log)]
    assert losses[-1] < losses[0]

    # From the checkpoint in the middle to the same weights.
    before = load_file("whole/model/model.safetensors")
    for path in ("training/checkpoint-12", "training/final", "model"):
        shutil.rmtree(page_folder / "whole" / path)
    assert main([*command, "--output_dir", "whole"]) == 0
    after = load_file("whole/model/model.safetensors")
    torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_page_has_five_files_and_commands(page_folder: Path) -> None:
    written = [path.name for path in (page_folder / "contrast").iterdir()]
    assert sorted(written) == sorted(FILES)
    blocks = [block for block in blocks_of(PAGE) if block.line > line_of("## A method of your own")]
    assert len(blocks) == len(FILES) + 1, "a block of the section is neither a file nor the commands"

    module_of("method")
    commands = [block.text for block in blocks if block.tag == "bash"]
    for line in "".join(commands).splitlines():
        program, flag, module, verb, recipe, *rest = shlex.split(line)
        assert (program, flag, module, verb) == ("python", "-m", "contrast.method", "train")
        (run,) = load_runs(recipe, rest)
        assert run.name == "contrast"
        assert run.recipe.tokenizer.vocab_size == 16000
    assert run.recipe.model["temperature"] == 0.1
    with pytest.raises(XlsrError, match="did you mean"):
        load_runs(recipe, ["--temprature", "0.1"])


def test_tests_of_the_page(page_folder: Path, tmp_path: Path) -> None:
    tests = [value for name, value in vars(module_of("test_contrast")).items() if name.startswith("test_")]
    assert len(tests) == 3
    for number, test in enumerate(tests):
        folder = tmp_path / str(number)
        folder.mkdir()
        if "tmp_path" in inspect.signature(test).parameters:
            test(tmp_path=folder)
        else:
            test()


def test_method_starts_from_a_given_encoder(page_folder: Path, tiny_encoder_folder: str) -> None:
    """With its head and its settings, as the page says."""
    module_of("method")
    transformer = Transformer(tiny_encoder_folder, max_seq_length=20)
    width = transformer.get_embedding_dimension()
    modules = [transformer, Pooling(width, "cls"), Dense(width, 6), Normalize()]
    SentenceTransformer(modules=modules, prompts={"query": "one "}, default_prompt_name="query").save("given")

    command = ["train", "contrast/en_fr.yaml", *data_of(page_folder), "--encoder", "given", "--output_dir", "run"]
    command += ["--max_steps", "1", "--per_device_train_batch_size", "16", "--precision", "float32"]
    command += ["--data.max_length", "null", "--eval_strategy", "no", "--save_strategy", "no"]
    assert main(command) == 0

    trained = SentenceTransformer("run/model")
    assert [type(module).__name__ for module in trained] == ["Transformer", "Pooling", "Dense", "Normalize"]
    assert trained.encode(["one red bird"]).shape == (1, 6)
    assert trained.max_seq_length == 20
    assert trained.default_prompt_name == "query"
    assert trained.prompts["query"] == "one "
