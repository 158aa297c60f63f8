"""Names of older versions of sentence-transformers and transformers, which text-embeddings-inference and others read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_xlsr.data.sources import as_list
from hf_xlsr.encoders.encoding import LONGEST
from hf_xlsr.encoders.heads import HeadConfig, leaves_out_prompt
from hf_xlsr.encoders.stock import longest_text_of
from hf_xlsr.utils.files import read_json, write_json

Content = dict[str, Any]

# The modules of sentence-transformers 5.4 and newer were all in one package before.
_MODULE = re.compile(r"sentence_transformers\.(?:base|sentence_transformer)\.modules\.\w+\.(\w+)")
_OLD_MODULE = r"sentence_transformers.models.\1"
POOLING_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# What newer versions take for granted where a file does not say it, and older ones do not know.
_TEXT_ONLY: Content = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
_OF_THE_SENTENCE: Content = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
# Old names of the base of rotary positions, of full and of sliding attention.
_ROTARY_BASES = ("rope_theta", "rope_local_base_freq")
_ROTARY_BASES_OF = {"modernbert": ("global_rope_theta", "local_rope_theta")}

# What text-embeddings-inference knows, by its sources of July 2026 (`router/src/lib.rs`, `backends/candle/src`).
SERVED_POOLINGS = ("cls", "mean", "lasttoken")
SERVED_HEAD = re.compile(r"Pooling( Dense)*")
IDENTITY = "torch.nn.modules.linear.Identity"
SERVED_ACTIVATIONS = ("torch.nn.modules.activation.Tanh", IDENTITY)
SERVED_DECODERS = ("gemma3_text", "llama", "mistral", "qwen2", "qwen3")
SERVED_ENCODERS = (
    *("bert", "camembert", "deberta-v2", "distilbert", "modernbert", "mpnet", "nomic_bert"),
    *("roberta", "xlm-roberta"),
)


def add_old_names(folder: Path) -> None:
    """Gives a folder of sentence-transformers the names that older versions read, next to those of newer ones.

    Every version since 5.0 then loads it, unless it has what only newer versions have: routes, several pooling modes at
    once, or texts read as messages of a chat.
    """
    for name, content in rewritten_files(folder).items():
        write_json(folder / name, content)


def rewritten_files(folder: Path) -> dict[str, Any]:
    """The content with old and new names of those files of a folder that lack the old ones, by path."""
    contents: dict[str, Any] = {}
    for file in sorted(folder.rglob("*.json")):
        if file.name not in _REWRITE:
            continue
        content = read_json(file)
        rewritten = _REWRITE[file.name](content, file.parent)
        if rewritten != content:
            contents[file.relative_to(folder).as_posix()] = rewritten
    return contents


def not_served(
    modules: HeadConfig, routes: Sequence[str] = (), transformer: Mapping[str, Any] | None = None
) -> list[str]:
    """What text-embeddings-inference does not compute of a model, in words: it refuses or ignores that.

    Args:
        modules: The modules behind the encoder.
        routes: Languages that users of the model must name.
        transformer: What is in front of them: the architecture as `model_type`, and the options of `Transformer`.
    """
    transformer = transformer or {}
    model_type = transformer.get("model_type", "bert")
    parts = ["a route per language"] if routes else []
    if model_type not in SERVED_ENCODERS + SERVED_DECODERS:
        parts.append(f"the architecture {model_type}")
    if "message" in transformer.get("modality_config", ()):
        parts.append("its chat template")

    kinds = [str(module["kind"]) for module in modules]
    computed_kinds = [kind for place, kind in enumerate(kinds) if not _is_without_effect(modules, place)]
    if kinds and not SERVED_HEAD.fullmatch(" ".join(computed_kinds)):
        parts.append(f"the modules {', '.join(kinds)}")
    for module in modules:
        modes = as_list(module.get("pooling_mode"))
        is_of_encoders = model_type not in SERVED_DECODERS and modes == ["lasttoken"]
        if len(modes) > 1 or not set(modes) <= set(SERVED_POOLINGS) or is_of_encoders:
            parts.append(f"{'+'.join(modes)} pooling")
        activation = module.get("activation_function", IDENTITY)
        if activation not in SERVED_ACTIVATIONS:
            parts.append(f"Dense with {activation.rpartition('.')[2]}")
    if leaves_out_prompt(modules):
        parts.append("a pooling without the prompt")
    return parts


def _is_without_effect(modules: HeadConfig, place: int) -> bool:
    """Whether a module only sets the length of vectors, and those behind it keep their direction: all get length 1."""
    directions_kept = True
    for module in modules[place + 1 :]:
        is_linear = module.get("activation_function") == IDENTITY and not module["bias"]
        directions_kept &= is_linear or module["kind"] == "Normalize"
    return modules[place]["kind"] == "Normalize" and directions_kept


def _modules(entries: Any, _: Path) -> Any:
    return [{**entry, "type": _old_module(entry["type"])} for entry in entries]


def _router(content: Content, _: Path) -> Content:
    types = {name: _old_module(module_type) for name, module_type in content["types"].items()}
    return {**content, "types": types}


def _old_module(module_type: str) -> str:
    return _MODULE.sub(_OLD_MODULE, module_type)


def _transformer(content: Content, folder: Path) -> Content:
    """The settings of a `Transformer`, without new keys if they have the values of every encoder of text."""
    settings = {"do_lower_case": False, **_without(content, _TEXT_ONLY)}
    length = _max_length(settings.get("max_seq_length"), folder)
    if length is not None and length <= LONGEST:
        settings["max_seq_length"] = length
    return settings


def _max_length(stated: int | None, folder: Path) -> int | None:
    """Number of tokens that texts are truncated to: at most the positions of the encoder, which others do not check."""
    tokenizer_file = folder / "tokenizer_config.json"
    tokenizer = read_json(tokenizer_file) if tokenizer_file.is_file() else {}
    length = stated or tokenizer.get("model_max_length")
    config_file = folder / "config.json"
    if not config_file.is_file() or "auto_map" in read_json(config_file):  # adapters, or code that is never run
        return length
    return longest_text_of(str(folder), length)


def _module(content: Content, _: Path) -> Content:
    """The configuration of an encoder, or of a module behind it."""
    if "pooling_mode" in content:
        return _pooling(content)
    if "rope_parameters" in content:
        return _rotary_positions(content)
    return _without(content, _OF_THE_SENTENCE)


def _pooling(content: Content) -> Content:
    """Several modes at once have no flags: a server that knows only some of them would take these."""
    mode = content["pooling_mode"]
    flags = {flag: mode in (name, [name]) for name, flag in POOLING_FLAGS.items()}
    width = content.get("embedding_dimension") or content["word_embedding_dimension"]
    rest = {key: value for key, value in content.items() if key != "embedding_dimension"}  # refused by older versions
    return {**rest, "word_embedding_dimension": width, **flags}


def _rotary_positions(content: Content) -> Content:
    """Old names of the base of rotary positions, and of how they are scaled; older versions would take their defaults."""
    parameters: Content = content["rope_parameters"] or {}
    full_attention: Content = parameters.get("full_attention", parameters)
    attentions: tuple[Content, Content] = (full_attention, parameters.get("sliding_attention") or {})
    names = _ROTARY_BASES_OF.get(content["model_type"], _ROTARY_BASES)

    old_names = {}
    for name, attention in zip(names, attentions, strict=True):
        if "rope_theta" in attention:
            old_names[name] = attention["rope_theta"]
    if any(attention.get("rope_type", "default") != "default" for attention in attentions):
        old_names["rope_scaling"] = full_attention
    elif content["model_type"] == "gemma3_text":
        # text-embeddings-inference refuses parameters by kind of attention. Newer versions make them of the old names.
        content = {key: value for key, value in content.items() if key != "rope_parameters"}
    return {**old_names, **content}


def _tokenizer(content: Content, _: Path) -> Content:
    tokenizer = dict(content)
    if tokenizer.get("tokenizer_class") == "TokenizersBackend":
        tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"  # its name before transformers 5
    if isinstance(tokenizer.get("extra_special_tokens"), list):
        tokenizer["additional_special_tokens"] = tokenizer.pop("extra_special_tokens")
    return tokenizer


def _without(content: Content, defaults: Mapping[str, Any]) -> Content:
    """The content without those keys, if all that it has of them have these values."""
    if any(content.get(key, value) != value for key, value in defaults.items()):
        return content
    return {key: value for key, value in content.items() if key not in defaults}


_REWRITE: dict[str, Callable[[Any, Path], Any]] = {
    "modules.json": _modules,
    "router_config.json": _router,
    "sentence_bert_config.json": _transformer,
    "tokenizer_config.json": _tokenizer,
    "config.json": _module,
}
