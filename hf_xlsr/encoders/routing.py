"""Routing by language, for models with an encoder for each language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import langcodes

from hf_xlsr.data.languages import language_code
from hf_xlsr.utils.errors import XlsrError, require_choice


def routes_of(encoder: Any) -> tuple[str, ...]:
    """The names of an encoder's routes: its attribute `routes`, or those of its sentence-transformers `Router`."""
    if getattr(encoder, "routes", None):
        return tuple(encoder.routes)
    children = list(encoder.children()) if hasattr(encoder, "children") else []
    # A Router is known by its parts, so that nothing is imported for encoders that have none.
    routers = [module for module in children if hasattr(module, "sub_modules") and hasattr(module, "default_route")]
    return tuple(routers[0].sub_modules) if routers else ()


def route_of(encoder: Any, language: str | None, routes: Mapping[str, str] | None = None) -> str | None:
    """The `task` of sentence-transformers that encodes a language's sentences by its route.

    It is None for an encoder without routes, or with other routes (`query` and `document`). `routes` names the route of
    each language, for models whose routes are not named after languages.

    Examples:
        >>> class OneForEach:
        ...     routes = ("en", "zh")
        >>> route_of(OneForEach(), "cmn")
        'zh'
    """
    names = routes_of(encoder)
    if routes:
        chosen = {language_code(tag): route for tag, route in routes.items()}
        route = chosen.get(language_code(language)) if language else None
        if route is None:
            raise XlsrError(f"`routes` must include language {language!r}, got {', '.join(routes)}.")
        require_choice("routes", route, names)
        return route
    by_language = {language_code(name): name for name in names if langcodes.tag_is_valid(name)}
    if language and language_code(language) in by_language:
        return by_language[language_code(language)]
    if len(by_language) < max(len(names), 1):
        return None
    raise XlsrError(
        f"The encoder has routes for {', '.join(names)}, got language {language!r}. Give --languages, or --routes de=en."
    )
