"""A check that access tokens of the Hub do not get into files."""

from __future__ import annotations

from typing import Any

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.redaction import redact_tokens


def check_no_token(value: Any, place: str) -> None:
    """Raises for a text or nested values, such as a recipe, that hold an access token; `place` names the value."""
    text = str(value)
    if redact_tokens(text) != text:
        raise XlsrError(f"{place} holds an access token. Remove it and set HF_TOKEN.")
