"""The one exception that users meet: a sentence saying what was wrong, where, and the mend."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class XlsrError(ValueError):
    """A mistake in what the user gave: a file, an argument, a recipe.

    The command line prints its message alone, without a stack trace. It is a `ValueError`, so that library users can
    catch it as such.

    Example:
        >>> raise XlsrError("recipe 'quikstart' was not found; did you mean 'quickstart'?")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: recipe 'quikstart' was not found; did you mean 'quickstart'?
    """


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the known name nearest to `name`, or the list of known names.

    Example:
        >>> nearest("temprature", ["temperature", "width"])
        "did you mean 'temperature'?"
        >>> nearest("zzz", ["b", "a"])
        'known are a, b.'
    """
    names = sorted(set(known))
    # Dotted names are compared by their last part too: people mistype the leaf, not the path.
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if not close:
        leaves = {known_name.rsplit(".", 1)[-1]: known_name for known_name in names}
        match = difflib.get_close_matches(name.rsplit(".", 1)[-1], list(leaves), n=1, cutoff=0.6)
        close = [leaves[match[0]]] if match else []
    return f"did you mean '{close[0]}'?" if close else f"known are {', '.join(names)}."


def error_line(error: object, longest: int | None = None) -> str:
    """A library's error as a part of a sentence: without line breaks, cut where it goes on for pages.

    Args:
        error: Of the library.
        longest: In characters; None leaves it whole.

    Example:
        >>> error_line(OSError("no such\\n  file"), 7)
        'no such'
    """
    return " ".join(str(error).split())[:longest]


def require_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Checks that an argument is one of the known names.

    Raises:
        XlsrError: it is not.

    Example:
        >>> require_choice("margin", "ratio", ["ratio", "distance"])
    """
    if value not in (names := tuple(known)):
        raise XlsrError(f"`{name}` must be one of {', '.join(names)}, got '{value}'; {nearest(str(value), names)}")


def require_positive(name: str, value: float | None) -> None:
    """Checks that an argument, if given, is above 0.

    Raises:
        XlsrError: it is not.

    Example:
        >>> require_positive("k", 4)
    """
    if value is not None and value <= 0:
        raise XlsrError(f"`{name}` must be above 0, got {value}.")
