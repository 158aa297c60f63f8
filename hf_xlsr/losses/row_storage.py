"""How the rows of a queue are stored: in float32, in bfloat16, or as 8-bit numbers with a scale for each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hf_xlsr.losses.sparse_targets import accumulation_dtype

STORAGES = ("float32", "bfloat16", "int8")
_LARGEST = 127


@dataclass(frozen=True)
class QuantizedRows:
    """Rows with a scale each; row `i` is `scales[i] * values[i]`.

    `values` are int8 (any type for truncated rows), `(rows, width)`; `scales` float32, `(rows,)`.

    Examples:
        >>> rows = QuantizedRows(torch.tensor([[127, 0], [64, -127]], dtype=torch.int8), torch.tensor([0.5, 2.0]))
        >>> len(rows), rows[1:2].dequantize()
        (2, tensor([[ 128., -254.]]))
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

    A row of zeros stays zero; a row with an infinite entry or one that is not a number comes back as not a number.

    Examples:
        >>> quantize_rows(torch.tensor([[1.0, -0.5, 0.0], [0.0, 0.0, 0.0]])).values
        tensor([[127, -64,   0],
                [  0,   0,   0]], dtype=torch.int8)
    """
    rows = rows.detach().float()
    scales = rows.abs().amax(1) / _LARGEST
    # A scale of 0 comes of a row of zeros; a subnormal one is so coarse that its row's largest entry passes 127.
    values = (rows / torch.where(scales == 0, 1, scales).unsqueeze(1)).round_().clamp_(-_LARGEST, _LARGEST)
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
