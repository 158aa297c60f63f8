"""Values of options that several verbs of the `hf-xlsr` command take."""

from __future__ import annotations

from hf_xlsr.errors import XlsrError


def parse_languages(text: str | None) -> list[str]:
    """The codes of `--languages`; none without it.

    Example:
        >>> parse_languages("en, de")
        ['en', 'de']
    """
    return [piece.strip() for piece in (text or "").split(",") if piece.strip()]


def parse_routes(text: str | None) -> dict[str, str]:
    """Language -> route of `--routes`; empty without it.

    Raises:
        XlsrError: a piece is not LANGUAGE=ROUTE.

    Example:
        >>> parse_routes("en=source, de=target")
        {'en': 'source', 'de': 'target'}
    """
    routes = {}
    for piece in text.split(",") if text else ():
        language, equals, route = (part.strip() for part in piece.partition("="))
        if not (language and equals and route):
            raise XlsrError(f"--routes has '{piece.strip()}'; write LANGUAGE=ROUTE,..., e.g. en=source,de=target.")
        routes[language] = route
    return routes
