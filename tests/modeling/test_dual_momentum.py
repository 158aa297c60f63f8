"""DualMomentumModel: masks and the inference task against naive twins, queues, saving and loading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import PLAIN, VOCABULARY, dual, dual_batch, enqueue_keys, in_training, nli_batch

from hf_xlsr import DualMomentumModel, XlsrError
from hf_xlsr.modeling.memory_queue import MemoryQueue


def naive_vectors(model: Any, batch: dict[str, Any], side: str, keys: bool = False) -> torch.Tensor:
    """Mean pooling and normalisation by hand."""
    name = model.config.encoder_of(batch.get(f"{side}_lang", "en"))
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
    for numbers in torch.arange(10).split([3, 3, 4]):
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
    for name in ("target_texts", "target_input_ids", "target_attention_mask"):  # another pair with the same target
        copy[name][0] = batch[name][0]
    # The queue: 6 other pairs; rows 6 to 9, the pairs of the batch itself, from the epoch before; the copy, row 10.
    for earlier_batch in (dual_batch(6, 2), batch, copy):
        enqueue_keys(model, earlier_batch)

    output = model(**batch)
    queries = naive_vectors(model, batch, "source")
    keys = naive_vectors(model, batch, "target", keys=True)
    bank = model.queues["fr"].keys()

    losses = []
    for row, (query, key) in enumerate(zip(queries, keys, strict=True)):
        is_negative = torch.ones(14, dtype=torch.bool)
        if "mask_stale_keys" in masks:
            is_negative[6 + row] = False
        if "mask_duplicates" in masks and row == 0:
            is_negative[10] = False
        losses.append(naive_info_nce(query, key, bank[is_negative]))
    torch.testing.assert_close(output.losses["source_to_target"], torch.stack(losses).mean())

    # One of four queries has a duplicate, in one of two directions.
    statistics = {name: float(value) for name, value in output.statistics.items()}
    shares = {"queue/stale": 1.0, "queue/duplicates": 1 / 8, "queue/filled": 14 / 32}
    assert statistics == pytest.approx(shares)


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

    nli = {**nli_batch(VOCABULARY), "lang": "en"}
    output = model(**batch, nli=nli)

    u = naive_vectors(model, nli, "premise")
    v = naive_vectors(model, nli, "hypothesis")
    features = torch.cat([u, v, (u - v).abs(), u * v], -1)
    hidden = model.nli_head.hidden(features).relu()
    assert hidden.shape == (3, 256)
    expected = F.cross_entropy(model.nli_head.output(hidden), nli["labels"])
    torch.testing.assert_close(output.losses["nli"], expected)
    torch.testing.assert_close(output.loss, model(**batch).loss + 0.1 * expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"queue_size": 64}, "`queue_size` must be 32.* got 64"),
        ({"config": dual(queue_size=16).config}, "`queue_size` must be 32.* got 16"),
        ({"queue_storage": "int8"}, "`queue_storage` must be float32.* got int8"),
        ({"projection_dim": 8}, "`projection_dim` must be 0.* got 8"),
    ],
    ids=str,
)
def test_other_queue_settings_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    dual().save_pretrained(tmp_path)
    with pytest.raises(XlsrError, match=message):
        DualMomentumModel.from_pretrained(tmp_path, **change)


def test_same_queue_settings_are_loaded(tmp_path: Path) -> None:
    dual().save_pretrained(tmp_path)
    loaded = DualMomentumModel.from_pretrained(tmp_path, queue_size=32)
    assert loaded.queues["en"].size == 32


def test_embeddings_of_all_encoders_are_resized() -> None:
    model = dual()
    model.resize_token_embeddings(VOCABULARY + 3)
    for group in (model.encoders, model.momentum_encoders):
        assert {encoder.get_input_embeddings().num_embeddings for encoder in group.values()} == {VOCABULARY + 3}
    for config in model.config.encoder_configs.values():
        assert config.vocab_size == VOCABULARY + 3


def test_encoders_with_different_vocabularies_are_resized_by_language() -> None:
    model = dual()
    model.resize_token_embeddings(VOCABULARY + 3, language="fr")
    with pytest.raises(XlsrError, match=rf"`language`.*{VOCABULARY + 3}"):
        model.resize_token_embeddings(VOCABULARY + 5)
