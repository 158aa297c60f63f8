"""Tokenising with counts: how much was cut, and how much the tokenizer does not know."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

# Shares of unknown pieces in a language. Good vocabularies stay below one in a hundred, in Chinese, too; of a script that
# a vocabulary lacks about all is unknown but the marks of spaces.
NOTICED, REFUSED = 0.05, 0.3
JUDGED = 1000  # pieces from which on a language can be refused; a few odd rows are no language
_ENCODING: dict[str, Any] = {"add_special_tokens": True, "return_attention_mask": False, "verbose": False}


class PieceCounts:
    """Tokenises texts, batch by batch, and counts their pieces.

    Args:
        tokenizer: One for all languages, or a mapping from language to tokenizer.
        max_length: Longest text kept whole, in pieces with special tokens.

    Example:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "le chat dort"] * 50, vocab_size=20, algorithm="bpe")
        >>> counts = PieceCounts(tokenizer, max_length=12)
        >>> [len(ids) for ids in counts.tokenize(["the cat", "the dort x cat sat"], ["en", "en"])]
        [5, 12]
        >>> counts.report()
        {'truncated_sides': 1, 'pieces': 17, 'unknown_pieces': 1}
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self._truncated = 0
        self._pieces: Counter[str] = Counter()
        self._framing: Counter[str] = Counter()  # special pieces around the texts
        self._unknown: Counter[str] = Counter()
        self._frames: dict[int, list[int]] = {}

    def tokenize(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """The piece ids of texts, each with the tokenizer of its language, which also cuts those that are too long.

        Args:
            texts: Sentences.
            languages: The language of each.

        Raises:
            XlsrError: most of a language is unknown to its tokenizer.
        """
        ids, truncated = tokenize_texts(texts, languages, self.tokenizer, self.max_length)
        self._truncated += truncated
        for row, language in zip(ids, languages, strict=True):
            one = self._of(language)
            frame = self._frame(one)
            self._pieces[language] += len(row)
            self._framing[language] += len(frame)
            if one.unk_token_id is not None:  # some tokenizers frame sentences with the piece of what is unknown
                self._unknown[language] += max(0, row.count(one.unk_token_id) - frame.count(one.unk_token_id))
        for language in set(languages):
            if self._pieces[language] >= JUDGED and self._share(language) > REFUSED:
                raise XlsrError(
                    f"{self._told(language)}, which leaves too little to learn from; take a tokenizer of the language, "
                    "or have one trained on text that has it."
                )
        return ids

    def report(self) -> dict[str, int]:
        """`truncated_sides`, `pieces` and `unknown_pieces` so far; warns of languages of which many are unknown."""
        for language in self._unknown:
            if self._share(language) > NOTICED:
                logger.warning("%s.", self._told(language))
        return {
            "truncated_sides": self._truncated,
            "pieces": self._pieces.total(),
            "unknown_pieces": self._unknown.total(),
        }

    def _share(self, language: str) -> float:
        return self._unknown[language] / max(1, self._pieces[language] - self._framing[language])

    def _told(self, language: str) -> str:
        return f"of the pieces of sentences in '{language}', {self._share(language):.0%} are unknown to the tokenizer"

    def _frame(self, tokenizer: Any) -> list[int]:
        """The special pieces around a sentence."""
        if id(tokenizer) not in self._frames:
            self._frames[id(tokenizer)] = list(tokenizer([""], **_ENCODING)["input_ids"][0])
        return self._frames[id(tokenizer)]

    def _of(self, language: str) -> Any:
        return self.tokenizer[language] if isinstance(self.tokenizer, Mapping) else self.tokenizer


def tokenize_texts(
    texts: Sequence[str], languages: Sequence[str], tokenizer: Any, max_length: int
) -> tuple[list[list[int]], int]:
    """Tokenises texts, each with the tokenizer of its language, which also cuts those that are too long.

    A cut text keeps the special tokens that the tokenizer puts around it.

    Args:
        texts: Sentences.
        languages: The language of each.
        tokenizer: One for all languages, or a mapping from language to tokenizer.
        max_length: Longest text kept whole, in pieces with special tokens.

    Returns:
        The piece ids of each text, and how many texts were cut.
    """
    chosen = [tokenizer[language] if isinstance(tokenizer, Mapping) else tokenizer for language in languages]
    result: list[list[int]] = [[] for _ in texts]
    truncated = 0
    for one in {id(part): part for part in chosen}.values():
        places = [place for place, part in enumerate(chosen) if part is one]
        cut = one([texts[place] for place in places], truncation=True, max_length=max_length, **_ENCODING)["input_ids"]
        for place, ids in zip(places, cut, strict=True):
            result[place] = list(ids)
        # Tokenizers do not say whether they cut; only texts that fill the limit can be longer.
        full = [place for place in places if len(result[place]) == max_length]
        if full:
            whole = one([texts[place] for place in full], truncation=False, **_ENCODING)["input_ids"]
            truncated += sum(len(ids) > max_length for ids in whole)
    return result, truncated
