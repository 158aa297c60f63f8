"""DualMomentumModel: masks and the inference task against naive twins, queues, saving and loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import PLAIN, dual, dual_batch, enqueue_keys, in_training

from hf_xlsr import DualMomentumModel, XlsrError
from hf_xlsr.modeling.memory_queue import MemoryQueue


def naive_vectors(model: Any, batch: dict[str, Any], side: str, keys: bool = False) -> torch.Tensor:
    """Mean pooling and normalisation by hand."""
    name = model.config.encoder_of(batch[f"{side}_lang"])
    encoder = model.momentum_encoders[name] if keys else model.encoders[name]
    mask = batch[f"{side}_attention_mask"]
    states = encoder(input_ids=batch[f"{side}_input_ids"], attention_mask=mask).last_hidden_state

    vectors = []
    for sentence, length in zip(states, mask.sum(1).tolist(), strict=True):
        mean = sentence[:length].mean(0)
        vectors.append(mean / mean.norm())
    return torch.stack(vectors)


def naive_info_nce(query: torch.Tensor, key: torch.Tensor, bank: torch.Tensor) -> torch.Tensor:
    """Equation 2 of one query, with the temperature of the paper."""
    candidates = torch.cat([key[None], bank])
    return -F.log_softmax(candidates @ query / 0.04, 0)[0]


def test_queue_is_a_ring() -> None:
    queue = MemoryQueue(5, 1)
    for numbers in (torch.arange(3), torch.arange(3, 6), torch.arange(6, 10)):
        queue.enqueue(numbers.float()[:, None], numbers + 100, numbers)

    # 0 1 2 | 3 4, 5 over 0 | 6 7 8 over 1 2 3 and 9 over 4
    assert queue.values.ravel().tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert queue.texts.tolist() == [105, 106, 107, 108, 109]
    assert queue.examples.tolist() == [5, 6, 7, 8, 9]
    assert queue.count == 5
    assert int(queue.pointer) == 0


@pytest.mark.parametrize("masks", [(), ("mask_stale_keys",), ("mask_stale_keys", "mask_duplicates")])
def test_stale_keys_and_duplicates(masks: tuple[str, ...]) -> None:
    model = in_training(dual(**dict.fromkeys(masks, True)))
    batch = dual_batch(4, 1)
    copy = dual_batch(4, 3)
    copy["target_texts"] = torch.tensor([batch["target_texts"][0], 1, 2, 3])  # another pair with the same target
    copy["target_input_ids"][0] = batch["target_input_ids"][0]
    copy["target_attention_mask"][0] = batch["target_attention_mask"][0]
    # The queue: 6 other pairs; rows 6 to 9, the pairs of the batch itself, from the epoch before; the copy, row 10.
    for earlier_batch in (dual_batch(6, 2), batch, copy):
        enqueue_keys(model, earlier_batch)

    output = model(**batch)
    queries = naive_vectors(model, batch, "source")
    keys = naive_vectors(model, batch, "target", keys=True)
    bank = model.queues["fr"].keys()

    losses = []
    for row in range(4):
        counts = torch.ones(14, dtype=torch.bool)
        if "mask_stale_keys" in masks:
            counts[6 + row] = False
        if "mask_duplicates" in masks and row == 0:
            counts[10] = False
        losses.append(naive_info_nce(queries[row], keys[row], bank[counts]))
    torch.testing.assert_close(output.losses["source_to_target"], torch.stack(losses).mean())

    # One of four queries has a duplicate, in one of two directions.
    shares = {"queue/stale": 1.0, "queue/duplicates": 1 / 8, "queue/filled": 14 / 32}
    assert {name: float(value) for name, value in output.statistics.items()} == pytest.approx(shares)


def test_a_key_of_a_pair_is_stale_whatever_its_text_was() -> None:
    model = in_training(dual(mask_stale_keys=True))
    batch = dual_batch(4, 1)
    earlier_texts = {f"{side}_texts": batch[f"{side}_texts"] + 5000 for side in ("source", "target")}
    enqueue_keys(model, {**batch, **earlier_texts})
    output = model(**batch)

    queries = naive_vectors(model, batch, "source")
    keys = naive_vectors(model, batch, "target", keys=True)
    losses = []
    for row in range(4):
        others = torch.arange(4) != row
        losses.append(naive_info_nce(queries[row], keys[row], keys[others]))
    torch.testing.assert_close(output.losses["source_to_target"], torch.stack(losses).mean())
    assert float(output.statistics["queue/stale"]) == 1


def test_dropout_of_key_encoders() -> None:
    dropping = dict.fromkeys(("en", "fr"), {**PLAIN, "hidden_dropout_prob": 0.5})
    model = dual(dropping).train()
    first = model(**dual_batch())
    second = model(**dual_batch())
    assert torch.equal(first.source_keys, second.source_keys)
    assert not torch.equal(first.source_embeds, second.source_embeds)  # dropout is really on


def test_inference_task() -> None:
    model = dual(nli_labels=3, nli_weight=0.1).eval()
    enqueue_keys(model, dual_batch(6, 1))
    batch = dual_batch(4, 2)

    sentences = dual_batch(5, 3, ("en", "en"))
    nli = {
        "premise_input_ids": sentences["source_input_ids"],
        "premise_attention_mask": sentences["source_attention_mask"],
        "hypothesis_input_ids": sentences["target_input_ids"],
        "hypothesis_attention_mask": sentences["target_attention_mask"],
        "labels": torch.tensor([0, 1, 2, 0, 1]),
        "lang": "en",
    }
    output = model(**batch, nli=nli)

    u = naive_vectors(model, sentences, "source")
    v = naive_vectors(model, sentences, "target")
    hidden = model.nli_head.hidden(torch.cat([u, v, (u - v).abs(), u * v], -1)).relu()
    assert hidden.shape == (5, 256)
    expected = F.cross_entropy(model.nli_head.output(hidden), nli["labels"])
    torch.testing.assert_close(output.losses["nli"], expected)
    torch.testing.assert_close(output.loss, model(**batch).loss + 0.1 * expected)


def test_other_queue_settings_are_refused(tmp_path: Path) -> None:
    dual().save_pretrained(tmp_path)
    with pytest.raises(XlsrError, match="`queue_size` must be 32.* got 64"):
        DualMomentumModel.from_pretrained(tmp_path, queue_size=64)
    assert DualMomentumModel.from_pretrained(tmp_path, queue_size=32).queues["en"].size == 32
    with pytest.raises(XlsrError, match="`queue_storage` must be float32.* got int8"):
        DualMomentumModel.from_pretrained(tmp_path, queue_storage="int8")
    with pytest.raises(XlsrError, match="`projection_dim` must be 0.* got 8"):
        DualMomentumModel.from_pretrained(tmp_path, projection_dim=8)
    with pytest.raises(XlsrError, match="`queue_size` must be 32.* got 16"):
        DualMomentumModel.from_pretrained(tmp_path, config=dual(queue_size=16).config)
