"""Tokenising with counts: how much was cut, and how much the tokenizer does not know."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hf_xlsr.errors import XlsrError

logger = logging.getLogger(__name__)

# Shares of unknown pieces in a language. Good vocabularies stay below one in a hundred, in Chinese, too; of a script that
# a vocabulary lacks about all is unknown but the marks of spaces.
NOTICED, REFUSED = 0.05, 0.3
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

    def tokenize(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """The piece ids of texts, each with the tokenizer of its language, which also cuts those that are too long.

        Args:
            texts: Sentences.
            languages: The language of each.
        """
        ids, truncated = tokenize_texts(texts, languages, self.tokenizer, self.max_length)
        self._truncated += truncated
        for row, language in zip(ids, languages, strict=True):
            self._pieces[language] += len(row)
            unknown = self._of(language).unk_token_id
            if unknown is not None:
                self._unknown[language] += row.count(unknown)
        for language, texts_of_it in Counter(languages).items():
            self._framing[language] += texts_of_it * self._of(language).num_special_tokens_to_add()
        return ids

    def report(self) -> dict[str, int]:
        """`truncated_sides`, `pieces` and `unknown_pieces` so far; says so where many are unknown.

        Raises:
            XlsrError: most of a language is unknown to its tokenizer.
        """
        for language, unknown in self._unknown.items():
            share = unknown / max(1, self._pieces[language] - self._framing[language])
            told = f"of the pieces of sentences in '{language}', {share:.0%} are unknown to the tokenizer"
            if share > REFUSED:
                raise XlsrError(
                    f"{told}, which leaves too little to learn from; take a tokenizer of the language, or have one "
                    "trained on text that has it."
                )
            if share > NOTICED:
                logger.warning("%s.", told)
        return {
            "truncated_sides": self._truncated,
            "pieces": self._pieces.total(),
            "unknown_pieces": self._unknown.total(),
        }

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
