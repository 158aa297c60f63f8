"""Plain fields of configurations: words where numbers are meant are told at once, not by what breaks later.

huggingface_hub's `@strict` reads annotations as they stand, and postponed ones are texts to it: it checks nothing then.
"""

from __future__ import annotations

from typing import Any

from hf_xlsr.utils.errors import XlsrError

KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word"}


def fits(value: Any, kind: str) -> bool:
    """Whether a value is of a kind of `KINDS`; whole numbers are numbers, true and false are none.

    Example:
        >>> fits(1, "float"), fits(True, "int"), fits("low", "float"), fits(None, "list")
        (True, False, False, True)
    """
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("int", "float"):
        return isinstance(value, int if kind == "int" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, str) if kind == "str" else True


def plain_fields(owner: type) -> dict[str, str]:
    """The fields that a class itself declares as `int`, `float`, `bool` or `str`, with their kinds."""
    return {name: kind for name, kind in vars(owner).get("__annotations__", {}).items() if kind in KINDS}


def check_fields(config: Any, owner: type) -> None:
    """Refuses values of the wrong kind.

    Args:
        config: An instance.
        owner: The class whose own fields are checked.

    Raises:
        XlsrError: names the field and what it takes.
    """
    for name, kind in plain_fields(owner).items():
        value = getattr(config, name)
        if not fits(value, kind):
            raise XlsrError(f"{name} is {value!r}; it takes {KINDS[kind]}.")
