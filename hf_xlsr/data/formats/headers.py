"""The first line of a table: names of columns, or a row like the others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hf_xlsr.data.columns import KNOWN_COLUMNS
from hf_xlsr.data.languages import is_language_code, language_of_name

# Words that stand for one of our columns, and words around them.
_OUR_NAME = {
    "src": "source",
    "tgt": "target",
    "trg": "target",
    "1": "sentence1",
    "2": "sentence2",
    "similarity": "score",
}
_FILLERS = frozenset("sentence sentences sent s string text texts segment seg".split())
_OTHER_WORDS = frozenset(
    "id ids idx index key pair doc filename url genre domain year quality gold class anchor query passage".split()
)
LONGEST = 40  # characters of a name
_TAG_AT_END = re.compile(r"[_.-](?P<tag>[a-z]{2,3}(_[A-Z][a-z]{3})?)$")
_WORDS = _FILLERS | _OTHER_WORDS | KNOWN_COLUMNS | _OUR_NAME.keys()


def our_columns(header: Sequence[str]) -> dict[str, str]:
    """Our name -> column, for columns that others name otherwise.

    Examples:
        >>> our_columns(["src", "Target text", "#1 String", "year"])
        {'source': 'src', 'target': 'Target text', 'sentence1': '#1 String'}
    """
    columns: dict[str, str] = {}
    for name in header:
        words = _words(name)
        if len(words) > 1:
            words = [word for word in words if word not in _FILLERS]
        ours = _OUR_NAME.get(words[0], words[0]) if len(words) == 1 else ""
        if ours in KNOWN_COLUMNS:
            columns.setdefault(ours, name)
    return columns


def names_columns(line: Sequence[str]) -> bool:
    """Whether a line consists of different names of columns or languages.

    Examples:
        >>> [names_columns(line) for line in (["src", "trg"], ["English", "German"], ["text", "Text"], ["the", "der"])]
        [True, True, False, False]
    """
    if len({name.casefold() for name in line}) < len(line) or max(map(len, line)) > LONGEST:
        return False
    if len(line) < 2:
        return bool(our_columns(line))
    # A line of codes may be words: "in" and "no" are languages.
    others = [name for name in line if not language_of_name(name)]
    return bool(others) and all(map(_is_name, others))


def _is_name(name: str) -> bool:
    """Whether a name has only words of headers, and perhaps the code of a language at one end."""
    for part in (name.partition("_")[0], name.partition(".")[0]):
        if part != name and language_of_name(part):
            name = name[len(part) + 1 :]
    words = _words(_TAG_AT_END.sub(_without_tag, name))
    return not all(map(str.isdecimal, words)) and all(map(_is_known, words))


def _without_tag(end: re.Match[str]) -> str:
    return "" if is_language_code(end["tag"]) else end[0]


def _is_known(word: str) -> bool:
    return word in _WORDS or word.isdecimal() or code_of_language(word) is not None


def _words(name: str) -> list[str]:
    """The words and numbers of a name: `text_en`, `#1 String`, `sentence1`."""
    return re.findall(r"[^\W\d_]+|\d+", name.casefold())


def code_of_language(name: str) -> str | None:
    """The code of a language by its English name."""
    if not re.fullmatch("[A-Za-z]{4,20}", name):
        return None
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    code: str | None = TO_LANGUAGE_CODE.get(name.lower())
    return code
