"""Equations of the site: a `math` fence becomes MathML, which browsers draw without scripts."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def fence(source: str, *arguments: Any, **options: Any) -> str:
    """The formatter of superfences."""
    return f'<div class="math">{convert(source, display="block")}</div>'
