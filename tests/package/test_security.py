"""Attacks: files, recipes and folders that try to run code, to leave their folder, or to fill the memory.

Tokens in logs and cards, and templates, are attacked in tests/export; XML entities in tests/data/test_formats_xml.py.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from cli_helpers import failing
from conftest import tiny_encoder

from hf_xlsr.cli import main
from hf_xlsr.data.formats.quarantine import Quarantine
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.encoders.stock import encoder_from_pretrained
from hf_xlsr.runs.recipe import load_runs, read_recipe
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.markdown import front_matter
from hf_xlsr.utils.seals import SEAL

ROOT = Path(__file__).resolve().parents[2]


class Payload:
    """A pickle that leaves a file behind when it is read."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.trace, "ran"))


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    """Where attacks write; nothing may be there at the end."""
    file = tmp_path / "trace"
    yield file
    assert not file.exists(), "the attack ran"


def armed(trace: Path) -> bytes:
    """A pickle with a payload, and proof that it works where pickles are read."""
    attack = pickle.dumps(Payload(trace))
    pickle.loads(attack)
    assert trace.is_file()
    trace.unlink()
    return attack


def recipe(folder: Path, pairs: Path, **more: Any) -> Path:
    """A tiny training of two checkpoints."""
    encoder = tiny_encoder(80)
    del encoder["vocab_size"]
    content: dict[str, Any] = {
        "method": "lightweight",
        "languages": ["en", "fr"],
        "data": {"train": {"path": str(pairs)}, "max_length": 32, "cleaning": ["normalize"]},
        "tokenizer": {"vocab_size": 80, "algorithm": "bpe"},
        "model": {"encoder": encoder},
        "training": {"max_steps": 4, "per_device_train_batch_size": 8, "save_steps": 2, "precision": "float32"},
        "output_dir": str(folder / "run"),
        **more,
    }
    file = folder / "attack.yaml"
    file.write_text(yaml.safe_dump(content), "utf-8")
    return file


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
def test_pickles_in_a_checkpoint_do_not_run(name: str, write_pairs: Any, tmp_path: Path, trace: Path) -> None:
    (run,) = load_runs(str(recipe(tmp_path, write_pairs(count=64))))
    train_recipe(run)
    checkpoints = tmp_path / "run" / "training"
    shutil.rmtree(checkpoints / "final")
    shutil.rmtree(checkpoints / "checkpoint-4")
    (tmp_path / "run" / "results.json").unlink()

    armed(trace)
    torch.save(Payload(trace), checkpoints / "checkpoint-2" / name)
    (checkpoints / "checkpoint-2" / SEAL).unlink()  # with it, the changed checkpoint is skipped
    if name == "training_args.bin":  # written for people to look at; nothing here reads it
        assert not train_recipe(run).stopped
    else:
        with pytest.raises(XlsrError, match="checkpoint-2.*pickle"):
            train_recipe(run)


def test_pickled_weights_are_not_loaded(tiny_encoder_folder: str, tmp_path: Path, trace: Path) -> None:
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_encoder_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    weights = folder / "pytorch_model.bin"
    weights.write_bytes(armed(trace))
    with pytest.raises(XlsrError, match="safetensors"):
        encoder_from_pretrained(str(folder), place="model.encoder.path")

    # Weights that are honest, in a pickle all the same.
    torch.save({"embeddings.word_embeddings.weight": torch.zeros(2, 2)}, weights)
    with pytest.raises(XlsrError, match="safetensors"):
        encoder_from_pretrained(str(folder), place="model.encoder.path")


def test_pickled_vectors_are_not_loaded(
    tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("en.npy", np.array([Payload(trace)], dtype=object), allow_pickle=True)
    np.save("fr.npy", np.zeros((1, 4), np.float32))
    Path("en.txt").write_text("a line\n", "utf-8")
    Path("fr.txt").write_text("a line\n", "utf-8")

    words = "mine en.txt fr.txt --source-vectors en.npy --target-vectors fr.npy --languages en,fr --output pairs.tsv"
    assert main(words.split()) == 1
    assert "en.npy" in capsys.readouterr().err


def test_modules_of_a_folder_do_not_run(tiny_export: str, tmp_path: Path, trace: Path) -> None:
    folder = Path(shutil.copytree(tiny_export, tmp_path / "export"))
    (folder / "evil.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Evil: pass\n", "utf-8")
    file = folder / "modules.json"
    modules = json.loads(file.read_text("utf-8"))
    modules[-1]["type"] = "evil.Evil"
    file.write_text(json.dumps(modules), "utf-8")
    with pytest.raises(XlsrError, match="evil.Evil"):
        load_encoder(str(folder))


@pytest.mark.parametrize("tag", ["python/object/apply:os.system", "python/name:os.system", "python/module:os"])
def test_yaml_makes_no_objects(tag: str, tmp_path: Path, trace: Path) -> None:
    file = tmp_path / "attack.yaml"
    file.write_text(f"method: lightweight\ndescription: !!{tag} ['touch {trace}']\n", "utf-8")
    with pytest.raises(XlsrError, match="attack"):
        read_recipe(str(file))
    with pytest.raises(XlsrError):
        load_runs("quickstart", ["--training.max_steps", f"!!{tag} ['touch {trace}']"])


@pytest.mark.parametrize("kind", ["runs", "stages"])
@pytest.mark.parametrize("name", ["../outside", "/outside", "..", "a/../../b", "a\\..\\b", "", "a\x00b"])
def test_runs_stay_in_their_folder(name: str, kind: str, write_pairs: Any, tmp_path: Path) -> None:
    file = recipe(tmp_path, write_pairs(), **{kind: [{"name": name, "set": {}}]})
    with pytest.raises(XlsrError, match="attack.*name"):
        load_runs(str(file))


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "quickstart/../../secret"])
def test_recipe_names_read_no_other_files(name: str) -> None:
    with pytest.raises(XlsrError):
        read_recipe(name)


def test_compressed_bomb(tmp_path: Path) -> None:
    """Two gigabytes of one line, and of empty lines, in a few megabytes; read in a process that may have one more."""
    bomb = tmp_path / "bomb.tsv.gz"
    with gzip.open(bomb, "wb", compresslevel=9) as stream:
        for _ in range(64):
            stream.write(b"a" * 2**20)
        stream.write(b"\n" + b"one two\tun deux\n")
    code = textwrap.dedent("""
        import resource, sys
        from hf_xlsr.data.formats.reading import read_rows
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        rows = list(read_rows(sys.argv[1], columns="source=0,target=1"))
        print(len(rows), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """)
    done = subprocess.run([sys.executable, "-c", code, str(bomb)], capture_output=True, text=True, check=True)
    rows, grown = map(int, done.stdout.split())
    assert rows == 1
    assert grown < 40  # MB; the line alone would be 64


@pytest.mark.slow
def test_links_out_of_a_run(write_pairs: Any, tmp_path: Path) -> None:
    """`--overwrite true` clears a run; a link in its place must not clear what it points to."""
    outside = tmp_path / "outside"
    outside.mkdir()
    file = outside / "file.txt"
    file.write_text("text", "utf-8")
    recipe_file = str(recipe(tmp_path, write_pairs(count=64)))
    (run,) = load_runs(recipe_file)
    train_recipe(run)
    model = tmp_path / "run" / "model"
    shutil.rmtree(model)
    model.symlink_to(outside, target_is_directory=True)

    (overwriting_run,) = load_runs(recipe_file, ["--overwrite", "true"])
    train_recipe(overwriting_run)

    assert list(outside.iterdir()) == [file]


def asking_calls(tree: ast.AST) -> list[str]:
    """Calls that let transformers or sentence-transformers ask whether to run code of a folder."""
    calls = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        is_auto = name.startswith("Auto") and name.endswith(".from_pretrained")
        is_model = name == "SentenceTransformer" and bool(node.args)
        options = [keyword.arg for keyword in node.keywords]
        if (is_auto or is_model) and "trust_remote_code" not in options:
            calls.append(f"{name} in line {node.lineno}")
    return calls


@pytest.mark.parametrize("package", ["hf_xlsr", "modeling", "trainers"])
def test_no_loading_asks_whether_to_run_code(package: str) -> None:
    for file in (ROOT / package).rglob("*.py"):
        assert not asking_calls(ast.parse(file.read_text("utf-8"))), file


@pytest.mark.parametrize(
    "words",
    [
        "evaluate {folder} --protocol tatoeba --data pairs.tsv",
        "export {folder} --output out",
        "train finetune --encoder {folder} --train pairs.tsv --languages en,fr --output_dir run",
        "train start_hictl --encoder {folder} --train pairs.tsv --languages en,fr --output_dir run",
    ],
)
def test_folder_with_code(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "attack"
    folder.mkdir()
    classes = {
        "AutoConfig": "evil.EvilConfig",
        "AutoModel": "evil.EvilModel",
        "AutoTokenizer": "evil.EvilTokenizer",
    }
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": classes}))
    tokenizer = {"tokenizer_class": "EvilTokenizer", "auto_map": {"AutoTokenizer": ["evil.EvilTokenizer", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    harm = tmp_path / "harm"
    (folder / "evil.py").write_text(f"open({str(harm)!r}, 'w')\n")

    monkeypatch.chdir(tmp_path)
    rows = [f"one {n}\tun {n}\n" for n in range(99)]
    Path("pairs.tsv").write_text("source\ttarget\n" + "".join(rows), "utf-8")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    assert failing(capsys, *words.format(folder=folder).split())
    assert not harm.exists()


def alias_bomb() -> str:
    lines = ["a0: &a0 [x, x]"]
    for n in range(1, 40):
        aliases = ", ".join([f"*a{n - 1}"] * 9)
        lines.append(f"a{n}: &a{n} [{aliases}]")
    return "\n".join(lines)


@pytest.mark.parametrize("header", [alias_bomb(), "[" * 9000, "x: " + "y" * 100_000], ids=["aliases", "deep", "long"])
def test_card_with_a_bomb(header: str) -> None:
    assert front_matter(f"---\n{header}\n---\n") == {}


def deep_tmx(file: Path) -> None:
    file.write_text("<tmx>" + "<x>" * 100_000)


def wide_tmx(file: Path) -> None:
    unit = "<tuv lang='en'><seg>a</seg></tuv><tuv lang='fr'><seg>b</seg></tuv>" * 5000
    file.write_text(f"<tmx><body><tu>{unit}</tu></body></tmx>")


def large_po(file: Path) -> None:
    with file.open("wb") as stream:
        stream.truncate((1 << 26) + 1)


@pytest.mark.parametrize(
    ("write", "suffix"),
    [
        (deep_tmx, "tmx"),
        (wide_tmx, "tmx"),
        (large_po, "po"),
    ],
)
def test_files_that_expand(write: Callable[[Path], None], suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"attack.{suffix}"
    write(file)
    quarantine = Quarantine()
    rows = read_rows(str(file), required=("source", "target"), languages=("en", "fr"), quarantine=quarantine)
    if write is wide_tmx:
        assert not list(rows)
        assert "over-long unit" in str(quarantine.report())
    else:
        with pytest.raises(XlsrError, match=f"attack.{suffix}"):
            list(rows)
