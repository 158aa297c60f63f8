"""A method: the lightweight dual transformer without its generative task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from hf_xlsr.runs.methods import register_method
from hf_xlsr.runs.methods.lightweight import LightweightMethod, LightweightRecipe


class ContrastOnlyRecipe(LightweightRecipe):
    """`method: contrast_only`."""

    method: Literal["contrast_only"]


@register_method
class ContrastOnlyMethod(LightweightMethod):
    """`method: contrast_only`."""

    name = "contrast_only"
    recipe_class = ContrastOnlyRecipe

    @property
    def config_options(self) -> dict[str, Any]:
        options: Mapping[str, Any] = super().config_options
        return {"generative_weight": 0.0, **options}
