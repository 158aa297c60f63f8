"""DualMomentumModel: equations 1 to 3 and 5 against naive twins, and a forward without side effects."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from dual_momentum_models import enqueue_keys, small_batch, small_encoder, small_model

from hf_xlsr.modeling.dual_momentum import MemoryQueue


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


def test_loss_equals_equation_3() -> None:
    model = small_model(momentum=0.5).eval()
    for seed in (1, 2):
        enqueue_keys(model, small_batch(5, seed))
    with torch.no_grad():
        for parameter in model.encoders.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    batch = small_batch(4, 3)
    output = model(**batch)
    queries = {side: naive_vectors(model, batch, side) for side in ("source", "target")}
    with torch.no_grad():
        keys = {side: naive_vectors(model, batch, side, keys=True) for side in ("source", "target")}
    banks = {language: model.queues[language].keys() for language in ("en", "fr")}
    assert len(banks["en"]) == len(banks["fr"]) == 10
    expected = naive_info_nce(queries["source"], keys["target"], banks["fr"], 0.04)
    expected = expected + naive_info_nce(queries["target"], keys["source"], banks["en"], 0.04)
    torch.testing.assert_close(output.loss, expected)
    parameters = list(model.encoders.parameters())
    ours = torch.autograd.grad(output.loss, parameters)
    theirs = torch.autograd.grad(expected, parameters)
    assert max(float(gradient.abs().max()) for gradient in theirs) > 1e-3
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert not any(parameter.grad is not None for parameter in model.momentum_encoders.parameters())


def test_momentum_update_is_equation_1() -> None:
    model = small_model(momentum=0.9)
    old = {name: value.clone() for name, value in model.momentum_encoders.named_parameters()}
    with torch.no_grad():
        for parameter in model.encoders.parameters():
            parameter.add_(1.0)
    model.momentum_update()
    base = dict(model.encoders.named_parameters())
    for name, value in model.momentum_encoders.named_parameters():
        torch.testing.assert_close(value, 0.9 * old[name] + 0.1 * base[name])
    model.momentum_update(1.0)
    assert torch.equal(model.momentum_encoders["en"].embeddings.word_embeddings.weight[0], value_of(model))


def value_of(model: Any) -> torch.Tensor:
    return dict(model.momentum_encoders.named_parameters())["en.embeddings.word_embeddings.weight"][0]


def test_queue_is_a_ring() -> None:
    queue = MemoryQueue(5, 1)
    for start, count in ((0, 3), (3, 3), (6, 4)):
        numbers = torch.arange(start, start + count)
        queue.enqueue(numbers.float()[:, None], numbers + 100, numbers)
    # 0 1 2 | 3 4, 5 over 0 | 6 7 8 over 1 2 3 and 9 over 4
    assert queue.values.ravel().tolist() == [5.0, 6.0, 7.0, 8.0, 9.0]
    assert queue.texts.tolist() == [105, 106, 107, 108, 109] and queue.examples.tolist() == [5, 6, 7, 8, 9]
    assert (queue.count, int(queue.pointer)) == (5, 0)


@pytest.mark.parametrize(("storage", "tolerance"), [("bfloat16", 2**-8), ("int8", 1 / 127)])
def test_storage(storage: str, tolerance: float) -> None:
    queue = MemoryQueue(8, 16, storage)
    keys = F.normalize(torch.randn(6, 16), dim=-1)
    queue.enqueue(keys, torch.arange(6), torch.arange(6))
    kept: Any = queue.keys()
    kept = kept.dequantize() if storage == "int8" else kept.float()
    assert 0 < float((kept - keys).abs().max()) <= tolerance
    assert queue.values.element_size() == (1 if storage == "int8" else 2)


def test_stale_keys_and_duplicates() -> None:
    batch = small_batch(4, 1)
    plain = small_model()
    masked = small_model(mask_stale_keys=True)
    both = small_model(mask_stale_keys=True, mask_duplicates=True)
    losses, shares = [], []
    for model in (plain, masked, both):
        model.eval()
        enqueue_keys(model, small_batch(6, 2))
        enqueue_keys(model, batch)  # the pairs of the batch itself, from the epoch before
        copy = dict(small_batch(4, 3))
        copy["target_texts"] = torch.tensor([batch["target_texts"][0], 1, 2, 3])  # another pair with the same target
        for part in ("input_ids", "attention_mask"):
            copy[f"target_{part}"][0] = batch[f"target_{part}"][0]
        enqueue_keys(model, copy)
        output = model(**batch)
        losses.append(output.losses["source_to_target"].item())
        shares.append({name: float(value) for name, value in output.statistics.items()})
        rows = {"plain": range(14), "masked": [*range(6), *range(10, 14)], "both": [*range(6), *range(11, 14)]}
        name = ("plain", "masked", "both")[len(losses) - 1]
        queries, keys = naive_vectors(model, batch, "source"), naive_vectors(model, batch, "target", keys=True)
        bank = model.queues["fr"].keys()
        each = []
        for row in range(4):
            # The copy is a duplicate for the first query alone.
            kept = [*range(6), *range(10, 14)] if name == "both" and row > 0 else list(rows[name])
            if name != "plain":
                kept += [6 + other for other in range(4) if other != row]
            each.append(naive_info_nce(queries[row : row + 1], keys[row : row + 1], bank[kept], 0.04))
        torch.testing.assert_close(output.losses["source_to_target"], torch.stack(each).mean())
    assert losses[0] > losses[1] > losses[2]
    for share in shares:
        assert share["queue/stale"] == 1.0 and share["queue/duplicates"] == pytest.approx(
            0.125
        )  # one of four, one way
        assert share["queue/filled"] == pytest.approx(14 / 32)


def test_in_batch_keys() -> None:
    model = small_model(in_batch_negatives=True).eval()
    enqueue_keys(model, small_batch(6, 1))
    batch = small_batch(4, 2)
    output = model(**batch)
    expected = torch.tensor(0.0)
    for side, other, language in (("source", "target", "fr"), ("target", "source", "en")):
        queries, keys = naive_vectors(model, batch, side), naive_vectors(model, batch, other, keys=True)
        logits = torch.cat([queries @ keys.T, queries @ model.queues[language].keys().T], 1) / 0.04
        expected = expected + F.cross_entropy(logits, torch.arange(4))
    torch.testing.assert_close(output.loss, expected)
    alone = small_model(queue_size=0, in_batch_negatives=True)
    assert alone(**batch).loss.item() > 0 and not any(name.startswith("queues") for name in alone.state_dict())


def test_without_momentum_keys_are_queries() -> None:
    model = small_model(use_momentum=False)
    output = model(**small_batch())
    assert torch.equal(output.source_keys, output.source_embeds) and not output.source_keys.requires_grad
    assert not list(model.momentum_encoders.parameters())
    model.momentum_update()  # nothing to move


def test_shared_encoder() -> None:
    model = small_model({"shared": small_encoder()}, languages=["en", "fr", "de"])
    assert list(model.encoders) == ["shared"] and sorted(model.queues) == ["de", "en", "fr"]
    ids = torch.tensor([[3, 4, 5]])
    vectors = [model.encode_sentences(ids, language=language) for language in ("en", "fr", "de")]
    assert torch.equal(vectors[0], vectors[1]) and torch.equal(vectors[0], vectors[2])


def test_projection() -> None:
    encoders = {"en": small_encoder(), "fr": small_encoder(hidden_size=8, model_type="roberta", pad_token_id=1)}
    model = small_model(encoders, projection_dim=12)
    output = model(**small_batch())
    assert output.source_embeds.shape == output.target_keys.shape == (4, 12) and model.config.hidden_size == 12
    assert torch.equal(model.projections["fr"].weight, model.momentum_projections["fr"].weight)
    assert not model.momentum_projections["fr"].weight.requires_grad


def test_dropout_of_key_encoders() -> None:
    dropping = {language: small_encoder(hidden_dropout_prob=0.5) for language in ("en", "fr")}
    model = small_model(dropping).train()
    first, second = (model(**small_batch()) for _ in range(2))
    assert torch.equal(first.source_keys, second.source_keys)
    assert not torch.equal(first.source_embeds, second.source_embeds)  # dropout is really on
    noisy = small_model(dropping, key_encoder_dropout=True).train()
    first, second = (noisy(**small_batch()) for _ in range(2))
    assert not torch.equal(first.source_keys, second.source_keys)


def test_inference_task() -> None:
    model = small_model(nli_labels=3, nli_weight=0.1).eval()
    enqueue_keys(model, small_batch(6, 1))
    batch, other = small_batch(4, 2), small_batch(5, 3)
    nli = {
        "premise_input_ids": other["source_input_ids"],
        "premise_attention_mask": other["source_attention_mask"],
        "hypothesis_input_ids": other["target_input_ids"],
        "hypothesis_attention_mask": other["target_attention_mask"],
        "labels": torch.tensor([0, 1, 2, 0, 1]),
        "lang": "en",
    }
    output = model(**batch, nli=nli)
    swapped = {**other, "target_lang": "en"}
    u, v = naive_vectors(model, swapped, "source"), naive_vectors(model, swapped, "target")
    head = model.nli_head
    hidden = head.hidden(torch.cat([u, v, (u - v).abs(), u * v], -1)).relu()
    assert hidden.shape == (5, 256)
    expected = F.cross_entropy(head.output(hidden), nli["labels"])
    torch.testing.assert_close(output.losses["nli"], expected)
    torch.testing.assert_close(output.loss, model(**batch).loss + 0.1 * expected)
