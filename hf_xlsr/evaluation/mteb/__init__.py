"""Evaluation by mteb: our encoders in its tasks, our protocols as its tasks, and its data as our rows."""

from __future__ import annotations

from hf_xlsr.utils.errors import XlsrError

try:
    import mteb  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "mteb":
        raise
    raise XlsrError("mteb is not installed. Install it with `pip install 'hf-xlsr[mteb]'`.") from error
