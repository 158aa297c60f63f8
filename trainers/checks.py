"""What a trainer is given, checked where it is made: mistakes are sentences, and come before the first step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hf_xlsr.encoders.stock import check_pieces, max_positions, vocab_size_of
from hf_xlsr.trainers.arguments import XlsrTrainingArguments
from hf_xlsr.utils.errors import XlsrError


def check_arguments(args: Any, kind: type[XlsrTrainingArguments]) -> None:
    """Refuses training arguments of another kind, which lack what the trainer reads.

    Raises:
        XlsrError: `args` is none of that kind.

    Example:
        >>> check_arguments(None, XlsrTrainingArguments)
        Traceback (most recent call last):
        ...
        hf_xlsr.utils.errors.XlsrError: args is None; give XlsrTrainingArguments(output_dir=...).
    """
    if not isinstance(args, kind):
        given = "None" if args is None else f"of the class {type(args).__name__}"
        raise XlsrError(f"args is {given}; give {kind.__name__}(output_dir=...).")


def given_tokenizer(options: Mapping[str, Any], encoder: Any) -> Any:
    """The `processing_class` of a trainer's options.

    Args:
        options: Of the trainer.
        encoder: What takes its pieces, with a table of embeddings.

    Raises:
        XlsrError: there is none, or it has more pieces than the encoder.
    """
    tokenizer = options.get("processing_class")
    if tokenizer is None:
        raise XlsrError("the trainer has no processing_class; give it the tokenizer of its data.")
    check_pieces(tokenizer, vocab_size_of(encoder))
    return tokenizer


def usable_length(encoders: Iterable[Any], max_length: int, data: Any, *, together: int = 1) -> int:
    """The length at which a trainer cuts: `max_length`, or less where the encoders have fewer positions.

    Args:
        encoders: Stock ones.
        max_length: Asked for, in pieces.
        data: With `lengths`, the pieces of its examples; None before there are any.
        together: Sentences that stand in one row.

    Raises:
        XlsrError: sentences of the data would be cut shorter than was asked for.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> encoder = BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        ...                                intermediate_size=8, max_position_embeddings=64))
        >>> usable_length([encoder], 200, None)
        64
    """
    counts = [count for count in map(max_positions, encoders) if count is not None]
    positions = min(counts, default=max_length)
    longest = int(np.max(getattr(data, "lengths", ()), initial=0))
    if min(max_length, together * longest) > positions:
        raise XlsrError(
            f"max_length is {max_length} pieces and the data have sentences of {longest} but the encoder has {positions} "
            f"positions; lower max_length to {positions}."
        )
    return min(max_length, positions)
