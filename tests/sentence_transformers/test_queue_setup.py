"""What `DualMomentumLoss` does before training: it copies a model and leaves it alone, and fills its queues."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from st_helpers import queue_loss, recorded_statistics, routed_model, rows, shared_model, static_model, trainer_of

MODELS = {"shared": shared_model, "router": routed_model, "static": static_model}
PROMPTS = ("red king: ", "roi: ")


SETTINGS = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "max_seq_length", "device")


def everything_of(model: Any) -> dict[str, Any]:
    """All that somebody who passes a model could find changed."""
    modules = []
    tokenizers = []
    for name, module in model.named_modules():
        modules.append((name, type(module), id(module), module.training, str(getattr(module, "config", ""))))
        tokenizer = getattr(module, "tokenizer", None)
        tokenizer = getattr(tokenizer, "_tokenizer", tokenizer)
        if hasattr(tokenizer, "truncation"):
            tokenizers.append((tokenizer.padding, tokenizer.truncation))
    assert tokenizers

    weights = []
    for name, weight in model.named_parameters():
        weights.append((name, id(weight), weight.dtype, weight.requires_grad, weight.grad is None))

    return {
        "settings": {name: copy.deepcopy(getattr(model, name)) for name in SETTINGS},
        "attributes": sorted(vars(model)),
        "model card": id(model.model_card_data),
        "modules": modules,
        "tokenizers": tokenizers,
        "weights": weights,
        "random": torch.get_rng_state().tolist(),
    }


def assert_unchanged(model: Any, before: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    assert everything_of(model) == before
    torch.testing.assert_close(dict(model.state_dict()), tensors, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_given_model_stays_as_it_was(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = MODELS[kind](tmp_path).to(dtype)
    model.prompts = {"query": "red ", "document": "rouge "}
    model.default_prompt_name = "query"
    model.truncate_dim = 8
    model.train()
    layers = [module for module in model.modules() if not list(module.children()) and list(module.parameters())]
    layers[0].eval()
    layers[0].requires_grad_(False)
    before = everything_of(model)
    tensors = copy.deepcopy(dict(model.state_dict()))

    loss = queue_loss(model)
    assert loss.model is model
    assert_unchanged(model, before, tensors)

    storages = {weight.data_ptr() for weight in model.parameters()}
    for weight in loss.momentum_model.parameters():
        assert weight.data_ptr() not in storages

    loss.momentum_model.train()
    loss.momentum_model.prompts["query"] = "blue "
    for weight in loss.momentum_model.parameters():
        weight.data.fill_(1.0)
    assert_unchanged(model, before, tensors)


def first_step(loss: Any, model: Any, data: Dataset, folder: Path, **options: Any) -> list[dict[str, float]]:
    """The statistics of both directions in the first step of a training."""
    with recorded_statistics() as statistics:
        trainer_of(model, loss, folder, data, max_steps=1, per_device_train_batch_size=16, **options).train()
    return statistics


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", MODELS)
def test_filled_texts_are_known_in_training_with_prompts(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind](tmp_path)
    data = rows(16)
    targets_again = Dataset.from_dict({"en": rows(16, 9)["en"], "fr": data["fr"]})
    options: dict[str, Any] = {"prompts": dict(zip(("en", "fr"), PROMPTS, strict=True))}
    tasks: tuple[str | None, str | None] = (None, None)
    if kind == "router":
        options["router_mapping"] = {"en": "en", "fr": "fr"}
        tasks = ("en", "fr")

    def filled() -> Any:
        loss = queue_loss(model, mask_stale_keys=True, mask_duplicates=True)
        loss.fill_queues(data["en"], data["fr"], batch_size=5, prompts=PROMPTS, tasks=tasks)
        return loss

    loss = filled()
    to_target, to_source = first_step(loss, model, data, tmp_path, **options)
    assert to_target["queue/stale"] == 1
    assert to_source["queue/stale"] == 1
    for queue in loss.queues.values():
        filled_texts, trained_texts = queue.texts[:32].split(16)
        assert torch.equal(trained_texts.sort().values, filled_texts.sort().values)

    to_target, to_source = first_step(filled(), model, targets_again, tmp_path, **options)
    assert to_target["queue/duplicates"] == 1
    assert to_source["queue/duplicates"] == 0


def test_filled_keys_with_prompts_are_those_of_training(tmp_path: Path) -> None:
    """With a prompt that pooling ignores, and one side without a prompt."""
    model = shared_model(tmp_path)
    pooling: Any = model[1]
    pooling.include_prompt = False
    data = rows(16)
    trained = queue_loss(model, momentum=1.0)
    trainer_of(model, trained, tmp_path, data, max_steps=2, prompts={"en": PROMPTS[0]}).train()

    filled = queue_loss(model, momentum=1.0)
    filled.momentum_model = trained.momentum_model
    filled.fill_queues(data["en"], data["fr"], prompts=(PROMPTS[0], None))

    for side in ("source", "target"):
        queue = trained.queues[side]
        filled_queue = filled.queues[side]
        order = queue.texts[:16].argsort()
        filled_order = filled_queue.texts[:16].argsort()
        assert torch.equal(queue.texts[order], filled_queue.texts[filled_order])
        torch.testing.assert_close(queue.values[order], filled_queue.values[filled_order])


def test_neither_trainer_nor_filling_uses_the_default_prompt(tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    model.prompts = {"query": PROMPTS[0]}
    model.default_prompt_name = "query"
    data = rows(16)
    loss = queue_loss(model)
    loss.fill_queues(data["en"], data["fr"])

    to_target, to_source = first_step(loss, model, data, tmp_path)
    assert to_target["queue/stale"] == 1
    assert to_source["queue/stale"] == 1


@pytest.mark.sample(1)
@pytest.mark.parametrize("prompts", ["red king: ", {"en": "red king: ", "fr": "roi: "}], ids=["one", "by column"])
@pytest.mark.parametrize("kind", ["shared", "router"])
def test_queues_are_filled_as_training_reads_texts(kind: str, prompts: Any, tmp_path: Path) -> None:
    """Prompts and routes of the training arguments, although `fill_queues` was not told them."""
    model = MODELS[kind](tmp_path)
    routes = {"router_mapping": {"en": "en", "fr": "fr"}} if kind == "router" else {}
    data = rows(32)
    loss = queue_loss(model, mask_duplicates=True)
    loss.fill_queues(list(data["en"]), list(data["fr"]))
    unprompted = loss.queues["source"].texts.clone()

    for statistics in first_step(loss, model, data, tmp_path, prompts=prompts, **routes):
        assert statistics["queue/filled"] == 0.5
        assert statistics["queue/stale"] == 1
    assert not torch.equal(loss.queues["source"].texts[:32], unprompted[:32])


def test_queues_that_training_reads_alike_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    data = rows(32)
    loss.fill_queues(list(data["en"]), list(data["fr"]))
    monkeypatch.setattr(loss, "_fill", None)
    first_step(loss, model, data, tmp_path)
