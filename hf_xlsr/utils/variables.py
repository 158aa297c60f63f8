"""Environment variables in the paths of recipes, suites and sources: those whose names begin with `HF_XLSR_`.

A recipe of somebody else could write any other variable, such as a password, into names of folders, stored recipes and
requests to the Hub.
"""

from __future__ import annotations

import os
import re
from typing import Any

from hf_xlsr.utils.access_tokens import check_no_token
from hf_xlsr.utils.errors import XlsrError

PREFIX = "HF_XLSR_"
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::-([^{}$]*))?\}|([A-Za-z_]\w*))", re.ASCII)


def variables_of(path: Any) -> list[str]:
    """Names of the environment variables of a path, or a list of paths, each once."""
    paths = path if isinstance(path, (list, tuple)) else [path]
    names: dict[str, None] = {}
    for text in map(str, paths):
        for match in _VARIABLE.finditer(text):
            names[match[1] or match[3]] = None
    return list(names)


def _needed_variables(path: Any) -> list[str]:
    """Those of `variables_of` without a default (`${NAME:-default}`)."""
    paths = path if isinstance(path, (list, tuple)) else [path]
    return variables_of([re.sub(r"\$\{\w+:-[^{}$]*\}", "", str(text), flags=re.ASCII) for text in paths])


def unset_variables(path: Any) -> list[str]:
    """Those of `variables_of` that could be expanded, but are not set."""
    return [name for name in _needed_variables(path) if name.startswith(PREFIX) and name not in os.environ]


def expand(path: Any) -> Any:
    """Expands the variables of a path, or of a list of paths; `${NAME:-default}` has a default.

    Raises:
        XlsrError: For a variable that is not set, or whose name does not begin with `HF_XLSR_`, and for a value that is
            an access token.

    Examples:
        >>> os.environ["HF_XLSR_DATA"] = "corpora"
        >>> expand(["$HF_XLSR_DATA/pairs.tsv", "5$"])
        ['corpora/pairs.tsv', '5$']
        >>> expand("${HF_XLSR_NOWHERE:-owner/name}")
        'owner/name'
    """
    if isinstance(path, (list, tuple)):
        return list(map(expand, path))

    for name in variables_of(path):
        if not name.startswith(PREFIX):
            raise XlsrError(
                f"path '{path}' names ${name}, but only variables that begin with {PREFIX} are expanded. "
                f"Write the path, or set {PREFIX}{name}."
            )
    missing = unset_variables(path)
    if missing:
        raise XlsrError(f"path '{path}' needs the environment variable {missing[0]}, which is not set.")

    def value(match: re.Match[str]) -> str:
        return os.environ.get(match[1] or match[3]) or match[2] or ""

    expanded = _VARIABLE.sub(value, str(path))
    if expanded != str(path):
        check_no_token(expanded, f"path '{path}'")
    return expanded
