"""The typed form of a recipe: shared sections, and sections of the fields of a configuration or of training arguments."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeVar

import torch
from pydantic import AfterValidator, BaseModel, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo
from transformers import PreTrainedConfig, TrainingArguments

from hf_xlsr.data.sources import OneOrMore, Source, parse_sources
from hf_xlsr.export.model_card import CardMetadata
from hf_xlsr.trainers.arguments import REFUSED
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.files import path_name
from hf_xlsr.utils.validation import Section, explain
from hf_xlsr.utils.variables import expand

TRAINING_PLACES = ("text", "monolingual", "train")  # running text, sentences, pairs or labelled texts
ModelT = TypeVar("ModelT", bound=BaseModel)


def _check_sources(value: Any) -> Any:
    parse_sources(value)
    return value


def _check_named_sources(value: Any) -> Any:
    if value is not None and (not isinstance(value, Mapping) or "path" in value or "corpus" in value):
        raise ValueError(f"name each set, as in `{{xnli: {{path: dev.tsv}}}}`, got {value!r}")
    for sources in (value or {}).values():
        _check_sources(sources)
    return value


def _check_path_names(names: list[str]) -> list[str]:
    for name in names:
        path_name(name, "language")
    return names


def _check_run_name(name: str) -> str:
    for part in name.split("/"):  # runs of a list are named `recipe/run`
        path_name(part, "name")
    return name


# Names that become folders.
PathNames = Annotated[OneOrMore, AfterValidator(_check_path_names)]
RunName = Annotated[str, AfterValidator(_check_run_name)]
# A corpus, a path, a mapping with the keys of `Source`, or a list of them. The value stays as written.
Sources = Annotated[Any, AfterValidator(_check_sources), "sources"]
# Sources by the name of their set.
NamedSources = Annotated[Any, AfterValidator(_check_named_sources), "named sources"]


def holds_named_sources(field: FieldInfo) -> bool:
    return "named sources" in field.metadata


def holds_sources(field: FieldInfo) -> bool:
    return "sources" in field.metadata or holds_named_sources(field)


def dotted_keys(section: type[BaseModel], content: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a section and of the sections and sources inside it, as `data.train.path`."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        value = content.get(name) if isinstance(content, Mapping) else None
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from dotted_keys(field.annotation, value, f"{key}.")
            continue

        yield key
        source_keys: list[str] = []
        if holds_named_sources(field):
            source_keys += [f"{key}.{set_name}" for set_name in value or ()]
        elif holds_sources(field):
            source_keys.append(key)
        for source_key in source_keys:
            for option in Source.model_fields:
                yield f"{source_key}.{option}"


class DataSection(Section):
    train: Sources = Field(None, description="training data")
    dev: Sources = Field(None, description="measured during training")
    test: Sources = Field(None, description="measured at the end")
    held_out: Sources = Field([], description="further sentences that training must not see")
    cleaning: list[Any] | dict[str, Any] | None = Field(
        ["normalize", "drop_identical", "deduplicate"], description="steps, by name or as `{name: options}`"
    )
    known: Sources = Field(
        [], description="pairs that are known to be good, on which the cost of cleaning is measured"
    )
    fraction: float = Field(1.0, gt=0, le=1, description="share of the cleaned pairs to train on")
    limit: int | None = Field(None, ge=1, description="maximum number of pairs: the first")
    max_length: int | None = Field(
        None,
        ge=1,
        description="sentences are truncated to this many tokens; by default the encoder's own number, and 200 "
        "for a new encoder",
    )
    num_proc: int = Field(1, ge=1, description="number of processes that prepare the data", exclude=True)


class AdaptersSection(Section):
    rank: int = Field(0, ge=0, description="rank of the LoRA adapters trained instead of the encoders; 0 trains all")
    alpha: int = Field(32, ge=1, description="their scale is alpha / rank")
    dropout: float = Field(0.0, ge=0, le=1, description="dropout before the adapters")
    modules: list[str] | str | None = Field(
        None, description="layers with an adapter, by the ends of their names; by default queries, keys and values"
    )


class CardSection(Section):
    license: str | None = Field(None, description="licence of the weights, as the Hub spells it")
    license_name: str | None = Field(None, description="its name, if `license` is `other`")
    license_link: str | None = Field(None, description="its address, if `license` is `other`")
    base_model: list[str] | str | None = Field(None, description="Hub ids; by default derived from the recipe")
    datasets: list[str] | str | None = Field(None, description="Hub ids; by default derived from the recipe")

    @model_validator(mode="after")
    def _check(self) -> CardSection:
        CardMetadata(**self.model_dump())
        return self


class EvaluationSection(Section):
    """What is measured, and how."""

    guard: Sources = Field(None, description="sets that training should not make worse")


class Recipe(Section):
    """Keys of every recipe. Each method has a subclass that adds sections and changes defaults.

    `model` and `training` stay as written: `Method.bind` checks them against the method's configuration and training
    arguments, which have the defaults.
    """

    name: RunName = Field("recipe", description="name of the run; by default that of the file")
    description: str = Field("", description="one sentence, for the list of recipes and the model card")
    method: str = Field(description="what is trained")
    output_dir: str = Field("", description="folder of the run; by default `outputs/NAME`")
    seed: int = Field(1, ge=0, description="seed of everything random")
    languages: PathNames = Field([], description="ISO 639-1 codes")
    data: DataSection = DataSection()
    model: dict[str, Any] = Field({}, description="the method's configuration")
    training: dict[str, Any] = Field({}, description="the method's training arguments")
    evaluation: EvaluationSection = EvaluationSection()
    export: Section = Section()
    adapters: AdaptersSection = AdaptersSection()
    card: CardSection = CardSection()
    start_from: str | None = Field(None, description="folder of a finished run, or of saved weights, to start from")
    overwrite: bool = Field(False, description="whether a run in the same folder is removed first")

    @model_validator(mode="after")
    def _fill_in(self) -> Recipe:
        self.output_dir = expand(self.output_dir or f"outputs/{self.name}")
        return self

    def weights(self) -> dict[str, str]:
        """Folders and Hub ids of encoders, tokenizers and weights by key, as the recipe writes them."""
        encoders = self.model.get("encoders") or {}
        paths = {f"model.encoders.{name}": path for name, path in encoders.items()}
        encoder = self.model.get("encoder") or {}
        paths["model.encoder.path"] = encoder.get("path")
        paths["model.start"] = self.model.get("start")
        for key in ("tokenizer", "teacher"):
            if hasattr(self, key):
                paths[f"{key}.path"] = getattr(self, key).path
        paths["start_from"] = self.start_from
        return {key: str(path) for key, path in paths.items() if path}

    def settings(self) -> dict[str, Any]:
        """The recipe as plain values, for JSON and YAML."""
        return self.model_dump(serialize_as_any=True, warnings=False)


def validated(
    model: type[ModelT],
    content: Mapping[str, Any],
    name: str,
    key: str = "",
) -> ModelT:
    """Validates a section of a recipe; `key` is its key, empty for the whole recipe."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise XlsrError(f"recipe '{name}': {explain(error, model, key)}.") from None


# Training arguments with another place in a recipe, or that have no effect on prepared data.
ELSEWHERE: dict[str, str] = {
    "output_dir": "write it at the top of the recipe",
    "seed": "write it at the top of the recipe",
    "bf16": "set training.precision instead",
    "fp16": "set training.precision instead",
    "max_length": "set data.max_length instead",
    "num_proc": "set data.num_proc instead",
    "prompts": "set data.prompt instead",
    "shuffle_buffer_size": "the data of recipes are not streamed; remove it",
    "hub_token": "it would be stored in the run's folder; log in with `hf auth login`, or set HF_TOKEN",
    "resume_from_checkpoint": "a run resumes from its last checkpoint by itself; remove it",
}
OF_HARD_NEGATIVES = {"split_softmax"}  # which recipes do not read
# Fields of configurations that an encoder fills in; recipes set `export.normalize`.
OF_THE_ENCODER = {"text_config", "head", "heads", "transformer_options", "encoder_settings", "normalize"}


def section_of(
    owner: type,
    *,
    without: Collection[str] = (),
    only: Collection[str] = (),
    **more: Any,
) -> type[Section]:
    """A section whose keys are the fields of a dataclass, each optional, and `more` as `(type, Field(...))`."""
    hints = typing.get_type_hints(owner, localns={"torch": torch})
    texts = argument_help(owner)
    hidden = {*OF_THE_ENCODER, *OF_HARD_NEGATIVES, *without}
    hidden.update(field.name for field in dataclasses.fields(PreTrainedConfig))
    fields = [field for field in dataclasses.fields(owner) if field.init and field.name not in hidden]

    keys: dict[str, Any] = {}
    for field in sorted(fields, key=lambda field: field.name not in texts):
        if only and field.name not in only:
            continue

        hint = hints[field.name]
        choices = field.metadata.get("choices")
        if choices:
            hint = Literal[tuple(choices)]

        default = None
        if field.default is not dataclasses.MISSING:
            default = getattr(field.default, "value", field.default)  # of an enumeration its value

        text = texts.get(field.name, field.metadata.get("help", ""))
        text = " ".join(text.split())
        keys[field.name] = (hint | None, Field(default, description=text))
    return create_model(owner.__name__, __base__=Section, __module__=__name__, **keys, **more)


@cache
def training_section(arguments: type[TrainingArguments]) -> type[Section]:
    """The section `training` for an arguments class: all of its fields but the refused ones."""
    fsdp = (str | bool | None, Field(None, description="sharding of weights; launch with accelerate"))
    return section_of(arguments, without={*refused(arguments), "fsdp"}, fsdp=fsdp)


def refused(arguments: Any) -> dict[str, str]:
    """The training arguments that recipes refuse, each with what to do instead."""
    fixes = {**REFUSED, **ELSEWHERE}
    if not arguments.trains_embeddings:
        fixes |= dict.fromkeys(("matryoshka_dims", "cache_batch_size"), "it has no effect on this loss; remove it")
    if not arguments.evaluates_rows:
        fixes["per_device_eval_batch_size"] = "protocols evaluate; set evaluation.batch_size instead"
    return fixes


def argument_help(owner: type) -> dict[str, str]:
    """The text of `Args:` in the docstrings of a class and its bases in this package, by argument."""
    texts: dict[str, str] = {}
    for base in reversed(owner.__mro__):
        if not base.__module__.startswith("hf_xlsr."):
            continue
        docstring = inspect.cleandoc(base.__doc__ or "") + "\n"
        arguments = re.search(r"^Args:\n((?:    .*\n|\n)+)", docstring, re.MULTILINE)
        if arguments:
            texts |= re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", arguments[1], re.MULTILINE)
    return texts
