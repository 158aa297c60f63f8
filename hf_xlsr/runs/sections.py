"""The typed form of a recipe: sections that every method shares."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from hf_xlsr.data.sources import OneOrMore, Source, as_list, check_source
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.validation import Section, explain

TRAINING_PLACES = ("text", "monolingual", "train")  # running text, sentences, pairs or labelled texts
ModelT = TypeVar("ModelT", bound=BaseModel)


def _check_sources(value: Any) -> Any:
    for source in as_list(value):
        check_source(source)
    return value


def _check_named_sources(value: Any) -> Any:
    if value is not None and (not isinstance(value, Mapping) or "path" in value or "corpus" in value):
        raise ValueError(f"name each set, as in `{{xnli: {{path: dev.tsv}}}}`, got {value!r}")
    for name, sources in (value or {}).items():
        try:
            _check_sources(sources)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return value


# A corpus, a path, a mapping with the keys of `Source`, or a list of them. The value stays as written.
Sources = Annotated[Any, AfterValidator(_check_sources)]
# Sources by the name of their set.
NamedSources = Annotated[Any, AfterValidator(_check_named_sources)]


def holds_named_sources(field: FieldInfo) -> bool:
    return _check_named_sources in {getattr(part, "func", None) for part in field.metadata}


def holds_sources(field: FieldInfo) -> bool:
    return bool({_check_sources, _check_named_sources} & {getattr(part, "func", None) for part in field.metadata})


def dotted_keys(section: type[BaseModel], content: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a section and of the sections and sources inside it, as `data.train.path`."""
    for name, field in section.model_fields.items():
        value = content.get(name) if isinstance(content, Mapping) else None
        kinds = {getattr(part, "func", None) for part in field.metadata}
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from dotted_keys(field.annotation, value, f"{prefix}{name}.")
            continue
        yield f"{prefix}{name}"
        places = [name] if _check_sources in kinds else []
        if _check_named_sources in kinds and isinstance(value, Mapping):
            places = [f"{name}.{one}" for one in value]
        yield from (f"{prefix}{place}.{key}" for place in places for key in Source.model_fields)


class DataSection(Section):
    train: Sources = Field(None, description="training data")
    dev: Sources = Field(None, description="measured during training")
    test: Sources = Field(None, description="measured at the end")
    held_out: Sources = Field([], description="further sentences that training must not see")
    cleaning: list[Any] | dict[str, Any] | None = Field(
        ["normalize", "drop_identical", "deduplicate"], description="steps, by name or as `{name: options}`"
    )
    fraction: float = Field(1.0, gt=0, le=1, description="share of the cleaned pairs to train on")
    limit: int | None = Field(None, ge=1, description="maximum number of pairs")
    max_length: int = Field(200, ge=1, description="sentences are truncated to this many tokens")
    num_proc: int = Field(1, ge=1, description="number of processes that prepare the data", exclude=True)


class AdaptersSection(Section):
    rank: int = Field(0, ge=0, description="rank of the LoRA adapters trained instead of the encoders; 0 trains all")
    alpha: int = Field(32, ge=1, description="their scale is alpha / rank")
    dropout: float = Field(0.0, ge=0, le=1, description="dropout before the adapters")
    modules: list[str] | str = Field(
        ["query", "key", "value"], description="layers with an adapter, by the ends of their names"
    )


class CardSection(Section):
    license: str | None = Field(None, description="licence of the weights, as the Hub spells it")
    license_name: str | None = Field(None, description="its name, if `license` is `other`")
    license_link: str | None = Field(None, description="its address, if `license` is `other`")
    base_model: list[str] | str | None = Field(None, description="Hub ids; by default derived from the recipe")
    datasets: list[str] | str | None = Field(None, description="Hub ids; by default derived from the recipe")


class NoOptions(Section):
    """A section without keys."""


class Recipe(Section):
    """Keys of every recipe. Each method has a subclass that adds sections and changes defaults.

    `model` and `training` stay as written: `Method.bind` checks them against the method's configuration and training
    arguments, which have the defaults.
    """

    min_languages: ClassVar[int] = 2

    name: str = Field("recipe", description="name of the run; by default that of the file")
    description: str = Field("", description="one sentence, for the list of recipes and the model card")
    method: str = Field(description="what is trained")
    output_dir: str = Field("", description="folder of the run; by default `outputs/NAME`")
    seed: int = Field(1, ge=0, description="seed of everything random")
    languages: OneOrMore = Field([], description="ISO 639-1 codes")
    data: DataSection = DataSection()
    model: dict[str, Any] = Field({}, description="the method's configuration")
    training: dict[str, Any] = Field({}, description="the method's training arguments")
    evaluation: Section = NoOptions()
    export: Section = NoOptions()
    card: CardSection = CardSection()
    start_from: str | None = Field(None, description="folder of a finished run, or of saved weights, to start from")
    overwrite: bool = Field(False, description="whether a run in the same folder is removed first")

    @model_validator(mode="after")
    def _fill_in(self) -> Recipe:
        self.output_dir = os.path.expandvars(self.output_dir or f"outputs/{self.name}")
        # A recipe for one's own data names no languages; training without them is an error.
        if self.languages and len(set(self.languages)) < self.min_languages:
            raise ValueError(f"languages: a cross-lingual encoder needs two, e.g. [en, fr], got {self.languages}")
        return self

    def settings(self) -> dict[str, Any]:
        """The recipe as plain values, for JSON and YAML."""
        return self.model_dump(serialize_as_any=True, warnings=False)


def validated(model: type[ModelT], content: Mapping[str, Any], name: str, place: str = "") -> ModelT:
    """Validates a part of a recipe; `place` is its key, empty for the whole recipe."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise XlsrError(f"recipe '{name}': {explain(error, model, place)}.") from None
