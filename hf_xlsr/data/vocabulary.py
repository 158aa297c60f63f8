"""Reduction of the vocabulary of a pretrained tokenizer to the tokens of some text."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from hf_xlsr.utils.errors import XlsrError

BATCH = 1000
# Prefix of a token that begins a word (SentencePiece), or that does not (WordPiece).
MARKS = ("▁", "##")


def trim_vocabulary(tokenizer: Any, texts: Iterable[str]) -> tuple[PreTrainedTokenizerFast, list[int]]:
    """A tokenizer with the tokens that occur in texts; it splits these texts like the original.

    A multilingual vocabulary of 250,000 tokens is mostly of other languages; its embeddings and its softmax dominate the
    cost of a small model. Special tokens are kept, and the single letters of the kept tokens, so that other words in the
    same scripts are split into smaller tokens; letters of other scripts become the unknown token.

    Args:
        tokenizer: A fast tokenizer with a Unigram vocabulary (XLM-R, E5) or a WordPiece one (multilingual BERT).
        texts: Text in all languages of the model.

    Returns:
        The new tokenizer, and the old ids of its tokens in the new order: the rows of the embedding table to keep.

    Raises:
        XlsrError: the tokenizer is of another kind, or there is no text.

    Example:
        >>> from hf_xlsr.data.tokenization import train_tokenizer
        >>> whole = train_tokenizer(["red birds", "blue fish", "old stone"] * 50, vocab_size=18)
        >>> small, pieces = trim_vocabulary(whole, ["red birds"])
        >>> small.tokenize("red birds") == whole.tokenize("red birds"), len(small) < len(whole)
        (True, True)
        >>> whole.convert_ids_to_tokens(pieces) == small.convert_ids_to_tokens(range(len(small)))
        True
    """
    spec = json.loads(tokenizer.backend_tokenizer.to_str()) if getattr(tokenizer, "is_fast", False) else {}
    kind = spec.get("model", {}).get("type")
    if kind not in ("Unigram", "WordPiece"):
        raise XlsrError(
            f"the vocabulary of a {kind or 'slow'} tokenizer cannot be reduced, only that of Unigram and WordPiece ones."
        )
    used = _used_tokens(tokenizer, texts)
    names = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    letters = {letter for token in used for letter in names[token]}
    kept = used | set(tokenizer.all_special_ids) | {token["id"] for token in spec["added_tokens"]}
    kept |= set(range((tokenizer.pad_token_id or 0) + 1))  # positions of some encoders start at the padding id
    kept |= {token for token, name in enumerate(names) if len(bare := _bare(name)) == 1 and bare in letters}
    pieces = sorted(kept)
    new = {old: number for number, old in enumerate(pieces)}
    model = spec["model"]
    if kind == "Unigram":
        model["unk_id"] = new[model["unk_id"]]
        model["vocab"] = [model["vocab"][old] for old in pieces if old < len(model["vocab"])]
    else:
        model["vocab"] = {name: new[old] for name, old in model["vocab"].items() if old in new}
    for token in spec["added_tokens"]:
        token["id"] = new[token["id"]]
    _renumber(spec["post_processor"], new)
    spec["padding"] = spec["truncation"] = None
    small = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(spec)),
        model_max_length=tokenizer.model_max_length,
        padding_side="right",
        truncation_side="right",
        **tokenizer.special_tokens_map,
    )
    return small, pieces


def _used_tokens(tokenizer: Any, texts: Iterable[str]) -> set[int]:
    used: set[int] = set()
    stream = iter(texts)
    while batch := list(islice(stream, BATCH)):
        for ids in tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]:
            used.update(ids)
    if not used:
        raise XlsrError("the sources of the vocabulary have no text.")
    return used


def _bare(name: str) -> str:
    """A token without its prefix."""
    mark = next((mark for mark in MARKS if name.startswith(mark) and name != mark), "")
    return name[len(mark) :]


def _renumber(processor: Any, new: dict[int, int]) -> None:
    """Sets the new ids of the special tokens of a post-processor."""
    if not processor:
        return
    for part in processor.get("processors", ()):
        _renumber(part, new)
    for token in processor.get("special_tokens", {}).values():
        token["ids"] = [new[old] for old in token["ids"]]
    for end in ("cls", "sep"):
        if end in processor:
            name, old = processor[end]
            processor[end] = [name, new[old]]
