from __future__ import annotations

import re
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


def test_extra_all_has_every_extra_but_the_one_of_another_licence() -> None:
    (line,) = OPTIONAL["all"]
    extras = Requirement(line).extras | {"bible"}
    assert extras == set(OPTIONAL) - {"all", "dev", "docs"}
    assert extras >= set(EXTRAS.values())


def test_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(XlsrError, match=re.escape("pip install 'hf-xlsr[translation]'")):
        require_package("polib", "sacrebleu")
