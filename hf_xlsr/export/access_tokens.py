"""Access tokens of the Hub, kept out of files, sentences and cards."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import get_token

from hf_xlsr.utils.errors import XlsrError

# Of users and organisations, and of a login by a browser.
TOKEN = re.compile(r"(?:hf|api_org)_[A-Za-z0-9]{30,}|hf_(?:oauth|jwt)_[A-Za-z0-9._-]{30,}")
_TOKEN_BYTES = re.compile(TOKEN.pattern.encode())
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
SHORTEST = 8  # a shorter value is no token, and would be found everywhere
HIDDEN = "<token>"
_BLOCK, _LONGEST = 1 << 20, 4096


def known_tokens() -> set[str]:
    """The tokens that this process could use: of the environment, and of a login on this machine."""
    found = {os.environ.get(name, "").strip() for name in VARIABLES} | {(get_token() or "").strip()}
    return {token for token in found if len(token) >= SHORTEST}


def hide_tokens(text: str) -> str:
    """The text with `<token>` in place of whatever is, or looks like, an access token.

    Example:
        >>> hide_tokens("refused for hf_" + "a" * 34)
        'refused for <token>'
    """
    for token in sorted(known_tokens(), key=len, reverse=True):
        text = text.replace(token, HIDDEN)
    return TOKEN.sub(HIDDEN, text)


def check_no_token(value: Any, place: str) -> None:
    """Refuses an access token in a recipe, or anywhere in nested values.

    Args:
        value: Text, number, mapping or list of such.
        place: What the error sentence calls it.

    Raises:
        XlsrError: as said; the sentence does not repeat the token.

    Example:
        >>> check_no_token({"training": {"hub_token": "hf_" + "a" * 34}}, "recipe a")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: recipe a, training.hub_token holds an access token; take it out and set HF_TOKEN.
    """
    known = known_tokens()
    for key, text in _strings(value):
        if TOKEN.search(text) or any(token in text for token in known):
            where = f"{place}, {hide_tokens(key)}" if key else place
            raise XlsrError(f"{where} holds an access token; take it out and set HF_TOKEN.")


def check_no_token_in_files(files: Mapping[str, Path]) -> None:
    """Refuses files that hold an access token, before they go anywhere.

    Args:
        files: Name that the error sentence uses -> file.

    Raises:
        XlsrError: as said, or a file cannot be read.
    """
    known = [token.encode() for token in known_tokens()]
    for name, path in files.items():
        try:
            found = _holds_token(path, known)
        except OSError as error:
            raise XlsrError(f"file {path} cannot be read ({error.strerror}); check it.") from None
        if found:
            raise XlsrError(
                f"file {name} holds an access token and was not sent; take the token out of it, and make a new one if "
                "others could read the file."
            )


def _strings(value: Any, key: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield key, str(name)
            yield from _strings(inner, f"{key}.{name}".lstrip("."))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _strings(inner, key)


def _holds_token(path: Path, known: Iterable[bytes]) -> bool:
    before = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            text = before + block
            if any(token in text for token in known):
                return True
            # The pattern is slow on weights, the two words at its front are not.
            if (b"hf_" in text or b"api_org_" in text) and _TOKEN_BYTES.search(text):
                return True
            before = text[-_LONGEST:]
    return False
