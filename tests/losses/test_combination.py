from __future__ import annotations

import torch

from hf_xlsr.losses import weighted_sum

WEIGHTS = {"generative": 1.0, "alignment": 2.0, "similarity": 2.0}


def test_equation_seven() -> None:
    parts = {
        name: torch.tensor(value, requires_grad=True) for name, value in zip(WEIGHTS, (3.0, 0.5, 0.25), strict=True)
    }
    total = weighted_sum(parts, WEIGHTS)
    assert total.item() == 3.0 + 2 * 0.5 + 2 * 0.25
    gradients = torch.autograd.grad(total, list(parts.values()))
    assert [gradient.item() for gradient in gradients] == [1.0, 2.0, 2.0]


def test_weight_without_a_part_is_ignored() -> None:
    parts = {"similarity": torch.tensor(10.0), "generative": torch.tensor(1.0)}
    assert weighted_sum(parts, WEIGHTS).item() == 21.0
