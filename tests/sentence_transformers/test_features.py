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
    gradients_of,
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


@pytest.mark.parametrize("layout", ["right", "left", "flat", "bag"])
def test_each_text_has_the_hash_of_its_tokens(layout: str, tmp_path: Path) -> None:
    model = static_model(tmp_path) if layout == "bag" else shared_model(tmp_path)
    if layout == "flat":
        flatten_inputs(model)
    if layout == "left":
        model.tokenizer.padding_side = "left"

    expected = expected_hashes(tmp_path, special_tokens=layout != "bag")
    assert len(set(expected)) == 4
    assert text_hashes(model.preprocess(TEXTS)).tolist() == expected
    for text, number in zip(TEXTS, expected, strict=True):  # other neighbours, other padding
        assert text_hashes(model.preprocess([text])).tolist() == [number]


def expected_hashes(folder: Path, special_tokens: bool = True) -> list[int]:
    tokenizer = shared_model(folder).tokenizer
    hashes = []
    for text in TEXTS:
        token_ids = tokenizer(text, add_special_tokens=special_tokens)["input_ids"]
        hashes.append(naive_hash(token_ids))
    return hashes


def test_texts_of_one_length_need_no_mask(tmp_path: Path) -> None:
    features = shared_model(tmp_path).preprocess([TEXTS[0], TEXTS[3]])
    del features["attention_mask"]
    expected = expected_hashes(tmp_path)
    assert text_hashes(features).tolist() == [expected[0], expected[3]]


def test_text_without_tokens_has_a_hash_of_its_own(tmp_path: Path) -> None:
    """A static embedding adds no special tokens."""
    model = static_model(tmp_path)
    king = text_hashes(model.preprocess(["king"])).item()
    house = text_hashes(model.preprocess(["red house"])).item()
    assert king != house
    assert text_hashes(model.preprocess(["", "king", "", "red house", ""])).tolist() == [0, king, 0, house, 0]
    assert text_hashes(model.preprocess(["", ""])).tolist() == [0, 0]


def pairs_with_repeats(negatives: int) -> Dataset:
    """Of the last 12 pairs, 6 are among the first 12, and 2 have a target of those with another source."""
    names = [f"negative_{number}" for number in range(negatives)]
    columns = rows(18, 1, *names).to_dict()
    columns["fr"][14:16] = columns["fr"][:2]
    for name in names:
        columns[name][16] = columns["fr"][16]  # a hard negative that is the translation

    order = [*range(12), *range(6, 18)]
    return Dataset.from_dict(columns).select(order)


def two_steps(model: Any, data: Dataset) -> dict[str, Any]:
    """Losses, statistics of the masks, gradients and queues of two steps with two micro-batches each."""
    losses = []
    gradients = []
    loss = queue_loss(model, temperature=0.1, **MASKS).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    with recorded_statistics() as statistics:
        for start in (0, 6, 12, 18):
            batch = data.select(range(start, start + 6))
            losses_of_batch = loss(features_of(model, batch))
            sum(losses_of_batch.values()).backward()
            losses.append(losses_of_batch)

            if start in (6, 18):
                gradients.append(gradients_of(model))
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
    assert_repeats_are_found(flat["statistics"])


def assert_repeats_are_found(statistics: list[dict[str, float]]) -> None:
    """In the second step, to the target: the first batch has known pairs, the second known targets."""
    known_pairs, known_targets = statistics[4::2]
    assert known_pairs["queue/stale"] == 1
    assert known_pairs["queue/duplicates"] == 0
    assert known_targets["queue/stale"] == 0
    assert known_targets["queue/duplicates"] > 0


@pytest.mark.parametrize("loss_class", [AdditiveMarginLoss, AlignmentSimilarityLoss, SentenceContrastLoss])
def test_losses_without_queues_read_flat_features(loss_class: Any, tmp_path: Path) -> None:
    data = rows(6, 1, "negative")
    model = position_wise_model(tmp_path)
    padded = loss_class(model)(features_of(model, data))

    flatten_inputs(model)
    flat = loss_class(model)(features_of(model, data))

    torch.testing.assert_close(flat, padded)


def test_trainer_with_flat_features(tmp_path: Path) -> None:
    """From texts to queues, with prompts that are not pooled."""

    def trained(flat: bool) -> dict[str, torch.Tensor]:
        model = position_wise_model(tmp_path)
        pooling: Any = model[1]
        pooling.include_prompt = False
        if flat:
            flatten_inputs(model)
        loss = queue_loss(model, **MASKS)
        loss.fill_queues(["one two", "red"], ["un deux", "rouge"], prompts=("king ", "roi "))

        options = {"gradient_accumulation_steps": 2, "max_steps": 3, "prompts": {"en": "king ", "fr": "roi "}}
        trainer_of(model, loss, tmp_path, pairs_with_repeats(1), **options).train()
        return dict(loss.state_dict())

    padded = trained(flat=False)
    flat = trained(flat=True)
    torch.testing.assert_close(flat, padded, rtol=1e-4, atol=1e-5)
    assert torch.equal(flat["queues.target.texts"], padded["queues.target.texts"])
    assert int(flat["queues.target.filled"]) == 42


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
    autocast = dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        loss.fill_queues(data["en"], data["fr"], batch_size=8)
    trainer_of(model, loss, tmp_path, rows(16, 3), max_steps=2, bf16=autocast).train()

    assert int(loss.queues["source"].filled) == 32
    assert loss.queues["source"].values.isfinite().all()


def test_static_embedding_knows_its_texts(tmp_path: Path) -> None:
    """Two steps whose repeats are found, and losses that are those of texts one at a time."""
    model = static_model(tmp_path)
    data = pairs_with_repeats(1)
    results = two_steps(model, data)

    source_texts = results["queues"]["source.texts"]
    target_texts = results["queues"]["target.texts"]
    assert source_texts[0] == text_hashes(model.preprocess([data["en"][0]]))
    assert target_texts[0] == text_hashes(model.preprocess([data["fr"][0]]))
    assert len(target_texts[:24].unique()) == len(set(data["fr"]))
    assert_repeats_are_found(results["statistics"])
