"""The site: every page is in its navigation, every public name in the reference, and it builds without a warning."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
REFERENCED = ("", ".encoders", ".evaluation", ".export", ".losses", ".mining", ".sentence_transformers")


def pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
        return
    entries = nav.values() if isinstance(nav, dict) else nav
    for entry in entries:
        yield from pages(entry)


def test_navigation_has_every_page() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8").replace("!!python/name:", "")
    navigation = yaml.safe_load(settings)["nav"]
    written = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    written |= {f"notebooks/{notebook.stem}.md" for notebook in (ROOT / "notebooks").glob("*.ipynb")}
    assert sorted(pages(navigation)) == sorted(written)


def test_reference_has_every_public_name() -> None:
    texts = [page.read_text("utf-8") for page in (ROOT / "docs" / "api").glob("*.md")]
    shown_names = set()
    for module, name in re.findall(r"^::: ([\w.]+)\.(\w+)$", "".join(texts), re.MULTILINE):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
        shown_names.add(name)

    public_names: set[str] = set()
    for package in REFERENCED:
        public_names.update(importlib.import_module(f"hf_xlsr{package}").__all__)
    assert public_names - shown_names == {"__version__"}


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("zensical")
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("nbconvert")
    for name in ("docs", "hf_xlsr", "modeling", "trainers", "model_cards", "notebooks"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("mkdocs.yml", "setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    convert = "-m nbconvert --to markdown --output-dir docs/notebooks".split()
    notebooks = [f"notebooks/{path.name}" for path in (ROOT / "notebooks").glob("*.ipynb")]

    def run(*words: str) -> None:
        done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    run("setup.py", "-q", "build_py")
    run(*convert, *notebooks)
    for page in (tmp_path / "docs" / "notebooks").glob("*.md"):
        page.write_text(page.read_text("utf-8").replace("../docs/", "../"), "utf-8")
    run("-m", "zensical", "build", "--strict")

    losses = (tmp_path / "build" / "site" / "api" / "losses.html").read_text("utf-8")
    assert "alignment_loss" in losses
