"""What a recipe's `method` stands for: how to prepare, build, train and export each of the package's methods."""

from __future__ import annotations

from hf_xlsr.runs.methods.base import Method
from hf_xlsr.runs.methods.classification import ClassificationMethod
from hf_xlsr.runs.methods.cmlm import CmlmMethod
from hf_xlsr.runs.methods.dual_momentum import DualMomentumMethod
from hf_xlsr.runs.methods.hictl import HictlMethod
from hf_xlsr.runs.methods.lightweight import LightweightMethod
from hf_xlsr.runs.methods.translation import TranslationMethod
from hf_xlsr.utils.errors import XlsrError, nearest

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        LightweightMethod(),
        DualMomentumMethod(),
        HictlMethod(),
        CmlmMethod(),
        ClassificationMethod(),
        TranslationMethod(),
    )
}


def get_method(name: object) -> Method:
    """A method by its name.

    Raises:
        XlsrError: there is none of that name.

    Example:
        >>> get_method("lightweight").config_class.__name__
        'LightweightConfig'
    """
    if name not in METHODS:
        raise XlsrError(f"method is '{name}'; {nearest(str(name), METHODS)}")
    return METHODS[str(name)]


__all__ = ["METHODS", "Method", "get_method"]
