"""Names of files and commands without the folders of this machine, which name its user and not the data."""

from __future__ import annotations

import os
import re

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
# Folders before the last name of a path: behind `fasttext:` also with spaces, of an address of a file, of a share, and at
# the start of a word of a path that is not relative.
_FOLDERS = re.compile(
    r"""(?:(?<=fasttext:)[^,'"{}]*[/\\]"""
    r"""|\bfile:/[^\s,'"{}]*[/\\]"""
    r"""|(?<![\w./\\])\\\\[^\s,'"{}]*[/\\]"""
    r"""|(?<![\w./\\])(?:~[\w-]*|\.{1,2}|[A-Za-z]:)?[/\\](?![/\\])(?:[^\s,'"{}]*[/\\])?)(?=[\w.])"""
)


def public_name(path: str | os.PathLike[str]) -> str:
    """The last name of a path; an id of the Hub stays whole.

    Examples:
        >>> public_name("~/texts/en.txt"), public_name("owner/name"), public_name("a/news.{en,de}")
        ('en.txt', 'owner/name', 'news.{en,de}')
    """
    text = os.fspath(path)
    if _HUB_ID.fullmatch(text) and not os.path.exists(text) and not os.path.isdir(os.path.dirname(text)):
        return text
    return last_name(text)


def last_name(path: str) -> str:
    """The last name of a path, also of one of Windows; empty for a path without one."""
    names = [name for name in re.split(r"[\\/]", path) if name not in ("", ".", "..", "~")]
    return names[-1] if names else ""


def without_folders(text: str) -> str:
    """A text in which paths have only their last names; addresses of the web stay.

    Examples:
        >>> without_folders("language: {method: fasttext:~/models/lid.ftz}, length")
        'language: {method: fasttext:lid.ftz}, length'
        >>> without_folders(r"fasttext:~/my models/lid.ftz, C:\\models\\x")
        'fasttext:lid.ftz, x'
        >>> without_folders("https://example.org/a or a/b")
        'https://example.org/a or a/b'
    """
    return _FOLDERS.sub("", text)
