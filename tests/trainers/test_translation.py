from __future__ import annotations

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_pairs
from lightweight_trainers import TINY
from translation_helpers import translation_pairs, translation_tokenizer, words_model

from hf_xlsr.trainers.translation import LiveTranslator, TranslationTrainer, TranslationTrainingArguments


def trainer_of(
    folder: Path, model: Any = None, data: Any = None, evaluations: Any = (), **options: Any
) -> TranslationTrainer:
    steps = {"per_device_train_batch_size": 8, "max_steps": 4, "logging_steps": 1}
    return TranslationTrainer(
        words_model() if model is None else model,
        TranslationTrainingArguments(str(folder), **{**TINY, **steps, **options}),
        train_dataset=translation_pairs() if data is None else data,
        processing_class=translation_tokenizer(),
        evaluations=evaluations,
    )


@pytest.mark.parametrize("warmup", [0, 2])
def test_inverse_square_root_rate(warmup: int, tmp_path: Path) -> None:
    options = {"lr_scheduler_kwargs": {"timescale": 3}} if not warmup else {}
    trainer = trainer_of(tmp_path, learning_rate=2e-5, warmup_steps=warmup, **options)
    trainer.train()
    rates = [log["learning_rate"] for log in trainer.state.log_history if "learning_rate" in log]
    steps = range(4)
    if warmup:  # 2e-5 * sqrt(2 / step) behind a linear rise
        expected = [2e-5 * (step / 2 if step < 2 else math.sqrt(2 / step)) for step in steps]
    else:
        expected = [2e-5 * math.sqrt(3 / (3 + step)) for step in steps]
    assert rates == pytest.approx(expected, rel=1e-6)


def test_step_one_trains_the_decoder_alone(tmp_path: Path) -> None:
    model = words_model(dropout=0.1)
    before = deepcopy(model.state_dict())
    trainer_of(tmp_path, model, freeze_encoder=True).train()
    middle = deepcopy(model.state_dict())
    for name, value in before.items():
        assert torch.equal(value, middle[name]) == name.startswith("encoder."), name
    model.save_pretrained(tmp_path / "one")
    second = type(model).from_pretrained(tmp_path / "one")
    trainer_of(tmp_path, second).train()
    for name, value in middle.items():
        assert not torch.equal(value, second.state_dict()[name]), name


@pytest.mark.parametrize("is_trained", [False, True])
def test_the_saved_model_translates_as_the_arguments_say(is_trained: bool, tmp_path: Path) -> None:
    decoding = {"generation_num_beams": 3, "generation_length_penalty": 0.6, "max_length": 9}
    trainer = trainer_of(tmp_path, max_steps=1, **decoding)
    if is_trained:
        trainer.train()
    trainer.save_model(str(tmp_path / "saved"))

    saved = type(trainer.model).from_pretrained(tmp_path / "saved").generation_config
    assert (saved.num_beams, saved.length_penalty, saved.max_length) == (3, 0.6, trainer.max_length)
    tokenizer = translation_tokenizer()
    expected = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    assert (saved.bos_token_id, saved.eos_token_id, saved.pad_token_id) == expected


def test_micro_batches_train_like_one_batch(tmp_path: Path) -> None:
    data = translation_pairs(16)
    results = []
    for batch, accumulation in ((16, 1), (4, 4)):
        model = words_model()
        options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        trainer = trainer_of(tmp_path, model, data, optim="sgd", max_steps=3, bucket_by_length=False, **options)
        trainer.train()
        logs = [log for log in trainer.state.log_history if "loss" in log]
        results.append((deepcopy(model.state_dict()), [log["loss"] for log in logs]))
    # Targets differ in length: a mean of the micro-batches' means would not do.
    torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-5, atol=1e-6)
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-4)


def test_translations_keep_the_order() -> None:
    model, tokenizer = words_model().train(), translation_tokenizer()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.4)
    sentences = [pair["source"] for pair in make_pairs(9, seed=4)]
    translator = LiveTranslator(model, tokenizer, max_length=8)
    together = translator.translate(sentences, batch_size=4, num_beams=3)
    assert model.training
    assert together == [translator.translate([sentence], num_beams=3)[0] for sentence in sentences]
    assert len(set(together)) > 1
    model.eval()
    ids = tokenizer(sentences[0], return_tensors="pt")["input_ids"]
    stock = model.generate(input_ids=ids, num_beams=3, max_length=8)
    assert together[0] == tokenizer.decode(stock[0], skip_special_tokens=True).strip()
    assert not model.training and translator.translate([]) == [] and not model.training
