"""Steps of cleaning by the names and options of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError

from hf_xlsr.data.cleaning.duplicates import Deduplicate, FuzzyDuplicates, NearDuplicates
from hf_xlsr.data.cleaning.language_filter import LanguageFilter
from hf_xlsr.data.cleaning.steps import AnyStep, DropIdentical, LengthBounds, Normalize, NumberMatch, RatioBounds
from hf_xlsr.utils.errors import XlsrError, error_line
from hf_xlsr.utils.plugins import Registry
from hf_xlsr.utils.validation import explain
from hf_xlsr.utils.yaml import parse_yaml

_TEXT_STEPS = (Normalize, Deduplicate, NearDuplicates, FuzzyDuplicates, LengthBounds, LanguageFilter)
_PAIR_STEPS = (RatioBounds, NumberMatch, DropIdentical)
_BUILT_IN: dict[str, Callable[..., AnyStep]] = {step.name: step for step in (*_TEXT_STEPS, *_PAIR_STEPS)}
STEPS: Registry[Callable[..., AnyStep]] = Registry("cleaning step", "steps", _BUILT_IN)
"""The steps that a recipe can name."""


Config = Sequence[str | Mapping[str, Any]] | Mapping[str, Any]
StepT = TypeVar("StepT", bound=AnyStep)


def register_step(step: type[StepT]) -> type[StepT]:
    """A decorator: recipes and `hf-xlsr clean --steps` can name the step.

    Args:
        step: A subclass of `Step` or `ComparingStep` with a `name`: a dataclass, whose fields are the step's options, or
            one of pydantic, which also checks their types. Each process makes its own from the options.

    Raises:
        XlsrError: The name is taken, or the step is no dataclass: its `repr` must tell its options, by which prepared
            data are found again.
    """
    if step.__repr__ is object.__repr__:
        raise XlsrError(f"The cleaning step '{step.name}' must be a dataclass, got {step.__qualname__}. Decorate it.")
    STEPS.add(step.name, step, step)
    return step


def parse_steps(text: str | None) -> list[str | dict[str, Any]]:
    """The steps of an option such as `--steps`: what a recipe has, without the brackets.

    Examples:
        >>> parse_steps("normalize, language: {min_share: 0.5}, ratio"), parse_steps(None)
        (['normalize', {'language': {'min_share': 0.5}}, 'ratio'], [])
    """
    config: list[str | dict[str, Any]] = parse_yaml(f"[{text or ''}]", "the steps")
    return config


def build_steps(config: Config | None, languages: Sequence[str] | None = None) -> list[AnyStep]:
    """The steps of a recipe's `cleaning`: names and `{name: options}`, or a mapping from names to options."""
    steps: list[AnyStep] = []
    for entry in [config] if isinstance(config, Mapping) else config or ():
        if isinstance(entry, str):
            entry = {entry: None}
        if not isinstance(entry, Mapping):
            raise XlsrError(f"cleaning: a step must be a name, or a name with options, got {entry!r}.")
        for name, options in entry.items():
            steps.append(_build_step(name, options, languages))
    return steps


def build_text_steps(config: Config | None, languages: Sequence[str] | None = None) -> list[AnyStep]:
    """`build_steps` for single sentences, from a section written for pairs.

    Steps that compare two sides are ignored, and `deduplicate` on one of the sides compares the sentences.
    """
    steps = [step for step in build_steps(config, languages) if not step.needs_pair]
    for step in steps:
        if isinstance(step, Deduplicate) and step.on in ("source", "target"):
            step.on = "pair"  # all texts of a row
    return steps


def _build_step(name: Any, options: Any, languages: Sequence[str] | None) -> AnyStep:
    make_step = STEPS.find("cleaning", name)
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise XlsrError(f"cleaning step '{name}': options must be names with values, got {options!r}.")
    values = dict(options or {})
    if name == LanguageFilter.name:
        values.setdefault("languages", languages)
    try:
        return make_step(**values)
    except ValidationError as error:
        raise XlsrError(f"cleaning step '{name}': {explain(error)}.") from error
    except TypeError as error:  # of a dataclass without pydantic
        raise XlsrError(f"cleaning step '{name}': {error_line(error)}.") from error
