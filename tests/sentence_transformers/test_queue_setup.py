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


def fast_tokenizers(model: Any) -> list[Any]:
    tokenizers = [getattr(module, "tokenizer", None) for module in model.modules()]
    tokenizers = [getattr(tokenizer, "_tokenizer", tokenizer) for tokenizer in tokenizers]
    return [tokenizer for tokenizer in tokenizers if hasattr(tokenizer, "truncation")]


def everything_of(model: Any) -> dict[str, Any]:
    """All that somebody who passes a model could find changed."""
    names = ("prompts", "default_prompt_name", "similarity_fn_name", "truncate_dim", "max_seq_length", "device")
    settings = {name: copy.deepcopy(getattr(model, name)) for name in names}
    tokenizers = fast_tokenizers(model)
    assert tokenizers
    return {
        "settings": settings,
        "attributes": sorted(vars(model)),
        "model card": id(model.model_card_data),
        "modules": [(name, type(module), id(module)) for name, module in model.named_modules()],
        "modes": [module.training for module in model.modules()],
        "weights": [
            (name, id(weight), weight.dtype, weight.requires_grad, weight.grad is None)
            for name, weight in model.named_parameters()
        ],
        "configs": [str(module.config) for module in model.modules() if hasattr(module, "config")],
        "tokenizers": [(tokenizer.padding, tokenizer.truncation) for tokenizer in tokenizers],
        "random": torch.get_rng_state().tolist(),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_given_model_stays_as_it_was(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = MODELS[kind](tmp_path).to(dtype)
    model.prompts = {"query": "red ", "document": "rouge "}
    model.default_prompt_name = "query"
    model.truncate_dim = 8
    model.train()
    frozen = next(module for module in model.modules() if not list(module.children()) and list(module.parameters()))
    frozen.eval()
    frozen.requires_grad_(False)

    before = everything_of(model)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loss = queue_loss(model)
    assert loss.model is model
    assert everything_of(model) == before
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name

    storages = {weight.data_ptr() for weight in model.parameters()}
    assert not storages & {weight.data_ptr() for weight in loss.momentum_model.parameters()}

    loss.momentum_model.train()
    loss.momentum_model.prompts["query"] = "blue "
    for weight in loss.momentum_model.parameters():
        weight.data.fill_(1.0)
    assert everything_of(model) == before
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name


def first_step(loss: Any, model: Any, data: Dataset, folder: Path, **options: Any) -> list[dict[str, float]]:
    """The statistics of both directions in the first step of a training."""
    with recorded_statistics() as statistics:
        trainer_of(model, loss, folder, data, max_steps=1, per_device_train_batch_size=16, **options).train()
    return statistics


@pytest.mark.parametrize("kind", MODELS)
def test_filled_texts_are_known_in_training_with_prompts(kind: str, tmp_path: Path) -> None:
    model = MODELS[kind](tmp_path)
    data = rows(16)
    targets_again = Dataset.from_dict({"en": rows(16, 9)["en"], "fr": data["fr"]})
    options: dict[str, Any] = {"prompts": dict(zip(("en", "fr"), PROMPTS, strict=True))}
    tasks: dict[str, Any] = {}
    if kind == "router":
        options["router_mapping"] = {"en": "en", "fr": "fr"}
        tasks["tasks"] = ("en", "fr")

    def filled(**fill_options: Any) -> Any:
        loss = queue_loss(model, mask_stale_keys=True, mask_duplicates=True)
        loss.fill_queues(data["en"], data["fr"], batch_size=5, **fill_options, **tasks)
        return loss

    loss = filled(prompts=PROMPTS)
    texts = {side: queue.texts[:16].tolist() for side, queue in loss.queues.items()}
    to_target, to_source = first_step(loss, model, data, tmp_path, **options)
    assert to_target["queue/stale"] == to_source["queue/stale"] == 1.0
    for side, queue in loss.queues.items():
        assert sorted(queue.texts[16:32].tolist()) == sorted(texts[side])

    to_target, to_source = first_step(filled(prompts=PROMPTS), model, targets_again, tmp_path, **options)
    assert [to_target["queue/duplicates"], to_source["queue/duplicates"]] == [1.0, 0.0]


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
    for side, queue in trained.queues.items():
        other = filled.queues[side]
        order = queue.texts[:16].argsort()
        other_order = other.texts[:16].argsort()
        assert torch.equal(queue.texts[order], other.texts[other_order])
        torch.testing.assert_close(queue.values[order], other.values[other_order])


def test_neither_trainer_nor_filling_uses_the_default_prompt(tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    model.prompts = {"query": PROMPTS[0]}
    model.default_prompt_name = "query"
    data = rows(16)
    loss = queue_loss(model)
    loss.fill_queues(data["en"], data["fr"])
    assert [direction["queue/stale"] for direction in first_step(loss, model, data, tmp_path)] == [1, 1]


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

    statistics = first_step(loss, model, data, tmp_path, prompts=prompts, **routes)
    assert [values["queue/filled"] for values in statistics[:2]] == [0.5, 0.5]
    assert [values["queue/stale"] for values in statistics[:2]] == [1.0, 1.0]
    assert not torch.equal(loss.queues["source"].texts[:32], unprompted[:32])


def test_queues_that_training_reads_alike_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    data = rows(32)
    loss.fill_queues(list(data["en"]), list(data["fr"]))
    monkeypatch.setattr(loss, "_fill", None)
    first_step(loss, model, data, tmp_path)
