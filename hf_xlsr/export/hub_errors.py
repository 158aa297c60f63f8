"""Errors of uploads to the Hub, on one line and without tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import HTTPError

from hf_xlsr.utils.access_tokens import redact_tokens
from hf_xlsr.utils.errors import XlsrError, error_line

LONGEST = 500  # characters


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turns errors of huggingface_hub and the network into one `XlsrError`, in which tokens are redacted."""
    try:
        yield
    except XlsrError:
        raise
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        cause = _cause(error)
        reason = redact_tokens(error_line(f"{type(cause).__name__}: {cause}", LONGEST)).rstrip(".")
        # Without the chain: errors of the network hold the whole request.
        raise XlsrError(f"Upload of {what} failed ({reason}). Run it again to resume.") from None


def _cause(error: Exception) -> Exception:
    """The innermost error of the Hub or the network."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, (HTTPError, OSError)):
            return inner
        inner = inner.__cause__ or inner.__context__
    return error
