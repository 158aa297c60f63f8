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
from functools import partial
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
HUB_OPTIONS = ("cache_dir", "local_files_only", "revision", "subfolder", "token")
ATTENTION = ("attn_implementation", "_attn_implementation_internal")
"""Where a configuration may name a kernel of the Hub."""


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
    """`auto_class.from_pretrained(path)` that never runs code of the folder or repository, and never asks whether to.

    The one way to load configurations, models, tokenizers and processors of transformers. `auto_map`, which names such
    code, is dropped from configurations at every depth. The sizes of a model are compared with its stored weights first.

    Args:
        auto_class: An Auto class, or the class of a configuration, a model or a tokenizer.
        path: A folder or Hub id.
        **options: Passed on.
    """
    from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

    from hf_xlsr.utils.model_sizes import check_config_file, check_model_sizes, check_tokenizer_files, stored_shapes

    if auto_class is AutoTokenizer or issubclass(auto_class, PreTrainedTokenizerBase):
        check_tokenizer_files(path, **hub_options(options))
    if auto_class is AutoConfig or issubclass(auto_class, PreTrainedConfig):
        check_config_file(path, **hub_options(options))
    if hasattr(auto_class, "_model_mapping"):
        check_adapters(path)
        config = options.setdefault("config", None) or load_auto(AutoConfig, path)
        options["config"] = config
        check_architecture(auto_class, config)
        if config.model_type not in OWN_MODEL_TYPES:  # which check themselves
            build = partial(auto_class.from_config, trust_remote_code=False)
            check_model_sizes(build, config, f"'{path}'", stored_shapes(str(path)))

    loaded = auto_class.from_pretrained(path, trust_remote_code=False, **options)
    if isinstance(loaded, PreTrainedConfig):
        forget_code(loaded)
    return loaded


def hub_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those options of `from_pretrained` that say where on the Hub a file is."""
    return {name: options[name] for name in HUB_OPTIONS if options.get(name) is not None}


def new_model(auto_class: Any, config: Any, **options: Any) -> Any:
    """`auto_class.from_config(config)` that never runs code which the configuration names; the one way to do so."""
    import torch

    from hf_xlsr.utils.model_sizes import check_model_sizes

    check_architecture(auto_class, config)
    build = partial(auto_class.from_config, trust_remote_code=False)
    if torch.get_default_device().type != "meta":
        check_model_sizes(build, config, f"a new {config.model_type}", None)
    return build(config, **options)


def check_architecture(auto_class: Any, config: Any) -> None:
    """Raises if transformers itself has no model for a configuration; its own error takes half a minute."""
    if type(config) not in auto_class._model_mapping:  # noqa: SLF001  # no public way
        raise XlsrError(f"transformers has no {auto_class.__name__} for the model type '{config.model_type}'.")


def forget_code(config: Any) -> None:
    """Drops `auto_map` from a configuration and from all that is inside it.

    Raises:
        XlsrError: The configuration names a kernel of the Hub, which is compiled code.
    """
    waiting = [config]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        values = vars(value) if hasattr(value, "to_dict") else value
        if isinstance(values, dict):
            values.pop("auto_map", None)
            for name in ATTENTION:
                if "/" in str(values.get(name)):
                    raise XlsrError(f"The configuration names '{values[name]}', which is code of the Hub. Remove it.")
            waiting += values.values()
        elif isinstance(values, list | tuple):
            waiting += values


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
