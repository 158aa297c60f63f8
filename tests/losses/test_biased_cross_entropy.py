from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loss_helpers import Largest

from hf_xlsr.losses import masked_lm_loss
from hf_xlsr.losses.biased_cross_entropy import biased_cross_entropy

BATCH, LENGTH, WIDTH, VOCABULARY = 4, 6, 5, 23


def problem(
    seed: int = 0, dtype: torch.dtype = torch.float64, batch: int = BATCH
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """States, embeddings and biases of each sentence; labels with padding, and a sentence of padding alone."""
    generator = torch.Generator().manual_seed(seed)
    shapes = (batch, LENGTH, WIDTH), (VOCABULARY, WIDTH), (batch, VOCABULARY)
    parameters = [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
    labels = torch.randint(VOCABULARY, (batch, LENGTH), generator=generator)
    for row, length in enumerate((LENGTH, 3, 0, 1)[:batch]):
        labels[row, length:] = -100
    return parameters, labels


def naive(
    hidden: torch.Tensor, labels: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, smoothing: float
) -> torch.Tensor:
    """Position by position."""
    terms = []
    for row in range(len(labels)):
        for column in range(labels.shape[1]):
            if labels[row, column] != -100:
                logs = (weight @ hidden[row, column] + bias[row]).log_softmax(0)
                terms.append(-(1 - smoothing) * logs[labels[row, column]] - smoothing * logs.mean())
    return torch.stack(terms).mean()


def gradients(
    parameters: list[torch.Tensor], labels: torch.Tensor, loss: Any, **options: Any
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    hidden, weight, bias = (part.clone().requires_grad_() for part in parameters)
    value = loss(hidden, labels, weight, bias, **options)
    value.backward()
    return value.detach(), [hidden.grad, weight.grad, bias.grad]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk_size", [1, 2, 3, 9, 10, 128])
def test_equals_the_naive_twin(chunk_size: int, smoothing: float) -> None:
    parameters, labels = problem()
    options = {"label_smoothing": smoothing, "chunk_size": chunk_size}
    value, grads = gradients(parameters, labels, biased_cross_entropy, **options)
    expected, twins = gradients(parameters, labels, naive, smoothing=smoothing)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=0)
    for grad, twin in zip(grads, twins, strict=True):
        torch.testing.assert_close(grad, twin, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_equals_cross_entropy_of_torch(smoothing: float) -> None:
    (hidden, weight, bias), labels = problem(seed=1)
    logits = hidden @ weight.T + bias[:, None]
    twin = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    torch.testing.assert_close(
        biased_cross_entropy(hidden, labels, weight, bias, label_smoothing=smoothing), twin, rtol=1e-13, atol=0
    )


def test_one_bias_for_all_is_the_masked_lm_loss() -> None:
    (hidden, weight, bias), labels = problem()
    parameters = [hidden, weight, bias[0]]
    value, grads = gradients(parameters, labels, biased_cross_entropy, chunk_size=3)
    expected, twins = gradients(parameters, labels, masked_lm_loss, chunk_size=4)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=0)
    torch.testing.assert_close(grads, twins, rtol=1e-10, atol=1e-14)


def test_nothing_to_predict_is_zero() -> None:
    parameters, labels = problem()
    value, grads = gradients(parameters, torch.full_like(labels, -100), biased_cross_entropy)
    assert value.item() == 0
    for grad in grads:
        assert grad is not None and (grad == 0).all()


def test_half_precision_products_stay_close() -> None:
    parameters, labels = problem(dtype=torch.float32)
    exact, expected = gradients(parameters, labels, biased_cross_entropy)
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype=dtype):
            value, grads = gradients(parameters, labels, biased_cross_entropy)
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, exact, rtol=2e-2, atol=2e-2)
        for grad, twin in zip(grads, expected, strict=True):
            assert torch.cosine_similarity(grad.flatten(), twin.flatten(), dim=0) > 0.999


def test_whole_logits_are_never_held() -> None:
    batch, length, vocabulary, chunk = 8, 16, 1000, 16
    hidden = torch.randn(batch, length, 4, requires_grad=True)
    weight, bias = torch.randn(vocabulary, 4, requires_grad=True), torch.randn(batch, vocabulary, requires_grad=True)
    labels = torch.randint(vocabulary, (batch, length))
    with Largest() as seen:
        biased_cross_entropy(hidden, labels, weight, bias, chunk_size=chunk).backward()
    assert seen.numel == batch * vocabulary  # the gradient of the bias; all logits are length times that
