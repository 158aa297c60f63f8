"""Losses for sentence-transformers: the values and gradients of our own models."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss
from st_helpers import features_of, gradients_of, queue_loss, routed_model, rows, shared_model, trainer_of
from torch.nn.functional import normalize

from hf_xlsr import DualMomentumConfig, DualMomentumModel
from hf_xlsr.losses import additive_margin_loss, alignment_loss, sentence_contrast_loss, similarity_loss
from hf_xlsr.sentence_transformers import AdditiveMarginLoss, AlignmentSimilarityLoss, SentenceContrastLoss


def alignment_and_similarity(source: torch.Tensor, target: torch.Tensor, negatives: Any) -> torch.Tensor:
    return 2 * alignment_loss(source, target, negatives) + 2 * similarity_loss(source, target)


STATELESS: list[tuple[Any, Any]] = [
    (AdditiveMarginLoss, additive_margin_loss),
    (SentenceContrastLoss, sentence_contrast_loss),
    (AlignmentSimilarityLoss, alignment_and_similarity),
]


def total(loss: Any) -> torch.Tensor:
    return sum(loss.values()) if isinstance(loss, dict) else loss


def gradients(module: torch.nn.Module, value: torch.Tensor) -> dict[str, torch.Tensor]:
    module.zero_grad()
    value.backward()
    return gradients_of(module)


def ids_of(features: list[dict[str, Any]]) -> dict[str, Any]:
    """Inputs of our model."""
    inputs = {}
    for side, batch in zip(("source", "target", "negative"), features, strict=False):
        inputs[f"{side}_input_ids"] = batch["input_ids"]
        inputs[f"{side}_attention_mask"] = batch["attention_mask"]
    return inputs


def embeddings_of(model: Any, features: list[dict[str, Any]]) -> list[torch.Tensor]:
    return [model(dict(batch))["sentence_embedding"] for batch in features]


@pytest.mark.parametrize("columns", [(), ("negative", "negative_1")], ids=["pairs", "hard negatives"])
@pytest.mark.parametrize(("loss_class", "function"), STATELESS, ids=["margin", "contrast", "alignment"])
def test_stateless_loss_is_the_function_of_embeddings(
    loss_class: Any, function: Any, columns: tuple[str, ...], tmp_path: Path
) -> None:
    model = shared_model(tmp_path).double()
    features = features_of(model, rows(8, 1, *columns))

    loss = total(loss_class(model)([dict(batch) for batch in features]))
    assert loss.dtype == torch.float64

    source, target, *negatives = embeddings_of(model, features)
    expected = function(source, target, torch.cat(negatives) if negatives else None)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradients(model, loss), gradients(model, expected))


def test_matryoshka_loss_around_stateless_loss(tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    features = features_of(model, rows(8))
    source, target = embeddings_of(model, features)
    expected = additive_margin_loss(source, target)
    expected = expected + additive_margin_loss(normalize(source[:, :4]), normalize(target[:, :4]))

    loss = MatryoshkaLoss(model, AdditiveMarginLoss(model), [16, 4])
    value = loss(features, None)
    torch.testing.assert_close(total(value), expected)
    torch.testing.assert_close(total(value / 2), expected / 2)  # as AdaptiveLayerLoss does
    assert trainer_of(model, loss, tmp_path, max_steps=1).train().global_step == 1


@pytest.mark.parametrize("routed", [False, True], ids=["shared", "router"])
@pytest.mark.parametrize("negative", [False, True], ids=["pairs", "hard negatives"])
def test_queue_loss_is_that_of_our_model(routed: bool, negative: bool, tmp_path: Path) -> None:
    """After some steps: with momentum encoders that differ, queues, masks and repeated sentences."""
    if routed:
        tasks = {"en": "en", "fr": "fr", "negative": "fr"}
        model = routed_model(tmp_path).double().train()
        encoders = {name: model[0].sub_modules[name][0].model for name in ("en", "fr")}
    else:
        tasks = None
        model = shared_model(tmp_path).double().train()
        encoders = {"shared": model[0].model}
    settings: dict[str, Any] = {"temperature": 0.1, "mask_stale_keys": True, "mask_duplicates": True}
    loss = queue_loss(model, **settings)
    loss.queues.double()
    twin = twin_of(encoders, **settings)

    data = rows(48, 1, "negative") if negative else rows(48)
    for start in (0, 16, 0, 32):  # pairs of the first step come back
        batch = data.select(range(start, start + 16))
        features = features_of(model, batch, tasks)
        texts = {name: numbers_of(batch[name]) for name in batch.column_names}
        examples = texts["en"] + texts["fr"]
        inputs = {**ids_of(features), "source_texts": texts["en"], "target_texts": texts["fr"], "examples": examples}
        if negative:
            inputs["negative_texts"] = texts["negative"]
        output = twin(**inputs, source_lang="en", target_lang="fr")
        losses = loss(features)
        torch.testing.assert_close(total(losses), output.loss)
        torch.testing.assert_close(losses["source_to_target"], output.losses["source_to_target"])

        descend(model, total(losses))
        loss.finish_step()
        descend(twin, output.loss)
        twin.momentum_update()
        twin.enqueue("en", output.source_keys, texts["en"], examples)
        twin.enqueue("fr", output.target_keys, texts["fr"], examples)

    for name, encoder in encoders.items():
        weights = encoder.state_dict()
        for key, value in twin.encoders[name].state_dict().items():  # without a pooler
            torch.testing.assert_close(value, weights[key])
    torch.testing.assert_close(loss.queues["target"].values, twin.queues["fr"].values)
    assert loss.queues["source"].count == 64


def numbers_of(texts: list[str]) -> torch.Tensor:
    """A number of each text, another one for every other text."""
    digests = [hashlib.sha256(text.encode()).digest()[:7] for text in texts]
    return torch.tensor([int.from_bytes(digest, "big") for digest in digests])


def twin_of(encoders: dict[str, Any], **settings: Any) -> DualMomentumModel:
    """Our model with the weights of some encoders."""
    config = DualMomentumConfig(
        languages=["en", "fr"],
        encoder_configs={name: encoder.config for name, encoder in encoders.items()},
        queue_size=64,
        momentum=0.9,
        in_batch_negatives=False,
        **settings,
    )
    twin = DualMomentumModel(config).double().train()
    for name, encoder in encoders.items():
        twin.encoders[name].load_state_dict(encoder.state_dict(), strict=False)
    twin.reset_momentum()
    return twin


def descend(model: torch.nn.Module, loss: torch.Tensor) -> None:
    """A step of gradient descent."""
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
