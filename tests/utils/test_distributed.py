"""Gathering with gradients: two processes give the losses and gradients of one on the global batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import tiny_encoder
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel
from two_processes import run_on_two_processes

from hf_xlsr import LightweightConfig, LightweightDualTransformer
from hf_xlsr.losses import bags_of_words, draw_negative_words
from hf_xlsr.utils.distributed import gather_with_gradient, world_size

PAIRS = 6
LENGTH = 5
VOCABULARY = 30
TEXT = {**tiny_encoder(VOCABULARY), "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "paper": {},
    "contrast": {"generative_weight": 0.0, "alignment_normalize": True, "alignment_temperature": 0.1},
    "mlm+xtr": {"generative_task": "mlm+xtr"},
}


def build(name: str) -> LightweightDualTransformer:
    torch.manual_seed(0)
    model = LightweightDualTransformer(LightweightConfig(text_config=dict(TEXT), **CONFIGS[name])).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # away from the near-uniform start, where most gradients vanish
    return model


def batch(pairs: range) -> dict[str, torch.Tensor]:
    """Sources over targets of the given pairs; the two halves have unequal shares of the masked tokens."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCABULARY, (2 * PAIRS, LENGTH), generator=generator)
    positions = torch.arange(LENGTH)
    mask = (positions < torch.randint(2, LENGTH + 1, (2 * PAIRS, 1), generator=generator)).long()

    masked_ids = ids[:, 0].clone()
    masked_ids[PAIRS:] = -100
    labels = ids.masked_fill(mask == 0, -100)
    for in_second_half in labels.view(2, PAIRS, LENGTH)[:, PAIRS // 2 :]:
        in_second_half[:, 1:] = -100
    tensors = {
        "input_ids": ids,
        "attention_mask": mask,
        "original_ids": ids,
        "masked_ids": masked_ids,
        "mlm_labels": labels,
    }
    rows = [*pairs, *range(pairs.start + PAIRS, pairs.stop + PAIRS)]
    return {name: tensor[rows] for name, tensor in tensors.items()}


def random_tensors(rows: int, width: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, width, generator=generator, dtype=torch.float64) for _ in range(2)]


def compute(folder: Path) -> None:
    """What each process computes on its half of each batch."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    size = dist.get_world_size()
    assert size == 2
    assert world_size() == 2
    results: dict[str, Any] = {}

    torch.manual_seed(4)
    bags = bags_of_words(torch.zeros(2, 1).long(), torch.ones(2, 1).long(), torch.tensor([0]))
    results["words"] = draw_negative_words(
        torch.ones(2, 8),
        torch.ones(400, 8),
        bags,
        special_ids=torch.tensor([0]),
        count=40,
    )

    rows, weights = random_tensors(4, 3, seed=2)
    local = rows.chunk(size)[rank].clone().requires_grad_()
    gathered = gather_with_gradient(local)
    ((gathered * weights).sum() ** 2).backward()
    results["gathered"] = gathered.detach()
    results["gathered_gradient"] = local.grad

    share = PAIRS // size
    pairs = range(rank * share, (rank + 1) * share)
    for name in CONFIGS:
        model = DistributedDataParallel(build(name))
        for _ in range(2):  # the second step fails when a parameter got no gradient in the first
            model.zero_grad()
            output = model(**batch(pairs))
            output.loss.backward()

        results[f"{name}/loss"] = output.loss.detach()
        for key, parameter in model.module.named_parameters():
            results[f"{name}/{key}"] = parameter.grad.contiguous()
    save_file(results, folder / f"{rank}.safetensors")


@pytest.fixture(scope="module")
def results_by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, torch.Tensor]]:
    """The results of both processes."""
    folder = tmp_path_factory.mktemp("two_processes")
    run_on_two_processes(compute, folder, folder=folder)
    return [load_file(folder / f"{rank}.safetensors") for rank in range(2)]


def test_rows_come_in_rank_order(results_by_rank: list[dict[str, torch.Tensor]]) -> None:
    rows, weights = random_tensors(4, 3, seed=2)
    rows.requires_grad_()
    ((rows * weights).sum() ** 2).backward()
    for rank, results in enumerate(results_by_rank):
        torch.testing.assert_close(results["gathered"], rows.detach())
        # Both ranks compute the same loss; the owner of a row receives the sum over ranks.
        torch.testing.assert_close(results["gathered_gradient"], 2 * rows.grad.chunk(2)[rank])


@pytest.mark.parametrize("name", CONFIGS)
def test_averaged_gradient_is_that_of_one_process(results_by_rank: list[dict[str, torch.Tensor]], name: str) -> None:
    model = build(name)
    loss = model(**batch(range(PAIRS))).loss
    loss.backward()
    expected = {key: parameter.grad for key, parameter in model.named_parameters()}

    first, second = results_by_rank
    mean_loss = (first[f"{name}/loss"] + second[f"{name}/loss"]) / 2
    torch.testing.assert_close(mean_loss, loss.detach())
    assert expected["encoder.embeddings.word_embeddings.weight"].norm() > 0.1
    for results in results_by_rank:
        averaged = {key: results[f"{name}/{key}"] for key in expected}
        torch.testing.assert_close(averaged, expected, rtol=1e-7, atol=1e-9)


def test_negative_words_differ_between_processes(results_by_rank: list[dict[str, torch.Tensor]]) -> None:
    first, second = results_by_rank
    for first_words, second_words in zip(first["words"], second["words"], strict=True):
        shared_words = set(first_words.tolist()) & set(second_words.tolist())
        assert len(shared_words) < 20  # by chance 4 of 40
