from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import value_and_gradients

from hf_xlsr.losses import generative_loss
from hf_xlsr.modeling.lightweight.labels import generative_labels

VOCABULARY = 12
MASK = 11
IGNORE = -100


def dense(ids: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    matrix = torch.zeros(len(ids), VOCABULARY, dtype=torch.float64)
    for row in range(len(ids)):
        for token, mass in zip(ids[row].tolist(), probs[row].tolist(), strict=True):
            matrix[row, token] += mass
    return matrix


class Batch:
    """Pairs of sentences, one token of one side hidden, as the collator stacks and pads them."""

    def __init__(
        self, pairs: list[tuple[list[int], list[int]]], masked: list[tuple[int, int]], pad: int = 0, extra: int = 2
    ) -> None:
        """`masked` names side and position for each pair; `extra` is padding beyond the longest sentence."""
        sources, targets = zip(*pairs, strict=True)
        self.sides = [*sources, *targets]
        width = max(map(len, self.sides)) + extra
        self.original = torch.full((len(self.sides), width), pad)
        self.attention = torch.zeros_like(self.original)
        for row, side in enumerate(self.sides):
            self.original[row, : len(side)] = torch.tensor(side)
            self.attention[row, : len(side)] = 1

        self.hidden = torch.full((len(self.sides),), IGNORE)
        self.masked_sides = [list(side) for side in self.sides]
        for index, (side, position) in enumerate(masked):
            row = index + side * len(pairs)
            self.hidden[row] = self.sides[row][position]
            self.masked_sides[row][position] = MASK

    def labels(self, **kwargs: object) -> torch.Tensor:
        """Dense labels; checks on the way that no token carries mass twice."""
        ids, probs = generative_labels(
            self.original,
            self.attention,
            self.hidden,
            mask_token_id=MASK,
            **kwargs,  # type: ignore[arg-type]
        )
        for row in range(len(ids)):
            carrying = ids[row][probs[row] > 0].tolist()
            assert len(carrying) == len(set(carrying))
        return dense(ids, probs)


def paper_labels(batch: Batch, task: str) -> torch.Tensor:
    """Equations 1, 3 and 4, token by token."""
    q = torch.zeros(len(batch.sides), VOCABULARY, dtype=torch.float64)
    half = len(batch.sides) // 2
    for row in range(len(batch.sides)):
        translation = (row + half) % len(batch.sides)
        hidden = int(batch.hidden[row])
        if task == "smlm":
            q[row, max(hidden, int(batch.hidden[translation]))] += 1  # one of both is -100
            continue

        for token in batch.sides[translation]:
            q[row, token] += 1 / len(batch.sides[translation])
        if task == "ugt" and hidden != IGNORE:
            q[row] /= 2
            q[row, hidden] += 1 / 2
    return q


def released_labels(batch: Batch) -> torch.Tensor:
    """The released code as described: 0.5 at the hidden token, then an index fill over the other side as it is fed."""
    q = torch.zeros(len(batch.sides), VOCABULARY, dtype=torch.float64)
    half = len(batch.sides) // 2
    for row in range(len(batch.sides)):
        fed = batch.masked_sides[(row + half) % len(batch.sides)]
        if batch.hidden[row] != IGNORE:
            q[row, batch.hidden[row]] = 0.5
            q[row].index_fill_(0, torch.tensor(fed), 0.5 / len(fed))
        else:
            q[row].index_fill_(0, torch.tensor(fed), 1 / len(fed))
    return q


# <mask> is never a token of a sentence; 0 is both padding and a real token, as in a vocabulary without padding.
sentences = st.lists(st.integers(0, MASK - 1), min_size=1, max_size=6)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    pairs = draw(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=4))
    masked = []
    for pair in pairs:
        side = draw(st.integers(0, 1))
        position = draw(st.integers(0, len(pair[side]) - 1))
        masked.append((side, position))
    return Batch(pairs, masked, pad=draw(st.integers(0, MASK)), extra=draw(st.integers(0, 3)))


@settings(max_examples=50, deadline=None)
@given(batch=batches(), task=st.sampled_from(["ugt", "xtr", "smlm"]))
def test_accumulate_equals_the_equations(batch: Batch, task: str) -> None:
    labels = batch.labels(task=task)
    torch.testing.assert_close(labels, paper_labels(batch, task), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(labels.sum(1), torch.ones(len(labels), dtype=torch.float64), rtol=0, atol=1e-6)
    assert (labels[:, MASK] == 0).all()


@settings(max_examples=50, deadline=None)
@given(batch=batches())
def test_set_equals_the_released_code(batch: Batch) -> None:
    torch.testing.assert_close(batch.labels(label_mode="set"), released_labels(batch), rtol=1e-6, atol=1e-7)


def parameters(rows: int, width: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = (rows, width), (VOCABULARY, width), (VOCABULARY,)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


PAIRS = [([5, 6], [5, 6, 6, 7]), ([1, 2, 3], [4]), ([0, 0], [8, 5, 9])]
MASKED = [(0, 0), (1, 0), (0, 1)]


@pytest.mark.parametrize("task", ["ugt", "xtr", "smlm"])
@pytest.mark.parametrize("mode", ["accumulate", "set"])
@pytest.mark.parametrize("chunk_size", [1, 4, 128])
def test_loss_equals_kl_divergence(task: str, mode: str, chunk_size: int) -> None:
    batch = Batch(PAIRS, MASKED)
    ids, probs = generative_labels(
        batch.original, batch.attention, batch.hidden, task=task, label_mode=mode, mask_token_id=MASK
    )

    def twin(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        logs = (hidden @ weight.T + bias).log_softmax(-1)
        divergence = torch.nn.functional.kl_div(logs, dense(ids, probs), reduction="sum")
        return divergence / len(PAIRS)

    inputs = parameters(len(ids))
    results = value_and_gradients(generative_loss, inputs, ids, probs, chunk_size=chunk_size)
    torch.testing.assert_close(results, value_and_gradients(twin, inputs), rtol=1e-11, atol=1e-13)
