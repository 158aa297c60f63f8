"""`SentenceTransformer` objects: loaded with a check of their weights, or assembled around modules in memory."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Router, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import load_file_path
from torch import nn

from hf_xlsr.data.prompts import PromptTable
from hf_xlsr.data.tokenization import check_tokenizer_files
from hf_xlsr.encoders.folder_modules import MODULE_CLASSES, OpenTransformer
from hf_xlsr.encoders.static import StaticEmbeddingModel, assemble_static, unframed
from hf_xlsr.encoders.stock import add_pooler, longest_text, set_pad_token
from hf_xlsr.encoders.trainable_rows import restore_table
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.files import path_name

MODULES_FILE = "modules.json"
TEXT_MODALITIES = ("text", "message")


@dataclass
class EncoderSettings:
    """What sentence-transformers stores of a model besides its modules.

    Attributes:
        prompts: Texts that stand before sentences, by name.
        default_prompt_name: The prompt of sentences where nothing else is said.
        similarity_fn_name: How embeddings are compared.
        truncate_dim: Number of leading dimensions that embeddings are truncated to.
        default_route: The route of a `Router` for texts without a task.
        task_routes: The route of a `Router` for the tasks `query` and `document`; by default the first.
    """

    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity_fn_name: Any = None
    truncate_dim: int | None = None
    default_route: str | None = None
    task_routes: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: SentenceTransformer) -> EncoderSettings:
        """The settings of a model."""
        settings = cls(
            prompts=dict(PromptTable.of(model).texts),
            default_prompt_name=model.default_prompt_name,
            similarity_fn_name=model.similarity_fn_name,
            truncate_dim=model.truncate_dim,
        )
        for module in model:
            if isinstance(module, Router):
                settings.default_route = module.default_route
                for (task, modality), route in module.route_mappings.items():
                    if task and modality is None:
                        settings.task_routes[task] = route
        return settings

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> EncoderSettings:
        """The settings that a configuration stores."""
        return cls(**(values or {}))

    def arguments(self) -> dict[str, Any]:
        """The settings as arguments of `SentenceTransformer`; those of a router belong to its module."""
        return {
            "prompts": dict(self.prompts),
            "default_prompt_name": self.default_prompt_name,
            "similarity_fn_name": self.similarity_fn_name,
            "truncate_dim": self.truncate_dim,
        }

    def to_dict(self) -> dict[str, Any]:
        """The settings as values of a configuration; those with a default are left out."""
        return {name: value for name, value in asdict(self).items() if value}


@dataclass(eq=False)
class EncoderPart:
    """One encoder with everything that turns a text into its embedding.

    Attributes:
        encoder: A stock Hugging Face encoder, without the pooler of its architecture; or a `StaticEmbeddingModel`.
        tokenizer: Its tokenizer; None for an encoder that was given without any.
        head: The modules of sentence-transformers behind the encoder; None for an encoder that was given without any.
        options: What `Transformer` stores: `modality_config`, `module_output_name`, `max_seq_length`, ...
    """

    encoder: Any
    tokenizer: Any
    head: list[nn.Module] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def required_tokenizer(self, language: str = "") -> Any:
        """The tokenizer; an error, which names the language of an encoder among others, if there is none."""
        if self.tokenizer is None:
            encoder = f"encoder of '{language}'" if language else "encoder"
            raise XlsrError(
                f"The {encoder} has no tokenizer next to its weights. Give one (--tokenizer), or a folder with both."
            )
        return self.tokenizer


@dataclass(eq=False)
class SentenceEncoder:
    """An encoder of sentences as this package holds it: its modules, and the settings of sentence-transformers.

    Attributes:
        parts: One encoder, or several by route; a model without routes has the empty one.
        settings: Prompts and the rest.
        origin: Folder or id that it was read from; empty for an object.
    """

    parts: dict[str, EncoderPart]
    settings: EncoderSettings = field(default_factory=EncoderSettings)
    origin: str = ""

    def __post_init__(self) -> None:
        for route in self.parts:
            if route or len(self.parts) > 1:
                path_name(route, "route")

    def single(self, place: str = "model") -> EncoderPart:
        """The only encoder; an error, which names `place`, for several."""
        if len(self.parts) > 1:
            raise XlsrError(f"`{place}` must be one encoder, got a model with routes {', '.join(self.parts)}.")
        return next(iter(self.parts.values()))

    def detached(self) -> SentenceEncoder:
        """A copy on the CPU in float32, with the poolers that the architectures have; tokenizers are shared."""
        memo: dict[int, Any] = {}
        detached_parts = {}
        for name, encoder_part in self.parts.items():
            encoder, head = copy.deepcopy((encoder_part.encoder, list(encoder_part.head or ())), memo)
            add_pooler(encoder)
            restore_table(encoder)
            for module in (encoder, *head):
                module.to("cpu", torch.float32)
            detached_parts[name] = replace(encoder_part, encoder=encoder, head=head)
        return replace(self, parts=detached_parts)

    def assemble(self, device: torch.device | str = "cpu") -> SentenceTransformer:
        """A `SentenceTransformer` of stock modules around these encoders and heads, which are not copied.

        Several parts are the routes of a `Router`: `encode(texts, task="zh")`. Without a task `encode` takes the default
        route of the settings, or raises an error that names the routes; `encode_query` and `encode_document` take the
        first. Routes with equal objects share one module.
        """
        first_modules: dict[tuple[int, int], Any] = {}
        routes: dict[str, list[nn.Module]] = {}
        for name, encoder_part in self.parts.items():
            encoder = encoder_part.encoder
            head = list(encoder_part.head or ())
            is_static = isinstance(encoder, StaticEmbeddingModel)
            if is_static:
                head = head[1:]  # the module pools by itself

            key = (id(encoder), id(encoder_part.tokenizer))
            if key not in first_modules:
                assemble_first: Any = assemble_static if is_static else assemble_transformer
                first_modules[key] = assemble_first(encoder_part)
            routes[name] = [first_modules[key], *head]

        modules = next(iter(routes.values()))
        if len(routes) > 1:
            modules = _routed(routes, self.settings)
        return SentenceTransformer(modules=modules, device=str(device), **self.settings.arguments())


# --- Loading -------------------------------------------------------------------------------------------------------


def load_sentence_transformer(
    path: str,
    device: str | None = None,
    **model_kwargs: Any,
) -> SentenceTransformer:
    """Loads a folder or Hub id of sentence-transformers, or a plain Hugging Face encoder as sentence-transformers would.

    Code of the folder is never run, and weights are safetensors. Sentences are truncated to the positions that the
    encoder has.

    Raises:
        XlsrError: Weights are missing: sentence-transformers would draw them at random. Or they are pickles.
    """
    model_kwargs = {"use_safetensors": True, **model_kwargs}
    if load_file_path(path, MODULES_FILE) is None:
        model = SentenceTransformer(modules=_plain_modules(path, model_kwargs), device=device)
    else:
        # No public way names the classes of modules, which check what the folder says.
        model = SentenceTransformer._load_with_module_classes(  # noqa: SLF001
            path,
            MODULE_CLASSES,
            device=device,
            trust_remote_code=False,
            model_kwargs=model_kwargs,
        )

    for module in list(model.modules()):
        if type(module) in MODULE_CLASSES.values():
            cast("Any", module).close()
        if isinstance(module, Transformer):
            _fit_length_and_padding(module)
    return model


def _plain_modules(path: str, model_kwargs: Mapping[str, Any]) -> list[nn.Module]:
    """`Transformer` and `Pooling` of an encoder without modules of its own."""
    transformer = OpenTransformer(
        path,
        model_kwargs={"trust_remote_code": False, **model_kwargs},
        processor_kwargs={"trust_remote_code": False},
        config_kwargs={"trust_remote_code": False},
    )
    return [transformer, Pooling(transformer.get_embedding_dimension(), default_pooling(transformer.config))]


def default_pooling(config: Any) -> str:
    """The pooling of an encoder that comes without one: sentence-transformers' choice by its architecture."""
    architecture = (config.architectures or [""])[0]
    is_language_model = architecture.endswith("ForCausalLM") and getattr(config, "is_causal", True)
    return "lasttoken" if is_language_model else "mean"


def _fit_length_and_padding(transformer: Any) -> None:
    """Truncates to the encoder's positions, and gives a tokenizer without a padding token one."""
    check_tokenizer_files(transformer.tokenizer)
    set_pad_token(transformer.tokenizer, transformer.model)
    transformer.max_seq_length = longest_text([transformer.model], transformer.max_seq_length)


# --- Assembling ----------------------------------------------------------------------------------------------------


def transformer_options(transformer: Any) -> dict[str, Any]:
    """What a `Transformer` stores, as options of another one with the same encoder and tokenizer."""
    options: dict[str, Any] = transformer.get_config_dict()
    modalities = options["modality_config"]
    options["modality_config"] = {name: modalities[name] for name in TEXT_MODALITIES if name in modalities}
    options["max_seq_length"] = transformer.max_seq_length
    if transformer.do_lower_case:  # which sentence-transformers reads, but does not write
        options["do_lower_case"] = True
    return options


def assemble_transformer(part: EncoderPart) -> Transformer:
    """A stock `Transformer` around the encoder of a part, which is not copied. Its tokenizer is a copy.

    Under autocast the states are float32, so that the head computes as in training.
    """
    tokenizer = part.required_tokenizer()
    options = dict(part.options)
    max_length = options.pop("max_seq_length", None) or tokenizer.model_max_length
    # Arguments are saved with the tokenizer; attributes that are set later are not.
    arguments = {
        "model_max_length": max_length,
        "padding_side": tokenizer.padding_side,
        "truncation_side": tokenizer.truncation_side,
        "trust_remote_code": False,
    }
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        transformer = OpenTransformer(folder, encoder=part.encoder, processor_kwargs=arguments, **options)
    transformer.close()

    transformer.register_forward_hook(_keep_exact)
    return transformer


class MessageTokenizer:
    """The tokenizer of an encoder that reads a text as the message of a chat, as `Transformer.preprocess` does.

    Everything but `message_ids` is that of the stock tokenizer.
    """

    def __init__(self, transformer: Transformer) -> None:
        self.transformer = transformer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["transformer"].tokenizer, name)

    def message_ids(
        self,
        texts: Sequence[str],
        prompt: str,
        max_length: int | None,
    ) -> list[list[int]]:
        """Token ids of texts; None as `max_length` does not truncate them."""
        truncation: dict[str, int] = {"max_length": max_length} if max_length is not None else {"truncation": False}
        features = self.transformer.preprocess(
            list(texts), prompt=prompt or None, processing_kwargs={"text": truncation}
        )
        rows = zip(features["input_ids"], features["attention_mask"].bool(), strict=True)
        return [ids[mask].tolist() for ids, mask in rows]


def text_tokenizer(part: EncoderPart) -> Any:
    """What makes the token ids of a part's texts: its tokenizer, a `MessageTokenizer`, or one without special tokens."""
    if "message" in part.options.get("modality_config", ()):
        return MessageTokenizer(assemble_transformer(part))
    tokenizer = part.required_tokenizer()
    return unframed(tokenizer) if isinstance(part.encoder, StaticEmbeddingModel) else tokenizer


def _keep_exact(module: nn.Module, inputs: Any, features: dict[str, Any]) -> dict[str, Any]:
    """A hook after the forward of a `Transformer`: under autocast its states become float32."""
    states = features.get("token_embeddings")
    if states is not None and states.dtype != torch.float64 and torch.is_autocast_enabled(states.device.type):
        features["token_embeddings"] = states.float()
    return features


def _routed(routes: dict[str, list[Any]], settings: EncoderSettings) -> list[nn.Module]:
    """A `Router`, and behind it the `Normalize` with which all routes end."""
    normalized = all(isinstance(modules[-1], Normalize) for modules in routes.values())
    if normalized:
        routes = {name: modules[:-1] for name, modules in routes.items()}
    tasks = {task: route for task, route in settings.task_routes.items() if route in routes}
    return router_modules(
        routes, next(iter(routes)), normalize=normalized, default=settings.default_route, tasks=tasks
    )


def router_modules(
    routes: Mapping[str, list[Any]],
    first: str,
    *,
    normalize: bool,
    default: str | None = None,
    tasks: Mapping[str, str] | None = None,
) -> list[nn.Module]:
    """`Router (+ Normalize)`; queries and documents without a language take the route `first`, or that of `tasks`."""
    task_routes = {"query": first, "document": first, **(tasks or {})}
    for route in routes:
        path_name(route, "route")
    mappings: Any = {(task, None): route for task, route in task_routes.items()}
    router = Router(dict(routes), default_route=default, allow_empty_key=False, route_mappings=mappings)
    return [router, Normalize()] if normalize else [router]


def single_route(model: SentenceTransformer, route: str) -> SentenceTransformer:
    """The encoder of one route of a model with a `Router` as a model without routes, which shares its weights."""
    routes = modules_by_route(model)
    require_choice("route", route, [name for name in routes if name])
    return with_modules(model, routes[route])


def with_modules(model: SentenceTransformer, modules: Sequence[nn.Module]) -> SentenceTransformer:
    """A model of some modules with the settings of another model, on its device."""
    arguments = EncoderSettings.of(model).arguments()
    return SentenceTransformer(modules=list(modules), device=str(model.device), **arguments)


def modules_by_route(model: Iterable[Any]) -> dict[str, list[Any]]:
    """The modules that texts pass, by route; a model without routes has the empty one."""
    first, *modules_behind = model
    if not isinstance(first, Router):
        return {"": [first, *modules_behind]}
    routes: Any = first.sub_modules
    return {name: [*modules, *modules_behind] for name, modules in routes.items()}
