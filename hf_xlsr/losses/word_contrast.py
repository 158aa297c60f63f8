"""Contrast of a sentence pair with words of the vocabulary, equations 5 and 6 of HICTL."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch.autograd.function import once_differentiable

from hf_xlsr.losses.in_batch import check_temperature, row_lengths, unit_rows
from hf_xlsr.utils.distributed import own_generator
from hf_xlsr.utils.errors import XlsrError

Bags = tuple[torch.Tensor, torch.Tensor]
Ids = torch.Tensor | Sequence[int]

_Function = TypeVar("_Function", bound=Callable[..., Any])
# torch.compile would unroll the loops over chunks, and take minutes for it.
_not_compiled: Callable[[_Function], _Function] = torch.compiler.disable


def _as_ids(ids: Ids, device: torch.device) -> torch.Tensor:
    return torch.as_tensor(ids, dtype=torch.long, device=device)


def bags_of_words(input_ids: torch.Tensor, attention_mask: torch.Tensor, special_ids: Ids) -> Bags:
    """The words of each row of `(batch, length)`: its tokens, each once, without special tokens and padding.

    The paper's words are the tokens of its vocabulary of 250,000. Returns row and token of each word, two int64 tensors
    of equal length, sorted by row and then by token.

    Examples:
        >>> ids = torch.tensor([[0, 7, 5, 7, 2], [0, 9, 2, 1, 1]])
        >>> bags_of_words(ids, (ids != 1).long(), [0, 1, 2])
        (tensor([0, 0, 1]), tensor([5, 7, 9]))
    """
    is_special = torch.isin(input_ids, _as_ids(special_ids, input_ids.device))
    ignored = is_special | (attention_mask == 0)
    tokens = input_ids.long().masked_fill(ignored, -1).sort(1).values

    is_first = tokens >= 0
    is_first[:, 1:] &= tokens.diff(dim=1) != 0
    rows, columns = is_first.nonzero(as_tuple=True)
    return rows, tokens[rows, columns]


def _gumbel_noise(like: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """`-log(-log(1 - u))`; on a CPU uniform numbers take a fifth of the time of `exponential_`."""
    smallest = torch.finfo(like.dtype).eps / 4
    uniform = torch.empty_like(like).uniform_(generator=generator)  # multiples of eps / 2, 0 among them
    waits = uniform.neg_().log1p_().neg_().clamp_(min=smallest)
    return waits.log_().neg_()


@_not_compiled
@torch.no_grad()
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
    """Samples the negative words of each row from the vocabulary without the row's own words, S of equation 5.

    The paper samples "according to the normalized similarities" of query and embeddings. Here a token is sampled with a
    probability proportional to `exp(cosine / temperature)` among the allowed tokens, without replacement (Gumbel top-k).
    Nothing larger than `batch x (chunk_size + count)` is in memory. At temperature 1.0 the samples are nearly uniform;
    lower temperatures give harder negatives.

    Args:
        queries: First states of the pairs, `(batch, width)`.
        embeddings: The embedding table, `(vocabulary, width)`.
        bags: The rows' own words, from `bags_of_words`.
        special_ids: Tokens that are never sampled: special tokens, padding, and rows of the table without a token.
        count: Negatives for each row (m).
        temperature: Divides the cosines.
        chunk_size: Tokens compared at a time; bounds memory. Other sizes sample other words from the same distribution.
        generator: Of the noise; by default torch's own, and with several processes one with a seed for each.

    Returns:
        Tokens, `(batch, count)`, int64, all different within a row, in no particular order.

    Examples:
        >>> ids = torch.tensor([[0, 5, 6, 2]])
        >>> bags = bags_of_words(ids, torch.ones_like(ids), [0, 1, 2])
        >>> drawn = draw_negative_words(torch.ones(1, 4), torch.eye(8, 4), bags, special_ids=[0, 1, 2], count=3)
        >>> drawn.sort().values  # all that is left
        tensor([[3, 4, 7]])
    """
    check_temperature(temperature)
    device = queries.device
    directions = unit_rows(queries) / temperature
    if generator is None:
        generator = own_generator(device)

    # The pairs of a row and a token that must not be sampled, sorted by token.
    special: torch.Tensor = torch.unique(_as_ids(special_ids, device))
    every_row = torch.arange(len(queries), device=device)
    rows = torch.cat([bags[0], every_row.repeat_interleave(len(special))])
    allowed = len(embeddings) - max(rows.bincount().tolist(), default=0)
    if allowed < count:
        raise XlsrError(f"`count` must be at most the {allowed} words that are left for a row, got {count}.")
    tokens = torch.cat([bags[1], special.repeat(len(queries))])
    tokens, order = tokens.sort()
    rows = rows[order]

    starts = range(0, len(embeddings), chunk_size)
    borders = torch.tensor([*starts, len(embeddings)], device=device)
    pairs_of_chunks = pairwise(torch.searchsorted(tokens, borders).tolist())
    best = directions.new_full((len(queries), count), -math.inf)
    drawn = torch.zeros(len(queries), count, dtype=torch.long, device=device)
    for start, (first, last) in zip(starts, pairs_of_chunks, strict=True):
        chunk = embeddings[start : start + chunk_size].to(directions.dtype)
        with torch.autocast(device.type, enabled=False):
            scores = directions @ chunk.T  # (batch, chunk)
        scores /= row_lengths(chunk)
        scores += _gumbel_noise(scores, generator)
        forbidden_columns = tokens[first:last] - start
        scores[rows[first:last], forbidden_columns] = -math.inf

        # Columns of the best scores: first those drawn before, then this chunk.
        best, columns = torch.cat([best, scores], 1).topk(count, sorted=False)
        drawn_before = drawn.gather(1, columns.clamp(max=count - 1))
        drawn = torch.where(columns < count, drawn_before, columns + (start - count))
    return drawn


@torch.no_grad()
def hard_word_share(
    queries: torch.Tensor, embeddings: torch.Tensor, drawn: torch.Tensor, *, top: float = 0.01, sample: int = 4096
) -> torch.Tensor:
    """Share of drawn words, `(batch, count)`, among the `top` share of the vocabulary that is most similar to the query.

    Uniform draws give `top`, the hardest ones 1. The threshold of each query is estimated on about `sample` evenly
    spaced words.

    Examples:
        >>> hard_word_share(torch.ones(1, 1), torch.linspace(-1, 1, 5)[:, None], torch.tensor([[0, 4]]), top=0.5)
        tensor(0.5000)
    """
    step = math.ceil(len(embeddings) / sample)
    sampled_words = unit_rows(embeddings[::step])
    with torch.autocast(queries.device.type, enabled=False):
        directions = unit_rows(queries).to(sampled_words.dtype)
        thresholds = (directions @ sampled_words.T).quantile(1 - top, dim=1, keepdim=True)
        drawn_words = unit_rows(embeddings[drawn].flatten(0, 1))
        drawn_words = torch.unflatten(drawn_words, 0, drawn.shape)
        cosines = (drawn_words @ directions.unsqueeze(2)).squeeze(2)
        is_hard: torch.Tensor = cosines >= thresholds
        return is_hard.float().mean()


class _WordCosines(torch.autograd.Function):
    """Cosines of pairs of a unit query and a word; the embeddings are gathered in chunks, and again for the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: torch.Tensor,
        embeddings: torch.Tensor,
        rows: torch.Tensor,
        tokens: torch.Tensor,
        chunk_size: int,
    ) -> torch.Tensor:
        chunks = []
        pairs = zip(torch.split(rows, chunk_size), torch.split(tokens, chunk_size), strict=True)
        for chunk_rows, chunk_tokens in pairs:
            words = embeddings[chunk_tokens].to(queries.dtype)
            lengths = row_lengths(words)
            chunks.append(words.mul_(queries[chunk_rows]).sum(1) / lengths)
        cosines = torch.cat(chunks)
        ctx.save_for_backward(queries, embeddings, rows, tokens, cosines)
        ctx.chunk_size = chunk_size
        return cosines

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        queries, embeddings, *pairs = ctx.saved_tensors
        queries_learn, embeddings_learn = ctx.needs_input_grad[:2]
        grad_queries = torch.zeros_like(queries) if queries_learn else None
        grad_embeddings = torch.zeros_like(embeddings, dtype=queries.dtype) if embeddings_learn else None

        chunks = [tensor.split(ctx.chunk_size) for tensor in (*pairs, *grad_outputs)]
        for rows, tokens, cosines, grad_cosines in zip(*chunks, strict=True):
            words = embeddings[tokens].to(queries.dtype)
            lengths = row_lengths(words)
            slopes = (grad_cosines / lengths).unsqueeze(1)
            if grad_queries is not None:
                grad_queries.index_add_(0, rows, words * slopes)
            if grad_embeddings is not None:
                # Only what is orthogonal to the embedding changes its cosine.
                along = words.mul_((cosines / lengths).unsqueeze(1))
                grad_embeddings.index_add_(0, tokens, (queries[rows] - along).mul_(slopes))
        return grad_queries, grad_embeddings, None, None, None


_word_cosines: Callable[..., torch.Tensor] = _not_compiled(_WordCosines.apply)


def word_contrast_loss(
    queries: torch.Tensor,
    embeddings: torch.Tensor,
    bags: Bags,
    negatives: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int = 4096,
) -> torch.Tensor:
    r"""Contrast of each pair with the words it contains and its negative words.

    ```math
    L_W = -\frac{1}{n} \sum_i \frac{1}{|B_i|} \sum_{w \in B_i}
    \log \frac{\exp s(q_i, e(w))}{\exp s(q_i, e(w)) + \sum_{v \in S_i} \exp s(q_i, e(v))}
    ```

    with `s` the cosine over the temperature (equations 5 and 6; the paper has no temperature, which is 1.0). The
    other words of the pair are not negatives. A pair with an empty bag counts among the `n` and contributes 0. The
    embeddings of the words are gathered in chunks, once for the value and once for the gradient.

    Args:
        queries: First states of the pairs, `(batch, width)`.
        embeddings: The embedding table, `(vocabulary, width)`.
        bags: The pairs' words, from `bags_of_words`.
        negatives: Tokens sampled for each pair, `(batch, negatives)`, from `draw_negative_words`.
        temperature: Divides the cosines.
        chunk_size: Words compared at a time; bounds memory, changes nothing else.

    Returns:
        A scalar, computed in float32 (float64 for float64 queries), also under autocast. Differentiable once, in
        `queries` and `embeddings`.

    Examples:
        >>> words, bags = torch.eye(4), (torch.tensor([0]), torch.tensor([0]))
        >>> word_contrast_loss(words[:1], words, bags, torch.tensor([[1, 2, 3]]))  # -log(e / (e + 3))
        tensor(0.7437)
    """
    check_temperature(temperature)
    batch_size, count = negatives.shape
    rows, tokens = bags
    negative_rows = torch.arange(batch_size, device=rows.device).repeat_interleave(count)
    all_rows = torch.cat([rows, negative_rows])
    all_tokens = torch.cat([tokens, negatives.flatten()])
    cosines = _word_cosines(unit_rows(queries), embeddings, all_rows, all_tokens, chunk_size)

    logits = cosines / temperature
    word_logits = logits[: len(rows)]
    negative_logits = logits[len(rows) :].view(batch_size, count)
    negative_sums = negative_logits.logsumexp(1)
    lead = negative_sums[rows] - word_logits  # of all negatives together over the word
    losses = torch.logaddexp(lead, torch.zeros_like(lead))
    bag_sizes = rows.bincount(minlength=batch_size)
    return (losses / bag_sizes[rows]).sum() / max(batch_size, 1)
