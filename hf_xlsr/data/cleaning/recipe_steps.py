"""Steps of cleaning by the names and options of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from hf_xlsr.data.cleaning.duplicates import Deduplicate, FuzzyDuplicates, NearDuplicates
from hf_xlsr.data.cleaning.language_filter import LanguageFilter
from hf_xlsr.data.cleaning.steps import AnyStep, DropIdentical, LengthBounds, Normalize, NumberMatch, RatioBounds
from hf_xlsr.utils.errors import XlsrError, require_choice
from hf_xlsr.utils.validation import explain
from hf_xlsr.utils.yaml import parse_yaml

_TEXT_STEPS = (Normalize, Deduplicate, NearDuplicates, FuzzyDuplicates, LengthBounds, LanguageFilter)
_PAIR_STEPS = (RatioBounds, NumberMatch, DropIdentical)
STEPS: dict[str, Callable[..., AnyStep]] = {step.name: step for step in (*_TEXT_STEPS, *_PAIR_STEPS)}
"""The steps that a recipe can name."""


Config = Sequence[str | Mapping[str, Any]] | Mapping[str, Any]


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
    steps = [step for step in build_steps(config, languages) if not isinstance(step, _PAIR_STEPS)]
    for step in steps:
        if isinstance(step, Deduplicate) and step.on in ("source", "target"):
            step.on = "pair"  # all texts of a row
    return steps


def _build_step(name: Any, options: Any, languages: Sequence[str] | None) -> AnyStep:
    require_choice("cleaning", name, STEPS)
    if options is not None and not (isinstance(options, Mapping) and all(isinstance(key, str) for key in options)):
        raise XlsrError(f"cleaning step '{name}': options must be names with values, got {options!r}.")
    values = dict(options or {})
    if name == LanguageFilter.name:
        values.setdefault("languages", languages)
    try:
        return STEPS[name](**values)
    except ValidationError as error:
        raise XlsrError(f"cleaning step '{name}': {explain(error)}.") from error
