"""Documents into sentences."""

from __future__ import annotations

from collections.abc import Iterator

import sentencex

from hf_xlsr.data.languages import language_code

# The library takes time in the square of the length of a paragraph in some languages (Chinese: 30 s for 350,000
# characters), and splits nothing between a mark of quotation and the next one, however far. So a long text is handed
# over in blocks of so many characters.
_BLOCK = 10_000


def split_sentences(text: str, language: str) -> list[str]:
    """Splits running text into sentences, by the rules and abbreviations that `sentencex` has for a language.

    A blank line ends a sentence; a single line break is white space, as in text of a fixed width. Languages that the
    library does not know fall back on a relative or on English. Languages that end no sentence with a mark, such as
    Thai, are hardly split at all: give their text as one sentence a row instead.

    Args:
        text: A document.
        language: Its language, in any of the codes that `language_code` understands.

    Returns:
        The sentences that are not empty, white space in them as single spaces.

    Example:
        >>> split_sentences("Dr. Lee came  at 5.30 p.m. yesterday.\\nNobody\\nknew why.\\n\\nThe end", "en")
        ['Dr. Lee came at 5.30 p.m. yesterday.', 'Nobody knew why.', 'The end']
        >>> split_sentences("今天天气很好。我们走吧！", "zh-Hans")
        ['今天天气很好。', '我们走吧！']
    """
    return [" ".join(words) for sentence in _segments(text, language_code(language)) if (words := sentence.split())]


def _segments(text: str, code: str) -> Iterator[str]:
    """What the library makes of the text; the last, perhaps unfinished sentence of a block begins the next one."""
    rest = ""
    for start in range(0, len(text), _BLOCK):
        *whole, rest = sentencex.segment(code, rest + text[start : start + _BLOCK])
        yield from whole
    yield rest
