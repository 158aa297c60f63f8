"""A queue of keys, the negatives of momentum contrast."""

from __future__ import annotations

import torch
from torch import nn
from transformers import initialization as init

from hf_xlsr.losses.queue_info_nce import QuantizedRows, quantize_rows
from hf_xlsr.utils.errors import XlsrError
from hf_xlsr.utils.memory import require_memory

NO_TEXT = -1  # example number of empty rows


class MemoryQueue(nn.Module):
    """A ring of keys. It consists of buffers, so that checkpoints contain it and a resume is exact.

    Valid rows come first, since the ring is filled from its start. `texts` are hashes of the keys' texts, `examples` the
    numbers of their pairs in the training data, or hashes of the pairs, `pointer` is the row of the next key.

    Examples:
        >>> queue = MemoryQueue(4, 2)
        >>> queue.enqueue(torch.eye(2), torch.tensor([7, 8]), torch.tensor([0, 1]))
        >>> queue.count, queue.keys()[1].tolist()
        (2, [0.0, 1.0])
    """

    values: torch.Tensor
    scales: torch.Tensor | None
    texts: torch.Tensor
    examples: torch.Tensor
    pointer: torch.Tensor
    filled: torch.Tensor

    def __init__(self, size: int, width: int, storage: str = "float32") -> None:
        super().__init__()
        self.size = size
        bytes_of_values = size * width * getattr(torch, storage).itemsize
        require_memory(f"a queue of `queue_size` {size:,}", bytes_of_values)
        scales = torch.zeros(size, dtype=torch.float32) if storage == "int8" else None
        self.register_buffer("values", torch.zeros(size, width, dtype=getattr(torch, storage)))
        self.register_buffer("scales", scales)
        self.register_buffer("texts", torch.zeros(size, dtype=torch.long))
        self.register_buffer("examples", torch.full((size,), NO_TEXT))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    @property
    def count(self) -> int:
        """Number of valid rows."""
        return int(self.filled)

    def keys(self) -> torch.Tensor | QuantizedRows:
        """The valid rows, as input of `queue_info_nce`; a view, not a copy."""
        count = self.count
        if self.scales is not None:
            return QuantizedRows(self.values[:count], self.scales[:count])
        return self.values[:count]

    @torch.no_grad()
    def enqueue(self, keys: torch.Tensor, texts: torch.Tensor, examples: torch.Tensor) -> None:
        """Writes keys over the oldest rows, the newest last."""
        count = len(keys)
        if count > self.size:
            raise XlsrError(f"`queue_size` must be at least the {count:,} keys of a step, got {self.size:,}.")

        rows = (self.pointer + torch.arange(count, device=keys.device)) % self.size
        if self.scales is None:
            self.values[rows] = keys.to(self.values.dtype)
        else:
            quantized = quantize_rows(keys)
            self.values[rows] = quantized.values
            self.scales[rows] = quantized.scales.to(self.scales.dtype)
        self.texts[rows] = texts
        self.examples[rows] = examples

        self.pointer.copy_((self.pointer + count) % self.size)
        self.filled.copy_((self.filled + count).clamp(max=self.size))

    @torch.no_grad()
    def initialize(self) -> None:
        """Empties the queue. `from_pretrained` makes buffers without values."""
        for name, buffer in self.named_buffers():
            init.constant_(buffer, NO_TEXT if name == "examples" else 0)

    def clear(self) -> None:
        """Makes all rows free."""
        self.pointer.zero_()
        self.filled.zero_()
