"""Values of options that several verbs of the `hf-xlsr` command take."""

from __future__ import annotations

from typing import Any
from zipfile import BadZipFile

from hf_xlsr.utils.errors import XlsrError


def parse_languages(text: str | None) -> list[str]:
    """The codes of `--languages`; none without it.

    Example:
        >>> parse_languages("en, de")
        ['en', 'de']
    """
    return [piece.strip() for piece in (text or "").split(",") if piece.strip()]


def parse_routes(text: str | None) -> dict[str, str]:
    """Language -> route of `--routes`; empty without it.

    Raises:
        XlsrError: a piece is not LANGUAGE=ROUTE.

    Example:
        >>> parse_routes("en=source, de=target")
        {'en': 'source', 'de': 'target'}
    """
    routes = {}
    for piece in text.split(",") if text else ():
        language, equals, route = (part.strip() for part in piece.partition("="))
        if not (language and equals and route):
            raise XlsrError(f"--routes has '{piece.strip()}'; write LANGUAGE=ROUTE,..., e.g. en=source,de=target.")
        routes[language] = route
    return routes


def read_vectors(file: str) -> Any:
    """The matrix of a `.npy` file, memory-mapped.

    Args:
        file: The file; no other is opened, as an archive or a pickle may hold anything.

    Raises:
        XlsrError: the file cannot be read, is an archive, or holds no matrix of real numbers with a row or more.
    """
    import numpy as np

    try:
        vectors = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "it is no .npy file with a matrix of numbers"
        raise XlsrError(f"vectors {file} cannot be read ({reason}); save them with numpy.save.") from error
    if not isinstance(vectors, np.ndarray):
        vectors.close()
        raise XlsrError(f"vectors {file} are an archive (.npz); save its matrix alone as .npy, with numpy.save.")
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiub" or not len(vectors):
        raise XlsrError(f"{file} holds no matrix of real numbers with one row a text; save one with numpy.save.")
    return vectors
