"""The modules of sentence-transformers as they are read from a folder, which may come from a stranger.

Each module of a folder is one of the classes below. They check what the folder says and then become stock modules, so
that `modules.json` names classes that every reader knows. Nothing is imported by a name in a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from sentence_transformers.base.modules import Router, Transformer
from sentence_transformers.sentence_transformer.modules import (
    LSTM,
    BoW,
    StaticEmbedding,
    WeightedLayerPooling,
    WordEmbeddings,
)
from sentence_transformers.util import load_file_path
from torch import nn
from transformers.utils.peft_utils import find_adapter_config_file

from hf_xlsr.encoders.heads import KINDS
from hf_xlsr.encoders.stock import auto_encoder, missing_weights
from hf_xlsr.utils.auto_classes import check_adapters, forget_code, hub_options, new_model, quiet_loading
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import read_json
from hf_xlsr.utils.model_sizes import (
    check_config_file,
    check_model_sizes,
    check_module_sizes,
    check_tokenizer_files,
    stored_shapes,
)

# What a folder may say of a `Transformer`, and which options of loading it may set.
TRANSFORMER_KEYS = {*Transformer.config_keys, "max_seq_length", "do_lower_case"}
OPTION_SECTIONS = {"model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"}
TRANSFORMER_OPTIONS = {
    *("attn_implementation", "dtype", "torch_dtype", "add_pooling_layer", "is_causal", "num_labels", "use_cache"),
    *("unpad_inputs", "use_memory_efficient_attention", "padding_side", "truncation_side", "model_max_length"),
    *("use_fast", "do_lower_case", "add_bos_token", "add_eos_token", "add_prefix_space"),
    "clean_up_tokenization_spaces",
}
SAFE_WEIGHTS = "model.safetensors"
PICKLED_WEIGHTS = "pytorch_model.bin"
MODULE_NAME = re.compile(r"sentence_transformers\.(?:\w+\.)*(\w+)")


def open_class(stock: Any) -> Any:
    """A class of sentence-transformers for a module of a folder.

    It is not a mixin, because `close` assigns `__class__`, which Python allows only between classes of the same layout.
    """

    class FolderModule(stock):  # type: ignore[misc]  # a class as a variable
        @classmethod
        def load_config(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> Any:
            """As the stock module. No matrix may be larger than the stored weights."""
            if stock is not Transformer:  # which is loaded from safetensors alone
                check_safetensors(model_name_or_path, subfolder)
            config = super().load_config(model_name_or_path, subfolder=subfolder, **options)
            place = f"'{Path(model_name_or_path, subfolder)}'"
            activation = config.get("activation_function", "torch.")
            if not activation.startswith("torch."):  # sentence-transformers would take another one
                raise XlsrError(f"{place}: the activation '{activation}' must be a class of torch.")
            check_module_sizes(config, place, partial(stored_shapes, model_name_or_path, subfolder=subfolder))
            return config

        def close(self) -> None:
            """Makes this object a stock module."""
            self.__class__ = stock

    return FolderModule


class OpenRouter(open_class(Router)):  # type: ignore[misc]
    """`Router` of a folder, whose routes have modules of the same classes."""

    @classmethod
    def load(cls, *args: Any, **options: Any) -> Any:
        """As `Router`, which would import the modules of a router inside of it by their names."""
        return super().load(*args, **{**options, "module_classes": MODULE_CLASSES})


class OpenTransformer(open_class(Transformer)):  # type: ignore[misc]
    """`Transformer` of an encoder in memory, or of a folder, whose weights must be complete.

    The private methods below are those of sentence-transformers, which has no public way to read an encoder that is
    loaded already; nothing else here depends on them.
    """

    def __init__(
        self,
        model_name_or_path: str,
        *,
        encoder: Any = None,
        **options: Any,
    ) -> None:
        object.__setattr__(self, "_given", encoder)  # not registered as a submodule, which `__init__` would forget
        super().__init__(model_name_or_path, **options)

    @classmethod
    def load_config(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> dict[str, Any]:
        """As `Transformer`, which passes options in a folder to `from_pretrained`: harmless ones alone."""
        config: dict[str, Any] = super().load_config(model_name_or_path, subfolder, **options)
        check_transformer_options(config, f"'{Path(model_name_or_path, subfolder, cls.config_file_name)}'")
        return config

    def _load_config(self, model_name_or_path: str, backend: str, config_kwargs: dict[str, Any]) -> Any:
        if self._given is not None:
            return self._given.config, False
        path = model_name_or_path
        where = hub_options(config_kwargs)
        adapters = find_adapter_config_file(path, **where)
        if adapters is not None:
            path = read_json(adapters)["base_model_name_or_path"]
            where.pop("subfolder", None)
            where.pop("revision", None)

        check_tokenizer_files(model_name_or_path, **hub_options(config_kwargs))
        check_config_file(path, **where)
        config, has_adapters = super()._load_config(model_name_or_path, backend, config_kwargs)
        forget_code(config)
        build = partial(new_model, auto_encoder(config))
        check_model_sizes(build, config, f"'{path}'", stored_shapes(path, **where))
        return config, has_adapters

    def _configure_use_cache(self, *args: Any, **kwargs: Any) -> None:  # static there
        if self._given is None and hasattr(Transformer, "_configure_use_cache"):  # sentence-transformers 6.2
            Transformer._configure_use_cache(*args, **kwargs)  # noqa: SLF001  # see above

    def _load_model(self, *args: Any, **kwargs: Any) -> Any:
        if self._given is not None:
            return self._given
        check_adapters(args[0] if args else kwargs["model_name_or_path"])
        with quiet_loading():
            loaded: Any = super()._load_model(*args, output_loading_info=True, **kwargs)
        encoder, info = loaded
        missing = missing_weights(info)
        if missing:
            raise XlsrError(f"weights are missing ({missing[0]}, ...).")
        return encoder

    def close(self) -> None:
        """As for other modules."""
        object.__delattr__(self, "_given")
        super().close()


def check_safetensors(path: str, folder: str) -> None:
    """Raises for a module whose weights are a pickle only, which sentence-transformers would load."""
    has_safetensors = load_file_path(path, SAFE_WEIGHTS, subfolder=folder) is not None
    if not has_safetensors and load_file_path(path, PICKLED_WEIGHTS, subfolder=folder) is not None:
        raise XlsrError(
            f"the weights in '{Path(folder, PICKLED_WEIGHTS)}' are a pickle, which is not loaded. Save it by "
            "sentence-transformers again, which writes safetensors."
        )


def check_transformer_options(options: Mapping[str, Any], place: str) -> None:
    """Raises for options of a `Transformer` that a folder may not set: they load pickles, code or other files."""
    refused = options.keys() - TRANSFORMER_KEYS - OPTION_SECTIONS
    for section in OPTION_SECTIONS & options.keys():
        for name, value in options[section].items():
            if name not in TRANSFORMER_OPTIONS or isinstance(value, dict | list) or "/" in str(value):
                refused.add(f"{section}.{name}")
    if refused:
        raise XlsrError(f"{place} sets `{min(refused)}`, which may load code or other files. Remove it.")


class ModuleClasses(dict[str, type[nn.Module]]):
    """The class of each module that a folder may name."""

    def get(self, name: str, default: Any = None) -> Any:
        """The class by the last part of a name, as modules have moved; an error for all but those of this mapping."""
        match = MODULE_NAME.fullmatch(name)
        if match is None or match[1] not in self:
            raise XlsrError(f"the module '{name}' is unsupported; supported are {', '.join(self)}.")
        return self[match[1]]


MODULE_CLASSES = ModuleClasses(Transformer=OpenTransformer, Router=OpenRouter, Asym=OpenRouter)
_OTHER_KINDS: tuple[type[nn.Module], ...] = (BoW, LSTM, StaticEmbedding, WeightedLayerPooling, WordEmbeddings)
for _kind in (*KINDS.values(), *_OTHER_KINDS):
    MODULE_CLASSES[_kind.__name__] = open_class(_kind)
