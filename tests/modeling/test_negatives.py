"""Hard negatives and truncated embeddings in the models' losses, on one process and on two."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from model_cases import BERT, VOCABULARY, Case, build, pair_batch, sentences
from safetensors.torch import load_file, save_file
from two_processes import run_on_two_processes

from hf_xlsr import CmlmModel, DualMomentumModel, HictlForPreTraining, LightweightDualTransformer
from hf_xlsr.losses import additive_margin_loss, alignment_loss, sentence_contrast_loss, similarity_loss

PAIRS, DIMS = 4, [3, 8]
DUAL = {"languages": ["en", "fr"], "queue_size": 16, "encoder_configs": {"shared": BERT}}
MODELS: dict[str, Case] = {
    "hictl": Case(HictlForPreTraining, {"text_config": BERT, "lm_weight": 0, "word_weight": 0}, dict),
    "cmlm": Case(CmlmModel, {"text_config": BERT, "retrieval_normalize": True, "retrieval_scale": 10.0}, dict),
    "cmlm by inner product": Case(CmlmModel, {"text_config": BERT}, dict),
    "lightweight": Case(LightweightDualTransformer, {"text_config": BERT, "generative_weight": 0}, dict),
    "dual": Case(DualMomentumModel, DUAL, dict),
    "dual in batch": Case(DualMomentumModel, {**DUAL, "in_batch_negatives": True, "queue_storage": "int8"}, dict),
    "dual without momentum": Case(
        DualMomentumModel, {**DUAL, "use_momentum": False, "queue_storage": "bfloat16"}, dict
    ),
    "dual with masks": Case(DualMomentumModel, {**DUAL, "mask_duplicates": True, "in_batch_negatives": True}, dict),
}
TEXTS = torch.tensor([50, 51, 10])  # the last negative is the translation of the first source


def make(name: str) -> Any:
    return build(MODELS[name]).double()


def batch(name: str, pairs: range, negatives: range, dims: list[int] | None = None) -> dict[str, Any]:
    """Some of the pairs and of three negatives."""
    ids, mask = sentences(2 * PAIRS, 7, VOCABULARY, 0)
    rows = [*pairs, *(row + PAIRS for row in pairs)]
    more: dict[str, Any] = {}
    if len(negatives):
        hard, hard_mask = sentences(3, 5, VOCABULARY, 5)
        more = {"negative_input_ids": hard[negatives], "negative_attention_mask": hard_mask[negatives]}
    stacked = {"input_ids": ids[rows], "attention_mask": mask[rows], **more}
    given: dict[str, Any] = {"matryoshka_dims": dims} if dims else {}
    if name.startswith("cmlm"):
        return {"retrieval": stacked, **given}
    if not name.startswith("dual"):
        return {**stacked, **given}
    both = pair_batch(VOCABULARY)
    kept = {key: value[pairs] for key, value in both.items() if isinstance(value, torch.Tensor)}
    if more:
        more["negative_texts"] = TEXTS[negatives]
    return {**both, **kept, **more, **given, "nli": None}


def info_nce(model: Any, given: dict[str, Any], dims: list[int]) -> dict[str, torch.Tensor]:
    """Equation 2 in both directions, query by query."""
    sides = {side: (given[f"{side}_input_ids"], given[f"{side}_attention_mask"]) for side in ("source", "target")}
    with torch.no_grad():
        keys = {side: model.encode_sentences(*rows, language="en", keys=True) for side, rows in sides.items()}
        negatives = model.encode_sentences(
            given["negative_input_ids"], given["negative_attention_mask"], language="fr", keys=True
        )
    losses = {}
    for side, other, language in (("source", "target", "fr"), ("target", "source", "en")):
        queries = model.encode_sentences(*sides[side], language="en")
        bank = model.queues[language].keys()
        bank = (bank.dequantize() if hasattr(bank, "dequantize") else bank).double()
        total = queries.new_zeros(())
        for dim in dims:
            rows = queries, keys[other], bank, negatives
            cut = rows if dim == 16 else [F.normalize(part[:, :dim], dim=1) for part in rows]
            for row, query in enumerate(cut[0]):
                same = given[f"{other}_texts"][row]
                queue = (
                    cut[2][model.queues[language].texts[: len(bank)] != same]
                    if model.config.mask_duplicates
                    else cut[2]
                )
                others = [*cut[1][[row]], *queue]
                if model.config.in_batch_negatives:
                    others += [key for index, key in enumerate(cut[1]) if index != row]
                if side == "source":
                    others += [key for key, text in zip(cut[3], TEXTS, strict=True) if text != same]
                total = total - F.log_softmax(torch.stack(others) @ query / model.config.temperature, 0)[0]
        losses[f"{side}_to_{other}"] = total / len(queries) / len(dims)
    return losses


def expected_losses(name: str, model: Any, given: dict[str, Any], dims: list[int]) -> dict[str, torch.Tensor]:
    if name.startswith("dual"):
        return info_nce(model, given, dims)
    rows = given.get("retrieval", given)
    source, target = model.encode_sentences(rows["input_ids"], rows["attention_mask"]).chunk(2)
    negatives = model.encode_sentences(rows["negative_input_ids"], rows["negative_attention_mask"])
    scale = {"scale": 10.0, "normalize": True} if name == "cmlm" else {}
    losses: dict[str, dict[str, Any]] = {
        "hictl": {"sentence": sentence_contrast_loss},
        "cmlm": {"retrieval": partial(additive_margin_loss, **scale)},
        "lightweight": {
            "alignment": alignment_loss,
            "similarity": lambda source, target, _: similarity_loss(source, target),
        },
    }
    return {
        key: sum(loss(source[:, :dim], target[:, :dim], negatives[:, :dim]) for dim in dims) / len(dims)
        for key, loss in losses[name.split()[0]].items()
    }


@pytest.mark.parametrize("dims", [None, DIMS], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_negatives_and_truncation(name: str, dims: list[int] | None) -> None:
    model, given = make(name), batch(name, range(PAIRS), range(3), dims)
    found = model(**given)
    expected = expected_losses(name, model, given, dims or [16])
    assert found.losses.keys() == expected.keys()
    tolerance = {"rtol": 1e-5, "atol": 1e-6}  # lengths of rows of int8 are float32
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for key, value in found.losses.items():
        torch.testing.assert_close(value, expected[key], **tolerance)
        slopes = [
            torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
            for loss in (value, expected[key])
        ]
        torch.testing.assert_close(*([slope for slope in side if slope is not None] for side in slopes), **tolerance)
    without = model(**batch(name, range(PAIRS), range(0), dims))
    assert abs(without.loss - found.loss) > 1e-6


def compute(folder: Path) -> None:
    """What each process computes on its half of the pairs and on its negatives, of which one process may have none."""
    dist.init_process_group("gloo")
    rank, results = dist.get_rank(), {}
    for name in MODELS:
        for split in (0, 1, 3):
            model = make(name)
            negatives = range(split) if rank == 0 else range(split, 3)
            loss = model(**batch(name, range(2 * rank, 2 * rank + 2), negatives, DIMS)).loss
            loss.backward()
            results[f"{name}/{split}/loss"] = loss.detach()
            results |= {
                f"{name}/{split}/{key}": part.grad for key, part in model.named_parameters() if part.grad is not None
            }
        results[f"{name}/none"] = make(name)(**batch(name, range(2 * rank, 2 * rank + 2), range(0))).loss.detach()
    save_file(results, folder / f"{rank}.safetensors")


def test_two_processes_share_their_negatives(tmp_path: Path) -> None:
    run_on_two_processes(compute, tmp_path, folder=tmp_path)
    found = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(2)]
    for name in MODELS:
        model = make(name)
        loss = model(**batch(name, range(PAIRS), range(3), DIMS)).loss
        loss.backward()
        expected = {key: part.grad for key, part in model.named_parameters() if part.grad is not None}
        for split in (0, 1, 3):
            # DDP averages over the processes.
            mean = {key: sum(results[f"{name}/{split}/{key}"] for results in found) / 2 for key in [*expected, "loss"]}
            torch.testing.assert_close(mean, {**expected, "loss": loss.detach()}, rtol=1e-6, atol=1e-8)
        alone = make(name)(**batch(name, range(PAIRS), range(0))).loss.detach()
        torch.testing.assert_close(sum(results[f"{name}/none"] for results in found) / 2, alone)
