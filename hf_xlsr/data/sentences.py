"""Splitting text into sentences."""

from __future__ import annotations

from hf_xlsr.data.languages import language_code
from hf_xlsr.utils.extras import require_package

# In some languages sentencex takes quadratic time in the length of a paragraph (Chinese: 30 s for 350,000 characters),
# and it never splits between two quotation marks. Long text is therefore split in blocks of this many characters.
BLOCK = 10_000


def split_sentences(text: str, language: str) -> list[str]:
    r"""Splits a document into sentences by the rules of `sentencex`, with single spaces. A blank line ends a sentence.

    Examples:
        >>> split_sentences("Dr. Lee came  at 5.30 p.m. yesterday.\nNobody\nknew why.\n\nThe end", "en")
        ['Dr. Lee came at 5.30 p.m. yesterday.', 'Nobody knew why.', 'The end']
    """
    require_package("sentencex")
    import sentencex

    code = language_code(language)
    sentences: list[str] = []
    rest = ""
    for start in range(0, len(text), BLOCK):
        # The last, possibly incomplete sentence of a block begins the next one.
        *complete, rest = sentencex.segment(code, rest + text[start : start + BLOCK])
        sentences += complete
    sentences.append(rest)
    return [" ".join(sentence.split()) for sentence in sentences if sentence.strip()]
