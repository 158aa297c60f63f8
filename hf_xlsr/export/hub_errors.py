"""What goes wrong between here and the Hub, each in one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import constants
from huggingface_hub.errors import (
    HfHubHTTPError,
    HTTPError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from hf_xlsr.export.access_tokens import redact_tokens
from hf_xlsr.utils.errors import XlsrError, error_line

NO_TOKEN = (
    "there is no access token for the Hub; run `hf auth login`, or set HF_TOKEN to one with write access from "
    "https://huggingface.co/settings/tokens."
)
_AGAIN = "the same command goes on where it stopped"
_LONGEST = 300


@contextmanager
def hub_errors(what: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turns errors of the Hub, and of the way to it, into one sentence without a token.

    Args:
        what: The repository, or what is sent.
        passing: Kinds of errors that the caller tells apart itself.

    Raises:
        XlsrError: in place of each of them.

    Example:
        >>> with hub_errors("me/encoder"):
        ...     raise ConnectionError("reset")
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: sending to me/encoder stopped (reset); the same command goes on where it stopped.
    """
    try:
        yield
    except XlsrError:
        raise
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        if isinstance(error, passing):
            raise
        # The chain ends here: errors of the network hold the whole request.
        raise XlsrError(redact_tokens(_sentence(_cause(error), what))) from None


def _cause(error: Exception) -> Exception:
    """The error of the Hub or the network that another one was made of."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, (HTTPError, OSError)):
            return inner
        inner = inner.__cause__ or inner.__context__
    return error


def _sentence(error: Exception, what: str) -> str:
    if isinstance(error, OfflineModeIsEnabled):
        return f"nothing was sent to {what}: HF_HUB_OFFLINE is set; unset it to reach the Hub."
    if isinstance(error, LocalTokenNotFoundError):
        return NO_TOKEN
    if isinstance(error, HfHubHTTPError):
        return _answer(error, what)
    if isinstance(error, HTTPError):
        return f"the Hub at {constants.ENDPOINT} cannot be reached ({_short(error)}); look at the network; {_AGAIN}."
    if isinstance(error, OSError) and error.filename:
        return f"file {error.filename} cannot be read ({error.strerror}); check it."
    return f"sending to {what} stopped ({_short(error)}); {_AGAIN}."


def _answer(error: HfHubHTTPError, what: str) -> str:
    status = error.response.status_code
    if status == 401 and not isinstance(error, RepositoryNotFoundError):
        return (
            "the Hub does not take the access token; make a new one with write access at "
            "https://huggingface.co/settings/tokens and set HF_TOKEN, or run `hf auth login`."
        )
    if status == 403:
        return (
            f"the access token may not write to {what}; use one with write access to it, or a repository of your own."
        )
    if status in (401, 404):
        return f"there is no repository {what} that the access token may read; check the name and the token."
    if status in (409, 412):
        return f"{what} was changed by someone else meanwhile; {_AGAIN}."
    if status == 429:
        return f"the Hub asks to wait: too many requests; {_AGAIN} in some minutes."
    said = error.server_message or ""
    reason = f"{status}: {_short(said)}" if said else str(status)
    if status >= 500:
        return f"the Hub has trouble of its own ({reason}); {_AGAIN}."
    return f"the Hub refused what was sent to {what} ({reason})."


def _short(error: object) -> str:
    text = error_line(error) or type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
