from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from loss_helpers import Largest, value_and_gradients

from hf_xlsr.losses import generative_loss, masked_lm_loss, sparse_target_cross_entropy

ROWS, WIDTH, VOCABULARY, TARGETS = 13, 6, 29, 5


def dense(ids: torch.Tensor, probs: torch.Tensor, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """The label matrix, entry by entry; a piece named twice gets the sum."""
    matrix = torch.zeros(len(ids), vocabulary, dtype=probs.dtype)
    for row in range(len(ids)):
        for piece, mass in zip(ids[row].tolist(), probs[row], strict=True):
            matrix[row, piece] += mass
    return matrix


def naive(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    ids: torch.Tensor,
    probs: torch.Tensor,
    row_weights: torch.Tensor,
) -> torch.Tensor:
    logs = (hidden @ weight.T + bias).log_softmax(-1)
    return -(row_weights.unsqueeze(1) * dense(ids, probs, len(weight)) * logs).sum()


def problem(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Parameters and labels; rows hold duplicates, padding (mass 0) and masses that do not sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    parameters = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    ids = torch.randint(0, VOCABULARY, (ROWS, TARGETS), generator=generator)
    ids[:, 1] = ids[:, 0]
    probs = torch.rand(ROWS, TARGETS, generator=generator, dtype=dtype)
    probs[:, -1] = 0
    ids[:, -1] = 0
    row_weights = torch.rand(ROWS, generator=generator, dtype=dtype)
    return parameters, [ids, probs, row_weights]


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, ROWS - 1, ROWS, ROWS + 1, 1000])
def test_equals_the_dense_twin(chunk_size: int) -> None:
    parameters, labels = problem()
    value, *gradients = value_and_gradients(sparse_target_cross_entropy, parameters, *labels, chunk_size=chunk_size)
    expected, *expected_gradients = value_and_gradients(naive, parameters, *labels)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-13)
    for gradient, twin in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, twin, rtol=1e-11, atol=1e-13)


def test_gradient_by_finite_differences() -> None:
    parameters, labels = problem(seed=3)
    leaves = [parameter.requires_grad_() for parameter in parameters]
    assert torch.autograd.gradcheck(
        lambda *p: sparse_target_cross_entropy(*p, *labels, chunk_size=4), leaves, fast_mode=True
    )


def test_one_hot_labels_are_cross_entropy() -> None:
    parameters, _ = problem()
    pieces = torch.arange(ROWS) % VOCABULARY
    labels = pieces.unsqueeze(1), torch.ones(ROWS, 1), torch.full((ROWS,), 1 / ROWS, dtype=torch.float64)

    def twin(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, weight, bias), pieces)

    value, *gradients = value_and_gradients(sparse_target_cross_entropy, parameters, *labels, chunk_size=5)
    expected, *expected_gradients = value_and_gradients(twin, parameters)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-11, atol=1e-14)


def test_no_rows_give_zero_with_a_graph() -> None:
    parameters, labels = problem()
    value, *gradients = value_and_gradients(
        sparse_target_cross_entropy, [parameters[0][:0], *parameters[1:]], *[label[:0] for label in labels]
    )
    assert value == 0
    assert gradients[0].shape == (0, WIDTH)
    assert all((gradient == 0).all() for gradient in gradients[1:])


def test_large_logits_do_not_overflow() -> None:
    parameters, labels = problem(dtype=torch.float32)
    value, *gradients = value_and_gradients(
        sparse_target_cross_entropy, [1e4 * parameters[0], *parameters[1:]], *labels, chunk_size=4
    )
    assert value.isfinite() and all(gradient.isfinite().all() for gradient in gradients)


def relative_error(approximation: torch.Tensor, truth: torch.Tensor) -> float:
    return ((approximation.double() - truth.double()).norm() / truth.double().norm()).item()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 2e-3)])
def test_autocast_stays_close(dtype: torch.dtype, tolerance: float) -> None:
    parameters, labels = problem(dtype=torch.float32)
    expected, *expected_gradients = value_and_gradients(naive, parameters, *labels)
    leaves = [parameter.clone().requires_grad_() for parameter in parameters]
    with torch.autocast("cpu", dtype=dtype):
        value = sparse_target_cross_entropy(*leaves, *labels, chunk_size=4)
    value.backward()
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=tolerance)
    assert value.item() != expected.item()  # the matrix products did follow autocast
    for leaf, twin in zip(leaves, expected_gradients, strict=True):
        assert leaf.grad.dtype == torch.float32
        assert relative_error(leaf.grad, twin) < tolerance


def test_float16_gradient_does_not_underflow() -> None:
    # At the start of training p is near 1 / vocabulary; over the pairs that is below float16's smallest number.
    rows, pairs, vocabulary = 4, 1000, 50_000
    assert torch.tensor(1 / pairs / vocabulary, dtype=torch.float16) == 0
    weight = torch.zeros(vocabulary, 1, requires_grad=True)
    labels = torch.zeros(rows, 1, dtype=torch.long), torch.ones(rows, 1), torch.full((rows,), 1 / pairs)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = sparse_target_cross_entropy(torch.ones(rows, 1), weight, torch.zeros(vocabulary), *labels)
    loss.backward()
    expected = torch.full((vocabulary - 1, 1), rows / pairs / vocabulary)
    torch.testing.assert_close(weight.grad[1:], expected, rtol=2e-2, atol=0)


def test_bfloat16_parameters_without_autocast() -> None:
    parameters, labels = problem(dtype=torch.float32)
    lowered = [parameter.bfloat16() for parameter in parameters]
    value, *gradients = value_and_gradients(sparse_target_cross_entropy, lowered, *labels, chunk_size=4)
    expected, *expected_gradients = value_and_gradients(naive, [p.float() for p in lowered], *labels)
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=2e-2)
    for gradient, twin in zip(gradients, expected_gradients, strict=True):
        assert gradient.dtype == torch.bfloat16
        assert relative_error(gradient, twin) < 2e-2


MANY_ROWS, LARGE_VOCABULARY, SLIM, CHUNK = 120, 500, 4, 120 * 8


def memory_problem() -> list[torch.Tensor]:
    shapes = (MANY_ROWS, SLIM), (LARGE_VOCABULARY, SLIM), (LARGE_VOCABULARY,)
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def masked_lm_case(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    labels = torch.randint(0, LARGE_VOCABULARY, (2, MANY_ROWS // 2))
    return masked_lm_loss(hidden.reshape(2, -1, SLIM), labels, weight, bias, chunk_size=CHUNK)


def generative_case(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    ids = torch.stack([torch.randperm(LARGE_VOCABULARY)[:3] for _ in range(MANY_ROWS)])
    return generative_loss(hidden, weight, bias, ids, torch.full((MANY_ROWS, 3), 1 / 3), chunk_size=CHUNK)


@pytest.mark.parametrize("case", [masked_lm_case, generative_case])
@pytest.mark.parametrize("autocast", [False, True])
def test_whole_logits_are_never_held(case: Callable[..., torch.Tensor], autocast: bool) -> None:
    parameters = memory_problem()
    with Largest() as largest, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        case(*parameters).backward()
    assert parameters[1].grad is not None
    assert largest.numel == LARGE_VOCABULARY * SLIM  # the gradient of the table
