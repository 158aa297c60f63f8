"""DualMomentumModel: masks and the inference task against naive twins, queues, saving and loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import PLAIN, dual, dual_batch, enqueue_keys

from hf_xlsr import DualMomentumModel, XlsrError
from hf_xlsr.modeling.memory_queue import MemoryQueue


def naive_vectors(model: Any, batch: dict[str, Any], side: str, keys: bool = False) -> torch.Tensor:
    """Mean pooling and normalisation by hand."""
    name = model.config.encoder_of(batch[f"{side}_lang"])
    encoder = (model.momentum_encoders if keys else model.encoders)[name]
    ids, mask = batch[f"{side}_input_ids"], batch[f"{side}_attention_mask"]
    states = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    rows = [state[: int(length)].mean(0) for state, length in zip(states, mask.sum(1), strict=True)]
    return torch.stack([row / row.norm() for row in rows])


def naive_info_nce(queries: torch.Tensor, keys: torch.Tensor, bank: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ bank.T], 1) / temperature
    return F.cross_entropy(logits, torch.zeros(len(queries), dtype=torch.long))


def test_queue_is_a_ring() -> None:
    queue = MemoryQueue(5, 1)
    for start, count in ((0, 3), (3, 3), (6, 4)):
        numbers = torch.arange(start, start + count)
        queue.enqueue(numbers.float()[:, None], numbers + 100, numbers)
    # 0 1 2 | 3 4, 5 over 0 | 6 7 8 over 1 2 3 and 9 over 4
    assert queue.values.ravel().tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert queue.texts.tolist() == [105, 106, 107, 108, 109] and queue.examples.tolist() == [5, 6, 7, 8, 9]
    assert (queue.count, int(queue.pointer)) == (5, 0)


@pytest.mark.parametrize("masks", [(), ("mask_stale_keys",), ("mask_stale_keys", "mask_duplicates")])
def test_stale_keys_and_duplicates(masks: tuple[str, ...]) -> None:
    model, batch, copy = dual(**dict.fromkeys(masks, True)).eval(), dual_batch(4, 1), dual_batch(4, 3)
    copy["target_texts"] = torch.tensor([batch["target_texts"][0], 1, 2, 3])  # another pair with the same target
    for part in ("input_ids", "attention_mask"):
        copy[f"target_{part}"][0] = batch[f"target_{part}"][0]
    # The queue: 6 other pairs; rows 6 to 9, the pairs of the batch itself, from the epoch before; the copy, row 10.
    for earlier in (dual_batch(6, 2), batch, copy):
        enqueue_keys(model, earlier)
    output = model(**batch)
    queries, keys = naive_vectors(model, batch, "source"), naive_vectors(model, batch, "target", keys=True)
    bank, losses = model.queues["fr"].keys(), []
    for row in range(4):
        masked = ({6 + row} if "mask_stale_keys" in masks else set()) | (
            {10} if "mask_duplicates" in masks and not row else set()
        )
        kept = [column for column in range(14) if column not in masked]
        losses.append(naive_info_nce(queries[row : row + 1], keys[row : row + 1], bank[kept], 0.04))
    torch.testing.assert_close(output.losses["source_to_target"], torch.stack(losses).mean())
    # One of four queries has a duplicate, in one of two directions.
    shares = {"queue/stale": 1.0, "queue/duplicates": 1 / 8, "queue/filled": 14 / 32}
    assert {name: float(value) for name, value in output.statistics.items()} == pytest.approx(shares)


def test_dropout_of_key_encoders() -> None:
    dropping = dict.fromkeys(("en", "fr"), {**PLAIN, "hidden_dropout_prob": 0.5})
    model = dual(dropping).train()
    first, second = (model(**dual_batch()) for _ in range(2))
    assert torch.equal(first.source_keys, second.source_keys)
    assert not torch.equal(first.source_embeds, second.source_embeds)  # dropout is really on


def test_inference_task() -> None:
    model = dual(nli_labels=3, nli_weight=0.1).eval()
    enqueue_keys(model, dual_batch(6, 1))
    batch, other = dual_batch(4, 2), dual_batch(5, 3)
    sides, parts = (("premise", "source"), ("hypothesis", "target")), ("input_ids", "attention_mask")
    nli: dict[str, Any] = {f"{new}_{part}": other[f"{old}_{part}"] for new, old in sides for part in parts}
    nli |= {"labels": torch.tensor([0, 1, 2, 0, 1]), "lang": "en"}
    output = model(**batch, nli=nli)
    swapped = {**other, "target_lang": "en"}
    u, v = naive_vectors(model, swapped, "source"), naive_vectors(model, swapped, "target")
    head = model.nli_head
    hidden = head.hidden(torch.cat([u, v, (u - v).abs(), u * v], -1)).relu()
    assert hidden.shape == (5, 256)
    expected = F.cross_entropy(head.output(hidden), nli["labels"])
    torch.testing.assert_close(output.losses["nli"], expected)
    torch.testing.assert_close(output.loss, model(**batch).loss + 0.1 * expected)


def test_other_queue_settings_are_refused(tmp_path: Path) -> None:
    dual().save_pretrained(tmp_path)
    with pytest.raises(XlsrError, match="queue_size"):
        DualMomentumModel.from_pretrained(tmp_path, queue_size=64)
    assert DualMomentumModel.from_pretrained(tmp_path, queue_size=32).queues["en"].size == 32
    for options in ({"queue_storage": "int8"}, {"projection_dim": 8}, {"config": dual(queue_size=16).config}):
        with pytest.raises(XlsrError, match="must be"):
            DualMomentumModel.from_pretrained(tmp_path, **options)
