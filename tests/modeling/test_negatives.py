"""Hard negatives and truncated embeddings in the models' losses, on one process and on two."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from model_cases import BERT, QUEUE_ALONE, VOCABULARY, Case, build, gradients_of, in_training, pair_batch, sentences
from safetensors.torch import load_file, save_file
from two_processes import run_on_two_processes

from hf_xlsr import CmlmModel, DualMomentumModel, HictlForPreTraining, LightweightDualTransformer
from hf_xlsr.losses import additive_margin_loss, alignment_loss, sentence_contrast_loss, similarity_loss

PAIRS = 4
WIDTH = 16
DIMS = [3, 8]
DUAL = {**QUEUE_ALONE, "languages": ["en", "fr"], "queue_size": 16, "encoder_configs": {"shared": BERT}}
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
    "dual split": Case(DualMomentumModel, {**DUAL, "split_softmax": True, "in_batch_negatives": True}, dict),
    "cmlm split": Case(CmlmModel, {"text_config": BERT, "split_softmax": True}, dict),
    "hictl split": Case(
        HictlForPreTraining, {"text_config": BERT, "lm_weight": 0, "word_weight": 0, "split_softmax": True}, dict
    ),
    "lightweight split": Case(
        LightweightDualTransformer, {"text_config": BERT, "generative_weight": 0, "split_softmax": True}, dict
    ),
    "dual with masks": Case(DualMomentumModel, {**DUAL, "mask_duplicates": True, "in_batch_negatives": True}, dict),
}
CONTRASTS: dict[str, tuple[str, Any]] = {
    "hictl": ("sentence", sentence_contrast_loss),
    "cmlm": ("retrieval", partial(additive_margin_loss, scale=10.0, normalize=True)),
    "cmlm by inner product": ("retrieval", additive_margin_loss),
    "lightweight": ("alignment", alignment_loss),
    "hictl split": ("sentence", partial(sentence_contrast_loss, split_softmax=True)),
    "cmlm split": ("retrieval", partial(additive_margin_loss, split_softmax=True)),
    "lightweight split": ("alignment", partial(alignment_loss, split_softmax=True)),
}
TEXTS = torch.tensor([50, 51, 10])  # the last negative is the translation of the first source


def make(name: str) -> Any:
    return in_training(build(MODELS[name]).double())


def batch(name: str, pairs: range, negatives: range, dims: list[int] | None = None) -> dict[str, Any]:
    """Some of the pairs and of three negatives."""
    options: dict[str, Any] = {"matryoshka_dims": dims} if dims else {}
    hard: dict[str, Any] = {}
    if len(negatives):
        ids, mask = sentences(3, 5, VOCABULARY, 5)
        hard = {"negative_input_ids": ids[negatives], "negative_attention_mask": mask[negatives]}

    if name.startswith("dual"):
        inputs = pair_batch(VOCABULARY) | {"nli": None}
        for key, value in inputs.items():
            if isinstance(value, torch.Tensor):
                inputs[key] = value[pairs]
        if hard:
            hard["negative_texts"] = TEXTS[negatives]
        return {**inputs, **hard, **options}

    ids, mask = sentences(2 * PAIRS, 7, VOCABULARY, 0)
    target_rows = range(pairs.start + PAIRS, pairs.stop + PAIRS)
    rows = [*pairs, *target_rows]
    inputs = {"input_ids": ids[rows], "attention_mask": mask[rows], **hard}
    if name.startswith("cmlm"):
        return {"retrieval": inputs, **options}
    return {**inputs, **options}


def truncated(rows: torch.Tensor, dim: int) -> torch.Tensor:
    """Unit vectors of the first dimensions; whole vectors, stored in less precision, stay as they are."""
    return rows if dim == WIDTH else F.normalize(rows[:, :dim], dim=1)


def encoded(model: Any, inputs: dict[str, Any], side: str, language: str, *, keys: bool = True) -> torch.Tensor:
    """Embeddings of one side of the batch; keys have no gradient."""
    ids = inputs[f"{side}_input_ids"]
    mask = inputs[f"{side}_attention_mask"]
    rows = model.encode_sentences(ids, mask, language=language, keys=keys)
    return rows.detach() if keys else rows


def info_nce(
    model: Any, inputs: dict[str, Any], sides: tuple[str, str], languages: tuple[str, str], dims: list[int]
) -> torch.Tensor:
    """Equation 2 in one direction, query by query."""
    side, other_side = sides
    language, other_language = languages

    queries = encoded(model, inputs, side, language, keys=False)
    keys = encoded(model, inputs, other_side, other_language)
    negatives = encoded(model, inputs, "negative", "fr")
    texts = inputs[f"{other_side}_texts"]

    queue = model.queues[other_language]
    bank = queue.keys()
    if hasattr(bank, "dequantize"):
        bank = bank.dequantize()
    bank_texts = queue.texts[: len(bank)]

    total = queries.new_zeros(())
    for dim in dims:
        short_queries = truncated(queries, dim)
        short_keys = truncated(keys, dim)
        short_bank = truncated(bank.double(), dim)
        short_negatives = truncated(negatives, dim)
        for row, text in enumerate(texts):
            is_negative = bank_texts != text if model.config.mask_duplicates else slice(None)
            candidates = [short_keys[[row]], short_bank[is_negative]]
            if model.config.in_batch_negatives:
                candidates += [short_keys[:row], short_keys[row + 1 :]]
            groups = [candidates]
            if side == "source":
                hard = short_negatives[text != TEXTS]
                groups = (
                    [candidates, [short_keys[[row]], hard]] if model.config.split_softmax else [[*candidates, hard]]
                )

            for group in groups:
                logits = torch.cat(group) @ short_queries[row] / model.config.temperature
                total = total - F.log_softmax(logits, 0)[0]
    return total / len(queries) / len(dims)


def expected_losses(name: str, model: Any, inputs: dict[str, Any], dims: list[int]) -> dict[str, torch.Tensor]:
    if name.startswith("dual"):
        return {
            "source_to_target": info_nce(model, inputs, ("source", "target"), ("en", "fr"), dims),
            "target_to_source": info_nce(model, inputs, ("target", "source"), ("fr", "en"), dims),
        }
    rows = inputs.get("retrieval", inputs)
    source, target = model.encode_sentences(rows["input_ids"], rows["attention_mask"]).chunk(2)
    negatives = model.encode_sentences(rows["negative_input_ids"], rows["negative_attention_mask"])

    key, loss = CONTRASTS[name]
    losses = {key: source.new_zeros(())}
    if name.startswith("lightweight"):
        losses["similarity"] = source.new_zeros(())
    for dim in dims:
        short_source = source[:, :dim]
        short_target = target[:, :dim]
        losses[key] = losses[key] + loss(short_source, short_target, negatives[:, :dim]) / len(dims)
        if name.startswith("lightweight"):
            losses["similarity"] = losses["similarity"] + similarity_loss(short_source, short_target) / len(dims)
    return losses


@pytest.mark.parametrize("dims", [None, DIMS], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_negatives_and_truncation(name: str, dims: list[int] | None) -> None:
    model = make(name)
    inputs = batch(name, range(PAIRS), range(3), dims)
    output = model(**inputs)
    expected = expected_losses(name, model, inputs, dims or [WIDTH])
    tolerance = {"rtol": 1e-5, "atol": 1e-6}  # lengths of rows of int8 are float32
    torch.testing.assert_close(output.losses, expected, **tolerance)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    slopes = partial(torch.autograd.grad, inputs=parameters, retain_graph=True, materialize_grads=True)
    for key, loss in expected.items():
        torch.testing.assert_close(slopes(output.losses[key]), slopes(loss), **tolerance)

    without = model(**batch(name, range(PAIRS), range(0), dims))
    assert abs(without.loss - output.loss) > 1e-6


def step(name: str, pairs: range, negatives: range) -> dict[str, torch.Tensor]:
    """The loss, and the gradient of each parameter."""
    model = make(name)
    loss = model(**batch(name, pairs, negatives, DIMS)).loss
    loss.backward()
    return {"loss": loss.detach(), **gradients_of(model)}


def loss_without_negatives(name: str, pairs: range) -> torch.Tensor:
    return make(name)(**batch(name, pairs, range(0))).loss.detach()


def compute(folder: Path) -> None:
    """What each process computes on its half of the pairs and on its negatives, of which one process may have none."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = range(2 * rank, 2 * rank + 2)

    results: dict[str, torch.Tensor] = {}
    for name in MODELS:
        for split in (0, 1, 3):
            negatives = range(split) if rank == 0 else range(split, 3)
            for key, value in step(name, pairs, negatives).items():
                results[f"{name}/{split}/{key}"] = value

        results[f"{name}/none"] = loss_without_negatives(name, pairs)
    save_file(results, folder / f"{rank}.safetensors")


@pytest.mark.slow
def test_two_processes_share_their_negatives(tmp_path: Path) -> None:
    run_on_two_processes(compute, tmp_path, folder=tmp_path)
    first = load_file(tmp_path / "0.safetensors")
    second = load_file(tmp_path / "1.safetensors")
    means = {key: (value + second[key]) / 2 for key, value in first.items()}  # as DDP averages

    for name in MODELS:
        expected = step(name, range(PAIRS), range(3))
        for split in (0, 1, 3):
            means_of_split = {key: means[f"{name}/{split}/{key}"] for key in expected}
            torch.testing.assert_close(means_of_split, expected, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(means[f"{name}/none"], loss_without_negatives(name, range(PAIRS)))
