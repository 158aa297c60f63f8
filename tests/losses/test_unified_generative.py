from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_helpers import assert_same_loss, random_tensors

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
        count = len(self.sides)
        width = max(map(len, self.sides)) + extra
        self.original = torch.full((count, width), pad)
        self.attention = torch.zeros_like(self.original)
        for row, side in enumerate(self.sides):
            self.original[row, : len(side)] = torch.tensor(side)
            self.attention[row, : len(side)] = 1

        self.translations = [*targets, *sources]
        self.masked_translations = [list(side) for side in self.translations]
        self.hidden = torch.full((count,), IGNORE)
        for index, (side, position) in enumerate(masked):
            row = index + side * len(pairs)
            self.hidden[row] = self.sides[row][position]
            translation = (row + len(pairs)) % count
            self.masked_translations[translation][position] = MASK

    def labels(self, **kwargs: object) -> torch.Tensor:
        """Dense labels; checks on the way that no token carries mass twice."""
        ids, probs = generative_labels(
            self.original,
            self.attention,
            self.hidden,
            mask_token_id=MASK,
            **kwargs,  # type: ignore[arg-type]
        )
        for row_ids, row_probs in zip(ids, probs, strict=True):
            with_mass = row_ids[row_probs > 0].tolist()
            assert len(with_mass) == len(set(with_mass))
        return dense(ids, probs)


def paper_labels(batch: Batch, task: str) -> torch.Tensor:
    """Equations 1, 3 and 4, token by token."""
    hidden = batch.hidden.tolist()
    hidden_of_translations = batch.hidden.roll(len(hidden) // 2).tolist()
    labels = torch.zeros(len(hidden), VOCABULARY, dtype=torch.float64)
    for row, translation in enumerate(batch.translations):
        if task == "smlm":
            token = max(hidden[row], hidden_of_translations[row])  # one of both is -100
            labels[row, token] += 1
            continue

        for token in translation:
            labels[row, token] += 1 / len(translation)
        if task == "ugt" and hidden[row] != IGNORE:
            labels[row] /= 2
            labels[row, hidden[row]] += 1 / 2
    return labels


def released_labels(batch: Batch) -> torch.Tensor:
    """The released code as described: 0.5 at the hidden token, then an index fill over the other side as it is fed."""
    labels = torch.zeros(len(batch.sides), VOCABULARY, dtype=torch.float64)
    for row, translation in enumerate(batch.masked_translations):
        mass = 1.0
        if batch.hidden[row] != IGNORE:
            mass = 0.5
            labels[row, batch.hidden[row]] = mass
        labels[row].index_fill_(0, torch.tensor(translation), mass / len(translation))
    return labels


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


@settings(max_examples=50)
@given(batch=batches(), task=st.sampled_from(["ugt", "xtr", "smlm"]))
def test_accumulate_equals_the_equations(batch: Batch, task: str) -> None:
    labels = batch.labels(task=task)
    torch.testing.assert_close(labels, paper_labels(batch, task), rtol=1e-6, atol=1e-7)
    assert labels.sum(1).tolist() == pytest.approx([1] * len(labels), abs=1e-6)
    assert (labels[:, MASK] == 0).all()


@settings(max_examples=50)
@given(batch=batches())
def test_set_equals_the_released_code(batch: Batch) -> None:
    torch.testing.assert_close(batch.labels(label_mode="set"), released_labels(batch), rtol=1e-6, atol=1e-7)


PAIRS = [([5, 6], [5, 6, 6, 7]), ([1, 2, 3], [4]), ([0, 0], [8, 5, 9])]
MASKED = [(0, 0), (1, 0), (0, 1)]


@pytest.mark.parametrize("task", ["ugt", "xtr", "smlm"])
@pytest.mark.parametrize("mode", ["accumulate", "set"])
@pytest.mark.parametrize("chunk_size", [1, 4, 128])
def test_loss_equals_kl_divergence(task: str, mode: str, chunk_size: int) -> None:
    batch = Batch(PAIRS, MASKED)
    ids, probs = generative_labels(
        batch.original,
        batch.attention,
        batch.hidden,
        task=task,
        label_mode=mode,
        mask_token_id=MASK,
    )

    def twin(hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        logs = (hidden @ weight.T + bias).log_softmax(-1)
        divergence = torch.nn.functional.kl_div(logs, dense(ids, probs), reduction="sum")
        return divergence / len(PAIRS)

    def loss(*parameters: torch.Tensor) -> torch.Tensor:
        return generative_loss(*parameters, ids, probs, chunk_size=chunk_size)

    parameters = random_tensors((len(ids), 4), (VOCABULARY, 4), (VOCABULARY,))
    assert_same_loss(loss, twin, parameters, rtol=1e-11, atol=1e-13)
