from __future__ import annotations

import math

import pytest
import torch
from loss_helpers import Largest, value_and_gradients
from word_contrast_helpers import (
    COUNT,
    HELD,
    MANY,
    SPECIAL,
    VOCABULARY,
    WIDE,
    WIDTH,
    draw,
    large_problem,
    own_words,
    sentences,
    vectors,
)

from hf_xlsr.losses import bags_of_words, draw_negative_words, word_contrast_loss


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

    def weight(row: int, piece: int) -> torch.Tensor:
        query, word = queries[row], embeddings[piece]
        return torch.exp(query @ word / (query.norm() * word.norm()) / temperature)

    total = queries.new_zeros(())
    pairs = list(zip(*(tensor.tolist() for tensor in bags), strict=True))
    for row in range(len(queries)):
        bag = [piece for owner, piece in pairs if owner == row]
        against = torch.stack([weight(row, int(piece)) for piece in negatives[row]]).sum()
        for piece in bag:
            positive = weight(row, piece)
            total = total - torch.log(positive / (positive + against)) / len(bag)
    return total / len(queries)


# The loss


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 17, 64, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
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


def test_gradient_by_finite_differences() -> None:
    inputs, bags = [tensor.requires_grad_() for tensor in vectors()], own_words()
    negatives = draw(*inputs)

    def loss(queries: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        return word_contrast_loss(queries, embeddings, bags, negatives, temperature=0.3, chunk_size=13)

    assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


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
    # Pieces 1 and 3 are opposite, with equal weights: their pulls on the query cancel each other.
    assert float(slope[1, 0]) == pytest.approx(0.0, abs=1e-7)
    # Piece 1 as row 1's negative has a slope of 0.5 * 0.4238831 / 2 in its cosine; as row 0's word it lies along it.
    torch.testing.assert_close(word_slope[1], torch.tensor([0.0, 0.1059708]))
    # Piece 3 likewise, four times as long; it lies along row 0's query.
    torch.testing.assert_close(word_slope[3], torch.tensor([0.0, 0.1059708 / 4]))


def test_no_words_give_zero_with_a_graph() -> None:
    inputs = vectors(torch.float32)
    empty = torch.zeros(0, dtype=torch.long)
    found = value_and_gradients(word_contrast_loss, inputs, (empty, empty), draw(*inputs))
    assert all(tensor.eq(0).all() for tensor in found)
    none = torch.zeros(0, COUNT, dtype=torch.long)
    found = value_and_gradients(word_contrast_loss, [inputs[0][:0], inputs[1]], (empty, empty), none)
    assert found[0] == 0 and found[1].shape == (0, WIDTH) and found[2].eq(0).all()


def test_row_without_words_counts_as_zero() -> None:
    inputs, (rows, pieces) = vectors(), own_words()
    negatives = draw(*inputs)
    with_it = word_contrast_loss(*inputs, (rows, pieces), negatives)
    kept = torch.tensor([0, 1, 2, 4])
    renumbered = rows - (rows > 3).long()
    without = word_contrast_loss(inputs[0][kept], inputs[1], (renumbered, pieces), negatives[kept])
    torch.testing.assert_close(with_it, without * 4 / 5)


def test_order_and_length_do_not_matter() -> None:
    (queries, embeddings), (rows, pieces) = vectors(), own_words()
    negatives = draw(queries, embeddings)
    expected = word_contrast_loss(queries, embeddings, (rows, pieces), negatives)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    scales = torch.rand(VOCABULARY, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    found = word_contrast_loss(3 * queries, embeddings * scales, (rows[order], pieces[order]), negatives.flip(1))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("temperature", [1e-30, 1e-4, 1e30])
def test_extreme_temperatures_stay_finite(temperature: float) -> None:
    inputs, bags = vectors(torch.float32), own_words()
    negatives = draw(*inputs)
    inputs[0][0], inputs[1][bags[1][3]], inputs[1][negatives[1, 0]] = 0, 0, 0
    found = value_and_gradients(word_contrast_loss, inputs, bags, negatives, temperature=temperature)
    assert all(tensor.isfinite().all() for tensor in found)
    if temperature > 1:
        assert float(found[0]) == pytest.approx(math.log(1 + COUNT) * 4 / 5)


def test_gradient_of_zero_vectors() -> None:
    inputs, bags = vectors(), own_words()
    negatives = draw(*inputs)
    zero = int(bags[1][1])
    inputs[0][0], inputs[1][zero] = 0, 0

    def twin(*tensors: torch.Tensor) -> torch.Tensor:
        queries, embeddings = (torch.stack([row / row.norm() if row.any() else row for row in t]) for t in tensors)
        losses = [
            -(embeddings[torch.cat([piece[None], negatives[row]])] @ queries[row]).log_softmax(0)[0]
            / (bags[0] == row).sum()
            for row, piece in zip(*bags, strict=True)
        ]
        return torch.stack(losses).sum() / len(queries)

    found, expected = (
        value_and_gradients(word_contrast_loss, inputs, bags, negatives),
        value_and_gradients(twin, inputs),
    )
    assert found[1][0].norm() > 1e-3 and found[2][zero].norm() > 1e-3
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_sure_positive_keeps_its_digits() -> None:
    queries, embeddings = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    bags = torch.tensor([0]), torch.tensor([0])
    loss = word_contrast_loss(queries, embeddings, bags, torch.tensor([[1]]), temperature=0.05)
    assert float(loss) == pytest.approx(math.log1p(math.exp(-20)), rel=1e-4)
    loss = word_contrast_loss(-queries.double(), embeddings.double(), bags, torch.tensor([[1]]), temperature=0.048)
    assert float(loss) == pytest.approx(1 / 0.048 + math.log1p(math.exp(-1 / 0.048)), rel=1e-14)


def test_table_of_lower_precision() -> None:
    (queries, embeddings), bags = vectors(torch.float32), own_words()
    inputs = [queries, embeddings.bfloat16()]
    negatives = draw(*inputs)
    found = value_and_gradients(word_contrast_loss, inputs, bags, negatives)
    expected = value_and_gradients(word_contrast_loss, [queries, inputs[1].float()], bags, negatives)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    assert found[2].dtype == torch.bfloat16 and torch.equal(found[2], expected[2].bfloat16())


def test_compiled_loss_is_the_same() -> None:
    inputs, ids = vectors(), sentences()

    def together(queries: torch.Tensor, embeddings: torch.Tensor) -> torch.Tensor:
        bags = bags_of_words(ids, (ids != 1).long(), SPECIAL)
        drawn = draw_negative_words(queries, embeddings, bags, special_ids=SPECIAL, count=COUNT, chunk_size=11)
        return word_contrast_loss(queries, embeddings, bags, drawn, chunk_size=5)

    results = []
    for function in (together, torch.compile(together, backend="eager")):
        torch.manual_seed(0)
        results.append(value_and_gradients(function, inputs))
    for one, other in zip(*results, strict=True):
        assert one.norm() > 1e-3
        torch.testing.assert_close(one, other)


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
