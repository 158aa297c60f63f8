from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import make_pairs

from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.recipe import resolve
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.utils.errors import XlsrError


def recipe(folder: Path, **changed: Any) -> dict[str, Any]:
    pairs = "".join(f"{row['source']}\t{row['target']}\n" for row in make_pairs(40))
    (folder / "good.tsv").write_text(f"source\ttarget\n{pairs}", "utf-8")
    (folder / "bad.tsv").write_text("source\tother\na\tb\n", "utf-8")
    encoder = {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return {
        "method": "lightweight",
        "languages": ["en", "fr"],
        "tokenizer": {"vocab_size": 60, "algorithm": "bpe"},
        "data": {"train": str(folder / "good.tsv"), "cleaning": []},
        "model": {"encoder": encoder},
        "training": {"max_steps": 1, "per_device_train_batch_size": 8, "precision": "float32"},
        "output_dir": str(folder / "run"),
        **changed,
    }


BAD: dict[str, dict[str, Any]] = {
    "missing column": {"data": {"train": {"path": "bad.tsv", "columns": "source=source,target=target"}}},
    "wrong model": {"model": {"encoder": {"model_type": "bert", "hidden_size": 9, "num_attention_heads": 2}}},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("overwrite", [False, True])
def test_failed_attempt(bad: dict[str, Any], overwrite: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = recipe(tmp_path, overwrite=overwrite)
    monkeypatch.chdir(tmp_path)
    folder = RunFolder(tmp_path / "run")
    if overwrite:  # of a finished run
        train_recipe(resolve(good))
    files = set(folder.path.rglob("*"))
    with pytest.raises((XlsrError, ValueError)):
        train_recipe(resolve({**good, **bad}))
    if "data" in bad and overwrite:
        assert files == set(folder.path.rglob("*"))
    elif "data" in bad:
        assert not folder.path.exists()
    train_recipe(resolve({**good, "overwrite": False} if "data" in bad else good))
    assert folder.results.is_file()
    assert not list(folder.path.glob(".hf-xlsr*"))


def test_run_is_replaced_until_its_first_checkpoint(tmp_path: Path) -> None:
    first = resolve(recipe(tmp_path)).recipe.settings()
    other = resolve(recipe(tmp_path, seed=2)).recipe.settings()
    folder = RunFolder(tmp_path / "run")
    for settings in (first, other, first):
        with folder.locked():
            assert folder.reserve(settings) == folder.preparing
            folder.claim(settings)
    (folder.training / "checkpoint-1").mkdir()
    with folder.locked():
        assert folder.reserve(first) == folder.training
        with pytest.raises(XlsrError, match="seed"):
            folder.reserve(other)
        assert folder.reserve({**other, "overwrite": True}) == folder.preparing


@pytest.mark.slow
def test_lock_of_two_starts(tmp_path: Path) -> None:
    code = "import sys, time; from hf_xlsr.runs.folder import RunFolder\n"
    code += "with RunFolder(sys.argv[1]).locked(): print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], stdout=subprocess.PIPE) as other:
        assert other.stdout and other.stdout.readline()
        with pytest.raises(XlsrError, match="another process"), RunFolder(tmp_path / "run").locked():
            pass
        other.kill()
    with RunFolder(tmp_path / "run").locked():
        pass
    assert not (tmp_path / "run").exists()
