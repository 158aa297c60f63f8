"""The only place that writes to a terminal: what is shown has passed `printable`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from rich.console import Console
from rich.segment import Segment

from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.printable import printable


def say(value: object = "", *, file: TextIO | None = None, end: str = "\n") -> None:
    """Prints a text, by default to standard output."""
    print(printable(value), file=file or sys.stdout, end=end)


def warn(value: object) -> None:
    """Prints a text to standard error."""
    say(value, file=sys.stderr)


def ask(question: str, unasked: str) -> bool:
    """Asks on the terminal for a yes; where there is none, it raises an error with the text `unasked`."""
    if not sys.stdin.isatty():
        raise XlsrError(unasked)
    say(f"{question} [y/N] ", end="")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class SafeConsole(Console):
    """A console of rich that shows printable text only, also inside of tables."""

    def render(self, *args: Any, **kwargs: Any) -> Iterable[Segment]:
        """As `Console.render`; styles are rich's own and stay."""
        for segment in super().render(*args, **kwargs):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=printable(segment.text))


class PrintableFormatter(logging.Formatter):
    """The message of a record, also with a traceback, as printable text."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_printable(level: int) -> None:
    """Logs messages of at least a level to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
