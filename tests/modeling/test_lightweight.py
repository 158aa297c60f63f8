from __future__ import annotations

from typing import Any

import pytest
import torch
from lightweight_models import (
    BERT,
    ENCODERS,
    LENGTH,
    MASK,
    PAIRS,
    build,
    gradients,
    make_batch,
    without_gradient,
)
from torch.utils._python_dispatch import TorchDispatchMode

from hf_xlsr.losses import alignment_loss, generative_labels, generative_loss, similarity_loss
from hf_xlsr.losses.unified_generative import GENERATIVE_TASKS
from hf_xlsr.utils.pooling import pool

# What is computed


def test_loss_equals_equation_7() -> None:
    model, batch = build().eval(), make_batch()
    output = model(**batch)
    mask = batch["attention_mask"]
    states = model.encoder(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    pooled = pool(states, mask)
    source, target = pooled[:PAIRS], pooled[PAIRS:]
    labels = generative_labels(batch["original_ids"], mask, batch["masked_ids"])
    table = model.get_input_embeddings().weight
    expected = {
        "generative": generative_loss(model.head(pooled), table, model.head.bias, *labels),
        "alignment": alignment_loss(source, target),
        "similarity": similarity_loss(source, target),
    }
    torch.testing.assert_close(output.losses, expected)
    total = expected["generative"] + 2 * expected["alignment"] + 2 * expected["similarity"]
    torch.testing.assert_close(output.loss, total)
    torch.testing.assert_close(output.source_embeds, source)
    torch.testing.assert_close(output.target_embeds, target)


def test_every_option_reaches_its_loss() -> None:
    batch = make_batch()
    plain = build().eval()(**batch, mask_token_id=MASK).losses
    for changes, part in (
        ({"label_mode": "set"}, "generative"),
        ({"alignment_temperature": 0.1}, "alignment"),
        ({"alignment_normalize": True}, "alignment"),
        ({"similarity_temperature": 9.0}, "similarity"),
        ({"similarity_normalize": True}, "similarity"),
        ({"similarity_reduction": "sum"}, "similarity"),
        ({"similarity_epsilon": 0.9}, "similarity"),
    ):
        losses = build(**changes).eval()(**batch, mask_token_id=MASK).losses
        for name, value in losses.items():
            assert (value.item() != pytest.approx(plain[name].item(), rel=1e-6)) == (name == part), (changes, name)
    assert build(pooling="max").eval()(**batch).loss.item() != build().eval()(**batch).loss.item()


@pytest.mark.parametrize("part", ["generative", "alignment", "similarity"])
def test_weight_of_zero_skips_the_part(part: str) -> None:
    model, batch = build(**{f"{part}_weight": 0.0}), make_batch()
    output = model(**batch)
    assert part not in output.losses and len(output.losses) == 2
    assert without_gradient(model, batch) == []


def test_chunk_size_changes_nothing() -> None:
    batch = make_batch()
    whole, chunked = build(logits_chunk_size=128), build(logits_chunk_size=3)
    torch.testing.assert_close(gradients(chunked, batch), gradients(whole, batch))


class LargestTensor(TorchDispatchMode):
    """Records the most elements of any tensor that an operation makes, those of the shape of a parameter aside."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.shapes, self.numel = {parameter.shape for parameter in model.parameters()}, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.shape not in self.shapes:
            self.numel = max(self.numel, result.numel())
        return result


@pytest.mark.parametrize("task", GENERATIVE_TASKS)
def test_whole_logits_are_never_held(task: str) -> None:
    width, vocabulary, batch = 2, 4999, make_batch(task)
    encoder = {**BERT, "hidden_size": width, "intermediate_size": 4, "vocab_size": vocabulary}
    largest = {}
    for chunk in (512, vocabulary * 100):
        model = build(encoder, generative_task=task, logits_chunk_size=chunk)
        with LargestTensor(model) as meter:
            model(**batch).loss.backward()
        largest[chunk] = meter.numel
    assert largest[512] <= 512 < vocabulary < largest[vocabulary * 100]


def test_mlm_and_reconstruction_are_halved() -> None:
    batch = make_batch("mlm+xtr")
    losses = {
        task: build(generative_task=task).eval()(**batch).losses["generative"] for task in ("mlm", "xtr", "mlm+xtr")
    }
    torch.testing.assert_close(losses["mlm+xtr"], (losses["mlm"] + losses["xtr"]) / 2)


def test_return_loss_false() -> None:
    model, batch = build().eval(), make_batch()
    output = model(batch["input_ids"], batch["attention_mask"], return_loss=False)
    assert output.loss is None and output.losses is None
    vectors = model.encode_sentences(batch["input_ids"], batch["attention_mask"])
    torch.testing.assert_close(torch.cat([output.source_embeds, output.target_embeds]), vectors)


def test_padding_changes_nothing() -> None:
    model, batch = build().eval(), make_batch()
    row = int(batch["attention_mask"].sum(1).argmin())
    length = int(batch["attention_mask"][row].sum())
    assert length < LENGTH
    alone = model.encode_sentences(batch["input_ids"][row : row + 1, :length])
    together = model.encode_sentences(batch["input_ids"], batch["attention_mask"])[row : row + 1]
    torch.testing.assert_close(alone, together)


def test_empty_sentence() -> None:
    model, batch = build().eval(), make_batch()
    batch["attention_mask"][PAIRS] = 0
    batch["masked_ids"][PAIRS] = -100
    output = model(**batch)
    output.loss.backward()
    assert output.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters())


# Rules of the house


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=list(ENCODERS))
def test_gradients_of_every_encoder(encoder: dict[str, Any]) -> None:
    model = build(encoder).train()
    assert without_gradient(model, make_batch(pad=encoder["pad_token_id"])) == []


@pytest.mark.parametrize("task", GENERATIVE_TASKS)
@pytest.mark.parametrize("pooling", ["mean", "max", "cls"])
def test_gradients_in_every_task(task: str, pooling: str) -> None:
    assert without_gradient(build(generative_task=task, pooling=pooling), make_batch(task)) == []


def test_gradients_without_masked_tokens() -> None:
    batch = make_batch("mlm")
    batch["mlm_labels"][:] = -100
    model = build(generative_task="mlm")
    assert without_gradient(model, batch) == []
    assert model(**batch).losses["generative"].item() == 0
    assert all(p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("task", GENERATIVE_TASKS)
def test_every_generative_task_trains(task: str) -> None:
    model, batch = build(generative_task=task).train(), make_batch(task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    history = []
    for _ in range(30):
        output = model(**batch)
        history.append({name: value.item() for name, value in output.losses.items()} | {"all": output.loss.item()})
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
    assert history[-1]["all"] < 0.7 * history[0]["all"]
    assert history[-1]["generative"] < 0.9 * history[0]["generative"]
    assert history[-1]["alignment"] < 0.5 * history[0]["alignment"]
