"""Losses for sentence-transformers: the values and gradients of our own models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers.losses import MatryoshkaLoss
from st_helpers import features_of, queue_loss, routed_model, rows, shared_model, trainer_of

from hf_xlsr import DualMomentumConfig, DualMomentumModel
from hf_xlsr.losses import additive_margin_loss, alignment_loss, sentence_contrast_loss, similarity_loss
from hf_xlsr.sentence_transformers import AdditiveMarginLoss, AlignmentSimilarityLoss, SentenceContrastLoss

STATELESS = {"margin": AdditiveMarginLoss, "contrast": SentenceContrastLoss, "alignment": AlignmentSimilarityLoss}


def function_of(name: str, source: torch.Tensor, target: torch.Tensor, negatives: Any = None) -> torch.Tensor:
    if name == "alignment":
        return 2 * alignment_loss(source, target, negatives) + 2 * similarity_loss(source, target)
    function: Any = additive_margin_loss if name == "margin" else sentence_contrast_loss
    return function(source, target, negatives)


def total(loss: Any) -> torch.Tensor:
    return torch.stack(list(loss.values())).sum() if isinstance(loss, dict) else loss


def gradients(module: torch.nn.Module, value: torch.Tensor) -> dict[str, torch.Tensor]:
    module.zero_grad()
    value.backward()
    return {name: weight.grad.clone() for name, weight in module.named_parameters() if weight.grad is not None}


def encoder_of(model: Any) -> Any:
    return model[0].model


def ids_of(features: list[dict[str, Any]]) -> dict[str, Any]:
    sides = zip(("source", "target", "negative"), features, strict=False)
    return {f"{side}_{part}": batch[part] for side, batch in sides for part in ("input_ids", "attention_mask")}


@pytest.mark.parametrize("columns", [(), ("negative", "negative_1")], ids=["pairs", "hard negatives"])
@pytest.mark.parametrize("name", STATELESS)
def test_stateless_loss_is_the_function_of_embeddings(name: str, columns: tuple[str, ...], tmp_path: Path) -> None:
    model = shared_model(tmp_path).double()
    features = features_of(model, rows(8, 1, *columns))
    source, target, *more = (model(dict(batch))["sentence_embedding"] for batch in features)
    negatives = torch.cat(more) if more else None
    expected = function_of(name, source, target, negatives)
    found = total(STATELESS[name](model)([dict(batch) for batch in features]))
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected)
    twins = gradients(model, expected), gradients(model, found)
    torch.testing.assert_close(twins[1], twins[0])


def test_matryoshka_loss_around_stateless_loss(tmp_path: Path) -> None:
    name = "margin"
    model = shared_model(tmp_path)
    features = features_of(model, rows(8))
    source, target = (model(dict(batch))["sentence_embedding"] for batch in features)
    parts = [[torch.nn.functional.normalize(side[:, :dim], dim=-1) for side in (source, target)] for dim in (16, 4)]
    expected = torch.stack([function_of(name, *part) for part in parts]).sum()
    loss = MatryoshkaLoss(model, STATELESS[name](model), [16, 4])
    torch.testing.assert_close(total(loss(features, None)), expected)
    torch.testing.assert_close(total(loss(features, None) / 2), expected / 2)  # as AdaptiveLayerLoss does
    assert trainer_of(model, loss, tmp_path, max_steps=1).train().global_step == 1


@pytest.mark.parametrize("routed", [False, True], ids=["shared", "router"])
@pytest.mark.parametrize("negative", [False, True], ids=["pairs", "hard negatives"])
def test_queue_loss_is_that_of_our_model(routed: bool, negative: bool, tmp_path: Path) -> None:
    """After some steps: with momentum encoders that differ, queues, masks and repeated sentences."""
    model = (routed_model if routed else shared_model)(tmp_path).double()
    tasks = {"en": "en", "fr": "fr", "negative": "fr"} if routed else None
    masks = {"mask_stale_keys": True, "mask_duplicates": True}
    loss = queue_loss(model, temperature=0.1, **masks)
    loss.queues.double()
    encoders = (
        {name: model[0].sub_modules[name][0].model for name in ("en", "fr")}
        if routed
        else {"shared": encoder_of(model)}
    )
    config = DualMomentumConfig(
        languages=["en", "fr"],
        encoder_configs={name: encoder.config for name, encoder in encoders.items()},
        queue_size=64, momentum=0.9, temperature=0.1, **masks,
    )  # fmt: skip
    ours = DualMomentumModel(config).double()
    for name, encoder in encoders.items():
        ours.encoders[name].load_state_dict(encoder.state_dict(), strict=False)
    ours.reset_momentum()
    optimizers = [torch.optim.SGD(part.parameters(), 0.5) for part in (model, ours)]
    for part in (model, ours):
        part.train()
    data = rows(48, 1, *(["negative"] if negative else []))
    numbers: dict[str, int] = {}
    for start in (0, 16, 0, 32):  # pairs of the first step come back
        batch = data.select(range(start, start + 16))
        features = features_of(model, batch, tasks)
        texts = [
            torch.tensor([numbers.setdefault(text, len(numbers)) for text in column])
            for column in batch.to_dict().values()
        ]
        ids = {**ids_of(features), **({"negative_texts": texts[2]} if negative else {})}
        same = {"source_texts": texts[0], "target_texts": texts[1], "examples": texts[0] * 1000 + texts[1]}
        output = ours(**ids, source_lang="en", target_lang="fr", **same)
        parts = loss(features)
        torch.testing.assert_close(total(parts), output.loss)
        torch.testing.assert_close(parts["source_to_target"], output.losses["source_to_target"])
        for optimizer, value in zip(optimizers, (total(parts), output.loss), strict=True):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        loss.finish_step()
        ours.momentum_update()
        ours.enqueue("en", output.source_keys, texts[0], same["examples"])
        ours.enqueue("fr", output.target_keys, texts[1], same["examples"])
    for name, encoder in encoders.items():
        after = {key: value for key, value in encoder.state_dict().items() if "pooler" not in key}
        torch.testing.assert_close({key: ours.encoders[name].state_dict()[key] for key in after}, after)
    torch.testing.assert_close(loss.queues["target"].values, ours.queues["fr"].values)
    assert loss.queues["source"].count == 64
