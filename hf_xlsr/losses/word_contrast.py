"""Contrast of a sentence pair with words of the vocabulary, equations 5 and 6 of HICTL."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from hf_xlsr.losses.sentence_contrast import check_temperature, row_lengths, unit_rows
from hf_xlsr.utils.distributed import own_generator
from hf_xlsr.utils.errors import XlsrError

Bags = tuple[torch.Tensor, torch.Tensor]
Ids = torch.Tensor | Sequence[int]


def _as_ids(ids: Ids, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(ids, dtype=torch.long, device=device)


def bags_of_words(input_ids: torch.Tensor, attention_mask: torch.Tensor, special_ids: Ids) -> Bags:
    """The words of each row: its pieces, each once, without special tokens and padding.

    The paper speaks of words; here, as in its vocabulary of 250,000, these are pieces.

    Args:
        input_ids: Pieces of the two sentences together, none of them masked, `(batch, length)`.
        attention_mask: 1 for real tokens, 0 for padding, `(batch, length)`.
        special_ids: Pieces that are no words.

    Returns:
        The row and the piece of each word, two int64 tensors of equal length, sorted by row and then by piece.

    Example:
        >>> ids = torch.tensor([[0, 7, 5, 7, 2], [0, 9, 2, 1, 1]])
        >>> bags_of_words(ids, (ids != 1).long(), [0, 1, 2])
        (tensor([0, 0, 1]), tensor([5, 7, 9]))
    """
    excluded = torch.isin(input_ids, _as_ids(special_ids, input_ids.device)) | (attention_mask == 0)
    pieces = input_ids.long().masked_fill(excluded, -1).sort(1).values
    first = pieces >= 0
    first[:, 1:] &= pieces[:, 1:] != pieces[:, :-1]
    rows, columns = first.nonzero(as_tuple=True)
    return rows, pieces[rows, columns]


def _check_widths(queries: torch.Tensor, embeddings: torch.Tensor) -> None:
    if queries.shape[1] != embeddings.shape[1]:
        raise XlsrError(
            f"the queries have width {queries.shape[1]} and the word embeddings {embeddings.shape[1]}; give states "
            "of the embeddings' width."
        )


def _check_chunk_size(chunk_size: int) -> None:
    if chunk_size < 1:
        raise XlsrError(f"chunk_size is {chunk_size}; compare with 1 word or more at a time.")


def _excluded_pairs(batch_size: int, bags: Bags, special_ids: Ids) -> Bags:
    """Rows and pieces that must not be drawn, sorted by piece."""
    rows, pieces = bags
    special = _as_ids(special_ids, rows.device).unique()
    every_row = torch.arange(batch_size, device=rows.device)
    pieces, order = torch.cat([pieces, special.repeat(batch_size)]).sort()
    return torch.cat([rows, every_row.repeat_interleave(len(special))])[order], pieces


def _check_count(count: int, vocabulary_size: int, excluded_rows: torch.Tensor) -> None:
    if count < 1:
        raise XlsrError(f"the number of negative words is {count}; draw 1 or more.")
    excluded = excluded_rows.bincount().tolist()
    most = max(excluded, default=0)
    if vocabulary_size - most < count:
        raise XlsrError(
            f"{count} negative words are asked for, and row {excluded.index(most) if excluded else 0} leaves "
            f"{vocabulary_size - most} of the vocabulary's {vocabulary_size} pieces to draw from; lower the number of "
            "negative words."
        )


def _gumbel_noise(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """`-log(-log(1 - u))`; a processor draws uniform numbers in a fifth of the time of `exponential_`."""
    uniform = torch.empty_like(like).uniform_(generator=generator)  # multiples of eps / 2, 0 among them
    waits = uniform.neg_().log1p_().neg_().clamp_(min=torch.finfo(like.dtype).eps / 4)
    return waits.log_().neg_()


@torch.compiler.disable  # it would unroll the loop over the chunks, and compile for minutes
@torch.no_grad()
def _draw(
    directions: torch.Tensor,
    embeddings: torch.Tensor,
    excluded: Bags,
    count: int,
    chunk_size: int,
    generator: torch.Generator | None,
) -> torch.Tensor:
    """The pieces of the `count` greatest products plus noise; `excluded` is sorted by piece."""
    (batch_size, _), device = directions.shape, directions.device
    generator = own_generator(device) if generator is None else generator
    rows, pieces = excluded
    starts = range(0, len(embeddings), chunk_size)
    edges = torch.searchsorted(pieces, torch.tensor([*starts, len(embeddings)], device=device)).tolist()
    best = directions.new_full((batch_size, count), -math.inf)
    drawn = torch.zeros(batch_size, count, dtype=torch.long, device=device)
    for start, first, last in zip(starts, edges[:-1], edges[1:], strict=True):
        chunk = embeddings[start : start + chunk_size].to(directions.dtype)
        with torch.autocast(device.type, enabled=False):
            scores = directions @ chunk.T  # (batch, chunk)
        scores /= row_lengths(chunk)
        scores += _gumbel_noise(scores, generator)
        scores[rows[first:last], pieces[first:last] - start] = -math.inf
        best, chosen = torch.cat([best, scores], 1).topk(count, sorted=False)
        kept = drawn.gather(1, chosen.clamp(max=count - 1))
        drawn = torch.where(chosen < count, kept, chosen + (start - count))
    return drawn


def draw_negative_words(
    queries: torch.Tensor,
    embeddings: torch.Tensor,
    bags: Bags,
    *,
    special_ids: Ids,
    count: int = 512,
    temperature: float = 1.0,
    chunk_size: int = 8192,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    r"""Draws the negative words of each row from the vocabulary without the row's own words, S of equation 5.

    The paper samples "according to the normalized similarities" of query and embeddings and says no more. Here a piece
    is drawn with a probability proportional to `exp(cosine / temperature)` among the pieces that are allowed, and
    without replacement: a word is not its own rival twice. The `count` greatest values of cosine over temperature plus
    Gumbel noise are such draws (Gumbel top-k), and the greatest can be kept while the vocabulary passes by in chunks:
    nothing larger than `batch x (chunk_size + count)` is held, or than a chunk of the table where that is in lower
    precision and has to be converted.

    At temperature 1.0 cosines weigh little, a factor of `e^2` between a word of the same and of the opposite
    direction, and the draws are near uniform; lower temperatures give harder negatives.

    Args:
        queries: First states of the pairs, `(batch, width)`.
        embeddings: The embedding table, `(vocabulary, width)`.
        bags: The rows' own words, from `bags_of_words`.
        special_ids: Pieces that are never drawn: special tokens, padding, and rows of the table without a piece.
        count: Negatives of each row (m).
        temperature: Divides the cosines.
        chunk_size: Pieces compared at a time; bounds memory. Other sizes draw other words from the same distribution,
            since the noise comes in another order.
        generator: Of the noise; by default torch's own of the device, whose state the Trainer saves and restores, and
            under several processes one that it seeds differently for each.

    Returns:
        Pieces, `(batch, count)`, int64, all different within a row, in no particular order; no gradient.

    Raises:
        XlsrError: fewer than `count` pieces are allowed, widths differ, or an argument is out of its range.

    Example:
        >>> ids = torch.tensor([[0, 5, 6, 2]])
        >>> bags = bags_of_words(ids, torch.ones_like(ids), [0, 1, 2])
        >>> drawn = draw_negative_words(torch.ones(1, 4), torch.eye(8, 4), bags, special_ids=[0, 1, 2], count=3)
        >>> drawn.sort().values  # all that is left
        tensor([[3, 4, 7]])
    """
    _check_widths(queries, embeddings)
    check_temperature(temperature)
    _check_chunk_size(chunk_size)
    rows, pieces = _excluded_pairs(len(queries), bags, special_ids)
    _check_count(count, len(embeddings), rows)
    return _draw(unit_rows(queries.detach()) / temperature, embeddings, (rows, pieces), count, chunk_size, generator)


class _WordCosines(torch.autograd.Function):
    """Cosines of pairs of a unit query and a word; the embeddings are gathered in chunks, and again for the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: torch.Tensor,
        embeddings: torch.Tensor,
        rows: torch.Tensor,
        pieces: torch.Tensor,
        chunk_size: int,
    ) -> torch.Tensor:
        cosines = queries.new_empty(len(rows))
        for part in _slices(len(rows), chunk_size):
            words = embeddings[pieces[part]].to(queries.dtype)
            lengths = row_lengths(words)
            cosines[part] = words.mul_(queries[rows[part]]).sum(1) / lengths
        ctx.save_for_backward(queries, embeddings, rows, pieces, cosines)
        ctx.chunk_size = chunk_size
        return cosines

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        queries, embeddings, rows, pieces, cosines = ctx.saved_tensors
        for_queries, for_embeddings = ctx.needs_input_grad[:2]
        grad_queries = torch.zeros_like(queries) if for_queries else None
        grad_embeddings = torch.zeros_like(embeddings, dtype=queries.dtype) if for_embeddings else None
        for part in _slices(len(rows), ctx.chunk_size):
            words = embeddings[pieces[part]].to(queries.dtype)
            lengths = row_lengths(words)
            slopes = (grad_outputs[0][part] / lengths).unsqueeze(1)
            if grad_queries is not None:
                grad_queries.index_add_(0, rows[part], words * slopes)
            if grad_embeddings is not None:
                # Only what is orthogonal to the embedding changes its cosine.
                along = words.mul_((cosines[part] / lengths).unsqueeze(1))
                grad_embeddings.index_add_(0, pieces[part], (queries[rows[part]] - along).mul_(slopes))
        return grad_queries, grad_embeddings, None, None, None


@torch.compiler.disable  # as for drawing
def _word_cosines(
    queries: torch.Tensor, embeddings: torch.Tensor, rows: torch.Tensor, pieces: torch.Tensor, chunk_size: int
) -> torch.Tensor:
    return _WordCosines.apply(queries, embeddings, rows, pieces, chunk_size)


def _slices(count: int, chunk_size: int) -> Iterator[slice]:
    return (slice(start, start + chunk_size) for start in range(0, count, chunk_size))


def word_contrast_loss(
    queries: torch.Tensor,
    embeddings: torch.Tensor,
    bags: Bags,
    negatives: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int = 4096,
) -> torch.Tensor:
    r"""Each pair should be nearer to the words it contains than to the negative words drawn for it.

    .. math:: L_W = -\frac{1}{n} \sum_i \frac{1}{|B_i|} \sum_{w \in B_i}
              \log \frac{\exp s(q_i, e(w))}{\exp s(q_i, e(w)) + \sum_{v \in S_i} \exp s(q_i, e(v))}

    with `s` the cosine over the temperature (equations 5 and 6; the paper has no temperature, which is 1.0). The
    other words of the pair are no negatives. A pair with an empty bag counts among the `n` and contributes 0.

    The embeddings of all negatives together, `batch x negatives x width`, are never held: they are gathered in chunks,
    once for the value and once more for the gradient.

    Args:
        queries: First states of the pairs, `(batch, width)`.
        embeddings: The embedding table, `(vocabulary, width)`.
        bags: The pairs' words, from `bags_of_words`.
        negatives: Pieces drawn for each pair, `(batch, negatives)`, from `draw_negative_words`.
        temperature: Divides the cosines.
        chunk_size: Words compared at a time; bounds memory, changes nothing else.

    Returns:
        A scalar, computed in float32 (float64 for float64 queries), also under autocast. Differentiable once, in
        `queries` and `embeddings`.

    Raises:
        XlsrError: widths or numbers of rows differ, or an argument is out of its range.

    Example:
        >>> words, bags = torch.eye(4), (torch.tensor([0]), torch.tensor([0]))
        >>> word_contrast_loss(words[:1], words, bags, torch.tensor([[1, 2, 3]]))  # -log(e / (e + 3))
        tensor(0.7437)
    """
    _check_widths(queries, embeddings)
    if len(negatives) != len(queries):
        raise XlsrError(
            f"there are {len(queries)} queries and negatives of {len(negatives)}; draw some for each query."
        )
    check_temperature(temperature)
    _check_chunk_size(chunk_size)
    batch_size, count = negatives.shape
    rows, pieces = bags
    negative_rows = torch.arange(batch_size, device=rows.device).repeat_interleave(count)
    cosines = _word_cosines(
        unit_rows(queries),
        embeddings,
        torch.cat([rows, negative_rows]),
        torch.cat([pieces, negatives.flatten()]),
        chunk_size,
    )
    positives, others = (cosines / temperature).split([len(rows), len(negative_rows)])
    lead = others.view(batch_size, count).logsumexp(1)[rows] - positives  # of all negatives together over the word
    sizes = rows.bincount(minlength=batch_size)  # |B|
    return (torch.logaddexp(lead, torch.zeros_like(lead)) / sizes[rows]).sum() / max(batch_size, 1)
