"""Losses over a vocabulary, in chunks: `sparse_target_cross_entropy` and what is built on it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loss_helpers import Largest, assert_same_loss, random_tensors, value_and_gradients
from torch import nn

from hf_xlsr.losses import generative_loss, masked_lm_loss, sparse_target_cross_entropy

ROWS = 13
WIDTH = 6
VOCABULARY = 29
TARGETS = 5
LENGTH = 7
CLOSE = {"rtol": 1e-11, "atol": 1e-13}


def dense(ids: torch.Tensor, probs: torch.Tensor, vocabulary: int = VOCABULARY) -> torch.Tensor:
    """The label matrix; a token named twice gets the sum."""
    return torch.zeros(len(ids), vocabulary, dtype=probs.dtype).scatter_add_(1, ids, probs)


def naive(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    target_ids: torch.Tensor,
    target_probs: torch.Tensor,
    row_weights: torch.Tensor,
) -> torch.Tensor:
    logs = (hidden @ weight.T + bias).log_softmax(-1)
    targets = row_weights.unsqueeze(1) * dense(target_ids, target_probs, len(weight))
    return -(targets * logs).sum()


def problem() -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Parameters and labels; rows have duplicates, padding (mass 0) and masses that do not sum to 1."""
    parameters = random_tensors((ROWS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, VOCABULARY, (ROWS, TARGETS), generator=generator)
    ids[:, 1] = ids[:, 0]
    ids[:, -1] = 0
    probs = torch.rand(ROWS, TARGETS, generator=generator, dtype=torch.float64)
    probs[:, -1] = 0
    row_weights = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    return parameters, {"target_ids": ids, "target_probs": probs, "row_weights": row_weights}


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, ROWS - 1, ROWS, ROWS + 1, 1000])
def test_equals_the_dense_twin(chunk_size: int) -> None:
    parameters, labels = problem()
    loss = partial(sparse_target_cross_entropy, **labels, chunk_size=chunk_size)
    assert_same_loss(loss, partial(naive, **labels), parameters, **CLOSE)


def test_float16_gradient_does_not_underflow() -> None:
    # At the start of training p is near 1 / vocabulary; over the pairs that is below float16's smallest number.
    rows = 4
    vocabulary = 50_000
    share = 1 / 1000
    assert torch.tensor(share / vocabulary, dtype=torch.float16) == 0

    weight = torch.zeros(vocabulary, 1, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.float16):
        loss = sparse_target_cross_entropy(
            torch.ones(rows, 1),
            weight,
            torch.zeros(vocabulary),
            torch.zeros(rows, 1, dtype=torch.long),
            torch.ones(rows, 1),
            torch.full((rows,), share),
        )
    loss.backward()

    expected = torch.full((vocabulary - 1, 1), rows * share / vocabulary)
    torch.testing.assert_close(weight.grad[1:], expected, rtol=2e-2, atol=0)


# Masked LM and translation: positions of sentences


def positions(shared_bias: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
    """States, embeddings and biases; labels with padding, and a sentence of padding alone."""
    bias_shape = (VOCABULARY,) if shared_bias else (4, VOCABULARY)
    parameters = random_tensors((4, LENGTH, WIDTH), (VOCABULARY, WIDTH), bias_shape, seed=1)
    labels = torch.randint(VOCABULARY, (4, LENGTH), generator=torch.Generator().manual_seed(1))
    labels[1, 3:] = -100
    labels[2] = -100
    labels[3, 1:] = -100
    return parameters, labels


def torch_twin(labels: torch.Tensor, smoothing: float = 0.0) -> Callable[..., torch.Tensor]:
    def loss(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        logits = hidden @ weight.T + bias.unsqueeze(-2)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)

    return loss


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 9, 128])
@pytest.mark.parametrize(("shared_bias", "smoothing"), [(True, 0.0), (False, 0.1), (False, 0.0)])
def test_equals_cross_entropy(shared_bias: bool, smoothing: float, chunk_size: int) -> None:
    parameters, labels = positions(shared_bias)

    def loss(hidden: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return masked_lm_loss(hidden, labels, *rest, chunk_size=chunk_size, label_smoothing=smoothing)

    assert_same_loss(loss, torch_twin(labels, smoothing), parameters, **CLOSE)

    labels.fill_(-100)
    for tensor in value_and_gradients(loss, parameters):
        assert (tensor == 0).all()


def test_transform_runs_on_masked_states_only() -> None:
    parameters, labels = positions(shared_bias=True)
    torch.manual_seed(0)
    head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()).double()
    shapes = []

    def transform(states: torch.Tensor) -> torch.Tensor:
        shapes.append(states.shape)
        return head(states)

    def gradients(loss: Callable[..., torch.Tensor]) -> list[Any]:
        """The value, and the gradients of the parameters and of the head."""
        head.zero_grad()
        results = value_and_gradients(loss, parameters)
        return results + [parameter.grad.clone() for parameter in head.parameters()]

    masked = gradients(lambda hidden, *x: masked_lm_loss(hidden, labels, *x, transform=transform, chunk_size=2))
    expected = gradients(lambda hidden, *x: torch_twin(labels)(head(hidden), *x))
    torch.testing.assert_close(masked, expected, **CLOSE)

    no_labels = torch.full_like(labels, -100)
    nothing_masked = gradients(lambda hidden, *x: masked_lm_loss(hidden, no_labels, *x, transform=transform))
    for tensor in nothing_masked:  # DDP waits for the gradient of every parameter
        assert (tensor == 0).all()

    assert shapes == [(LENGTH + 4, WIDTH), (0, WIDTH)]


# Memory

MANY_ROWS = 120
LARGE_VOCABULARY = 500
SLIM = 4
CHUNK = MANY_ROWS * 8
MANY_LABELS = torch.arange(MANY_ROWS).view(2, -1)


def many_masked(hidden: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    return masked_lm_loss(hidden.view(2, -1, SLIM), MANY_LABELS, *rest, chunk_size=CHUNK)


def many_generative(*parameters: torch.Tensor) -> torch.Tensor:
    ids = torch.arange(3) + torch.arange(MANY_ROWS).unsqueeze(1)
    return generative_loss(*parameters, ids, torch.full((MANY_ROWS, 3), 1 / 3), chunk_size=CHUNK)


@pytest.mark.parametrize(
    ("loss", "bias_shape"),
    [
        (many_masked, (LARGE_VOCABULARY,)),
        (many_masked, (2, LARGE_VOCABULARY)),
        (many_generative, (LARGE_VOCABULARY,)),
    ],
    ids=["masked LM", "a bias for each sentence", "generative"],
)
@pytest.mark.parametrize("autocast", [False, True])
def test_whole_logits_are_never_held(
    loss: Callable[..., torch.Tensor], bias_shape: tuple[int, ...], autocast: bool
) -> None:
    states = torch.randn(MANY_ROWS, SLIM, requires_grad=True)
    table = torch.randn(LARGE_VOCABULARY, SLIM, requires_grad=True)
    bias = torch.randn(bias_shape, requires_grad=True)

    with Largest() as largest, torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss(states, table, bias).backward()

    assert table.grad is not None
    assert largest.numel == LARGE_VOCABULARY * SLIM  # the gradient of the table
