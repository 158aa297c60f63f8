"""Names of repositories of the Hub."""

from __future__ import annotations

import re

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from hf_xlsr.utils.access_tokens import redact_tokens
from hf_xlsr.utils.errors import XlsrError

# Tag in the cards of our encoders.
TAG = "hf-xlsr"
_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def is_hub_id(name: str) -> bool:
    """Whether a name has the form OWNER/NAME."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return bool(_ID.fullmatch(name))


def check_repo(name: str, option: str = "--repo") -> str:
    """Checks that the name of a repository is OWNER/NAME and returns it; errors name the option."""
    if not is_hub_id(name):
        raise XlsrError(f"{option} must be OWNER/NAME, such as me/my-encoder, got '{redact_tokens(name)}'.")
    return name
