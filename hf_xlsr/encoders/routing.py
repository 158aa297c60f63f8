"""Which part of an encoder a language takes: models with an encoder for each language route by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import langcodes

from hf_xlsr.data.languages import language_code
from hf_xlsr.utils.errors import XlsrError


def routes_of(encoder: Any) -> tuple[str, ...]:
    """The names of an encoder's routes: its attribute `routes`, or those of its sentence-transformers `Router`.

    Example:
        >>> class OneForEach:
        ...     routes = ("en", "zh")
        >>> routes_of(OneForEach())
        ('en', 'zh')
    """
    if getattr(encoder, "routes", None):
        return tuple(encoder.routes)
    children = list(encoder.children()) if hasattr(encoder, "children") else []
    # A Router is known by its parts, so that nothing is imported for encoders that have none.
    routers = [module for module in children if hasattr(module, "sub_modules") and hasattr(module, "default_route")]
    return tuple(routers[0].sub_modules) if routers else ()


def route_of(encoder: Any, language: str | None, routes: Mapping[str, str] | None = None) -> str | None:
    """The `task` that sends a language's sentences through the right part of an encoder.

    Args:
        encoder: Anything with an `encode`.
        language: Any language tag; None when it is not known.
        routes: Language -> route, for models whose routes do not bear the languages' names.

    Returns:
        The route; None for an encoder that has no routes, or none by language (`query` and `document`).

    Raises:
        XlsrError: the encoder routes by language and has no route for this one, or got no language at all; or `routes`
            lacks the language or names a route that is not there.

    Example:
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
            raise XlsrError(f"language {language!r} is not in routes; it has {', '.join(routes)}: add LANGUAGE=ROUTE.")
        if route not in names:
            raise XlsrError(f"route '{route}' is not one of the encoder's, {', '.join(names) or 'which has none'}.")
        return route
    by_language = {language_code(name): name for name in names if langcodes.tag_is_valid(name)}
    if language and language_code(language) in by_language:
        return by_language[language_code(language)]
    if len(by_language) < max(len(names), 1):
        return None
    missing = f"none for '{language}'" if language else "but the sentences' language was not given"
    raise XlsrError(
        f"the encoder has a route for each of {', '.join(names)}, {missing}; name the languages (--languages), or say "
        "which route each takes (--routes de=en)."
    )
