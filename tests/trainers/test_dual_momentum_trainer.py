"""DualMomentumTrainer: momentum and queues once a step, accumulation like a larger batch, bad steps dropped."""

from __future__ import annotations

import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs
from dual_momentum_runs import tiny_dual, trainer_of
from transformers import TrainerCallback

from hf_xlsr.trainers import add_adapters
from hf_xlsr.utils.errors import XlsrError


@pytest.mark.slow
def test_micro_batches_train_like_one_batch(tmp_path: Path) -> None:
    """With queue negatives alone, accumulation is exactly a larger batch: same weights, same queues."""
    states = []
    for number, (batch, accumulation) in enumerate(((32, 1), (8, 4))):
        trainer = trainer_of(
            tmp_path / str(number),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            optim="sgd",  # Adam would blow up the rounding of gradients that are zero in truth
            learning_rate=0.5,
            max_steps=5,
        )
        take_in_order(trainer)
        trainer.train()
        states.append(trainer.model.state_dict())
    moved = 0
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-4, atol=1e-6, msg=name)
        moved += name.startswith("encoders.") and not torch.equal(value, tiny_dual().state_dict()[name])
    assert moved > 10 and int(states[0]["queues.en.filled"]) == 64  # 160 keys went through a queue of 64
    assert torch.equal(states[0]["queues.fr.examples"], states[1]["queues.fr.examples"])


def take_in_order(trainer: Any) -> None:
    """Both trainers must see the same 32 pairs in each step; the sampler's own order depends on the batch size."""
    size = trainer.args.per_device_train_batch_size
    data = trainer.train_dataset

    class InOrder(torch.utils.data.Sampler):
        batch_size, drop_last = size, True

        def set_epoch(self, epoch: int) -> None:
            pass

        def __len__(self) -> int:
            return len(data) // size

        def __iter__(self) -> Any:
            for start in range(0, len(data) - size + 1, size):
                yield [(0, index) for index in range(start, start + size)]

    trainer.train_batches = lambda: (data, InOrder())


def test_momentum_moves_once_a_step(tmp_path: Path) -> None:
    model = tiny_dual(in_batch_negatives=True)  # the queues are empty in the first step
    options = {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8, "max_steps": 1}
    trainer = trainer_of(tmp_path, model=model, **options)
    start = {name: value.clone() for name, value in model.encoders.named_parameters()}

    trainer.train()

    end = dict(model.encoders.named_parameters())
    moved = [name for name, value in end.items() if (value - start[name]).abs().max() > 1e-3]
    assert len(moved) > 40
    for name, value in model.momentum_encoders.named_parameters():
        torch.testing.assert_close(value, 0.9 * start[name] + 0.1 * end[name], rtol=1e-5, atol=1e-7, msg=name)


def test_evaluation_leaves_queues_and_averages_alone(tmp_path: Path) -> None:
    states = []
    for evaluated in (False, True):
        trainer = trainer_of(tmp_path, max_steps=3, per_device_train_batch_size=8)
        if evaluated:
            callback = TrainerCallback()
            callback.on_step_end = lambda *_, trainer=trainer, **__: trainer.evaluate(make_pairs(8)) and None
            trainer.add_callback(callback)
        trainer.train()
        states.append(trainer.model.state_dict())
    assert all(torch.equal(states[1][name], value) for name, value in states[0].items())


def test_only_tokenizers_of_the_model_are_saved(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, languages=("en", "fr", "de"))  # the model has no German
    trainer.save_model(str(tmp_path / "saved"))
    assert {folder.name for folder in (tmp_path / "saved/tokenizers").iterdir()} == set(trainer.model.encoders)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_step_that_is_not_finite_is_skipped(where: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = trainer_of(tmp_path, per_device_train_batch_size=16, max_steps=4)
    poison_call(trainer, where, call=2)
    before = keep_states(trainer)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert "Skipped step 3" in caplog.text and "so far: 1" in caplog.text
    assert all(torch.isfinite(value).all() for value in trainer.model.state_dict().values())
    # Nothing of step 3 stays, neither in weights nor averages nor queues; steps 2 and 4 left theirs.
    assert all(torch.equal(before[1][name], value) for name, value in before[2].items())
    assert not torch.equal(before[0]["queues.en.filled"], before[1]["queues.en.filled"])
    assert int(before[3]["queues.en.filled"]) == 48


def test_step_skipped_by_the_gradient_scaler(tmp_path: Path) -> None:
    """What float16 does on a GPU, with the scaler of the processor; fused optimisers do not say that they skipped."""
    trainer = trainer_of(tmp_path, per_device_train_batch_size=16, max_steps=4, optim="adamw_torch_fused")
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    poison_call(trainer, "loss", call=2)
    states = keep_states(trainer)
    trainer.train()
    assert all(torch.equal(states[1][name], value) for name, value in states[2].items())
    assert not torch.equal(states[2]["queues.fr.filled"], states[3]["queues.fr.filled"])
    assert trainer.accelerator.scaler.get_scale() == 2.0  # it backed off


def poison_call(trainer: Any, where: str, call: int) -> None:
    """Makes one forward give a NaN: in the vectors, or only in the gradient."""
    original, calls = trainer.model.forward, [0]

    def poisoned(**inputs: Any) -> Any:
        output = original(**inputs)
        if calls[0] == call:
            weight = trainer.model.encoders["en"].embeddings.word_embeddings.weight
            factor = float("nan") if where == "loss" else 0.0
            zero = (weight.sum() * 0.0).sqrt()  # with an infinite gradient
            output.loss = output.loss * (1 + factor) + (0.0 if where == "loss" else 1.0) * zero
            output.target_keys = torch.full_like(output.target_keys, float("nan"))
        calls[0] += 1
        return output

    trainer.model.forward = poisoned


def keep_states(trainer: Any, event: str = "on_step_end") -> list[dict[str, torch.Tensor]]:
    """The model's state at each event from now on."""
    states: list[dict[str, torch.Tensor]] = []
    callback = TrainerCallback()
    setattr(callback, event, lambda *_, model, **__: states.append(deepcopy(model.state_dict())))
    trainer.add_callback(callback)
    return states


def test_prefilled_queues_hold_training_sentences(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, queue_prefill=True, max_steps=1, per_device_train_batch_size=8)
    states = keep_states(trainer, "on_step_begin")
    trainer.train()
    data = trainer.train_dataset
    for language, side in (("en", "source"), ("fr", "target")):
        examples = states[0][f"queues.{language}.examples"]
        assert int(states[0][f"queues.{language}.filled"]) == 64 and len(set(examples.tolist())) == 64
        features = data.__getitems__([(0, index) for index in examples.tolist()])
        assert states[0][f"queues.{language}.texts"].tolist() == [feature[f"{side}_text"] for feature in features]
        ids = torch.tensor([features[5][f"{side}_ids"]])
        with torch.no_grad():
            expected = tiny_dual().encode_sentences(ids, language=language, keys=True)[0]
        torch.testing.assert_close(states[0][f"queues.{language}.values"][5], expected, rtol=1e-4, atol=1e-5)


OTHER_SETTINGS: dict[str, Any] = {
    "queue_size": 32,
    "queue_storage": "int8",
    "languages": ["en", "fr", "de"],
    "projection_dim": 8,
    "use_momentum": False,
    "nli_labels": 3,
}


@pytest.mark.parametrize("adapters", [False, True], ids=["whole", "adapters"])
def test_checkpoint_of_other_settings_is_refused(adapters: bool, tmp_path: Path) -> None:
    def made(**settings: Any) -> Any:
        model = tiny_dual(in_batch_negatives=True, **settings)
        if adapters:
            model = add_adapters(model, rank=2)
        return trainer_of(tmp_path, model=model, languages=("en", "fr", "de"))

    made().save_model(str(tmp_path / "saved"))

    made().load_checkpoint(tmp_path / "saved")
    for name, value in OTHER_SETTINGS.items():
        with pytest.raises(XlsrError, match=f"`{name}`"):
            made(**{name: value}).load_checkpoint(tmp_path / "saved")
