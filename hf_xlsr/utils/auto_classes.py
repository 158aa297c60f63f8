"""The Auto classes of transformers: loading without code from the folder, and registration of our architectures.

Importing `transformers.AutoConfig` takes seconds, so registration waits until somebody else imports it, and imports an
architecture on first use.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from hf_xlsr.utils.errors import XlsrError

AUTO_MODULE = "transformers.models.auto.configuration_auto"
OWN_MODEL_TYPES: dict[str, str] = {
    "cmlm": "hf_xlsr.modeling.cmlm",
    "distillation": "hf_xlsr.modeling.lightweight",
    "dual_momentum": "hf_xlsr.modeling.dual_momentum",
    "hictl": "hf_xlsr.modeling.hictl",
    "lightweight_dual_transformer": "hf_xlsr.modeling.lightweight",
}
"""Model types of this package -> the module that registers them when it is imported."""
ARCHITECTURES = {**OWN_MODEL_TYPES, "static_embedding": "hf_xlsr.encoders.static"}
"""The same with those of encoders, which are no models by themselves."""

ADAPTERS = "adapter_model.safetensors"


class _LazyConfigs(dict[str, Any]):
    """Model type -> config class, or the module to import: importing it registers config and models."""

    def __getitem__(self, model_type: str) -> Any:
        value = super().__getitem__(model_type)
        if isinstance(value, str):
            importlib.import_module(value)
            value = super().__getitem__(model_type)
        return value

    def values(self) -> Any:
        return [self[model_type] for model_type in self]

    def items(self) -> Any:
        return [(model_type, self[model_type]) for model_type in self]


class _AutoModuleFinder(MetaPathFinder):
    """Runs `_register` right after the import of `AUTO_MODULE`."""

    def __init__(self, architectures: Mapping[str, str]) -> None:
        self.architectures = architectures

    def find_spec(
        self,
        fullname: str,
        path: Any = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != AUTO_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_and_register(module: ModuleType) -> None:
            run(module)
            _register(module, self.architectures)

        spec.loader.exec_module = run_and_register  # type: ignore[method-assign]
        return spec


def _register(auto_module: ModuleType, architectures: Mapping[str, str]) -> None:
    # `CONFIG_MAPPING.register` takes classes only: each would have to be imported.
    mapping = auto_module.CONFIG_MAPPING
    mapping._extra_content = _LazyConfigs({**architectures, **mapping._extra_content})  # noqa: SLF001


def register_architectures() -> None:
    """Makes `AutoConfig` and `AutoModel` know the architectures of this package, without importing them."""
    if AUTO_MODULE in sys.modules:
        _register(sys.modules[AUTO_MODULE], ARCHITECTURES)
    else:
        sys.meta_path.insert(0, _AutoModuleFinder(ARCHITECTURES))


def load_auto(
    auto_class: Any,
    path: Any,
    **options: Any,
) -> Any:
    """`auto_class.from_pretrained(path)` that never runs code of the folder or repository.

    By default transformers asks on standard input whether to run it.
    """
    if auto_class.__name__.startswith("AutoModel"):
        check_adapters(path)
    return auto_class.from_pretrained(path, trust_remote_code=False, **options)


def check_adapters(path: Any) -> None:
    """Raises for adapters in a pickle only, which transformers would load with the weights."""
    from transformers.utils.hub import cached_file
    from transformers.utils.peft_utils import find_adapter_config_file

    if find_adapter_config_file(path) is None:
        return
    if cached_file(path, ADAPTERS, _raise_exceptions_for_missing_entries=False) is None:
        raise XlsrError(f"the adapters in '{path}' must be {ADAPTERS}; pickles are not loaded.")


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Hides transformers' report of weights without use or without a value, for callers that check them."""
    from transformers.utils.logging import get_verbosity, set_verbosity

    before = get_verbosity()
    set_verbosity(max(before, logging.ERROR))
    try:
        yield
    finally:
        set_verbosity(before)
