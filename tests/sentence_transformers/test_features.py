"""Features without padded rows: the flat ones of FlashAttention, and those of a static embedding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from st_helpers import (
    PositionWise,
    features_of,
    flatten_inputs,
    position_wise_model,
    queue_loss,
    recorded_statistics,
    rows,
    shared_model,
    static_model,
    trainer_of,
)

from hf_xlsr.sentence_transformers import AdditiveMarginLoss, AlignmentSimilarityLoss, SentenceContrastLoss
from hf_xlsr.sentence_transformers.dual_momentum import HASH_FACTOR, text_hashes

TEXTS = ["red house", "one two three four five", "king", "red house", "house red"]
MASKS = {"mask_stale_keys": True, "mask_duplicates": True, "in_batch_negatives": True}


def naive_hash(token_ids: list[int]) -> int:
    """A polynomial of the tokens, as a signed number of 64 bits."""
    value = 0
    for position, token_id in enumerate(token_ids):
        value += (token_id + 1) * HASH_FACTOR ** (position + 1)
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


@pytest.mark.parametrize("layout", ["right", "left", "flat", "no mask", "bag"])
def test_each_text_has_the_hash_of_its_tokens(layout: str, tmp_path: Path) -> None:
    model = static_model(tmp_path) if layout == "bag" else shared_model(tmp_path)
    if layout == "flat":
        flatten_inputs(model)
    if layout == "left":
        model.tokenizer.padding_side = "left"

    frame = layout != "bag"
    token_ids = [shared_model(tmp_path).tokenizer(text, add_special_tokens=frame)["input_ids"] for text in TEXTS]
    expected = [naive_hash(ids) for ids in token_ids]
    assert len(set(expected)) == 4

    if layout == "no mask":  # texts of one length need none
        same_length = [0, 3]
        features = model.preprocess([TEXTS[row] for row in same_length])
        del features["attention_mask"]
        assert text_hashes(features).tolist() == [expected[row] for row in same_length]
        return

    assert text_hashes(model.preprocess(TEXTS)).tolist() == expected
    for text, number in zip(TEXTS, expected, strict=True):  # other neighbours, other padding
        assert text_hashes(model.preprocess([text])).tolist() == [number]


def test_text_without_tokens_has_a_hash_of_its_own(tmp_path: Path) -> None:
    """A static embedding adds no special tokens."""
    model = static_model(tmp_path)
    hashes = text_hashes(model.preprocess(["", "king", "", "red house", ""])).tolist()
    assert hashes[0] == hashes[2] == hashes[4] == 0
    assert hashes[1] == text_hashes(model.preprocess(["king"])).item() != hashes[3]
    assert text_hashes(model.preprocess(["", ""])).tolist() == [0, 0]


def pairs_with_repeats(negatives: int) -> Dataset:
    """Of the last 12 pairs, 6 are among the first 12, and 2 have a target of those with another source."""
    names = [f"negative_{number}" for number in range(negatives)]
    columns = rows(18, 1, *names).to_dict()
    columns["fr"][14:16] = columns["fr"][:2]
    for name in names:
        columns[name][16] = columns["fr"][16]  # a hard negative that is the translation

    order = [*range(12), *range(6, 18)]
    return Dataset.from_dict({name: [texts[row] for row in order] for name, texts in columns.items()})


def two_steps(model: Any, data: Dataset) -> dict[str, Any]:
    """Losses, statistics of the masks, gradients and queues of two steps with two micro-batches each."""
    losses = []
    gradients = []
    loss = queue_loss(model, temperature=0.1, **MASKS).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    with recorded_statistics() as statistics:
        for step in range(2):
            for batch in range(2):
                start = step * 12 + batch * 6
                parts = loss(features_of(model, data.select(range(start, start + 6))))
                sum(parts.values()).backward()
                losses.append({name: value.detach() for name, value in parts.items()})

            trained = {name: weight for name, weight in model.named_parameters() if weight.grad is not None}
            gradients.append({name: weight.grad.clone() for name, weight in trained.items()})
            optimizer.step()
            optimizer.zero_grad()
            loss.finish_step()

    return {
        "losses": losses,
        "gradients": gradients,
        "statistics": statistics,
        "queues": loss.queues.state_dict(),
    }


@pytest.mark.parametrize("negatives", [0, 1, 2])
def test_flat_features_train_as_padded_ones(negatives: int, tmp_path: Path) -> None:
    data = pairs_with_repeats(negatives)
    padded = two_steps(position_wise_model(tmp_path), data)
    flat_model = position_wise_model(tmp_path)
    flatten_inputs(flat_model)
    assert flat_model.preprocess(["one two", "king"])["input_ids"].shape[0] == 1
    flat = two_steps(flat_model, data)

    torch.testing.assert_close(flat, padded)
    for side in ("source", "target"):
        assert torch.equal(flat["queues"][f"{side}.texts"], padded["queues"][f"{side}.texts"])
        assert int(flat["queues"][f"{side}.filled"]) == 24

    to_target = flat["statistics"][4::2]  # of the second step
    assert [batch["queue/stale"] for batch in to_target] == [1.0, 0.0]
    assert [batch["queue/duplicates"] > 0 for batch in to_target] == [False, True]


@pytest.mark.parametrize("loss_class", [AdditiveMarginLoss, AlignmentSimilarityLoss, SentenceContrastLoss])
def test_losses_without_queues_read_flat_features(loss_class: Any, tmp_path: Path) -> None:
    data = rows(6, 1, "negative")
    model = position_wise_model(tmp_path)
    padded = loss_class(model)(features_of(model, data))
    flatten_inputs(model)
    torch.testing.assert_close(loss_class(model)(features_of(model, data)), padded)


def test_trainer_with_flat_features(tmp_path: Path) -> None:
    """From texts to queues, with prompts that are not pooled."""
    states = []
    for flat in (False, True):
        model = position_wise_model(tmp_path)
        pooling: Any = model[1]
        pooling.include_prompt = False
        if flat:
            flatten_inputs(model)
        loss = queue_loss(model, **MASKS)
        loss.fill_queues(["one two", "red"], ["un deux", "rouge"], prompts=("king ", "roi "))
        options = {"gradient_accumulation_steps": 2, "max_steps": 3, "prompts": {"en": "king ", "fr": "roi "}}
        trainer_of(model, loss, tmp_path, pairs_with_repeats(1), **options).train()
        states.append({name: value.clone() for name, value in loss.state_dict().items()})

    torch.testing.assert_close(states[1], states[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(states[1]["queues.target.texts"], states[0]["queues.target.texts"])
    assert int(states[1]["queues.target.filled"]) == 42


class HalfPrecisionOnly(PositionWise):
    """Refuses float32, as FlashAttention does."""

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        if self.model.dtype == torch.float32 and not torch.is_autocast_enabled("cpu"):
            raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
        return super().forward(features, **kwargs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_flash_attention_gets_half_precision(dtype: torch.dtype, tmp_path: Path) -> None:
    """The averages of a model in half precision are float32; a float32 model is trained in half precision."""
    model = position_wise_model(tmp_path, HalfPrecisionOnly).to(dtype)
    flatten_inputs(model)
    loss = queue_loss(model)
    assert next(loss.momentum_model.parameters()).dtype == torch.float32

    data = rows(16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
        loss.fill_queues(data["en"], data["fr"], batch_size=8)
    trainer_of(model, loss, tmp_path, rows(16, 3), max_steps=2, bf16=dtype == torch.float32).train()
    assert int(loss.queues["source"].filled) == 32
    assert loss.queues["source"].values.isfinite().all()


def test_static_embedding_knows_its_texts(tmp_path: Path) -> None:
    """Two steps whose repeats are found, and losses that are those of texts one at a time."""
    model = static_model(tmp_path)
    data = pairs_with_repeats(1)
    results = two_steps(model, data)

    single = {name: text_hashes(model.preprocess([text])) for name in ("en", "fr") for text in [data[name][0]]}
    assert results["queues"]["source.texts"][0] == single["en"][0]
    assert results["queues"]["target.texts"][0] == single["fr"][0]
    assert len(results["queues"]["target.texts"][:24].unique()) == len(set(data["fr"]))

    to_target = results["statistics"][4::2]
    assert [batch["queue/stale"] for batch in to_target] == [1.0, 0.0]
    assert [batch["queue/duplicates"] > 0 for batch in to_target] == [False, True]
