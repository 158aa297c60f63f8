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


def test_low_temperatures_draw_the_nearest_words() -> None:
    queries, embeddings = vectors(torch.float32)
    similarities = torch.cosine_similarity(queries.unsqueeze(1), embeddings.unsqueeze(0), dim=2)
    similarities[:, SPECIAL] = -2
    similarities[own_words()] = -2
    nearest = similarities.topk(COUNT).indices.sort().values
    assert torch.equal(draw(queries, embeddings, temperature=1e-6).sort().values, nearest)


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_draws_are_computed_in_float32(dtype: torch.dtype) -> None:
    queries = vectors(dtype)[0]
    embeddings = torch.randn(2000, WIDTH, generator=torch.Generator().manual_seed(5)).to(dtype)
    options = {"count": 300, "temperature": 0.01, "chunk_size": 600}
    expected = draw(queries.float(), embeddings.float(), **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(draw(queries, embeddings, **options), expected)


def test_drawing_memory() -> None:
    inputs, bags = large_problem()
    with Largest() as largest:
        draw_negative_words(*inputs, bags, special_ids=[0, 1, 2], count=20, chunk_size=100)
    assert largest.numel == HELD * (100 + 20)
    table = inputs[1].bfloat16()
    with Largest() as largest:  # a table in lower precision is converted chunk by chunk
        draw_negative_words(inputs[0], table, bags, special_ids=[0, 1, 2], count=20, chunk_size=100)
    assert largest.numel == 100 * WIDE


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


def test_hand_worked() -> None:
    queries = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    embeddings = torch.tensor([[0.0, 3.0], [1.0, 0.0], [0.0, 1.0], [-4.0, 0.0], [3.0, 4.0]])
    bags, negatives = (torch.tensor([0, 0, 1]), torch.tensor([1, 4, 2])), torch.tensor([[0, 3], [1, 3]])
    # Row 0: cosines 1 and 0.6 against 0 and -1: log(1 + 1.3678794 / e) and log(1 + 1.3678794 / 1.8221188), averaged.
    # Row 1: cosine 1 against 0 and 0: log(1 + 2 / e).
    expected = ((0.4076060 + 0.5600205) / 2 + 0.5514447) / 2
    value, slope, word_slope = value_and_gradients(word_contrast_loss, [queries, embeddings], bags, negatives)
    assert float(value) == pytest.approx(expected)
    # Row 1: the positive's cosine has a slope of -(1 - 0.5761169) / 2; nothing else turns the query up or down.
    assert float(slope[1, 1]) == pytest.approx(0.0, abs=1e-7)
    # Tokens 1 and 3 are opposite, with equal weights: their pulls on the query cancel each other.
    assert float(slope[1, 0]) == pytest.approx(0.0, abs=1e-7)
    # Token 1 as row 1's negative has a slope of 0.5 * 0.4238831 / 2 in its cosine; as row 0's word it lies along it.
    torch.testing.assert_close(word_slope[1], torch.tensor([0.0, 0.1059708]))
    # Token 3 likewise, four times as long; it lies along row 0's query.
    torch.testing.assert_close(word_slope[3], torch.tensor([0.0, 0.1059708 / 4]))


def test_no_words_give_zero_with_a_graph() -> None:
    inputs = vectors(torch.float32)
    empty = torch.zeros(0, dtype=torch.long)
    found = value_and_gradients(word_contrast_loss, inputs, (empty, empty), draw(*inputs))
    assert all(tensor.eq(0).all() for tensor in found)
    none = torch.zeros(0, COUNT, dtype=torch.long)
    found = value_and_gradients(word_contrast_loss, [inputs[0][:0], inputs[1]], (empty, empty), none)
    assert found[0] == 0 and found[1].shape == (0, WIDTH) and found[2].eq(0).all()


@pytest.mark.parametrize("temperature", [1e-30, 1e-4, 1e30])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    inputs, bags = vectors(torch.float32), own_words()
    negatives = draw(*inputs)
    inputs[0][0], inputs[1][bags[1][3]], inputs[1][negatives[1, 0]] = 0, 0, 0
    found = value_and_gradients(word_contrast_loss, inputs, bags, negatives, temperature=temperature)
    assert all(tensor.isfinite().all() for tensor in found)
    if temperature > 1:
        assert float(found[0]) == pytest.approx(math.log(1 + COUNT) * 4 / 5)


def test_sure_positive_keeps_its_digits() -> None:
    queries, embeddings = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    bags = torch.tensor([0]), torch.tensor([0])
    loss = word_contrast_loss(queries, embeddings, bags, torch.tensor([[1]]), temperature=0.05)
    assert float(loss) == pytest.approx(math.log1p(math.exp(-20)), rel=1e-4)
    loss = word_contrast_loss(-queries.double(), embeddings.double(), bags, torch.tensor([[1]]), temperature=0.048)
    assert float(loss) == pytest.approx(1 / 0.048 + math.log1p(math.exp(-1 / 0.048)), rel=1e-14)


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
