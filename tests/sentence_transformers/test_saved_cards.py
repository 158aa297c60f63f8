"""A model that sentence-transformers saves has the card of sentence-transformers, with our losses in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from st_helpers import queue_loss, shared_model, trainer_of

from hf_xlsr.export import save_export
from hf_xlsr.runs.publish import push_run
from hf_xlsr.sentence_transformers import AlignmentSimilarityLoss, SentenceContrastLoss


@pytest.mark.parametrize("make_loss", [queue_loss, AlignmentSimilarityLoss, SentenceContrastLoss])
def test_saved_model_has_the_card_of_sentence_transformers(make_loss: Any, tmp_path: Path) -> None:
    model = shared_model(tmp_path)
    loss = make_loss(model)
    trainer_of(model, loss, tmp_path / "run", max_steps=1).train()

    model.save_pretrained(str(tmp_path / "model"))

    text = (tmp_path / "model" / "README.md").read_text("utf-8")
    header = ModelCard(text).data
    entry = loss.citation.partition("\n")[0]
    facts = [
        type(loss).__name__,
        entry,
        "### Training Dataset",
        "* Size: 64 training samples",
    ]
    assert "generated_from_trainer" in header.tags
    assert [fact for fact in facts if fact in text] == facts


def test_card_is_pushed_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads = []
    monkeypatch.setattr("hf_xlsr.runs.publish.push_uploads", lambda given, **_: uploads.extend(given))
    model = shared_model(tmp_path)
    loss = queue_loss(model)
    trainer = trainer_of(model, loss, tmp_path / "run", max_steps=1)
    trainer.train()

    model.save_pretrained(str(tmp_path / "model"))
    card = (tmp_path / "model" / "README.md").read_text("utf-8")

    push_run(tmp_path / "model", "me/model")

    assert uploads[0].card == card


def test_our_export_of_a_model_with_a_card_writes_none(tmp_path: Path) -> None:
    """A card that describes the model before a change is not that of the changed one."""
    shared_model(tmp_path).save_pretrained(str(tmp_path / "given"))
    given = SentenceTransformer(str(tmp_path / "given"), device="cpu")

    save_export(given, tmp_path / "export")

    assert not (tmp_path / "export" / "README.md").exists()
