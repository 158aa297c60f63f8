"""Tokenisation with counts: truncated texts, and tokens that the vocabulary lacks."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hf_xlsr.utils.errors import XlsrError

logger = logging.getLogger(__name__)

# Shares of unknown tokens in a language. Good vocabularies stay below 1 %, also in Chinese; where a vocabulary lacks a
# script, nearly all tokens but spaces are unknown.
WARN_SHARE, MAX_SHARE = 0.05, 0.3
MIN_TOKENS = 1000  # fewer tokens of a language are no evidence
_ENCODING: dict[str, Any] = {"add_special_tokens": True, "return_attention_mask": False, "verbose": False}


class TokenCounts:
    """Tokenises texts, batch by batch, and counts tokens.

    Args:
        tokenizer: One tokenizer, or a mapping from language to tokenizer.
        max_length: Longer texts are truncated to this many tokens, special tokens included.

    Example:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> tokenizer = train_tokenizer(["the cat sat", "le chat dort"] * 50, vocab_size=20, algorithm="bpe")
        >>> counts = TokenCounts(tokenizer, max_length=12)
        >>> [len(ids) for ids in counts.tokenize(["the cat", "the dort x cat sat"], ["en", "en"])]
        [5, 12]
        >>> counts.report()
        {'num_truncated': 1, 'tokens': 17, 'unknown_tokens': 1}
    """

    def __init__(self, tokenizer: Any, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self._truncated = 0
        self._tokens: Counter[str] = Counter()
        self._framing: Counter[str] = Counter()  # special tokens around the texts
        self._unknown: Counter[str] = Counter()
        self._frames: dict[int, list[int]] = {}

    def tokenize(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """Token ids of texts, each truncated and with the tokenizer of its language.

        Raises:
            XlsrError: most tokens of a language are unknown.
        """
        ids, truncated = tokenize_texts(texts, languages, self.tokenizer, self.max_length)
        self._truncated += truncated
        for row, language in zip(ids, languages, strict=True):
            one = self.tokenizer[language] if isinstance(self.tokenizer, Mapping) else self.tokenizer
            frame = self._frame(one)
            self._tokens[language] += len(row)
            self._framing[language] += len(frame)
            if one.unk_token_id is not None:  # some tokenizers frame sentences with the unknown token
                self._unknown[language] += max(0, row.count(one.unk_token_id) - frame.count(one.unk_token_id))
        for language in set(languages):
            if self._tokens[language] >= MIN_TOKENS and self._share(language) > MAX_SHARE:
                raise XlsrError(
                    f"{self._share(language):.0%} of the tokens in '{language}' are unknown to the tokenizer; use a "
                    "tokenizer of that language, or train one on text that includes it."
                )
        return ids

    def report(self) -> dict[str, int]:
        """`num_truncated`, `tokens` and `unknown_tokens` so far; warns of languages with many unknown tokens."""
        for language in self._unknown:
            if (share := self._share(language)) > WARN_SHARE:
                logger.warning("%.0f %% of the tokens in '%s' are unknown to the tokenizer.", 100 * share, language)
        return {
            "num_truncated": self._truncated,
            "tokens": self._tokens.total(),
            "unknown_tokens": self._unknown.total(),
        }

    def _share(self, language: str) -> float:
        return self._unknown[language] / max(1, self._tokens[language] - self._framing[language])

    def _frame(self, tokenizer: Any) -> list[int]:
        """The special tokens around a sentence."""
        if id(tokenizer) not in self._frames:
            self._frames[id(tokenizer)] = list(tokenizer([""], **_ENCODING)["input_ids"][0])
        return self._frames[id(tokenizer)]


def tokenize_texts(
    texts: Sequence[str], languages: Sequence[str], tokenizer: Any, max_length: int
) -> tuple[list[list[int]], int]:
    """Tokenises and truncates texts; a truncated text keeps its special tokens.

    Args:
        texts: Sentences.
        languages: The language of each.
        tokenizer: One tokenizer, or a mapping from language to tokenizer.
        max_length: In tokens, special tokens included.

    Returns:
        The token ids of each text, and how many texts were truncated.
    """
    chosen = [tokenizer[language] if isinstance(tokenizer, Mapping) else tokenizer for language in languages]
    result: list[list[int]] = [[] for _ in texts]
    truncated = 0
    for one in {id(part): part for part in chosen}.values():
        places = [place for place, part in enumerate(chosen) if part is one]
        batch = [texts[place] for place in places]
        for place, ids in zip(
            places, one(batch, truncation=True, max_length=max_length, **_ENCODING)["input_ids"], strict=True
        ):
            result[place] = list(ids)
        # Tokenizers do not report truncation; only texts that fill the limit can be longer.
        full = [texts[place] for place in places if len(result[place]) == max_length]
        if full:
            untruncated = one(full, truncation=False, **_ENCODING)["input_ids"]
            truncated += sum(len(ids) > max_length for ids in untruncated)
    return result, truncated
