from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
# Prints the modules that need an extra, then the extras that the calls need.
MISSED = """
import importlib, pkgutil
from importlib.util import find_spec
import hf_xlsr
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import EXTRAS

assert not [package for package in EXTRAS if find_spec(package)]

def missed(call):
    try:
        call()
    except XlsrError as error:
        return str(error).rpartition("hf-xlsr[")[2].partition("]")[0]

for module in pkgutil.walk_packages(hf_xlsr.__path__, "hf_xlsr.", onerror=lambda name: None):
    if extra := missed(lambda: importlib.import_module(module.name)):
        print(module.name, extra)

from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.data.cleaning import build_steps
from hf_xlsr.data.sentences import split_sentences
from hf_xlsr.data.corpora.loading import load_corpus
from hf_xlsr.encoders.graphs import GraphEncoder
from hf_xlsr.evaluation.bleu import corpus_bleu
from hf_xlsr.evaluation.metrics import load_metric
from hf_xlsr.mining.faiss_index import build_index
from hf_xlsr.trainers import CmlmTrainingArguments
from hf_xlsr.trainers.adapters import add_adapters
import numpy as np

for file in ("a.tmx", "a.po"):
    open(file, "w").close()
for call in (
    lambda: list(read_rows("a.tmx", languages=["en", "fr"])),
    lambda: list(read_rows("a.po")),
    lambda: build_steps([{"language": {"method": "py3langid"}}], ["en"]),
    lambda: build_steps([{"language": {"method": "heliport"}}], ["en"]),
    lambda: build_steps([{"language": {"method": "fasttext:lid.ftz"}}], ["en"]),
    lambda: build_steps(["fuzzy_duplicates"]),
    lambda: split_sentences("One. Two.", "en"),
    lambda: list(load_corpus("bible", languages=["en"])),
    lambda: GraphEncoder("."),
    lambda: GraphEncoder(".", "openvino"),
    lambda: corpus_bleu(["a"], ["a"]),
    lambda: load_metric("mining_f1"),
    lambda: add_adapters(None, rank=2),
    lambda: build_index(np.eye(2)),
    lambda: CmlmTrainingArguments(output_dir=".", optimizer="lamb"),
):
    print(missed(call))
"""


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


def link_with_requirements(requirements: list[str], site: Path) -> None:
    """Links installed distributions, and what they require in turn, into `site-packages`."""
    waiting = list(map(Requirement, requirements))
    linked = set()
    while waiting:
        requirement = waiting.pop()
        needed = not requirement.marker or requirement.marker.evaluate({"extra": ""})
        if requirement.name in linked or not needed:
            continue

        linked.add(requirement.name)
        installed = distribution(requirement.name)
        waiting += map(Requirement, installed.requires or [])
        names = {file.parts[0] for file in installed.files or []}
        for name in names - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(Path(str(installed.locate_file(name))).resolve())


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and its dependencies, without extras."""
    folder = tmp_path_factory.mktemp("core")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    pip("--python", str(python), "install", str(build_wheel(folder)))
    (metadata,) = folder.glob("venv/lib/python*/site-packages/hf_xlsr-*.dist-info")
    leaked = {"modeling", "trainers", "recipes", "model_cards", "tests", "train.py"}
    assert not leaked & set(os.listdir(metadata.parent)), "the wheel has generic names"
    link_with_requirements(Distribution.at(metadata).requires or [], metadata.parent)
    return python


def run(python: Path, *words: str, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [python, "-I", *words], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(900)  # imports every library anew, several times
def test_core_trains_evaluates_exports_and_mines(core: Path, tmp_path: Path) -> None:
    printed = run(core, str(ROOT / "tests" / "smoke.py"), str(tmp_path / "work"), folder=tmp_path)
    assert printed.startswith("trained")
    assert "adapted" not in printed
    assert not list(tmp_path.rglob("*.png"))


def test_core_names_missing_extras(core: Path, tmp_path: Path) -> None:
    extras = run(core, "-c", MISSED, folder=tmp_path).splitlines()
    of_modules = [
        "hf_xlsr.evaluation.mteb mteb",
        "hf_xlsr.evaluation.plots plots",
        "hf_xlsr.export.corpus_plots plots",
    ]
    of_texts = ["text", "text", "text", "cleaning", "cleaning", "cleaning", "text"]
    assert extras == [
        *of_modules,
        *of_texts,
        "bible",
        "onnx",
        "openvino",
        "translation",
        "evaluate",
        "peft",
        "faiss",
        "lamb",
    ]
