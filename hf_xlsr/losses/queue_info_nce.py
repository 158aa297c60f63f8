"""InfoNCE against a queue of negatives, equation 2 of dual momentum contrast, and how the rows of a queue are stored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hf_xlsr.losses.cross_entropy import accumulation_dtype
from hf_xlsr.losses.in_batch import check_shapes, check_temperature
from hf_xlsr.utils.devices import product_precision
from hf_xlsr.utils.errors import require_positive

STORAGES = ("float32", "bfloat16", "int8")
LARGEST = 127  # of an 8-bit number
# Rows of a chunk and bytes of its logits, at most. Measured on a CPU at batches of 256 and 1,024: 1,024 to 4,096
# rows are about as fast, fewer and more are slower. An accelerator would wait for the launches of small chunks.
_CPU_CHUNK = 4096, 16 << 20
_OTHER_CHUNK = 32768, 128 << 20


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
    values = (rows / torch.where(scales == 0, 1, scales).unsqueeze(1)).round_().clamp_(-LARGEST, LARGEST)
    return QuantizedRows(values.to(torch.int8), scales)


def truncate_rows(rows: torch.Tensor | QuantizedRows, dim: int) -> QuantizedRows:
    """The first dimensions of rows in any storage, at length 1; the values are a view, not a copy.

    Examples:
        >>> truncate_rows(torch.tensor([[3.0, 4.0, 12.0], [0.0, 0.0, 1.0]]), 2).dequantize()
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    values = (rows.values if isinstance(rows, QuantizedRows) else rows)[:, :dim]
    # A common factor of a row, such as its scale, has no effect.
    parts = values.split(8192)
    lengths = torch.cat([torch.linalg.vector_norm(part.to(accumulation_dtype(part)), dim=1) for part in parts])
    return QuantizedRows(values, 1 / lengths.masked_fill(lengths == 0, 1.0))


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
        firsts = [0, *(len(bank) for bank in banks[:-1])]  # the column of each bank's first row
        self.parts = [
            (first + start, bank[start : start + chunk_size])
            for first, bank in zip(firsts, banks, strict=True)
            for start in range(0, len(bank), chunk_size)
        ]
        self.largest = max((len(part) for _, part in self.parts), default=0)
        self.pairs: dict[int, Pairs] = {}
        if masked is not None and len(masked[0]):
            columns, order = masked[1].sort()
            rows = masked[0][order]
            starts = torch.tensor([start for start, _ in self.parts], device=columns.device)
            edges = [*torch.searchsorted(columns, starts).tolist(), len(columns)]
            for (start, _), first, last in zip(self.parts, edges[:-1], edges[1:], strict=True):
                if last > first:
                    self.pairs[start] = rows[first:last], columns[first:last] - start

    def chunks(self, dtype: torch.dtype) -> Iterator[tuple[int, torch.Tensor]]:
        """The first column of each chunk, and its rows in `dtype`; converted rows are valid until the next chunk."""
        buffer: torch.Tensor | None = None
        for start, part in self.parts:
            if isinstance(part, torch.Tensor) and part.dtype == dtype:
                yield start, part
                continue
            if buffer is None:
                stored = part.values if isinstance(part, QuantizedRows) else part
                buffer = torch.empty(self.largest, stored.shape[1], dtype=dtype, device=stored.device)
            rows = buffer[: len(part)]
            yield start, part.dequantize(rows) if isinstance(part, QuantizedRows) else rows.copy_(part)

    def mask(self, matrix: torch.Tensor, start: int, value: float) -> None:
        """Writes `value` over the masked pairs in a chunk's `(batch, chunk)` matrix."""
        if start in self.pairs:
            matrix[self.pairs[start]] = value


class _QueueInfoNCE(torch.autograd.Function):
    """Loss and gradients in one pass over the chunks: flash attention's recurrence, where the values are the keys."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: torch.Tensor,
        positive_keys: torch.Tensor,
        negatives: _Negatives,
        temperature: float,
        bfloat16: bool,
        with_gradient: tuple[bool, bool],
    ) -> torch.Tensor:
        batch_size, device = len(queries), queries.device
        dtype = accumulation_dtype(queries)
        operand_dtype = torch.bfloat16 if bfloat16 and device.type == "cuda" else dtype
        # Subnormal weights make CPU products a hundred times slower and have no effect on a total of 1.
        floor = 0.75 * math.log(torch.finfo(dtype).tiny) if device.type == "cpu" else None
        scaled, positives = queries.to(dtype) / temperature, positive_keys.to(dtype)
        operand = scaled.to(operand_dtype)
        positive_logits = (scaled * positives).sum(1, keepdim=True)
        maximum = positive_logits
        total = torch.zeros_like(maximum)  # over the negatives, of exp(logit - maximum)
        centre = torch.zeros_like(positives)  # the negatives' sum, weighted so
        product = torch.empty_like(positives)
        logit_buffer = torch.empty(batch_size * negatives.largest, dtype=dtype, device=device)
        weight_buffer = logit_buffer if operand_dtype == dtype else torch.empty_like(logit_buffer, dtype=operand_dtype)
        for start, chunk in negatives.chunks(operand_dtype):
            shape = batch_size, len(chunk)
            logits = _multiply(operand, chunk.T, logit_buffer[: math.prod(shape)].view(shape))
            negatives.mask(logits, start, -math.inf)
            raised = torch.maximum(maximum, logits.amax(1, keepdim=True))
            logits.sub_(raised)
            if floor is not None:
                logits.clamp_(min=floor)
            weights = torch.exp(logits, out=weight_buffer[: math.prod(shape)].view(shape))
            negatives.mask(weights, start, 0.0)
            decay = (maximum - raised).exp_()
            total = torch.addcmul(weights.sum(1, keepdim=True, dtype=dtype), total, decay)
            if with_gradient[0]:
                torch.addcmul(_multiply(weights, chunk, product), centre, decay, out=centre)
            maximum = raised
        whole = total + (positive_logits - maximum).exp()
        away = total / whole  # 1 - the positive's probability, without the rounding of that difference
        slope = (centre / whole - away * positives) / (temperature * batch_size) if with_gradient[0] else None
        key_slope = away * scaled / -batch_size if with_gradient[1] else None
        ctx.save_for_backward(slope, key_slope)
        ctx.dtypes = queries.dtype, positive_keys.dtype
        lead = maximum - positive_logits + total.log()  # of all negatives together over the positive
        return torch.logaddexp(lead, torch.zeros_like(lead)).mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        grads = (
            None if slope is None else (slope * grad_outputs[0]).to(dtype)
            for slope, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return (*grads, None, None, None, None)


def queue_info_nce(
    queries: torch.Tensor,
    positive_keys: torch.Tensor,
    queue: Rows,
    *,
    temperature: float = 0.04,
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
    banks = [queue] if other_keys is None else [queue, other_keys]
    device, on_cpu = queries.device.type, queries.device.type == "cpu"
    require_positive("chunk_size", chunk_size)  # a negative one would drop all negatives
    if chunk_size is None:
        most_rows, most_bytes = _CPU_CHUNK if on_cpu else _OTHER_CHUNK
        chunk_size = max(256, min(most_rows, most_bytes // (4 * max(1, len(queries)))))
    fast = device != "cuda" or torch.cuda.is_bf16_supported(including_emulation=False)
    bfloat16 = queries.dtype != torch.float64 and fast and torch.is_autocast_enabled(device)
    products: AbstractContextManager[None] = product_precision("bf16") if bfloat16 and on_cpu else nullcontext()
    graded = torch.is_grad_enabled()
    with_gradient = graded and queries.requires_grad, graded and positive_keys.requires_grad
    with torch.autocast(device, enabled=False), products:
        negatives = _Negatives(banks, masked, chunk_size)
        return _QueueInfoNCE.apply(queries, positive_keys, negatives, temperature, bfloat16, with_gradient)


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
    known, order = ids.sort(stable=True)
    first = torch.searchsorted(known, queue_ids[candidates])
    count = torch.searchsorted(known, queue_ids[candidates], right=True) - first
    before = count.cumsum(0) - count  # pairs of earlier candidates
    chosen = torch.arange(len(candidates), device=ids.device).repeat_interleave(count)
    return order[torch.arange(len(chosen), device=ids.device) + (first - before)[chosen]], candidates[chosen]
