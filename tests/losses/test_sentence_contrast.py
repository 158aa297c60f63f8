from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hf_xlsr.losses import alignment_loss, sentence_contrast_loss
from hf_xlsr.losses.sentence_contrast import unit_rows


def sides(count: int = 5, width: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(count, width, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)]


def naive(source: torch.Tensor, target: torch.Tensor, *, temperature: float = 1.0) -> torch.Tensor:
    """Equations 2 to 4, sentence by sentence."""

    def similarity(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one @ other / (one.norm() * other.norm()) / temperature

    total = source.new_zeros(())
    for own, other in ((source, target), (target, source)):
        for index, query in enumerate(own):
            positive = similarity(query, other[index]).exp()
            rest = [row for row in range(len(own)) if row != index]
            negatives = [similarity(query, side[row]).exp() for side in (other, own) for row in rest]
            assert len(negatives) == 2 * len(own) - 2
            total = total - torch.log(positive / (positive + torch.stack(negatives).sum()))
    return total / len(source)


def value_and_gradients(
    loss: Callable[..., torch.Tensor], inputs: list[torch.Tensor], **options: Any
) -> list[torch.Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    value = loss(*leaves, **options)
    value.backward()
    return [value.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("temperature", [1.0, 0.3, 7.0])
def test_value_and_gradients_equal_the_naive_twin(count: int, temperature: float) -> None:
    inputs = sides(count)
    found = value_and_gradients(sentence_contrast_loss, inputs, temperature=temperature)
    expected = value_and_gradients(naive, inputs, temperature=temperature)
    assert expected[1].norm() > 1e-3
    for one, twin in zip(found, expected, strict=True):
        torch.testing.assert_close(one, twin, rtol=1e-10, atol=1e-12)
    single = value_and_gradients(sentence_contrast_loss, [side.float() for side in inputs], temperature=temperature)
    for one, twin in zip(single, expected, strict=True):
        torch.testing.assert_close(one, twin.float(), rtol=1e-4, atol=1e-6)


def test_a_hand_worked_example() -> None:
    # Directions (1, 0), (0, 1) and (1, 0), (1, 0): the second translation resembles the first pair.
    source, target = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[5.0, 0.0], [1.0, 0.0]])
    # x1: positive 1, negatives y2 = 1 and x2 = 0: -log(e / (2e + 1)) = 0.86199
    # x2: positive 0, negatives y1 = 0 and x1 = 0: log 3 = 1.09861
    # y1: positive 1, negatives x2 = 0 and y2 = 1: 0.86199
    # y2: positive 0, negatives x1 = 1 and y1 = 1: -log(1 / (1 + 2e)) = 1.86199
    expected = (0.8619948 + 1.0986123 + 0.8619948 + 1.8619948) / 2
    assert float(sentence_contrast_loss(source, target)) == pytest.approx(expected)


def test_both_directions_count_alike() -> None:
    source, target = sides()
    one, other = sentence_contrast_loss(source, target), sentence_contrast_loss(target, source)
    torch.testing.assert_close(one, other, rtol=1e-14, atol=0)


def test_only_directions_count() -> None:
    source, target = sides()
    scales = torch.arange(1, 6, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(
        sentence_contrast_loss(source * scales, target / scales), sentence_contrast_loss(source, target)
    )


def test_the_order_of_the_pairs_does_not_matter() -> None:
    source, target = sides()
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(
        sentence_contrast_loss(source[order], target[order]), sentence_contrast_loss(source, target)
    )
    assert not torch.allclose(sentence_contrast_loss(source[order], target), sentence_contrast_loss(source, target))


def test_negatives_of_the_own_language_are_the_difference_from_alignment() -> None:
    ends = torch.eye(2, dtype=torch.float64)
    assert float(alignment_loss(ends, ends, normalize=True)) == pytest.approx(2 * math.log(1 + math.exp(-1)))
    assert float(sentence_contrast_loss(ends, ends)) == pytest.approx(2 * math.log(1 + 2 * math.exp(-1)))


def test_the_paper_s_temperature_is_the_default() -> None:
    inputs = sides()
    assert sentence_contrast_loss(*inputs) == sentence_contrast_loss(*inputs, temperature=1.0)


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_temperatures_stay_finite(temperature: float, dtype: torch.dtype) -> None:
    inputs = sides(dtype=dtype)
    found = value_and_gradients(sentence_contrast_loss, inputs, temperature=temperature)
    assert all(tensor.isfinite().all() for tensor in found)
    if temperature >= 1e6:
        assert float(found[0]) == pytest.approx(2 * math.log(9), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_vectors_of_zeros_are_orthogonal_to_all_and_have_a_bounded_gradient(dtype: torch.dtype) -> None:
    source, target = sides(dtype=dtype)
    source[1] = 0
    found = value_and_gradients(sentence_contrast_loss, [source, target])
    assert all(tensor.isfinite().all() for tensor in found)
    assert 0 < found[1][1].abs().max() < 1
    everything = value_and_gradients(sentence_contrast_loss, [torch.zeros_like(source), torch.zeros_like(target)])
    assert float(everything[0]) == pytest.approx(2 * math.log(9))
    assert all(tensor.eq(0).all() for tensor in everything[1:])


def test_unit_rows_are_those_of_torch() -> None:
    (vectors, _), leaves = sides(), []
    for function in (unit_rows, F.normalize):
        leaf = vectors.clone().requires_grad_()
        (function(leaf) * vectors[0]).sum().backward()
        leaves.append(leaf.grad)
    torch.testing.assert_close(unit_rows(vectors), F.normalize(vectors))
    torch.testing.assert_close(*leaves)
    assert unit_rows(vectors.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autocast_changes_nothing(dtype: torch.dtype) -> None:
    inputs = sides(dtype=dtype)
    expected = value_and_gradients(sentence_contrast_loss, inputs)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = sentence_contrast_loss(*leaves)
    value.backward()
    for one, twin in zip([value.detach(), *(leaf.grad for leaf in leaves)], expected, strict=True):
        assert one.dtype == dtype
        assert torch.equal(one, twin)


def test_half_precision_is_computed_in_float32() -> None:
    inputs = sides(dtype=torch.bfloat16)
    found = value_and_gradients(sentence_contrast_loss, inputs)
    expected = value_and_gradients(sentence_contrast_loss, [tensor.float() for tensor in inputs])
    assert found[0].dtype == torch.float32 and found[1].dtype == torch.bfloat16
    assert torch.equal(found[0], expected[0])


def test_inputs_are_not_changed() -> None:
    inputs = sides()
    before = [tensor.clone() for tensor in inputs]
    value_and_gradients(sentence_contrast_loss, inputs)
    assert all(torch.equal(one, other) for one, other in zip(inputs, before, strict=True))
