"""Access tokens of the Hub, kept out of files, messages and cards."""

from __future__ import annotations

import os
import re
from typing import Any

from hf_xlsr.utils.errors import XlsrError

# Tokens of users and organisations, and of browser logins.
TOKEN = re.compile(r"(?:hf|api_org)_[A-Za-z0-9]{30,}|hf_(?:oauth|jwt)_[A-Za-z0-9._-]{30,}")
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
SHORTEST = 8  # characters; a shorter value is not a token, and would match everywhere
HIDDEN = "<token>"


def redact_tokens(text: str) -> str:
    """The text with access tokens, known or by their form, replaced by `<token>`.

    Examples:
        >>> redact_tokens("refused for hf_" + "a" * 34)
        'refused for <token>'
    """
    from huggingface_hub import get_token

    tokens = {get_token() or "", *(os.environ.get(name, "") for name in VARIABLES)}
    for token in sorted(map(str.strip, tokens), key=len, reverse=True):
        if len(token) >= SHORTEST:
            text = text.replace(token, HIDDEN)
    return TOKEN.sub(HIDDEN, text)


def check_no_token(value: Any, place: str) -> None:
    """Raises for a text or nested values, such as a recipe, that hold an access token; `place` names the value."""
    text = str(value)
    if redact_tokens(text) != text:
        raise XlsrError(f"{place} holds an access token. Remove it and set HF_TOKEN.")
