"""The exception for invalid input, and what its messages share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from hf_xlsr.utils.redaction import redact_tokens


class XlsrError(ValueError):
    """Invalid input: a file, an argument or a recipe. A `ValueError`; the command line prints its message alone.

    Access tokens in the message are redacted.
    """

    def __init__(self, message: str) -> None:
        super().__init__(redact_tokens(message))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End of an error message: the known name closest to `name`, or the list of known names.

    Examples:
        >>> did_you_mean("temprature", ["temperature", "width"])
        "did you mean 'temperature'?"
        >>> did_you_mean("zzz", ["b", "a"])
        'known are a, b.'
    """
    names = sorted(set(known))
    closest = difflib.get_close_matches(name, names, n=1)
    if not closest:
        # Dotted names are also compared by their last word.
        by_last_word = {known_name.rsplit(".", 1)[-1]: known_name for known_name in names}
        words = difflib.get_close_matches(name.rsplit(".", 1)[-1], by_last_word, n=1)
        closest = [by_last_word[word] for word in words]

    if closest:
        return f"did you mean '{closest[0]}'?"
    return f"known are {', '.join(names)}."


def error_line(error: object, longest: int | None = None) -> str:
    """A library's error as part of a message: on one line, without access tokens, truncated to `longest` characters."""
    line = " ".join(str(error).split())
    return redact_tokens(line)[:longest]


def require_choice(
    name: str,
    value: object,
    known: Iterable[str],
) -> None:
    """Raises for the value of an argument that is not one of the known ones."""
    names = tuple(known)
    if value not in names:
        raise XlsrError(
            f"`{name}` must be one of {', '.join(names)}, got '{value}'; {did_you_mean(str(value), names)}"
        )


def require_positive(name: str, value: float | None) -> None:
    """Raises for the value of an argument that is 0 or less, or no number (NaN); None passes."""
    if value is not None and not value > 0:
        raise XlsrError(f"`{name}` must be above 0, got {value}.")
