"""Losses of the embeddings of a batch against naive twins in float64."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from loss_helpers import unit_rows, value_and_gradients

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
}


def sides(
    count: int = 5, width: int = 4, negatives: int = 3, dtype: torch.dtype = torch.float64
) -> list[torch.Tensor]:
    """Sources, targets and hard negatives, if any."""
    generator = torch.Generator().manual_seed(count)
    rows = [torch.randn(size, width, generator=generator, dtype=torch.float64) for size in (count, count, negatives)]
    return [side.to(dtype) for side in rows if len(side)]


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
) -> torch.Tensor:
    """The papers' sums, sentence by sentence. `both`: with the own language, and hard negatives in both directions."""

    def moved(query: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
        near, far = (positive - query).norm().item(), (negative - query).norm().item()
        return query + (near / far) ** hardness * (negative - query) if far > near else negative

    def similarity(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one @ other / (one.norm() * other.norm() if cosine else 1.0)

    total, hard = source.new_zeros(()), [] if negatives is None else list(negatives)
    for own, other, more in ((source, target, hard), (target, source, hard if both else [])):
        for index, query in enumerate(own):
            rest = [
                side[row] for side in ((other, own) if both else (other,)) for row in range(len(own)) if row != index
            ]
            right = torch.exp(scale * (similarity(query, other[index]) - margin))
            hardened = [moved(query, other[index], candidate) for candidate in [*rest, *more]]
            wrong = torch.stack([torch.exp(scale * similarity(query, candidate)) for candidate in hardened])
            total = total - torch.log(right / (right + wrong.sum()))
    return total / len(source)


@pytest.mark.parametrize("dims", [None, [2, 4], [3]], ids=str)
@pytest.mark.parametrize("negatives", [0, 3])
@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("name", LOSSES)
def test_equals_the_naive_twin(name: str, count: int, negatives: int, dims: list[int] | None) -> None:
    loss, options = LOSSES[name]
    inputs = sides(count, negatives=negatives)
    found = value_and_gradients(lambda *rows: matryoshka_mean(loss, dims, *rows), inputs)

    def twin(*rows: torch.Tensor) -> torch.Tensor:
        parts = [naive(*(side[:, :dim] for side in rows), **options) for dim in dims or [4]]
        return torch.stack(parts).sum() / len(parts)

    expected = value_and_gradients(twin, inputs)
    assert all(slope.norm() > 1e-4 for slope in expected[1:])
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    single = value_and_gradients(lambda *rows: matryoshka_mean(loss, dims, *rows), [side.float() for side in inputs])
    torch.testing.assert_close(single, [value.float() for value in expected], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("loss", [alignment_loss, additive_margin_loss, sentence_contrast_loss, similarity_loss])
def test_single_pair_has_no_loss(loss: Any) -> None:
    """As the last batch of an epoch may be."""
    value, *slopes = value_and_gradients(loss, [torch.randn(1, 4, dtype=torch.float64) for _ in range(2)])
    assert float(value) == pytest.approx(0, abs=1e-12) and all(torch.isfinite(slope).all() for slope in slopes)


@pytest.mark.parametrize(("negatives", "block"), [(0, 2**17), (3, 2**17), (3, 16)])
def test_equal_texts_are_no_negatives(negatives: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_xlsr.losses.in_batch.SIMILARITIES", block)
    rows = sides(4, negatives=negatives)
    identities = torch.tensor([[1, 2, 1, 3], [5, 6, 7, 6]])  # sources 0 and 2 are one text, and targets 1 and 3

    def twin(source: torch.Tensor, target: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
        equal = {(0, 2), (2, 0), (1, 3), (3, 1)}
        total = source.new_zeros(())
        for own, other, extra in ((source, target, more), (target, source, ())):
            for row in range(4):
                bank = [other[column] for column in range(4) if (row, column) not in equal]
                bank += [negative for part in extra for negative in part]
                total = total + torch.stack([own[row] @ one for one in bank]).logsumexp(0) - own[row] @ other[row]
        return total / 4

    loss = partial(alignment_loss, identities=identities)
    torch.testing.assert_close(value_and_gradients(loss, rows), value_and_gradients(twin, rows))


def looped(u: torch.Tensor, v: torch.Tensor, temperature: float = 1.0, normalize: bool = False) -> torch.Tensor:
    """Equation 6 as printed: no clamp, summed over all entries."""

    def share(x: torch.Tensor, j1: int, j2: int) -> torch.Tensor:
        row = [(x[j1] * x[k]).sum() / temperature for k in range(len(x))]
        if normalize:
            row = [value / (x[j1].norm() * x[k].norm()) for k, value in enumerate(row)]
        return row[j2].exp() / sum(value.exp() for value in row)

    total = u.new_zeros(())
    for j1 in range(len(u)):
        for j2 in range(len(u)):
            total = total - (math.pi / 2 * (share(u, j1, j2) - share(v, j1, j2))).cos().log()
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
    torch.testing.assert_close(value_and_gradients(loss, inputs), value_and_gradients(twin, inputs))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("epsilon", [1e-4, 1e-6])
def test_difference_of_one_is_finite(autocast: bool, epsilon: float) -> None:
    """Two entries are clamped, without a gradient; the second rows agree."""
    u, v = (x.requires_grad_() for x in difference_of_one())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss = similarity_loss(u, v, reduction="sum", epsilon=epsilon)
    expected = -2 * math.log(math.sin(math.pi / 2 * epsilon))
    assert loss.item() == pytest.approx(expected, rel=1e-2 if epsilon == 1e-6 else 1e-3)
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(loss, (u, v)))


SOURCE, TARGET = (2 * unit_rows(5, 4, seed) for seed in (1, 2))


@pytest.mark.parametrize("kind", ["cosine", "mse"])
def test_teacher_loss_equals_the_naive_twin(kind: str) -> None:
    def twin(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
        total = student.new_zeros(())
        for own, taught in zip(student, teacher, strict=True):
            cosine = own @ taught / (own.norm() * taught.norm())
            total = total + (1 - cosine if kind == "cosine" else ((own - taught) ** 2).sum() / 4)
        return total / len(student)

    found = value_and_gradients(lambda *rows: teacher_loss(*rows, kind=kind), [SOURCE, TARGET])
    torch.testing.assert_close(found, value_and_gradients(twin, [SOURCE, TARGET]))


@pytest.mark.parametrize("width", [4, 7])
def test_matching_loss_equals_the_naive_twin(width: int) -> None:
    teacher = unit_rows(5, width, 3)

    def twin(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        total = source.new_zeros(())
        for row in range(5):
            expected = [math.exp(float(teacher[row] @ teacher[column]) / 0.1) for column in range(5)]
            found = [
                torch.exp(source[row] @ target[column] / (source[row].norm() * target[column].norm() * 0.1))
                for column in range(5)
            ]
            for column in range(5):
                share = expected[column] / sum(expected)
                total = total + share * (math.log(share) - torch.log(found[column] / torch.stack(found).sum()))
        return total / 5

    loss = value_and_gradients(lambda *rows: matching_loss(*rows, teacher, temperature=0.1), [SOURCE, TARGET])
    torch.testing.assert_close(loss, value_and_gradients(twin, [SOURCE, TARGET]))
