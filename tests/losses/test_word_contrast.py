"""Bags of words, negative words and the contrast with them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import Largest, value_and_gradients

from hf_xlsr.losses import bags_of_words, draw_negative_words, hard_word_share, word_contrast_loss

VOCABULARY, WIDTH, BATCH, COUNT, SPECIAL = 40, 6, 5, 7, [0, 1, 2, 39]


def vectors(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[torch.Tensor]:
    """Queries and embeddings."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64).to(dtype) for rows in (BATCH, VOCABULARY)
    ]


def sentences(seed: int = 1) -> torch.Tensor:
    """Tokens of each row, with words that come twice; row 3 holds none."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCABULARY - 1, (BATCH, 9), generator=generator)
    ids[:, 0], ids[:, 5], ids[:, 8] = 0, 2, 2
    ids[:, 3] = ids[:, 1]
    ids[1, 6:] = 1
    ids[3, 1:] = 1
    return ids


def own_words(seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    ids = sentences(seed)
    return bags_of_words(ids, (ids != 1).long(), SPECIAL)


def draw(queries: torch.Tensor, embeddings: torch.Tensor, seed: int = 0, **options: Any) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    options = {"count": COUNT, "special_ids": SPECIAL, "chunk_size": 11} | options
    bags = options.pop("bags", None) or own_words()
    return draw_negative_words(queries, embeddings, bags, generator=generator, **options)


MANY, WIDE, HELD = 3000, 16, 12  # of a problem whose memory is looked at


def large_problem() -> tuple[list[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    inputs = [torch.randn(HELD, WIDE).requires_grad_(), torch.randn(MANY, WIDE).requires_grad_()]
    ids = torch.randint(3, MANY, (HELD, 10))
    return inputs, bags_of_words(ids, torch.ones_like(ids), [0, 1, 2])


def naive_bags(ids: torch.Tensor, mask: torch.Tensor, special: list[int]) -> list[tuple[int, int]]:
    pairs = zip(ids.tolist(), mask.tolist(), strict=True)
    words = [{token for token, real in zip(*pair, strict=True) if real and token not in special} for pair in pairs]
    return [(row, token) for row, bag in enumerate(words) for token in sorted(bag)]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bags_equal_python_sets(data: st.DataObject) -> None:
    rows, length = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 7))
    numbers = st.lists(
        st.lists(st.integers(0, 9), min_size=length, max_size=length), min_size=rows, max_size=rows
    ).map(lambda table: torch.tensor(table, dtype=torch.long).reshape(rows, length))
    ids, mask = data.draw(numbers), data.draw(numbers) % 2
    special = data.draw(st.lists(st.integers(0, 9), max_size=4))
    before = ids.clone()
    found = bags_of_words(ids, mask, special)
    assert list(zip(*(tensor.tolist() for tensor in found), strict=True)) == naive_bags(ids, mask, special)
    assert torch.equal(ids, before)
    same = bags_of_words(ids.int(), mask.bool(), torch.tensor(special, dtype=torch.long))
    assert all(torch.equal(one, other) for one, other in zip(found, same, strict=True))


def exact_probabilities(query: torch.Tensor, embeddings: torch.Tensor, allowed: list[int], temperature: float) -> dict:
    weights = {
        token: math.exp(float(torch.cosine_similarity(query, embeddings[token], dim=0)) / temperature)
        for token in allowed
    }
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def test_several_draws_are_without_replacement() -> None:
    """Sets of two, drawn one after the other, the second among what is left."""
    draws, temperature = 40_000, 0.5
    queries, embeddings = vectors(seed=2)
    embeddings = embeddings[:6]
    bags = torch.arange(draws), torch.full((draws,), 4)
    rows = queries[:1].expand(draws, -1).contiguous()
    drawn = draw(rows, embeddings, bags=bags, special_ids=[0], count=2, temperature=temperature, chunk_size=2)
    found = Counter(tuple(sorted(row)) for row in drawn.tolist())
    single = exact_probabilities(queries[0], embeddings, [1, 2, 3, 5], temperature)
    expected: dict[tuple[int, ...], float] = {}
    for first, second in permutations(single, 2):
        key = tuple(sorted((first, second)))
        expected[key] = expected.get(key, 0.0) + single[first] * single[second] / (1 - single[first])
    assert sum(expected.values()) == pytest.approx(1)
    assert set(found) <= set(expected)
    chi_square = sum((found[key] - draws * share) ** 2 / (draws * share) for key, share in expected.items())
    assert chi_square < 20.5


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_draws_are_different_allowed_pieces(data: st.DataObject) -> None:
    vocabulary, batch = data.draw(st.integers(6, 25)), data.draw(st.integers(1, 4))
    special = data.draw(st.sets(st.integers(0, vocabulary - 1), max_size=2))
    words = st.sets(st.integers(0, vocabulary - 1).filter(lambda token: token not in special), max_size=3)
    bags = [data.draw(words) for _ in range(batch)]
    pairs = [(row, token) for row, bag in enumerate(bags) for token in sorted(bag)]
    rows, tokens = torch.tensor(data.draw(st.permutations(pairs)), dtype=torch.long).reshape(-1, 2).T
    most = vocabulary - len(special) - max(len(bag) for bag in bags)
    count = data.draw(st.integers(1, most))
    drawn = draw(
        torch.randn(batch, 3, generator=torch.Generator().manual_seed(1)),
        torch.randn(vocabulary, 3, generator=torch.Generator().manual_seed(2)),
        seed=data.draw(st.integers(0, 1000)),
        bags=(rows, tokens),
        special_ids=list(special),
        count=count,
        temperature=data.draw(st.sampled_from([0.01, 1.0, 100.0])),
        chunk_size=data.draw(st.integers(1, vocabulary + 1)),
    )
    assert drawn.shape == (batch, count) and drawn.dtype == torch.int64
    for row, bag in zip(drawn.tolist(), bags, strict=True):
        assert len(set(row)) == count
        assert set(row) <= set(range(vocabulary)) - special - bag


def test_share_of_hard_words() -> None:
    """A naive count; near the top share at temperature 1, where draws are nearly uniform, and far above it at 0.02."""
    generator = torch.Generator().manual_seed(3)
    queries, table = (torch.randn(rows, 32, generator=generator) for rows in (4, 5000))
    ids = torch.randint(3, 5000, (4, 10), generator=generator)
    bags, shares = bags_of_words(ids, torch.ones_like(ids), SPECIAL), []
    for temperature in (1.0, 0.02):
        drawn = draw(queries, table, bags=bags, count=200, temperature=temperature, chunk_size=1000)
        normalize = torch.nn.functional.normalize
        cosines = normalize(queries) @ normalize(table).T
        hard = [
            set(row.topk(50).indices.tolist()) & set(words.tolist()) for row, words in zip(cosines, drawn, strict=True)
        ]
        expected = sum(map(len, hard)) / drawn.numel()
        shares.append(hard_word_share(queries, table, drawn, sample=5000).item())
        assert shares[-1] == pytest.approx(expected, abs=1e-6)
        assert hard_word_share(queries, table, drawn, sample=2500).item() == pytest.approx(expected, rel=0.35)
    assert shares[0] < 0.03 < 0.15 < shares[1]


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

    def weight(row: int, token: int) -> torch.Tensor:
        query, word = queries[row], embeddings[token]
        return torch.exp(query @ word / (query.norm() * word.norm()) / temperature)

    total = queries.new_zeros(())
    pairs = list(zip(*(tensor.tolist() for tensor in bags), strict=True))
    for row in range(len(queries)):
        bag = [token for owner, token in pairs if owner == row]
        against = torch.stack([weight(row, int(token)) for token in negatives[row]]).sum()
        for token in bag:
            positive = weight(row, token)
            total = total - torch.log(positive / (positive + against)) / len(bag)
    return total / len(queries)


@pytest.mark.parametrize(("temperature", "chunk_size"), [(1.0, 1), (0.1, 3), (0.1, 17), (1.0, 10_000)])
def test_equals_the_naive_twin(temperature: float, chunk_size: int) -> None:
    inputs, bags = vectors(), own_words()
    assert 3 not in bags[0] and len(bags[0]) > 15
    negatives = draw(*inputs)
    options = {"temperature": temperature, "chunk_size": chunk_size}
    found = value_and_gradients(word_contrast_loss, inputs, bags, negatives, **options)
    expected = value_and_gradients(naive, inputs, bags, negatives, **options)
    for one, twin in zip(found, expected, strict=True):
        assert one.dtype == torch.float64 and twin.norm() > 1e-3
        torch.testing.assert_close(one, twin, rtol=1e-10, atol=1e-12)


def test_embeddings_of_all_negatives_are_never_held() -> None:
    inputs, bags = large_problem()
    count, chunk_size = 1000, 50
    negatives = draw_negative_words(*inputs, bags, special_ids=[0, 1, 2], count=count)
    with Largest() as largest:
        loss = word_contrast_loss(*inputs, bags, negatives, chunk_size=chunk_size)
    words = HELD * count + len(bags[0])
    assert largest.numel == words  # a cosine each, where their embeddings would be WIDE times as much
    with Largest() as largest:
        loss.backward()
    assert largest.numel == MANY * WIDE < words * WIDE / 3  # the table's gradient
