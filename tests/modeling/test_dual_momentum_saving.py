"""Saving and loading DualMomentumModel: frozen averages, queues in their storage, checkpoints that lack them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from dual_momentum_models import enqueue_keys, small_batch, small_encoder, small_model
from transformers import AutoConfig, AutoModel

from hf_xlsr import DualMomentumModel, XlsrError
from hf_xlsr.encoders.stock import max_positions


def test_scales_of_an_int8_queue_stay_exact_in_a_model_of_bfloat16(tmp_path: Path) -> None:
    model = small_model(queue_storage="int8")
    enqueue_keys(model, small_batch(6, 1))
    model.save_pretrained(tmp_path)
    loaded = DualMomentumModel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    for language, queue in model.queues.items():
        assert loaded.queues[language].scales.dtype == torch.float32
        assert torch.equal(loaded.queues[language].scales, queue.scales)


def test_what_a_slim_folder_lacks_starts_as_copies_and_empty(tmp_path: Path) -> None:
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


def test_another_queue_size_is_refused(tmp_path: Path) -> None:
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
    with pytest.raises(XlsrError, match="encoder fr '.*nowhere'"):
        DualMomentumModel.from_encoders({"en": paths["en"], "fr": str(tmp_path / "nowhere")})


def test_resizing_embeddings_follows_on_the_average() -> None:
    model = small_model()
    with torch.no_grad():
        model.momentum_encoders["fr"].get_input_embeddings().weight.add_(1)
    model.resize_token_embeddings(44, language="fr")
    base, average = (side["fr"].get_input_embeddings().weight for side in (model.encoders, model.momentum_encoders))
    torch.testing.assert_close(average[:40], base[:40] + 1)  # it goes on where it was
    assert torch.equal(average[40:], base[40:])


def test_roberta_takes_fewer_pieces_than_its_configuration_says() -> None:
    model = small_model({"en": small_encoder(), "fr": small_encoder(model_type="roberta", pad_token_id=1)})
    assert (max_positions(model.encoders["en"]), max_positions(model.encoders["fr"])) == (40, 38)
    ids = torch.full((1, 38), 5)
    assert model.encode_sentences(ids, language="fr").shape == (1, 16)
    with pytest.raises((IndexError, RuntimeError)):
        model.encode_sentences(torch.full((1, 39), 5), language="fr")
