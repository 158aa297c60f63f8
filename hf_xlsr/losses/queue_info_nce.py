"""InfoNCE against a queue of negatives, equation 2 of dual momentum contrast, and how the rows of a queue are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hf_xlsr.losses.cross_entropy import accumulation_dtype
from hf_xlsr.losses.in_batch import check_shapes, check_temperature, row_lengths
from hf_xlsr.utils.devices import product_precision
from hf_xlsr.utils.errors import require_positive

STORAGES = ("float32", "bfloat16", "int8")
TEMPERATURE = 0.04  # of the paper
LARGEST = 127  # of an 8-bit number
# Rows of a chunk and bytes of its logits, at most. Measured on a CPU at batches of 256 and 1,024: 1,024 to 4,096
# rows are about as fast, fewer and more are slower. An accelerator would wait for the launches of small chunks.
CPU_CHUNK = (4096, 16 << 20)
ACCELERATOR_CHUNK = (32768, 128 << 20)


@dataclass(frozen=True)
class QuantizedRows:
    """Rows with a scale each; row `i` is `scales[i] * values[i]`.

    `values` are int8 (any type for truncated rows), `(rows, width)`; `scales` float32, `(rows,)`.
    """

    values: torch.Tensor
    scales: torch.Tensor

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> QuantizedRows:
        """A run of rows, without a copy."""
        return QuantizedRows(self.values[rows], self.scales[rows])

    def dequantize(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """The rows as float32, or written over `out` in its own type, `(rows, width)`."""
        if out is None:
            out = torch.empty_like(self.values, dtype=torch.float32)
        return out.copy_(self.values).mul_(self.scales.unsqueeze(1))


def quantize_rows(rows: torch.Tensor) -> QuantizedRows:
    r"""Rows as 8-bit numbers: symmetric, with one scale for each row, rounded to the nearest.

    ```math
    s_i = \max_j |x_{ij}| / 127, \quad v_{ij} = \operatorname{round}(x_{ij} / s_i)
    ```

    Examples:
        >>> quantize_rows(torch.tensor([[1.0, -0.5, 0.0], [0.0, 0.0, 0.0]])).values
        tensor([[127, -64,   0],
                [  0,   0,   0]], dtype=torch.int8)
    """
    rows = rows.detach().float()
    scales = rows.abs().amax(1) / LARGEST
    # A scale of 0 comes of a row of zeros; a subnormal one is so coarse that its row's largest entry passes 127.
    divisors = torch.where(scales == 0, 1, scales)
    values = (rows / divisors.unsqueeze(1)).round_().clamp_(-LARGEST, LARGEST)
    return QuantizedRows(values.to(torch.int8), scales)


def truncate_rows(rows: torch.Tensor | QuantizedRows, dim: int) -> QuantizedRows:
    """The first dimensions of rows in any storage, at length 1; the values are a view, not a copy.

    Examples:
        >>> truncate_rows(torch.tensor([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]]), 2).dequantize()
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    stored = rows.values if isinstance(rows, QuantizedRows) else rows
    values = stored[:, :dim]
    dtype = accumulation_dtype(values)

    # A common factor of a row, such as its scale, has no effect.
    lengths = torch.cat([row_lengths(block.to(dtype)) for block in torch.split(values, 8192)])
    return QuantizedRows(values, 1 / lengths)


Rows = torch.Tensor | QuantizedRows
Pairs = tuple[torch.Tensor, torch.Tensor]


def _multiply(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """A matrix product; that of bfloat16 matrices is summed and written in float32 too."""
    if left.dtype == out.dtype:
        return torch.mm(left, right, out=out)
    return torch.mm(left, right, out.dtype, out=out)


class _Negatives:
    """The queue, then the other keys, in chunks, and the masked pairs of each chunk."""

    def __init__(self, banks: Sequence[Rows], masked: Pairs | None, chunk_size: int) -> None:
        self.stored: list[tuple[int, Rows]] = []  # the first column of each chunk, and its rows
        first_column = 0
        for bank in banks:
            for start in range(0, len(bank), chunk_size):
                rows = bank[start : start + chunk_size]
                self.stored.append((first_column + start, rows))
            first_column += len(bank)

        self.largest = max((len(rows) for _, rows in self.stored), default=0)
        self.masked: dict[int, Pairs] = {}
        if masked is not None and len(masked[0]):
            self._mask_chunks(*masked)

    def _mask_chunks(self, rows: torch.Tensor, columns: torch.Tensor) -> None:
        """Sorts the masked pairs by chunk; their columns are then those of the chunk."""
        columns, order = columns.sort()
        rows = rows[order]
        starts = [start for start, _ in self.stored]
        firsts = torch.searchsorted(columns, torch.tensor(starts, device=columns.device)).tolist()
        lasts = [*firsts[1:], len(columns)]

        for start, first, last in zip(starts, firsts, lasts, strict=True):
            if last > first:
                columns_of_chunk = columns[first:last] - start
                self.masked[start] = (rows[first:last], columns_of_chunk)

    def chunks(self, dtype: torch.dtype) -> Iterator[tuple[int, torch.Tensor]]:
        """The first column of each chunk, and its rows in `dtype`; converted rows are valid until the next chunk."""
        buffer: torch.Tensor | None = None
        for start, rows in self.stored:
            if isinstance(rows, torch.Tensor) and rows.dtype == dtype:
                yield start, rows
                continue

            if buffer is None:
                values = rows.values if isinstance(rows, QuantizedRows) else rows
                buffer = torch.empty(self.largest, values.shape[1], dtype=dtype, device=values.device)
            converted = buffer[: len(rows)]
            if isinstance(rows, QuantizedRows):
                rows.dequantize(converted)
            else:
                converted.copy_(rows)
            yield start, converted

    def mask(self, matrix: torch.Tensor, start: int, value: float) -> None:
        """Writes `value` over the masked pairs in a chunk's `(batch, chunk)` matrix."""
        if start in self.masked:
            matrix[self.masked[start]] = value


class _QueueInfoNCE(torch.autograd.Function):
    """Loss and gradients in one pass over the chunks: flash attention's recurrence, where the values are the keys.

    For each query the pass carries the highest logit so far, and, over the negatives so far, the sum of
    `exp(logit - highest)` and the sum of the keys with these weights. When a chunk raises the highest logit, both sums
    are multiplied by `exp(old - new)`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries: torch.Tensor,
        positive_keys: torch.Tensor,
        negatives: _Negatives,
        temperature: float,
        bfloat16: bool,
        queries_learn: bool,
        keys_learn: bool,
    ) -> torch.Tensor:
        batch_size = len(queries)
        dtype = accumulation_dtype(queries)
        device = queries.device.type
        operand_dtype = torch.bfloat16 if bfloat16 and device == "cuda" else dtype
        # Subnormal weights make CPU products a hundred times slower and have no effect on a total of 1.
        floor = 0.75 * math.log(torch.finfo(dtype).tiny)

        scaled = queries.to(dtype) / temperature
        positives = positive_keys.to(dtype)
        operand = scaled.to(operand_dtype)
        positive_logits = (scaled * positives).sum(1, keepdim=True)

        highest = positive_logits
        mass = torch.zeros_like(highest)  # of the negatives' exp(logit - highest)
        weighted_keys = torch.zeros_like(positives)  # the negatives' keys, times exp(logit - highest)
        product = torch.empty_like(positives)
        logit_buffer = torch.empty(batch_size * negatives.largest, dtype=dtype, device=queries.device)
        weight_buffer = logit_buffer
        if operand_dtype != dtype:
            weight_buffer = torch.empty_like(logit_buffer, dtype=operand_dtype)

        for start, chunk in negatives.chunks(operand_dtype):
            size = batch_size * len(chunk)
            shape = (batch_size, len(chunk))
            logits = _multiply(operand, chunk.T, logit_buffer[:size].view(shape))
            negatives.mask(logits, start, -math.inf)
            raised = torch.maximum(highest, logits.amax(1, keepdim=True))
            logits.sub_(raised)
            if device == "cpu":
                logits.clamp_(min=floor)

            weights = torch.exp(logits, out=weight_buffer[:size].view(shape))
            negatives.mask(weights, start, 0.0)
            decay = (highest - raised).exp_()
            mass = torch.addcmul(weights.sum(1, keepdim=True, dtype=dtype), mass, decay)
            if queries_learn:
                _multiply(weights, chunk, product)
                torch.addcmul(product, weighted_keys, decay, out=weighted_keys)
            highest = raised

        mass_with_positive = mass + (positive_logits - highest).exp()
        away = mass / mass_with_positive  # 1 - the positive's probability, without the rounding of that difference
        slope = None
        if queries_learn:
            expected_keys = weighted_keys / mass_with_positive
            slope = (expected_keys - away * positives) / (temperature * batch_size)
        key_slope = None
        if keys_learn:
            key_slope = away * scaled / -batch_size
        ctx.save_for_backward(slope, key_slope)
        ctx.dtypes = (queries.dtype, positive_keys.dtype)

        lead = highest - positive_logits + mass.log()  # of all negatives together over the positive
        return torch.logaddexp(lead, torch.zeros_like(lead)).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad_output,) = grad_outputs
        gradients: list[torch.Tensor | None] = []
        for slope, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            gradients.append(None if slope is None else (slope * grad_output).to(dtype))
        return (*gradients, None, None, None, None, None)


_queue_info_nce: Callable[..., torch.Tensor] = _QueueInfoNCE.apply


def queue_info_nce(
    queries: torch.Tensor,
    positive_keys: torch.Tensor,
    queue: Rows,
    *,
    temperature: float = TEMPERATURE,
    other_keys: torch.Tensor | None = None,
    masked: Pairs | None = None,
    chunk_size: int | None = None,
) -> torch.Tensor:
    r"""InfoNCE of each query with its positive key and the keys of a queue, equation 2 of the paper.

    ```math
    L(x, y) = -\log \frac{\exp(h_x \cdot h_y / \tau)}{\sum_{i=0}^{K} \exp(h_x \cdot h_{y_i} / \tau)}
    ```

    where `y_0 = y` is the positive and the others are the queue's entries. The negatives get no gradient, so one pass
    over chunks of them carries the running maximum, the sum of exponentials and the negatives' weighted sum, which is
    the gradient for the queries: two matrix products a chunk, and no matrix larger than `batch x chunk_size`. The
    backward pass does not need the queue, which may be modified in between. NaN in an input gives NaN in the loss and
    its gradients.

    Args:
        queries: `(batch, width)`.
        positive_keys: The key of each query's translation, `(batch, width)`; gets its gradient when it requires one.
        queue: Negatives, `(rows, width)`, possibly none: floating-point numbers or `QuantizedRows`.
        temperature: Divides the inner products before the softmax.
        other_keys: More negatives, `(keys, width)`, such as the keys of the batch itself. Their columns are numbered
            after the queue's.
        masked: Rows and columns, two int64 tensors of equal length: query `rows[i]` does not count column `columns[i]`
            as a negative.
        chunk_size: Negatives per chunk; bounds memory and does not change the result. By default the fastest number.

    Returns:
        The mean over the batch, a scalar, differentiable once; 0 for a query without negatives. Sums run in float32
        (float64 for float64 queries), matrix products under autocast in bfloat16.

    Examples:
        >>> queries = torch.eye(2, 4)
        >>> queue_info_nce(queries, queries, torch.eye(4), temperature=1.0)  # -log(e / (e + e + 3))
        tensor(1.1326)
        >>> own = torch.arange(2)
        >>> queue_info_nce(queries, queries, torch.eye(4), temperature=1.0, masked=(own, own))  # -log(e / (e + 3))
        tensor(0.7437)
    """
    check_shapes(queries=queries, positive_keys=positive_keys)
    check_temperature(temperature)
    require_positive("chunk_size", chunk_size)  # a negative one would drop all negatives
    device = queries.device.type
    if chunk_size is None:
        most_rows, most_bytes = CPU_CHUNK if device == "cpu" else ACCELERATOR_CHUNK
        bytes_per_row = 4 * max(1, len(queries))
        chunk_size = max(256, min(most_rows, most_bytes // bytes_per_row))
    banks = [queue] if other_keys is None else [queue, other_keys]

    fast = device != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    bfloat16 = queries.dtype != torch.float64 and fast and torch.is_autocast_enabled(device)
    products: AbstractContextManager[None] = nullcontext()
    if bfloat16 and device == "cpu":
        products = product_precision("bf16")

    queries_learn = torch.is_grad_enabled() and queries.requires_grad
    keys_learn = torch.is_grad_enabled() and positive_keys.requires_grad
    with torch.autocast(device, enabled=False), products:
        negatives = _Negatives(banks, masked, chunk_size)
        return _queue_info_nce(queries, positive_keys, negatives, temperature, bfloat16, queries_learn, keys_learn)


def matching_pairs(ids: torch.Tensor, queue_ids: torch.Tensor) -> Pairs:
    """All pairs of a query and a queue row of one id, for `masked`, without comparing each with each.

    Returns rows and columns, int64, sorted by column and then by row. Ids may repeat.

    Examples:
        >>> matching_pairs(torch.tensor([7, 5, 7]), torch.tensor([5, 6, 7]))
        (tensor([1, 0, 2]), tensor([0, 2, 2]))
    """
    # A table of the low bits skips nearly all rows; a binary search for each would take ten times as long.
    low_bits = (1 << 16) - 1
    table = torch.zeros(low_bits + 1, dtype=torch.bool, device=ids.device)
    table[ids & low_bits] = True
    candidates = table[queue_ids & low_bits].nonzero().squeeze(1)

    sorted_ids, order = ids.sort(stable=True)
    first = torch.searchsorted(sorted_ids, queue_ids[candidates])
    count = torch.searchsorted(sorted_ids, queue_ids[candidates], right=True) - first
    before = count.cumsum(0) - count  # pairs of earlier candidates

    candidate_of_pair = torch.arange(len(candidates), device=ids.device).repeat_interleave(count)
    pair_numbers = torch.arange(len(candidate_of_pair), device=ids.device)
    rows = order[pair_numbers + (first - before)[candidate_of_pair]]
    return rows, candidates[candidate_of_pair]
