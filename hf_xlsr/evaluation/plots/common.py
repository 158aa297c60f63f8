"""What all pictures share: colours, fonts, labels that fit, and files that are the same each time."""

from __future__ import annotations

import logging
import os
import unicodedata
import warnings
from collections.abc import Iterable
from pathlib import Path

from matplotlib import font_manager, rc_context
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure

from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

DPI = 150
# Told apart by colour-blind readers too, the first six at least (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#7f7f7f")
# matplotlib takes a glyph from the first of these that has it.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Arial Unicode MS",
    "Microsoft YaHei",
)
# A file that says when it was written would differ from one run to the next.
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def fonts() -> list[str]:
    """The fonts of `FONTS` that this machine has."""
    return [name for name in FONTS if name in font_manager.get_font_names()]


def shorten(text: str, width: int) -> str:
    """The text on one line, cut with an ellipsis to so many terminal columns (wide characters take two).

    Example:
        >>> shorten("A  sentence that goes on and on and on", 16)
        'A sentence that…'
        >>> shorten("你好世界", 6)
        '你好…'
    """
    text = " ".join(text.split())
    used = 0
    for index, character in enumerate(text):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if used > width:
            # Make room for the ellipsis, which takes the place of the last character that fitted.
            return text[: max(index - 1, 0)].rstrip() + "…"
    return text


def colours_of(labels: Iterable[str]) -> dict[str, str]:
    """A colour for each label.

    Raises:
        XlsrError: there is none, or more than there are colours.

    Example:
        >>> colours_of(["e5-small", "ours"])
        {'e5-small': '#0072b2', 'ours': '#d55e00'}
    """
    names = list(labels)
    if not 1 <= len(names) <= len(COLOURS):
        raise XlsrError(f"{len(names)} are to be drawn side by side; a picture shows 1 to {len(COLOURS)}.")
    return dict(zip(names, COLOURS, strict=False))


def check_picture(path: str | os.PathLike[str]) -> None:
    """Refuses a picture whose ending names no format.

    Raises:
        XlsrError: the format is unknown.

    Example:
        >>> check_picture("plots/bars.svg")
    """
    file = Path(path)
    if file.suffix.lstrip(".").lower() not in FigureCanvasBase.get_supported_filetypes():
        raise XlsrError(f"picture {file} ends in '{file.suffix}'; use .png, .pdf or .svg.")


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure; what no font can draw is told in one sentence.

    Args:
        figure: What to write.
        path: The picture; its ending chooses the format. Folders on the way are made.

    Returns:
        `path`.

    Raises:
        XlsrError: the format is unknown, or the file cannot be written.
    """
    check_picture(path)
    file = Path(path)
    ending = file.suffix.lstrip(".").lower()
    with warnings.catch_warnings(record=True) as caught, rc_context({"svg.hashsalt": "hf-xlsr"}):
        warnings.simplefilter("always")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(file, dpi=DPI, metadata=UNDATED.get(ending))
        except OSError as error:
            raise XlsrError(f"picture {file} cannot be written ({error.strerror}); check the path.") from error
    # matplotlib warns once for each character: one sentence says it better.
    glyphs = [warning for warning in caught if str(warning.message).startswith("Glyph")]
    if glyphs:
        logger.warning(
            "%d characters in %s are drawn as boxes; install a font that has them, such as Noto Sans.",
            len(glyphs),
            file,
        )
    for warning in caught:
        if warning not in glyphs:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return file
