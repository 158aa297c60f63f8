"""Losses over a large vocabulary: cross-entropy against sparse label distributions, in chunks of the vocabulary.

The labels of the lightweight dual transformer's generative task are here, too. Its rows are a stack, first every source
sentence, then every target sentence in the same order: rows `i` and `(i + batch) % (2 * batch)` are translations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hf_xlsr.utils.errors import XlsrError, require_choice

LOGITS = 1 << 23  # maximum number of logits in memory at a time: 32 MiB in float32
IGNORE = -100  # torch's label of ignored positions


def accumulation_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The precision of sums: float64 for float64 input, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


class _SparseTargetCrossEntropy(torch.autograd.Function):
    """The value in one pass over the vocabulary, the gradients in a second one; logits are never kept.

    A pass takes some columns of the logits at a time, for all rows. The gradient of the table is written in place.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        sentences: torch.Tensor | None,
        target_ids: torch.Tensor,
        target_probs: torch.Tensor,
        row_weights: torch.Tensor,
        even_mass: float,
        chunk_size: int,
    ) -> torch.Tensor:
        accumulate = accumulation_dtype(hidden)
        # Of the matrix products; autocast does not cast the inputs of a custom function.
        cast = hidden.dtype != torch.float64 and torch.is_autocast_enabled(hidden.device.type)
        ctx.dtype = torch.get_autocast_dtype(hidden.device.type) if cast else hidden.dtype
        ctx.even_mass, ctx.chunk_size = even_mass, chunk_size
        probs = target_probs.to(accumulate)
        highest = hidden.new_full((len(hidden),), -torch.inf, dtype=accumulate)
        mass, expected = torch.zeros_like(highest), torch.zeros_like(highest)
        for columns, logits in _chunks(hidden, weight, bias, sentences, ctx.dtype, chunk_size):
            ids, inside = _within(target_ids, columns)
            expected += (probs * inside * logits.gather(1, ids)).sum(1)
            if even_mass:
                expected += even_mass / len(weight) * logits.sum(1)
            before, highest = highest, torch.maximum(highest, logits.amax(1))
            mass.mul_((before - highest).exp_()).add_(logits.sub_(highest.unsqueeze(1)).exp_().sum(1))
        normaliser = highest + mass.log()
        ctx.save_for_backward(hidden, weight, bias, sentences, target_ids, target_probs, row_weights, normaliser)
        total = (row_weights.to(accumulate) * ((probs.sum(1) + even_mass) * normaliser - expected)).sum()
        return total if len(hidden) else hidden.new_zeros((), dtype=accumulate)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, weight, bias, sentences, target_ids, target_probs, row_weights, normaliser = ctx.saved_tensors
        accumulate, dtype = normaliser.dtype, ctx.dtype
        (grad_output,) = grad_outputs
        # A row's share of one token underflows in float16; the rows' factors sum to 2 at most, so this cannot overflow.
        boost = 1024.0 if dtype == torch.float16 else 1.0
        after = grad_output.to(accumulate) / boost
        scale = boost * row_weights.to(accumulate).unsqueeze(1)
        probs = target_probs.to(accumulate) * scale
        mass = probs.sum(1, keepdim=True) + ctx.even_mass * scale  # "set" labels sum to less than 1
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.zeros_like(hidden, dtype=accumulate) if needs_hidden else None
        grad_weight = torch.zeros_like(weight) if needs_weight else None
        grad_bias = torch.zeros_like(bias) if needs_bias else None
        states = hidden.to(dtype)
        for columns, logits in _chunks(hidden, weight, bias, sentences, dtype, ctx.chunk_size):
            # d loss / d logits = mass * softmax - label, written over the logits
            logits.sub_(normaliser.unsqueeze(1)).exp_().mul_(mass)
            ids, inside = _within(target_ids, columns)
            logits.scatter_add_(1, ids, -probs * inside)
            if ctx.even_mass:
                logits.sub_(ctx.even_mass / len(weight) * scale)
            if grad_bias is not None and sentences is None:
                grad_bias[columns] = (logits.sum(0) * after).to(bias.dtype)
            elif grad_bias is not None:
                grad_bias[:, columns] = grad_bias[:, columns].index_add(0, sentences, (logits * after).to(bias.dtype))
            logits = logits.to(dtype)
            if grad_weight is not None:
                grad_weight[columns] = ((logits.T @ states).to(accumulate) * after).to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden += (logits @ weight[columns].to(dtype)).to(accumulate) * after
        grad_hidden = None if grad_hidden is None else grad_hidden.to(hidden.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None, None


def _chunks(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    sentences: torch.Tensor | None,
    dtype: torch.dtype,
    chunk_size: int,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """The logits of all rows, some columns at a time; the caller may write over them."""
    states, width = hidden.to(dtype), max(1, chunk_size // max(len(hidden), 1))
    for start in range(0, len(weight) if len(hidden) else 0, width):
        columns = slice(start, min(start + width, len(weight)))
        products = (states @ weight[columns].to(dtype).T).to(accumulation_dtype(hidden))
        yield columns, products.add_(bias[columns] if sentences is None else bias[:, columns][sentences])


def _within(ids: torch.Tensor, columns: slice) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of tokens in a chunk of the vocabulary, and whether they are inside it."""
    inside = (ids >= columns.start) & (ids < columns.stop)
    return torch.where(inside, ids - columns.start, 0), inside


def sparse_target_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    target_ids: torch.Tensor,
    target_probs: torch.Tensor,
    row_weights: torch.Tensor,
    *,
    sentences: torch.Tensor | None = None,
    even_mass: float = 0.0,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    """Sum over rows of `-row_weight * sum_w q(w) log p(w)`, `p` the softmax of `hidden @ weight.T + bias`.

    It processes the vocabulary in chunks, once for the value and once for the gradient: except for the parameters'
    gradients no memory grows with the vocabulary. Sums run in float32 (float64 for float64 input); the matrix products
    follow autocast.

    Args:
        hidden: States, `(rows, width)`.
        weight: The decoder, usually the tied word embeddings, `(vocabulary, width)`.
        bias: `(vocabulary,)`; with `sentences` one for each of them, `(sentences, vocabulary)`.
        target_ids: Tokens with mass, `(rows, targets)`; padded entries may be any token.
        target_probs: Their mass, `(rows, targets)`; 0 for padded entries. Mass of repeated tokens is added.
        row_weights: A factor for each row, `(rows,)`; `1 / rows` for a mean.
        sentences: The sentence whose bias a row gets, `(rows,)`.
        even_mass: Additional mass of each row, spread evenly over the vocabulary.
        chunk_size: Maximum number of logits in memory at a time, but at least one column. It does not change the result.

    Returns:
        A scalar, differentiable once in `hidden`, `weight` and `bias`.

    Examples:
        >>> hidden, weight, bias = torch.zeros(2, 4), torch.zeros(10, 4), torch.zeros(10)
        >>> ids, mass = torch.tensor([[3], [7]]), torch.ones(2, 1)
        >>> sparse_target_cross_entropy(hidden, weight, bias, ids, mass, torch.full((2,), 0.5))  # log 10
        tensor(2.3026)
    """
    return _SparseTargetCrossEntropy.apply(
        hidden, weight, bias, sentences, target_ids, target_probs, row_weights, even_mass, chunk_size
    )


def masked_lm_loss(
    hidden: torch.Tensor,
    labels: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    *,
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None,
    label_smoothing: float = 0.0,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    """Mean negative log-likelihood of the labelled tokens (BERT's masked LM).

    It equals `torch.nn.functional.cross_entropy` on the logits of all positions, without their `tokens x vocabulary`
    memory. HICTL's translation has a bias for each sentence.

    Args:
        hidden: Token states, `(batch, length, width)`, or `(tokens, width)`.
        labels: Original tokens at masked positions, -100 elsewhere, `(batch, length)`, or `(tokens,)`.
        weight: Decoder, `(vocabulary, width)`.
        bias: `(vocabulary,)`, or `(batch, vocabulary)`.
        transform: The prediction head before the decoder, applied to the labelled states only.
        label_smoothing: Share of a label's probability that is spread over the vocabulary.
        chunk_size: Maximum number of logits in memory at a time.

    Returns:
        A scalar; exactly 0 (with a graph) when nothing is masked.

    Examples:
        >>> states, labels = torch.zeros(1, 3, 4), torch.tensor([[-100, 5, -100]])
        >>> masked_lm_loss(states, labels, torch.zeros(10, 4), torch.zeros(10))  # log 10
        tensor(2.3026)
    """
    positions = (labels != IGNORE).nonzero(as_tuple=True)
    states = hidden[positions] if transform is None else transform(hidden[positions])
    count = len(states)
    options: dict[str, Any] = {"device": states.device, "dtype": accumulation_dtype(states)}
    return sparse_target_cross_entropy(
        states,
        weight,
        bias,
        labels[positions].unsqueeze(1),
        torch.full((count, 1), 1 - label_smoothing, **options),
        torch.full((count,), 1 / max(count, 1), **options),
        sentences=positions[0] if bias.dim() == 2 else None,
        even_mass=label_smoothing,
        chunk_size=chunk_size,
    )


def swap_sides(stacked: torch.Tensor) -> torch.Tensor:
    """Gives each row of a `(2 * batch, ...)` stack its translation's row.

    Examples:
        >>> swap_sides(torch.tensor([1, 2, 10, 20]))
        tensor([10, 20,  1,  2])
    """
    return stacked.roll(len(stacked) // 2, 0)


def merge_duplicates(
    ids: torch.Tensor, probs: torch.Tensor, *, keep_first: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted ids and mass of each row, `(rows, targets)`, the mass of a repeated token at its first entry alone.

    It is the sum of the token's entries, or with `keep_first` the first. Entries with mass 0 are padding.
    """
    # Padding must not precede a real entry of the same token, or it would count as its first occurrence.
    key = ids * 2 + (probs == 0)
    key, order = key.sort(dim=1, stable=True)
    ids, probs = ids.gather(1, order), probs.gather(1, order)
    first = torch.ones_like(ids, dtype=torch.bool)
    first[:, 1:] = ids[:, 1:] != ids[:, :-1]
    if keep_first:
        return ids, probs * first
    group = first.long().cumsum(1) - 1  # index of the run that the entry belongs to
    summed = torch.zeros_like(probs).scatter_add_(1, group, probs)
    return ids, summed.gather(1, group) * first


def generative_labels(
    original_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    masked_ids: torch.Tensor | None = None,
    *,
    task: str = "ugt",
    label_mode: str = "accumulate",
    mask_token_id: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Label distributions `q` of the sentence-level generative tasks, as sparse rows.

    `xtr` (equations 2, 3) puts `N_w / \lVert S' \rVert` on each token of the translation `S'`. `smlm` (equation
    1) puts all mass on the masked token, on both sides of the pair. `ugt` (equation 4) halves it: on the side where token
    `t` was masked, 1/2 on `t` and 1/2 spread over the translation; on the other side it is `xtr`.

    `ugt` and `xtr` have two variants, the label modes:

    - `accumulate` (the paper's equations): mass is added, so every row sums to 1; the unmasked side has the full sentence
      as its label, the masked token included, and nothing for `<mask>`.
    - `set` (the released code): each distinct token is *set* to `1 / length` (half of it with `t`), so repeated tokens
      count once, a masked token that also occurs in the translation loses its 1/2, and the unmasked side has `<mask>` in
      place of the masked token.

    Args:
        original_ids: Tokens before masking, `(2 * batch, length)`, sources over targets.
        attention_mask: 1 for tokens that count, `(2 * batch, length)`.
        masked_ids: The masked token of each row, -100 where the row was not masked, `(2 * batch,)`. Not used by `xtr`.
        task: `ugt`, `xtr` or `smlm`.
        label_mode: `accumulate` or `set`.
        mask_token_id: Id of `<mask>`; required by `set`, which puts mass on it.

    Returns:
        Token ids and mass, both `(2 * batch, length + 1)`; every token has mass once.

    Examples:
        >>> pair = torch.tensor([[7, 1, 1, 2], [8, 9, 0, 0]])          # o = [t, a, a, b] is row 0's translation below
        >>> mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
        >>> ids, mass = generative_labels(pair, mask, torch.tensor([-100, 8]))
        >>> mass.sum(1)
        tensor([1., 1.])
    """
    require_choice("task", task, ("ugt", "xtr", "smlm"))
    require_choice("label_mode", label_mode, ("accumulate", "set"))
    dtype = torch.float64 if original_ids.device.type != "mps" else torch.float32
    rows = len(original_ids)
    hidden = torch.full((rows,), IGNORE, device=original_ids.device) if masked_ids is None else masked_ids
    is_masked = hidden != IGNORE
    if task == "smlm":
        # Equation 1: both sides predict the token that was masked on one of them.
        token = torch.where(is_masked, hidden, swap_sides(hidden))
        return token.clamp(min=0).unsqueeze(1), (token != IGNORE).float().unsqueeze(1)

    translation, counts = swap_sides(original_ids), swap_sides(attention_mask).to(dtype)
    share = counts / counts.sum(1, keepdim=True).clamp(min=1.0)  # N_w / ||S'|| of each token
    if task == "ugt":
        share = torch.where(is_masked.unsqueeze(1), share / 2, share)
        hidden_share = is_masked.to(dtype) / 2
    else:
        hidden_share = torch.zeros(rows, dtype=dtype, device=original_ids.device)
    if task == "ugt" and label_mode == "set":
        if mask_token_id is None:
            raise XlsrError("label_mode 'set' needs `mask_token_id`.")
        # For the row whose translation was masked, <mask> replaces one occurrence of the masked token.
        hidden_there = swap_sides(hidden).unsqueeze(1)
        occurs = (translation == hidden_there) & (counts > 0)
        first = occurs & (occurs.long().cumsum(1) == 1)
        translation = translation.masked_fill(first, mask_token_id)
    ids = torch.cat([translation, hidden.clamp(min=0).unsqueeze(1)], 1)
    # Tokens of the translation come first: in `set` they overwrite the masked token's 1/2.
    ids, probs = merge_duplicates(
        ids, torch.cat([share, hidden_share.unsqueeze(1)], 1), keep_first=label_mode == "set"
    )
    return ids, probs.float()


def generative_loss(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    target_ids: torch.Tensor,
    target_probs: torch.Tensor,
    *,
    chunk_size: int = LOGITS,
) -> torch.Tensor:
    r"""Equation 2, averaged over pairs.

    ```math
    D_{KL}(q(S_l) \,\|\, p(h_{S_l})) + D_{KL}(q(S_{l'}) \,\|\, p(h_{S_{l'}}))
    ```

    With one-hot rows (`smlm`) the entropy of `q` is 0 and this is equation 1.

    Args:
        hidden: States after the fully connected layer, `(2 * batch, width)`.
        weight: Tied word embeddings, `(vocabulary, width)`.
        bias: `(vocabulary,)`.
        target_ids: From `generative_labels`, `(2 * batch, targets)`.
        target_probs: Likewise; tokens must not repeat within a row.
        chunk_size: Maximum number of logits in memory at a time.

    Examples:
        >>> labels = generative_labels(torch.tensor([[3, 4], [5, 6]]), torch.ones(2, 2), task="xtr")
        >>> generative_loss(torch.zeros(2, 8), torch.zeros(16, 8), torch.zeros(16), *labels)  # 2 (log 16 - log 2)
        tensor(4.1589)
    """
    pairs = len(hidden) // 2
    target_probs = target_probs.to(accumulation_dtype(hidden))
    row_weights = torch.full((len(hidden),), 1 / max(pairs, 1), device=hidden.device, dtype=target_probs.dtype)
    cross_entropy = sparse_target_cross_entropy(
        hidden, weight, bias, target_ids, target_probs, row_weights, chunk_size=chunk_size
    )
    negative_entropy = torch.xlogy(target_probs, target_probs).sum() / max(pairs, 1)
    return cross_entropy + negative_entropy
