"""Tokenizers as pretrained encoders have them: whole words, with special tokens around each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

PAD, UNK, CLS, SEP = "[PAD]", "[UNK]", "[CLS]", "[SEP]"


def word_tokenizer(words: Sequence[str]) -> Any:
    """A tokenizer that knows these words; its special tokens are numbered before them."""
    vocabulary = {token: number for number, token in enumerate([PAD, UNK, CLS, SEP, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", special_tokens=[(CLS, vocabulary[CLS]), (SEP, vocabulary[SEP])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNK, cls_token=CLS, sep_token=SEP
    )


def framed_tokenizer(words: Sequence[str], *, types: bool = False) -> Any:
    """A tokenizer of whole words that joins pairs as BERT does: [CLS] first [SEP] second [SEP]."""
    tokenizer = word_tokenizer(words)
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}",
        pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
        special_tokens=[(name, tokenizer.convert_tokens_to_ids(name)) for name in (CLS, SEP)],
    )
    if types:
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer
