"""The run that a benchmark trains beside others."""

from __future__ import annotations

from typing import Any

from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.utils.errors import XlsrError


def the_run(recipe: str, more: list[str], only: str | None) -> dict[str, Any]:
    """The one run that is meant, resolved.

    Raises:
        XlsrError: what `load_runs` raises; the recipe has several.
    """
    runs = load_runs(recipe, more, [only] if only else None)
    if len(runs) > 1:
        raise XlsrError(
            f"recipe '{recipe}' has {len(runs)} runs; say which by --only {runs[0]['name'].split('/')[-1]}."
        )
    return runs[0]
