"""Saving and loading DualMomentumModel: frozen averages, queues in their storage, checkpoints that lack them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dual_momentum_models import enqueue_keys, small_batch, small_model
from transformers import AutoConfig, AutoModel

from hf_xlsr import DualMomentumModel, XlsrError


def test_int8_scales_stay_float32(tmp_path: Path) -> None:
    model = small_model(queue_storage="int8")
    enqueue_keys(model, small_batch(6, 1))
    model.save_pretrained(tmp_path)
    loaded = DualMomentumModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for language, queue in model.queues.items():
        assert loaded.queues[language].scales.dtype == torch.float32
        assert torch.equal(loaded.queues[language].scales, queue.scales)


def test_checkpoint_without_training_state(tmp_path: Path) -> None:
    model = small_model()
    enqueue_keys(model, small_batch(6, 1))
    slim = model.inference_state_dict()
    assert {name.split(".")[0] for name in slim} == {"encoders"}
    model.save_pretrained(tmp_path, state_dict=slim)
    loaded = DualMomentumModel.from_pretrained(tmp_path)
    assert loaded.queues["en"].count == 0 and int(loaded.queues["fr"].pointer) == 0
    for name, value in loaded.encoders.state_dict().items():
        assert torch.equal(value, loaded.momentum_encoders.state_dict()[name]), name
    assert not any(parameter.requires_grad for parameter in loaded.momentum_encoders.parameters())


def test_other_queue_settings_are_refused(tmp_path: Path) -> None:
    small_model().save_pretrained(tmp_path)
    with pytest.raises(XlsrError, match="queue_size"):
        DualMomentumModel.from_pretrained(tmp_path, queue_size=64)
    assert DualMomentumModel.from_pretrained(tmp_path, queue_size=32).queues["en"].size == 32
    for options in ({"queue_storage": "int8"}, {"projection_dim": 8}, {"config": small_model(queue_size=16).config}):
        with pytest.raises(XlsrError, match="queue_storage|projection_dim|queue_size"):
            DualMomentumModel.from_pretrained(tmp_path, **options)
    slim = tmp_path / "slim"
    small_model().save_pretrained(slim, state_dict=small_model().inference_state_dict())
    assert (
        DualMomentumModel.from_pretrained(slim, queue_size=64).queues["en"].size == 64
    )  # nothing there to contradict


def test_from_pretrained_encoders(tmp_path: Path) -> None:
    for name, kind in (("one", "bert"), ("two", "distilbert")):
        torch.manual_seed(len(name))
        config = AutoConfig.for_model(kind, vocab_size=40, hidden_size=16, dim=16, num_attention_heads=2)
        config.update(
            {"n_heads": 2, "n_layers": 1, "hidden_dim": 32} if kind == "distilbert" else {"num_hidden_layers": 1}
        )
        AutoModel.from_config(config).save_pretrained(tmp_path / name)
    paths = {"en": str(tmp_path / "one"), "fr": str(tmp_path / "two")}
    model = DualMomentumModel.from_encoders(paths, queue_size=16)
    plain: Any = AutoModel.from_pretrained(paths["en"])
    ids = torch.tensor([[5, 6, 7]])
    expected = torch.nn.functional.normalize(plain(ids).last_hidden_state.mean(1), dim=-1)
    torch.testing.assert_close(model.encode_sentences(ids, language="en"), expected)
    torch.testing.assert_close(model.encode_sentences(ids, language="en", keys=True), expected)
    with pytest.raises(XlsrError, match="nowhere"):
        DualMomentumModel.from_encoders({"en": paths["en"], "fr": str(tmp_path / "nowhere")})
