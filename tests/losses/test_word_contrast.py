"""Bags of words, negative words and the contrast with them."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import Largest, random_tensors, value_and_gradients
from scipy.stats import chisquare
from torch.nn.functional import normalize

from hf_xlsr.losses import bags_of_words, draw_negative_words, hard_word_share, word_contrast_loss

VOCABULARY = 40
WIDTH = 6
BATCH = 5
COUNT = 7
SPECIAL = [0, 1, 2, 39]

Bags = tuple[torch.Tensor, torch.Tensor]


def vectors(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[torch.Tensor]:
    """Queries and embeddings."""
    return random_tensors((BATCH, WIDTH), (VOCABULARY, WIDTH), seed=seed, dtype=dtype)


def sentences(seed: int = 1) -> torch.Tensor:
    """Tokens of each row, with words that come twice; row 3 holds none."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY - 1, (BATCH, 9), generator=generator)
    ids[:, 0] = 0
    ids[:, 5] = 2
    ids[:, 8] = 2
    ids[:, 3] = ids[:, 1]
    ids[1, 6:] = 1
    ids[3, 1:] = 1
    return ids


def own_words(seed: int = 1) -> Bags:
    ids = sentences(seed)
    return bags_of_words(ids, (ids != 1).long(), SPECIAL)


def draw(queries: torch.Tensor, embeddings: torch.Tensor, seed: int = 0, **options: Any) -> torch.Tensor:
    defaults = {"bags": own_words(), "count": COUNT, "special_ids": SPECIAL, "chunk_size": 11}
    generator = torch.Generator().manual_seed(seed)
    return draw_negative_words(queries, embeddings, generator=generator, **(defaults | options))


def pairs_of(bags: Bags) -> list[tuple[int, int]]:
    """Row and token of each word."""
    rows, tokens = bags
    return list(zip(rows.tolist(), tokens.tolist(), strict=True))


def naive_bags(ids: torch.Tensor, mask: torch.Tensor, special: list[int]) -> list[tuple[int, int]]:
    pairs = set()
    for row in range(len(ids)):
        for token, is_token in zip(ids[row].tolist(), mask[row].tolist(), strict=True):
            if is_token and token not in special:
                pairs.add((row, token))
    return sorted(pairs)


@settings(max_examples=60)
@given(st.data())
def test_bags_equal_python_sets(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 4))
    length = data.draw(st.integers(1, 7))
    numbers = st.lists(st.integers(0, 9), min_size=rows * length, max_size=rows * length)
    ids = torch.tensor(data.draw(numbers), dtype=torch.long).reshape(rows, length)
    mask = torch.tensor(data.draw(numbers), dtype=torch.long).reshape(rows, length) % 2
    special = data.draw(st.lists(st.integers(0, 9), max_size=4))
    ids_before = ids.clone()

    bags = bags_of_words(ids, mask, special)
    assert pairs_of(bags) == naive_bags(ids, mask, special)
    assert torch.equal(ids, ids_before)

    of_other_types = bags_of_words(ids.int(), mask.bool(), torch.tensor(special, dtype=torch.long))
    assert pairs_of(of_other_types) == pairs_of(bags)


def exact_probabilities(
    query: torch.Tensor, embeddings: torch.Tensor, allowed: list[int], temperature: float
) -> dict[int, float]:
    cosines = torch.cosine_similarity(query, embeddings[allowed], dim=1)
    probabilities = (cosines / temperature).softmax(0)
    return dict(zip(allowed, probabilities.tolist(), strict=True))


def test_several_draws_are_without_replacement() -> None:
    """Sets of two, drawn one after the other, the second among what is left."""
    queries, embeddings = vectors(seed=2)
    embeddings = embeddings[:6]
    draws = 40_000
    drawn = draw(
        queries[:1].expand(draws, -1).contiguous(),
        embeddings,
        bags=(torch.arange(draws), torch.full((draws,), 4)),
        special_ids=[0],
        count=2,
        temperature=0.5,
        chunk_size=2,
    )
    counts = Counter(tuple(sorted(words)) for words in drawn.tolist())

    single = exact_probabilities(queries[0], embeddings, [1, 2, 3, 5], temperature=0.5)
    expected: Counter[tuple[int, ...]] = Counter()
    for first, second in permutations(single, 2):
        probability = single[first] * single[second] / (1 - single[first])
        expected[tuple(sorted((first, second)))] += draws * probability  # type: ignore[assignment]

    assert set(counts) == set(expected)
    observed = [counts[words] for words in expected]
    assert chisquare(observed, list(expected.values())).statistic < 20.5


@settings(max_examples=60)
@given(st.data())
def test_draws_are_different_allowed_tokens(data: st.DataObject) -> None:
    vocabulary = data.draw(st.integers(6, 25))
    special = data.draw(st.sets(st.integers(0, vocabulary - 1), max_size=2))
    tokens = st.integers(0, vocabulary - 1).filter(lambda token: token not in special)
    bags = data.draw(st.lists(st.sets(tokens, max_size=3), min_size=1, max_size=4))
    most = vocabulary - len(special) - max(map(len, bags))
    count = data.draw(st.integers(1, most))

    pairs = []
    for row, bag in enumerate(bags):
        pairs += [(row, token) for token in bag]
    rows, columns = torch.tensor(data.draw(st.permutations(pairs)), dtype=torch.long).reshape(-1, 2).T
    queries, embeddings = random_tensors((len(bags), 3), (vocabulary, 3), dtype=torch.float32)
    drawn = draw(
        queries,
        embeddings,
        seed=data.draw(st.integers(0, 1000)),
        bags=(rows, columns),
        special_ids=list(special),
        count=count,
        temperature=data.draw(st.sampled_from([0.01, 1.0, 100.0])),
        chunk_size=data.draw(st.integers(1, vocabulary + 1)),
    )

    assert drawn.shape == (len(bags), count)
    assert drawn.dtype == torch.int64
    for row_tokens, bag in zip(drawn.tolist(), bags, strict=True):
        assert len(set(row_tokens)) == count
        assert set(row_tokens) <= set(range(vocabulary)) - special - bag


def test_share_of_hard_words() -> None:
    """A naive count; near the top share at temperature 1, where draws are nearly uniform, and far above it at 0.02."""
    queries, table = random_tensors((4, 32), (5000, 32), seed=3, dtype=torch.float32)
    ids = torch.randint(3, 5000, (4, 10), generator=torch.Generator().manual_seed(3))
    bags = bags_of_words(ids, torch.ones_like(ids), SPECIAL)
    cosines = normalize(queries) @ normalize(table).T
    hard_words = cosines.topk(50).indices

    shares = []
    for temperature in (1.0, 0.02):
        drawn = draw(queries, table, bags=bags, count=200, temperature=temperature, chunk_size=1000)
        is_hard = (drawn.unsqueeze(2) == hard_words.unsqueeze(1)).any(2)
        expected = is_hard.float().mean().item()
        shares.append(expected)

        share = hard_word_share(queries, table, drawn, sample=5000)
        assert share.item() == pytest.approx(expected, abs=1e-6)
        share_of_sample = hard_word_share(queries, table, drawn, sample=2500)
        assert share_of_sample.item() == pytest.approx(expected, rel=0.35)

    nearly_uniform, cold = shares
    assert nearly_uniform < 0.03
    assert cold > 0.15


def naive(
    queries: torch.Tensor,
    embeddings: torch.Tensor,
    bags: tuple[torch.Tensor, torch.Tensor],
    negatives: torch.Tensor,
    *,
    temperature: float = 1.0,
    chunk_size: int = 0,
) -> torch.Tensor:
    """Equations 5 and 6, word by word."""

    def weights(query: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        cosines = words @ query / (query.norm() * words.norm(dim=1))
        return torch.exp(cosines / temperature)

    total = queries.new_zeros(())
    sizes = Counter(bags[0].tolist())
    for row, token in pairs_of(bags):
        positive = weights(queries[row], embeddings[[token]])
        negative = weights(queries[row], embeddings[negatives[row]])
        share = positive / (positive + negative.sum())
        total = total - torch.log(share).sum() / sizes[row]
    return total / len(queries)


@pytest.mark.parametrize(("temperature", "chunk_size"), [(1.0, 1), (0.1, 3), (0.1, 17), (1.0, 10_000)])
def test_equals_the_naive_twin(temperature: float, chunk_size: int) -> None:
    inputs = vectors()
    bags = own_words()
    assert len(bags[0]) > 15
    assert 3 not in bags[0]

    negatives = draw(*inputs)
    options = {"temperature": temperature, "chunk_size": chunk_size}
    results = value_and_gradients(word_contrast_loss, inputs, bags, negatives, **options)
    expected = value_and_gradients(naive, inputs, bags, negatives, **options)
    torch.testing.assert_close(results, expected, rtol=1e-10, atol=1e-12)
    for tensor in expected:
        assert tensor.norm() > 1e-3


def test_embeddings_of_all_negatives_are_never_held() -> None:
    queries = torch.randn(12, 16, requires_grad=True)
    embeddings = torch.randn(3000, 16, requires_grad=True)
    ids = torch.randint(3, 3000, (12, 10))
    bags = bags_of_words(ids, torch.ones_like(ids), [0, 1, 2])
    negatives = draw_negative_words(queries, embeddings, bags, special_ids=[0, 1, 2], count=1000)

    with Largest() as largest:
        loss = word_contrast_loss(queries, embeddings, bags, negatives, chunk_size=50)
    words = negatives.numel() + len(bags[0])
    assert largest.numel == words  # a cosine each, where their embeddings would be 16 times as much

    with Largest() as largest:
        loss.backward()
    assert largest.numel == embeddings.numel()  # the table's gradient
    assert largest.numel < 16 * words / 3
