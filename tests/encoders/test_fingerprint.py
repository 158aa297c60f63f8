"""`content_hash`: equal for equal embeddings, different for whatever changes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.fingerprint import content_hash


@pytest.fixture
def folder(tiny_export: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_export, tmp_path / "copy"))


def test_cards_and_other_files_are_ignored(folder: Path, tiny_export: str):
    before = content_hash(tiny_export)
    (folder / "README.md").write_text("# Another card")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("")
    (folder / "curve.png").write_bytes(b"picture")
    for file in folder.rglob("*"):
        file.touch()

    assert content_hash(folder) == before
    assert content_hash(str(folder)) == before
    assert len(before) == 64


def change_a_weight(folder: Path) -> None:
    file = next(folder.rglob("model.safetensors"))
    weights = load_file(file)
    next(iter(weights.values())).view(-1)[0] += 1e-3
    save_file(weights, file, {"format": "pt"})


def replace(name: str, old: str, new: str) -> Any:
    def change(folder: Path) -> None:
        file = next(folder.rglob(name))
        file.write_text(file.read_text().replace(old, new, 1))

    return change


@pytest.mark.parametrize(
    "change",
    [
        change_a_weight,
        replace("1_Pooling/config.json", "mean", "cls"),
        replace("tokenizer.json", '"one"', '"oné"'),
    ],
)
def test_changed_folder(change: Any, folder: Path):
    before = content_hash(folder)
    change(folder)
    assert content_hash(folder) != before


def test_loads_and_use_change_nothing(tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    before = content_hash(model)
    model.encode(["one two", "three " * 50])
    assert content_hash(model) == before
    assert content_hash(SentenceTransformer(tiny_export, device="cpu")) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda model: next(model.parameters()).data.view(-1)[0].add_(1e-6),
        lambda model: setattr(model[0], "max_seq_length", 5),
        lambda model: model.prompts.update(query="query: "),
        lambda model: setattr(model[0].model.config, "hidden_act", "relu"),
        lambda model: model.tokenizer.add_tokens(["xyzzy"]),
    ],
)
def test_changed_model(change: Any, tiny_export: str):
    model = SentenceTransformer(tiny_export, device="cpu")
    before = content_hash(model)
    change(model)
    assert content_hash(model) != before
