from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.extras import EXTRAS, require_package

ROOT = Path(__file__).resolve().parents[2]
tomllib = pytest.importorskip("tomllib")  # of Python 3.11
OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]


def test_extras_bring_their_packages() -> None:
    distributions = packages_distributions()
    for package, extra in EXTRAS.items():
        if package in distributions:
            brought = {canonicalize_name(Requirement(line).name) for line in OPTIONAL[extra]}
            assert canonicalize_name(distributions[package][0]) in brought, package


def test_extra_all_has_every_extra_but_those_of_other_licences_and_clusters() -> None:
    (line,) = OPTIONAL["all"]
    extras = Requirement(line).extras | {"bible", "cleaning", "ray"}
    assert extras == set(OPTIONAL) - {"all", "dev", "docs"}
    assert extras >= set(EXTRAS.values())


def test_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(XlsrError, match=re.escape("pip install 'hf-xlsr[translation]'")):
        require_package("polib", "sacrebleu")


# Names every attempt to use the network, also of child processes, and quantises a model.
QUANTISED = """
import sys

def report(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
        print(event, arguments, file=sys.stderr, flush=True)

sys.addaudithook(report)
from hf_xlsr.utils.extras import import_without_telemetry

openvino = import_without_telemetry("openvino")
nncf = import_without_telemetry("nncf")

import numpy as np
from openvino import opset13

rows = opset13.parameter([-1, 8], np.float32)
product = opset13.matmul(rows, np.ones((8, 8), np.float32), False, False)
model = openvino.Model([product], [rows])
nncf.quantize(model, nncf.Dataset([np.ones((2, 8), np.float32)]))
"""


@pytest.mark.slow
def test_openvino_and_nncf_send_nothing(tmp_path: Path) -> None:
    for package in ("openvino", "nncf"):
        pytest.importorskip(package)
    variables = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", QUANTISED], env=variables, capture_output=True, text=True, check=True)
    for event in ("socket.", "urllib."):
        assert event not in done.stderr
    assert not (tmp_path / "intel").exists()  # the identifier of a sender


def test_openvino_and_nncf_are_imported_in_one_place() -> None:
    for folder in ("hf_xlsr", "modeling", "trainers", "benchmarks"):
        for file in (ROOT / folder).rglob("*.py"):
            assert not re.search(r"^\s*(from|import) (openvino|nncf)\b", file.read_text("utf-8"), re.MULTILINE), file
