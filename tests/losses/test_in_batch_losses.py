"""Losses of the embeddings of a batch against naive twins in float64."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from loss_helpers import assert_same_loss, random_tensors, unit_rows, value_and_gradients

from hf_xlsr.losses import (
    additive_margin_loss,
    alignment_loss,
    matching_loss,
    matryoshka_mean,
    sentence_contrast_loss,
    similarity_loss,
    teacher_loss,
)

# A loss, and what the twin has to know of it.
LOSSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "alignment": (alignment_loss, {}),
    "alignment by cosine": (
        partial(alignment_loss, temperature=0.3, normalize=True),
        {"scale": 1 / 0.3, "cosine": True},
    ),
    "additive margin": (additive_margin_loss, {"margin": 0.3}),
    "margin by cosine": (
        partial(additive_margin_loss, scale=20.0, normalize=True),
        {"margin": 0.3, "scale": 20.0, "cosine": True},
    ),
    "sentence contrast": (sentence_contrast_loss, {"cosine": True, "both": True}),
    "interpolated contrast": (
        partial(sentence_contrast_loss, temperature=0.3, hardness=0.7),
        {"scale": 1 / 0.3, "cosine": True, "both": True, "hardness": 0.7},
    ),
    "cold contrast": (
        partial(sentence_contrast_loss, temperature=0.3),
        {"scale": 1 / 0.3, "cosine": True, "both": True},
    ),
    "split alignment": (
        partial(alignment_loss, temperature=0.3, normalize=True, split_softmax=True),
        {"scale": 1 / 0.3, "cosine": True, "split": True},
    ),
    "split additive margin": (partial(additive_margin_loss, split_softmax=True), {"margin": 0.3, "split": True}),
    "split contrast": (
        partial(sentence_contrast_loss, hardness=0.7, split_softmax=True),
        {"cosine": True, "both": True, "hardness": 0.7, "split": True},
    ),
}


def sides(count: int = 5, negatives: int = 3) -> list[torch.Tensor]:
    """Sources, targets and hard negatives, if any."""
    shapes = [(count, 4), (count, 4)]
    if negatives:
        shapes.append((negatives, 4))
    return random_tensors(*shapes, seed=count)


def without(rows: torch.Tensor, index: int) -> list[torch.Tensor]:
    """All rows but one."""
    return [*rows[:index], *rows[index + 1 :]]


def naive(
    source: torch.Tensor,
    target: torch.Tensor,
    negatives: torch.Tensor | None = None,
    *,
    margin: float = 0.0,
    scale: float = 1.0,
    cosine: bool = False,
    both: bool = False,
    hardness: float = 0.0,
    split: bool = False,
) -> torch.Tensor:
    """The papers' sums, sentence by sentence.

    `both`: with the own language, and hard negatives in both directions. `split`: hard negatives in a sum of their own.
    """

    def moved(query: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        near = (positive - query).norm().item()
        far = (negative - query).norm().item()
        if far <= near:
            return negative
        return query + (near / far) ** hardness * (negative - query)

    def similarity(query: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
        product = query @ candidate
        return product / (query.norm() * candidate.norm()) if cosine else product

    total = source.new_zeros(())
    hard_negatives = [] if negatives is None else list(negatives)
    for queries, translations in ((source, target), (target, source)):
        for index, query in enumerate(queries):
            positive = translations[index]
            candidates = without(translations, index)
            if both:
                candidates += without(queries, index)
            hard_candidates = hard_negatives if both or queries is source else []
            groups = [candidates, hard_candidates] if split else [candidates + hard_candidates]

            right = torch.exp(scale * (similarity(query, positive) - margin))
            for group in groups:
                wrong = source.new_zeros(())
                for candidate in group:
                    wrong = wrong + torch.exp(scale * similarity(query, moved(query, positive, candidate)))
                total = total - torch.log(right / (right + wrong))
    return total / len(source)


@pytest.mark.parametrize("dims", [None, [2, 4], [3]], ids=str)
@pytest.mark.parametrize("negatives", [0, 3])
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_naive_twin(name: str, count: int, negatives: int, dims: list[int] | None) -> None:
    loss, options = LOSSES[name]
    inputs = sides(count, negatives=negatives)

    def twin(*rows: torch.Tensor) -> torch.Tensor:
        losses = []
        for dim in dims or [4]:
            truncated = [side[:, :dim] for side in rows]
            losses.append(naive(*truncated, **options))
        return torch.stack(losses).mean()

    truncated_loss = partial(matryoshka_mean, loss, dims)
    results = value_and_gradients(truncated_loss, inputs)
    expected = value_and_gradients(twin, inputs)
    torch.testing.assert_close(results, expected, rtol=1e-10, atol=1e-12)
    for slope in expected[1:]:
        assert slope.norm() > 1e-4

    in_float32 = value_and_gradients(truncated_loss, [side.float() for side in inputs])
    torch.testing.assert_close(in_float32, expected, rtol=1e-3, atol=1e-5, check_dtype=False)


@pytest.mark.parametrize("loss", [alignment_loss, additive_margin_loss, sentence_contrast_loss, similarity_loss])
def test_single_pair_has_no_loss(loss: Any) -> None:
    """As the last batch of an epoch may be."""
    value, *slopes = value_and_gradients(loss, sides(1, negatives=0))
    assert float(value) == pytest.approx(0, abs=1e-12)
    for slope in slopes:
        assert slope.isfinite().all()


@pytest.mark.parametrize(("negatives", "block"), [(0, 2**17), (3, 2**17), (3, 16)])
def test_equal_texts_are_no_negatives(negatives: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_xlsr.losses.in_batch.SIMILARITIES", block)
    rows = sides(4, negatives=negatives)
    identities = torch.tensor([[1, 2, 1, 3], [5, 6, 7, 6]])  # sources 0 and 2 are one text, and targets 1 and 3

    def twin(source: torch.Tensor, target: torch.Tensor, *hard_negatives: torch.Tensor) -> torch.Tensor:
        equal = {0: 2, 2: 0, 1: 3, 3: 1}
        total = source.new_zeros(())
        for row in range(4):
            targets = torch.stack(without(target, equal[row]))
            sources = torch.stack(without(source, equal[row]))
            onward = torch.cat([targets, *hard_negatives]) @ source[row]
            back = sources @ target[row]
            total = total + onward.logsumexp(0) + back.logsumexp(0) - 2 * source[row] @ target[row]
        return total / 4

    assert_same_loss(partial(alignment_loss, identities=identities), twin, rows)


def looped(u: torch.Tensor, v: torch.Tensor, temperature: float = 1.0, normalize: bool = False) -> torch.Tensor:
    """Equation 6 as printed: no clamp, summed over all entries."""

    def weight(x: torch.Tensor, j: int, k: int) -> torch.Tensor:
        similarity = (x[j] * x[k]).sum() / temperature
        if normalize:
            similarity = similarity / (x[j].norm() * x[k].norm())
        return similarity.exp()

    def share(x: torch.Tensor, j: int, k: int) -> torch.Tensor:
        weights = [weight(x, j, column) for column in range(len(x))]
        return weights[k] / sum(weights)

    total = u.new_zeros(())
    for j, k in product(range(len(u)), repeat=2):
        difference = share(u, j, k) - share(v, j, k)
        total = total - (math.pi / 2 * difference).cos().log()
    return total


def difference_of_one() -> tuple[torch.Tensor, torch.Tensor]:
    """Row 0 of the source resembles sentence 1 alone, of the target itself alone: differences of exactly -1 and 1."""
    source = torch.tensor([[1.0, 0.0], [200.0, 0.0]])
    target = torch.tensor([[200.0, 0.0], [0.0, 200.0]])
    difference = (source @ source.T).softmax(1) - (target @ target.T).softmax(1)
    assert difference[0].tolist() == [-1.0, 1.0]
    return source, target


@pytest.mark.parametrize(("temperature", "normalize"), [(1.0, False), (2.5, True)])
def test_similarity_equals_the_formula(temperature: float, normalize: bool) -> None:
    inputs = [side / 2 for side in sides(negatives=0)]
    loss = partial(similarity_loss, temperature=temperature, normalize=normalize, reduction="sum")
    twin = partial(looped, temperature=temperature, normalize=normalize)
    assert_same_loss(loss, twin, inputs)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("epsilon", [1e-4, 1e-6])
def test_difference_of_one_is_finite(autocast: bool, epsilon: float) -> None:
    """Two entries are clamped, without a gradient; the second rows agree."""
    source, target = difference_of_one()
    source.requires_grad_()
    target.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = similarity_loss(source, target, reduction="sum", epsilon=epsilon)

    expected = -2 * math.log(math.sin(math.pi / 2 * epsilon))
    assert loss.item() == pytest.approx(expected, rel=1e-2 if epsilon == 1e-6 else 1e-3)

    loss.backward()
    assert torch.equal(source.grad, torch.zeros_like(source))
    assert torch.equal(target.grad, torch.zeros_like(target))


SOURCE = 2 * unit_rows(5, 4, 1)
TARGET = 2 * unit_rows(5, 4, 2)


@pytest.mark.parametrize("kind", ["cosine", "mse"])
def test_teacher_loss_equals_the_naive_twin(kind: str) -> None:
    def distance(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        if kind == "mse":
            return ((student - teacher) ** 2).sum() / len(student)
        return 1 - student @ teacher / (student.norm() * teacher.norm())

    def twin(students: torch.Tensor, teachers: torch.Tensor) -> torch.Tensor:
        return sum(map(distance, students, teachers)) / len(students)

    assert_same_loss(partial(teacher_loss, kind=kind), twin, [SOURCE, TARGET])


@pytest.mark.parametrize("width", [4, 7])
def test_matching_loss_equals_the_naive_twin(width: int) -> None:
    teacher = unit_rows(5, width, 3)

    def weights(row: torch.Tensor, columns: torch.Tensor) -> list[torch.Tensor]:
        cosines = [row @ column / (row.norm() * column.norm()) for column in columns]
        return [torch.exp(cosine / 0.1) for cosine in cosines]

    def twin(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        total = source.new_zeros(())
        for row in range(5):
            expected = weights(teacher[row], teacher)
            predicted = weights(source[row], target)
            for expected_weight, predicted_weight in zip(expected, predicted, strict=True):
                share = expected_weight / sum(expected)
                predicted_share = predicted_weight / sum(predicted)
                total = total + share * torch.log(share / predicted_share)
        return total / 5

    loss = partial(matching_loss, teacher=teacher, temperature=0.1)
    assert_same_loss(loss, twin, [SOURCE, TARGET])
