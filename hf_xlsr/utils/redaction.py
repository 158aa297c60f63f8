"""Access tokens of the Hub, replaced in any text that leaves the process: messages, logs, cards."""

from __future__ import annotations

import os
import re

# Tokens of users and organisations, and of browser logins.
TOKEN = re.compile(r"(?:hf|api_org)_[A-Za-z0-9]{30,}|hf_(?:oauth|jwt)_[A-Za-z0-9._-]{30,}")
VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
SHORTEST = 8  # characters; a shorter value is not a token, and would match everywhere
HIDDEN = "<token>"


def redact_tokens(text: str) -> str:
    """The text with access tokens, known or by their form, replaced by `<token>`.

    Redact a text before it is truncated: the rest of a token is no longer recognised.

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
