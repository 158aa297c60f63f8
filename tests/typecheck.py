"""Runs mypy over the package laid out as it is installed; checkers do not follow the mapping of editable installs."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "types"
ROOMS = {"hf_xlsr": "hf_xlsr", "modeling": "hf_xlsr/modeling", "trainers": "hf_xlsr/trainers"}
ROOMS.update(model_cards="hf_xlsr/model_cards")


def main() -> int:
    """Copies the rooms to where they are installed and checks them there."""
    shutil.rmtree(TREE / "hf_xlsr", ignore_errors=True)  # keeps the cache of mypy
    for room, installed_folder in ROOMS.items():
        shutil.copytree(ROOT / room, TREE / installed_folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "hf_xlsr"]
    return subprocess.run(command, cwd=TREE, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
