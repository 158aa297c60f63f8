from __future__ import annotations

import math
from collections import Counter
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import Largest
from word_contrast_helpers import (
    COUNT,
    HELD,
    SPECIAL,
    WIDE,
    WIDTH,
    draw,
    large_problem,
    own_words,
    vectors,
)

from hf_xlsr.losses import bags_of_words, draw_negative_words


def naive_bags(ids: torch.Tensor, mask: torch.Tensor, special: list[int]) -> list[tuple[int, int]]:
    pairs = zip(ids.tolist(), mask.tolist(), strict=True)
    words = [{piece for piece, real in zip(*pair, strict=True) if real and piece not in special} for pair in pairs]
    return [(row, piece) for row, bag in enumerate(words) for piece in sorted(bag)]


# Bags of words


def test_bags_hand_worked() -> None:
    ids = torch.tensor([[0, 7, 9, 7, 2, 5, 2, 1], [0, 2, 2, 1, 1, 1, 1, 1], [0, 4, 2, 4, 2, 1, 1, 1]])
    rows, pieces = bags_of_words(ids, (ids != 1).long(), [0, 1, 2])
    assert rows.tolist() == [0, 0, 0, 2] and pieces.tolist() == [5, 7, 9, 4]
    assert rows.dtype == pieces.dtype == torch.int64


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


# Drawing


def exact_probabilities(query: torch.Tensor, embeddings: torch.Tensor, allowed: list[int], temperature: float) -> dict:
    weights = {
        piece: math.exp(float(torch.cosine_similarity(query, embeddings[piece], dim=0)) / temperature)
        for piece in allowed
    }
    total = sum(weights.values())
    return {piece: weight / total for piece, weight in weights.items()}


def chi_square(found: Counter, expected: dict, draws: int) -> float:
    return sum((found[key] - draws * share) ** 2 / (draws * share) for key, share in expected.items())


@pytest.mark.parametrize(("temperature", "chunk_size"), [(1.0, 3), (0.25, 1000), (4.0, 1)])
def test_one_draw_follows_the_similarities(temperature: float, chunk_size: int) -> None:
    draws = 40_000
    queries, embeddings = vectors(seed=2)
    embeddings = embeddings[:9] * torch.arange(1, 10).unsqueeze(1)  # lengths must not matter
    bags = torch.arange(draws), torch.full((draws,), 4)
    allowed = [1, 2, 3, 5, 6, 7]
    drawn = draw(
        queries[:1].expand(draws, -1).contiguous(),
        embeddings,
        bags=bags,
        special_ids=[0, 8],
        count=1,
        temperature=temperature,
        chunk_size=chunk_size,
    )
    found = Counter(drawn.flatten().tolist())
    assert set(found) <= set(allowed)
    expected = exact_probabilities(queries[0], embeddings, allowed, temperature)
    # 20.5 is passed by one right sampler in a thousand, with 5 degrees of freedom.
    assert chi_square(found, expected, draws) < 20.5
    uniform = dict.fromkeys(allowed, 1 / len(allowed))
    assert chi_square(found, uniform, draws) > 200


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
    assert chi_square(found, expected, draws) < 20.5


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_draws_are_different_allowed_pieces(data: st.DataObject) -> None:
    vocabulary, batch = data.draw(st.integers(6, 25)), data.draw(st.integers(1, 4))
    special = data.draw(st.sets(st.integers(0, vocabulary - 1), max_size=2))
    words = st.sets(st.integers(0, vocabulary - 1).filter(lambda piece: piece not in special), max_size=3)
    bags = [data.draw(words) for _ in range(batch)]
    pairs = [(row, piece) for row, bag in enumerate(bags) for piece in sorted(bag)]
    rows, pieces = torch.tensor(data.draw(st.permutations(pairs)), dtype=torch.long).reshape(-1, 2).T
    most = vocabulary - len(special) - max(len(bag) for bag in bags)
    count = data.draw(st.integers(1, most))
    drawn = draw(
        torch.randn(batch, 3, generator=torch.Generator().manual_seed(1)),
        torch.randn(vocabulary, 3, generator=torch.Generator().manual_seed(2)),
        seed=data.draw(st.integers(0, 1000)),
        bags=(rows, pieces),
        special_ids=list(special),
        count=count,
        temperature=data.draw(st.sampled_from([0.01, 1.0, 100.0])),
        chunk_size=data.draw(st.integers(1, vocabulary + 1)),
    )
    assert drawn.shape == (batch, count) and drawn.dtype == torch.int64
    for row, bag in zip(drawn.tolist(), bags, strict=True):
        assert len(set(row)) == count
        assert set(row) <= set(range(vocabulary)) - special - bag


def test_low_temperatures_draw_the_nearest_words() -> None:
    queries, embeddings = vectors(torch.float32)
    similarities = torch.cosine_similarity(queries.unsqueeze(1), embeddings.unsqueeze(0), dim=2)
    similarities[:, SPECIAL] = -2
    similarities[own_words()] = -2
    nearest = similarities.topk(COUNT).indices.sort().values
    assert torch.equal(draw(queries, embeddings, temperature=1e-6).sort().values, nearest)


def test_generator_decides_the_draw() -> None:
    queries, embeddings = vectors(torch.float32)
    assert torch.equal(draw(queries, embeddings, seed=3), draw(queries, embeddings, seed=3))
    assert not torch.equal(draw(queries, embeddings, seed=3), draw(queries, embeddings, seed=4))
    options: dict[str, Any] = {"special_ids": SPECIAL, "count": COUNT, "chunk_size": 11}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = draw_negative_words(queries, embeddings, own_words(), **options)
    second = draw_negative_words(queries, embeddings, own_words(), **options)
    torch.set_rng_state(state)
    assert torch.equal(first, draw(queries, embeddings, seed=3))
    assert torch.equal(first, draw_negative_words(queries, embeddings, own_words(), **options))
    assert torch.equal(second, draw_negative_words(queries, embeddings, own_words(), **options))


def test_draws_change_nothing_and_carry_no_graph() -> None:
    inputs = [tensor.requires_grad_() for tensor in vectors()]
    before = [tensor.detach().clone() for tensor in inputs]
    bags = own_words()
    drawn = draw(*inputs, bags=bags)
    assert not drawn.requires_grad
    assert all(torch.equal(one, other) for one, other in zip(inputs, before, strict=True))
    assert all(torch.equal(one, other) for one, other in zip(bags, own_words(), strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_draws_are_computed_in_float32(dtype: torch.dtype) -> None:
    queries = vectors(dtype)[0]
    embeddings = torch.randn(2000, WIDTH, generator=torch.Generator().manual_seed(5)).to(dtype)
    options = {"count": 300, "temperature": 0.01, "chunk_size": 600}
    expected = draw(queries.float(), embeddings.float(), **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(draw(queries, embeddings, **options), expected)


def test_zero_vectors_are_orthogonal_to_all() -> None:
    queries, embeddings = vectors(torch.float32)
    queries[1] = 0
    one, other = (draw(queries, embeddings, seed=seed, temperature=1e-6) for seed in range(2))
    assert not torch.equal(one[1].sort().values, other[1].sort().values)  # all words are equally near
    assert torch.equal(one[0].sort().values, other[0].sort().values)
    first = int(one[0, 0])
    embeddings[first] = 0
    assert first not in draw(queries, embeddings, temperature=1e-6)[0]


def test_nan_queries_draw_allowed_tokens() -> None:
    queries, embeddings = vectors(torch.float32)
    queries[0] = math.nan
    rows, pieces = own_words()
    forbidden = {*SPECIAL, *pieces[rows == 0].tolist()}
    assert not forbidden & set(draw(queries, embeddings)[0].tolist())


def test_drawing_memory() -> None:
    inputs, bags = large_problem()
    with Largest() as largest:
        draw_negative_words(*inputs, bags, special_ids=[0, 1, 2], count=20, chunk_size=100)
    assert largest.numel == HELD * (100 + 20)
    table = inputs[1].bfloat16()
    with Largest() as largest:  # a table in lower precision is converted chunk by chunk
        draw_negative_words(inputs[0], table, bags, special_ids=[0, 1, 2], count=20, chunk_size=100)
    assert largest.numel == 100 * WIDE


# Mistakes
