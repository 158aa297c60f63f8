"""The wheel, built and installed without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def pip(*words: str) -> None:
    """Runs pip without an index and without dependencies."""
    common = ("--quiet", "--no-deps", "--no-index", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", *words, *common], check=True, capture_output=True)


def build_wheel(folder: Path) -> Path:
    """The wheel, built from a copy of the tree."""
    skip = shutil.ignore_patterns(".git", ".venv", "outputs", "build", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, folder / "source", ignore=skip)
    pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / "source"))
    (wheel,) = folder.glob("*.whl")
    return wheel
