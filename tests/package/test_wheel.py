from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from wheel_helpers import build_wheel, pip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel in a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--target", str(folder), str(build_wheel(tmp_path_factory.mktemp("wheel"))))
    return folder


def run(installed: Path, code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=installed, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_imports_and_finds_its_data(installed: Path) -> None:
    code = (
        "import hf_xlsr, hf_xlsr.trainers, hf_xlsr.modeling.lightweight as m, hf_xlsr.runs.recipe as r\n"
        "from importlib import resources\n"
        "print(hf_xlsr.__file__); print(hf_xlsr.trainers.__file__); print(m.__file__)\n"
        "print(r.load_runs('quickstart')[0].name)\n"
        "print(resources.files('hf_xlsr.model_cards').joinpath('card.md.jinja').is_file())\n"
    )
    *files, method, card = run(installed, code).split()
    assert all(file.startswith(str(installed)) for file in files)
    assert (method, card) == ("lightweight", "True")


def test_wheel_leaks_no_generic_names(installed: Path) -> None:
    assert not {"modeling", "trainers", "recipes", "model_cards", "tests", "train.py"} & set(os.listdir(installed))
