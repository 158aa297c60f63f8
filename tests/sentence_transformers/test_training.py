"""Losses inside `SentenceTransformerTrainer`: accumulation, processes, adapters, datasets, checkpoints."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import DatasetDict
from forked_command import SERVER
from st_helpers import QUEUE, features_of, queue_loss, routed_model, rows, shared_model, trainer_of
from transformers import TrainerCallback
from two_processes import run_on_two_processes

from hf_xlsr.sentence_transformers import AdditiveMarginLoss, AlignmentSimilarityLoss
from hf_xlsr.utils.errors import XlsrError

SGD = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}


def state_of(loss: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in loss.state_dict().items()}


def changed_names(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> list[str]:
    """Names of the values that differ between two states."""
    assert before.keys() == after.keys()
    return [name for name, value in before.items() if not torch.equal(after[name], value)]


def test_micro_batches_train_like_one_batch(tmp_path: Path) -> None:
    """With queue negatives alone, accumulation is a larger batch, and steps with empty queues change nothing."""

    def trained(batch: int, accumulation: int) -> dict[str, torch.Tensor]:
        model = shared_model(tmp_path)
        loss = queue_loss(model)
        options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation, **SGD}
        trainer_of(model, loss, tmp_path, rows(80), max_steps=5, **options).train()
        return state_of(loss)

    whole = trained(16, 1)
    accumulated = trained(4, 4)
    torch.testing.assert_close(accumulated, whole, rtol=1e-4, atol=1e-5)
    assert torch.equal(whole["queues.source.texts"], accumulated["queues.source.texts"])
    assert int(whole["queues.source.filled"]) == QUEUE

    untrained = state_of(queue_loss(shared_model(tmp_path)))
    changed = [name for name in changed_names(untrained, whole) if name.startswith("momentum")]
    assert len(changed) > 20


def test_evaluation_leaves_the_queues_alone(tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    trainer = trainer_of(model, loss, tmp_path, max_steps=2)
    trainer.train()
    before = state_of(loss)

    assert trainer.evaluate(rows(16, 5))["eval_loss"] > 0
    assert not changed_names(before, state_of(loss))

    loss.finish_step()  # moves the averages, and enqueues the keys that wait
    for name in changed_names(before, state_of(loss)):
        assert not name.startswith("queues.")


def test_filled_queues_are_those_of_training(tmp_path: Path) -> None:
    """The same texts have the same keys and hashes, with a route per side and other padding."""
    data = rows(16)
    filled = queue_loss(routed_model(tmp_path))

    filled.fill_queues(data["en"], data["fr"], tasks=("en", "fr"), batch_size=5)

    trained = queue_loss(routed_model(tmp_path))
    trained.model.train()
    trained(features_of(trained.model, data, {"en": "en", "fr": "fr"}))
    trained.finish_step()
    torch.testing.assert_close(filled.queues.state_dict(), trained.queues.state_dict())


@pytest.mark.parametrize("scaler", [False, True], ids=["float32", "float16"])
def test_step_that_is_not_finite_is_dropped(scaler: bool, tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    states: list[dict[str, torch.Tensor]] = []

    class KeepStates(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            states.append(state_of(loss))

    trainer = trainer_of(model, loss, tmp_path, callbacks=[KeepStates()], max_steps=3)
    if scaler:
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    forward = model.forward
    calls = count(1)

    def poisoned(features: Any, **kwargs: Any) -> Any:
        output = forward(features, **kwargs)
        if next(calls) == 3:  # the source of the second step
            output["sentence_embedding"] = output["sentence_embedding"] * float("nan")
        return output

    model.forward = poisoned
    trainer.train()
    first, second, third = states
    assert not changed_names(first, second)
    assert int(third["queues.source.filled"]) == 16


def test_adapters(tmp_path: Path) -> None:
    """The averages of trained adapters move, those of frozen weights do not; only the former are in checkpoints."""
    peft = pytest.importorskip("peft")
    model = shared_model(tmp_path)
    model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", r=2, target_modules=["query", "value"]))
    loss = queue_loss(model)
    before = state_of(loss)
    trainer_of(model, loss, tmp_path, save_strategy="steps", save_steps=2).train()

    averages = [name for name in changed_names(before, state_of(loss)) if name.startswith("momentum_model.")]
    assert averages
    for name in averages:
        assert "lora" in name
    for name in loss.training_state():
        assert "lora" in name or name.startswith("queues.")


def two_datasets(model: Any) -> tuple[dict[str, Any], DatasetDict]:
    losses = {"one": queue_loss(model), "two": queue_loss(model)}
    return losses, DatasetDict({name: rows(64, 4) for name in losses})


def train_in_two(folder: Path, kind: str) -> None:
    torch.set_num_threads(1)
    model = routed_model(folder) if kind == "router" else shared_model(folder)
    data: Any = rows(64)
    size = 8 // int(os.environ.get("WORLD_SIZE", "1"))
    options: dict[str, Any] = {"per_device_train_batch_size": size, "max_steps": 4, **SGD}
    loss: Any
    if kind == "datasets":
        loss, data = two_datasets(model)
    elif kind == "queue":
        loss = queue_loss(model, in_batch_negatives=True, gather_across_devices=True)
    elif kind == "router":
        loss = queue_loss(model, gather_across_devices=True)
        options |= {"router_mapping": {"en": "en", "fr": "fr"}, "ddp_find_unused_parameters": False}
        for name, weight in model.named_parameters():
            weight.requires_grad_("pooler" not in name)
    elif kind == "margin":
        loss = AdditiveMarginLoss(model, gather_across_devices=True)
    else:
        loss = AlignmentSimilarityLoss(model, gather_across_devices=True)

    trainer_of(model, loss, folder, data, **options).train()
    rank = os.environ.get("RANK", "-1")
    losses = list(loss.values()) if isinstance(loss, dict) else [loss]
    torch.save([module.state_dict() for module in losses], folder / f"state{rank}.pt")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "margin",
        "datasets",
        pytest.param("queue", marks=pytest.mark.slow),
        pytest.param("router", marks=pytest.mark.slow),
        pytest.param("structure", marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_like_one(kind: str, tmp_path: Path) -> None:
    run_on_two_processes(train_in_two, tmp_path, kind, folder=tmp_path)
    first_process = torch.load(tmp_path / "state0.pt")
    second_process = torch.load(tmp_path / "state1.pt")
    for state, same_state in zip(first_process, second_process, strict=True):
        assert not changed_names(state, same_state)
    if kind == "datasets":  # processes have batches of different datasets
        filled_rows = [int(state["queues.source.filled"]) for state in first_process]
        assert sum(filled_rows) == 32
        return

    (state_of_two,) = first_process
    unwrapped = {name.replace("model.module.", "model."): value for name, value in state_of_two.items()}
    train_in_two(tmp_path, kind)
    (state_of_one,) = torch.load(tmp_path / "state-1.pt")
    for name, value in state_of_one.items():
        torch.testing.assert_close(unwrapped[name], value, rtol=1e-4, atol=1e-5, msg=name)


class KillAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train_killed(folder: Path, step: int | None) -> None:
    """Two queue losses of one model; killed after a step, or resumed from the last checkpoint."""
    torch.set_num_threads(1)
    model = shared_model(folder)
    losses, data = two_datasets(model)
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "gradient_accumulation_steps": 2}
    callbacks = [KillAfter(step)] if step else []
    trainer = trainer_of(model, losses, folder / "run", data, callbacks=callbacks, **options)
    trainer.train(resume_from_checkpoint=step is None)
    torch.save([loss.state_dict() for loss in losses.values()], folder / "state.pt")


@pytest.mark.slow
def test_resume_after_sigkill_is_exact(tmp_path: Path) -> None:
    whole_folder = tmp_path / "whole"
    whole_folder.mkdir()
    train_killed(whole_folder, 99)

    folder = tmp_path / "killed"
    folder.mkdir()
    killed = SERVER.Process(target=train_killed, args=(folder, 5))
    killed.start()
    killed.join(200)
    assert killed.exitcode == -signal.SIGKILL
    train_killed(folder, None)

    whole_states = torch.load(whole_folder / "state.pt")
    resumed_states = torch.load(folder / "state.pt")
    for whole, resumed in zip(whole_states, resumed_states, strict=True):
        assert int(whole["queues.source.filled"]) > 0
        assert not changed_names(whole, resumed)


@pytest.mark.slow
def test_queues_of_another_run_are_refused(tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    saving = {"max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    trainer_of(model, loss, tmp_path / "first", seed=1, **saving).train()
    first_state = state_of(loss)

    model = shared_model(tmp_path)
    loss = queue_loss(model)
    second_folder = tmp_path / "second"
    trainer_of(model, loss, second_folder, seed=2, **saving).train()

    checkpoint = str(tmp_path / "first" / "checkpoint-2")
    with pytest.raises(XlsrError, match="resume_from_checkpoint"):
        trainer_of(model, loss, second_folder, max_steps=3).train(resume_from_checkpoint=checkpoint)
    trainer = trainer_of(model, loss, second_folder, seed=1, max_steps=3, resume_from_checkpoint=checkpoint)
    trainer.train(resume_from_checkpoint=checkpoint)
    assert not changed_names(first_state, state_of(loss))


@pytest.mark.slow
def test_momentum_encoder_computes_as_the_model(tmp_path: Path) -> None:
    """In the trainer's precision, and next to a compiled model."""
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    before = state_of(loss.momentum_model)
    autocast: list[bool] = []
    loss.momentum_model[0].register_forward_hook(lambda *_: autocast.append(torch.is_autocast_enabled("cpu")))

    options = {"bf16": True, "torch_compile": True, "torch_compile_backend": "eager"}
    trainer_of(model, loss, tmp_path, max_steps=2, **options).train()

    assert set(autocast) == {True}
    assert changed_names(before, state_of(loss.momentum_model))


@pytest.mark.sample(1)
@pytest.mark.parametrize("change", [{"queue_size": 32}, {"queue_storage": "int8"}])
def test_resume_with_another_queue_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    trainer_of(model, loss, tmp_path / "run", max_steps=2, save_strategy="steps", save_steps=1).train()
    changed_loss = queue_loss(model, **change)
    with pytest.raises(XlsrError, match="queue"):
        trainer_of(model, changed_loss, tmp_path / "run", max_steps=4).train(resume_from_checkpoint=True)


class SetsTrainable(TrainerCallback):
    """Freezes or thaws the embeddings after two steps."""

    def __init__(self, model: Any, thaws: bool) -> None:
        self.weights = list(model[0].auto_model.embeddings.parameters())
        self.thaws = thaws

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for weight in self.weights:
            weight.requires_grad_((state.global_step >= 2) == self.thaws)


@pytest.mark.sample(1)
@pytest.mark.parametrize("thaws", [False, True], ids=["frozen", "thawed"])
def test_a_training_that_freezes_layers_resumes(thaws: bool, tmp_path: Path) -> None:
    """The same weights and momentum weights as without a stop."""

    def trained(resumes: bool) -> dict[str, torch.Tensor]:
        model = shared_model(tmp_path)
        loss = queue_loss(model)
        saving = {"max_steps": 6, "save_strategy": "steps", "save_steps": 4}
        folder = tmp_path / "run"
        trainer = trainer_of(model, loss, folder, callbacks=[SetsTrainable(model, thaws)], **saving)
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4") if resumes else None)
        return {**model.state_dict(), **loss.momentum_model.state_dict(prefix="momentum."), **loss.queues.state_dict()}

    whole = trained(resumes=False)
    resumed = trained(resumes=True)
    assert not changed_names(whole, resumed)
