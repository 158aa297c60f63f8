"""How a verb ends early: by a signal, or by an error that nobody expected."""

import os
import signal
import tempfile
import threading
import traceback
from types import FrameType
from typing import Any

from hf_xlsr.utils.errors import error_line
from hf_xlsr.utils.files import is_full
from hf_xlsr.utils.redaction import redact_tokens

DEBUG = "HF_XLSR_DEBUG"
LONGEST = 300  # characters of an error


class Signals:
    """Makes SIGTERM interrupt as Ctrl-C does, so that unfinished files are removed, and knows which of them came.

    A signal that the caller ignores or handles stays as it is.
    """

    HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

    def __init__(self) -> None:
        self.number = int(signal.SIGINT)
        self.received = False
        self._replaced: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        # Python allows handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            for number, default in self.HANDLERS.items():
                if signal.getsignal(number) == default:
                    self._replaced[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._replaced.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.received = True
        raise KeyboardInterrupt

    @property
    def status(self) -> int:
        """The exit status of a shell for a process that a signal ended: 130 or 143."""
        return 128 + self.number

    def sentence(self) -> str:
        return f"stopped by {signal.Signals(self.number).name}."


def unexpected(error: BaseException) -> str:
    """The sentence for an error that is no `XlsrError`, whose traceback goes to a log; it is raised for debugging."""
    if os.environ.get(DEBUG) == "1":
        raise error
    if is_full(error):
        return (
            "a file cannot be written: the disk of the output, of the cache or of the temporary folder "
            f"'{tempfile.gettempdir()}' is full, or a limit on file size is reached."
        )

    text = redact_tokens("".join(traceback.format_exception(error)))
    place = f"set {DEBUG}=1 to see its traceback"
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="hf-xlsr-", suffix=".log", delete=False) as log:
            log.write(text)
        place = f"its traceback is in {log.name}"
    except OSError:
        pass
    return f"unexpected {type(error).__name__} ({error_line(error, LONGEST)}); {place}."
