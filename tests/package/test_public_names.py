"""`import hf_xlsr`: light, complete, and known to the Auto classes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hf_xlsr


def test_every_public_name_resolves() -> None:
    for name in hf_xlsr.__all__:
        assert getattr(hf_xlsr, name) is not None
    assert set(hf_xlsr.__all__) <= {*dir(hf_xlsr), "__version__"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import hf_xlsr, sys; assert not {'torch', 'transformers'} & set(sys.modules)\n"
        "from transformers import AutoConfig, AutoModel\n"
        "assert AutoModel._model_mapping[type(AutoConfig.for_model('hictl'))].__name__ == 'HictlForPreTraining'",
        "from transformers import AutoConfig; import hf_xlsr; AutoConfig.for_model('cmlm')",
    ],
    ids=["before transformers", "after transformers"],
)
def test_import(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)
