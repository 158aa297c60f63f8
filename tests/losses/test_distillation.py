"""Losses against a teacher: naive twins in float64, hand-worked values."""

from __future__ import annotations

import math

import pytest
import torch
from loss_helpers import unit_rows, value_and_gradients

from hf_xlsr.losses import matching_loss, teacher_loss

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


def test_hand_worked() -> None:
    # The teacher holds both sentences alike, shares 1/2; the student's cosines 1 and 0 over 1 / log 3: shares 3/4, 1/4.
    eye, alike = torch.eye(2), torch.ones(2, 3)
    expected = math.log(1 / 2) - (math.log(3 / 4) + math.log(1 / 4)) / 2
    assert float(matching_loss(eye, eye, alike, temperature=1 / math.log(3))) == pytest.approx(expected, rel=1e-5)
    assert float(teacher_loss(torch.tensor([[3.0, 4.0]]), torch.tensor([[1.0, 0.0]]))) == pytest.approx(0.4)
