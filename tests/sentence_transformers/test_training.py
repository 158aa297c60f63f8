"""Losses inside `SentenceTransformerTrainer`: accumulation, processes, adapters, datasets, checkpoints."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import DatasetDict
from forked_command import SERVER
from st_helpers import QUEUE, features_of, queue_loss, routed_model, rows, shared_model, trainer_of
from transformers import TrainerCallback
from two_processes import run_on_two_processes

from hf_xlsr.sentence_transformers import AdditiveMarginLoss, AlignmentSimilarityLoss, DualMomentumCallback
from hf_xlsr.utils.errors import XlsrError

SGD = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}


def state_of(loss: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in loss.state_dict().items()}


def test_micro_batches_train_like_one_batch(tmp_path: Path) -> None:
    """With queue negatives alone, accumulation is a larger batch, and steps with empty queues change nothing."""
    states = []
    for batch, accumulation in ((16, 1), (4, 4)):
        loss = queue_loss(model := shared_model(tmp_path))
        options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation, **SGD}
        trainer_of(model, loss, tmp_path, rows(80), max_steps=5, **options).train()
        states.append(state_of(loss))
    fresh = state_of(queue_loss(shared_model(tmp_path)))
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-4, atol=1e-5, msg=name)
    assert torch.equal(states[0]["queues.source.texts"], states[1]["queues.source.texts"])
    assert int(states[0]["queues.source.filled"]) == QUEUE
    moved = [
        name for name in states[0] if name.startswith("momentum") and not torch.equal(states[0][name], fresh[name])
    ]
    assert len(moved) > 20


def test_evaluation_leaves_the_queues_alone(tmp_path: Path) -> None:
    loss = queue_loss(model := shared_model(tmp_path))
    trainer = trainer_of(model, loss, tmp_path, max_steps=2)
    trainer.train()
    before = state_of(loss)
    assert trainer.evaluate(rows(16, 5))["eval_loss"] > 0
    assert all(torch.equal(value, before[name]) for name, value in state_of(loss).items())


def test_missing_callback_is_an_error_at_the_second_step(tmp_path: Path) -> None:
    loss = queue_loss(model := shared_model(tmp_path))
    trainer = trainer_of(model, loss, tmp_path)
    trainer.remove_callback(DualMomentumCallback)
    with pytest.raises(XlsrError, match="DualMomentumCallback"):
        trainer.train()


def test_filled_queues_are_those_of_training(tmp_path: Path) -> None:
    """The same texts have the same keys and hashes, with a route per side and other padding."""
    loss, other = (queue_loss(model := routed_model(tmp_path)) for _ in range(2))
    data = rows(16)
    other.fill_queues(data["en"], data["fr"], tasks=("en", "fr"), batch_size=5)
    model.train()
    loss.model.train()
    loss(features_of(loss.model, data, {"en": "en", "fr": "fr"}))
    loss.finish_step()
    for name, value in loss.queues.state_dict().items():
        torch.testing.assert_close(other.queues.state_dict()[name], value)


@pytest.mark.parametrize("scaler", [False, True], ids=["float32", "float16"])
def test_step_that_is_not_finite_is_dropped(scaler: bool, tmp_path: Path) -> None:
    loss = queue_loss(model := shared_model(tmp_path))
    states: list[dict[str, torch.Tensor]] = []

    class Keep(TrainerCallback):
        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            states.append(state_of(loss))

    trainer = trainer_of(model, loss, tmp_path, callbacks=[Keep()], max_steps=3)
    if scaler:
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    original, calls = model.forward, [0]

    def poisoned(features: Any, **kwargs: Any) -> Any:
        output = original(features, **kwargs)
        calls[0] += 1
        if calls[0] == 3:  # the source of the second step
            output["sentence_embedding"] = output["sentence_embedding"] * float("nan")
        return output

    model.forward = poisoned
    trainer.train()
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    assert int(states[2]["queues.source.filled"]) == 16


def test_adapters(tmp_path: Path) -> None:
    """The averages of trained adapters move, those of frozen weights do not; only the former are in checkpoints."""
    peft = pytest.importorskip("peft")
    model = shared_model(tmp_path)
    model.add_adapter(peft.LoraConfig(task_type="FEATURE_EXTRACTION", r=2, target_modules=["query", "value"]))
    loss = queue_loss(model)
    before = state_of(loss)
    trainer_of(model, loss, tmp_path, save_strategy="steps", save_steps=2).train()
    moved = {name for name, value in state_of(loss).items() if not torch.equal(value, before[name])}
    averages = {name for name in moved if name.startswith("momentum_model.")}
    assert averages and all("lora" in name for name in averages)
    assert all("lora" in name for name in loss.training_state() if not name.startswith("queues."))


def two_datasets(model: Any) -> tuple[dict[str, Any], DatasetDict]:
    names = ("one", "two")
    return {name: queue_loss(model) for name in names}, DatasetDict({name: rows(64, 4) for name in names})


def train_in_two(folder: Path, kind: str) -> None:
    torch.set_num_threads(1)
    model = (routed_model if kind == "router" else shared_model)(folder)
    data: Any = rows(64)
    if kind == "datasets":
        loss, data = two_datasets(model)
    elif kind == "queue" or kind == "router":
        loss = queue_loss(model, in_batch_negatives=kind == "queue", gather_across_devices=True)
    else:
        kinds = {"margin": AdditiveMarginLoss, "structure": AlignmentSimilarityLoss}
        loss = kinds[kind](model, gather_across_devices=True)
    # Adam after a warm-up: differences of single gradients would be visible.
    size = 8 // int(os.environ.get("WORLD_SIZE", "1"))
    options: dict[str, Any] = {"router_mapping": {"en": "en", "fr": "fr"}} if kind == "router" else {}
    options |= {"per_device_train_batch_size": size, "max_steps": 4, **SGD}
    if kind == "router":
        options["ddp_find_unused_parameters"] = False
        for name, weight in model.named_parameters():
            weight.requires_grad_("pooler" not in name)
    trainer = trainer_of(model, loss, folder, data, **options)
    trainer.train()
    rank = int(os.environ.get("RANK", "-1"))
    losses = loss.values() if isinstance(loss, dict) else [loss]
    torch.save([part.state_dict() for part in losses], folder / f"state{rank}.pt")


@pytest.mark.parametrize("kind", ["queue", "router", "margin", "structure", "datasets"])
def test_two_processes_train_like_one(kind: str, tmp_path: Path) -> None:
    run_on_two_processes(train_in_two, tmp_path, kind, folder=tmp_path)
    first, second = (torch.load(tmp_path / f"state{rank}.pt") for rank in range(2))
    plain = [{name.replace("model.module.", "model."): value for name, value in part.items()} for part in first]
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(other[name], value) for name, value in one.items())
    if kind == "datasets":  # processes have batches of different datasets
        assert sum(int(part["queues.source.filled"]) for part in first) == 32
        return
    train_in_two(tmp_path, kind)
    (alone,) = torch.load(tmp_path / "state-1.pt")
    for name, value in alone.items():
        torch.testing.assert_close(plain[0][name], value, rtol=1e-4, atol=1e-5, msg=name)


class KillAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train_killed(folder: Path, step: int | None) -> None:
    """Two queue losses of one model; killed after a step, or resumed from the last checkpoint."""
    torch.set_num_threads(1)
    losses, data = two_datasets(model := shared_model(folder))
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "gradient_accumulation_steps": 2}
    callbacks = [KillAfter(step)] if step else []
    trainer = trainer_of(model, losses, folder / "run", data, callbacks=callbacks, **options)
    trainer.train(resume_from_checkpoint=step is None)
    torch.save([loss.state_dict() for loss in losses.values()], folder / "state.pt")


def test_resume_after_sigkill_is_exact(tmp_path: Path) -> None:
    states = []
    for kind in ("whole", "killed"):
        folder = tmp_path / kind
        folder.mkdir()
        if kind == "killed":
            killed = SERVER.Process(target=train_killed, args=(folder, 5))
            killed.start()
            killed.join(200)
            assert killed.exitcode == -signal.SIGKILL
            train_killed(folder, None)
        else:
            train_killed(folder, 99)
        states.append(torch.load(folder / "state.pt"))
    for whole, resumed in zip(*states, strict=True):
        assert int(whole["queues.source.filled"]) > 0
        assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def test_queues_of_another_run_are_refused(tmp_path: Path) -> None:
    states = []
    for name, seed in (("first", 1), ("second", 2)):
        loss = queue_loss(model := shared_model(tmp_path))
        trainer_of(model, loss, tmp_path / name, seed=seed, max_steps=3, save_strategy="steps", save_steps=2).train()
        states.append(state_of(loss))
    given = str(tmp_path / "first" / "checkpoint-2")
    with pytest.raises(XlsrError, match="resume_from_checkpoint"):
        trainer_of(model, loss, tmp_path / "second", max_steps=3).train(resume_from_checkpoint=given)
    trainer = trainer_of(model, loss, tmp_path / "second", seed=1, max_steps=3, resume_from_checkpoint=given)
    trainer.train(resume_from_checkpoint=given)
    differ = [name for name, value in state_of(loss).items() if not torch.equal(value, states[0][name])]
    assert not differ


def test_momentum_encoder_computes_as_the_model(tmp_path: Path) -> None:
    """In the trainer's precision, and next to a compiled model."""
    loss = queue_loss(model := shared_model(tmp_path))
    before, autocast = state_of(loss), []
    loss.momentum_model[0].register_forward_hook(lambda *_: autocast.append(torch.is_autocast_enabled("cpu")))
    options = {"bf16": True, "torch_compile": True, "torch_compile_backend": "eager"}
    trainer_of(model, loss, tmp_path, max_steps=2, **options).train()
    after = state_of(loss)
    averages = [name for name in before if name.startswith("momentum_model.")]
    assert all(autocast) and not all(torch.equal(before[name], after[name]) for name in averages)


@pytest.mark.parametrize("change", [{"queue_size": 32}, {"queue_storage": "int8"}])
def test_resume_with_another_queue_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    loss = queue_loss(model := shared_model(tmp_path))
    trainer_of(model, loss, tmp_path / "run", max_steps=2, save_strategy="steps", save_steps=1).train()
    other = queue_loss(model, **change)
    with pytest.raises(XlsrError, match="queue"):
        trainer_of(model, other, tmp_path / "run", max_steps=4).train(resume_from_checkpoint=True)
