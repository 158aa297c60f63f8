"""Around a loss: the gradient cache, means over truncated embeddings, weighted sums of named parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from hf_xlsr.utils.distributed import world_size
from hf_xlsr.utils.errors import XlsrError


def encode_in_chunks(encode: Callable[..., Any], cache_batch_size: int | None) -> Callable[..., Any]:
    """A function that encodes rows in chunks and keeps only their embeddings (Gao et al., 2021).

    The backward pass computes each chunk again, one at a time, with the random state and the autocast of its first pass.
    The gradient equals that of the same chunks with their graphs kept. Call `backward`, not `torch.autograd.grad`.

    Args:
        encode: Returns an embedding, or a tuple of tensors, of tensors whose first dimension counts rows. Tensors after
            the first may be None.
        cache_batch_size: Rows of a chunk; None encodes all rows at once.

    Examples:
        >>> layer = torch.nn.Linear(2, 3)
        >>> encode_in_chunks(layer, 2)(torch.ones(5, 2)).shape
        torch.Size([5, 3])
    """
    if cache_batch_size is None:
        return encode

    # Reentrant, no node of the graph is kept. DDP would see the gradient of a parameter once for each chunk.
    reentrant = world_size() == 1

    def encode_chunk(_: torch.Tensor, *chunk: torch.Tensor | None) -> Any:
        return encode(*chunk)

    def encode_chunks(*inputs: torch.Tensor | None) -> Any:
        leaf = torch.empty(0, requires_grad=True)  # without it nothing has a gradient if reentrant
        splits: list[Iterable[torch.Tensor | None]] = []
        for rows in inputs:
            splits.append(repeat(None) if rows is None else torch.split(rows, cache_batch_size))
        chunks = zip(*splits, strict=False)  # None repeats without end
        outputs = [checkpoint(encode_chunk, leaf, *chunk, use_reentrant=reentrant) for chunk in chunks]
        if isinstance(outputs[0], tuple):
            return tuple(map(torch.cat, zip(*outputs, strict=True)))
        return torch.cat(outputs)

    return encode_chunks


def weighted_sum(losses: Mapping[str, torch.Tensor], weights: Mapping[str, float]) -> torch.Tensor:
    r"""The sum of losses, each times the weight of its name: equation 7 of the lightweight dual transformer.

    ```math
    L = \omega_0 L_{XMLM} + \omega_1 L_{align} + \omega_2 L_{sim}
    ```

    Examples:
        >>> losses = {"generative": torch.tensor(3.0), "alignment": torch.tensor(0.5)}
        >>> weighted_sum(losses, {"generative": 1.0, "alignment": 2.0})
        tensor(4.)
    """
    if not losses:
        raise XlsrError("No loss to train: at least one weight must be above 0.")
    weighted = [weights[name] * loss for name, loss in losses.items()]
    return torch.stack(weighted).sum()


def matryoshka_mean(
    loss: Callable[..., torch.Tensor], dims: Sequence[int] | None, *embeddings: torch.Tensor | None
) -> torch.Tensor:
    r"""The mean of a loss over embeddings that are truncated to their first dimensions (Kusupati et al., 2022).

    ```math
    L = \frac{1}{|D|} \sum_{d \in D} L(x_{1..d}, y_{1..d}, ...)
    ```

    The mean keeps the scale of the loss; sentence-transformers' `MatryoshkaLoss` has the sum.

    Args:
        loss: A function of embeddings.
        dims: The numbers of dimensions; include the width to train whole embeddings too. Without any, the loss of
            whole embeddings.
        *embeddings: Arguments of `loss`, `(rows, width)` each, or None.

    Examples:
        >>> from hf_xlsr.losses import alignment_loss
        >>> eye = torch.eye(3)
        >>> matryoshka_mean(alignment_loss, [1, 3], eye, eye)  # of 1.8324 and 1.1029
        tensor(1.4677)
    """
    if not dims:
        return loss(*embeddings)
    width = max(rows.shape[1] for rows in embeddings if rows is not None)
    if min(dims) < 1 or max(dims) > width:
        raise XlsrError(f"`matryoshka_dims` must be from 1 to {width}, got {list(dims)}.")

    losses = []
    for dim in dims:
        truncated = [None if rows is None else rows[:, :dim] for rows in embeddings]
        losses.append(loss(*truncated))
    return torch.stack(losses).mean()
