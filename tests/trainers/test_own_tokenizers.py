"""The tokenizer of a trainer that is given none: that of the model, in every form of a model."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import seven_trainers
from seven_trainers import arguments_of, encoder, model_of, rows_of
from transformers import AutoModel, AutoModelForSequenceClassification

from hf_xlsr import trainers
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.export import save_export
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.trainers import add_adapters

from_encoder = HictlForSequenceClassification.from_encoder


def plain_folder(folder: Path) -> Path:
    """The folder of an encoder, as transformers saves one."""
    given = encoder()
    given[0].model.save_pretrained(folder / "plain")
    given.tokenizer.save_pretrained(str(folder / "plain"))
    return folder / "plain"


def exported(folder: Path) -> Path:
    save_export(encoder(), folder / "export")
    return folder / "export"


def saved(folder: Path, kind: str = "FineTune", start: Any = None) -> Path:
    """The folder of a trained model; that of its encoder is gone."""
    model = None if start is None else from_encoder(str(start), num_labels=2)
    trainer = seven_trainers.trainer_of(kind, folder, model=model)
    trainer.save_model(str(folder / kind))
    if start is not None:
        shutil.rmtree(start)
    return folder / kind


FORMS: dict[str, Callable[[Path], Any]] = {
    "folder": plain_folder,
    "folder of sentence-transformers": exported,
    "SentenceTransformer": lambda folder: encoder(),
    "encoder of transformers": lambda folder: AutoModel.from_pretrained(plain_folder(folder)),
    "classifier from a folder": lambda folder: from_encoder(str(plain_folder(folder))),
    "classifier from an object": lambda folder: from_encoder(encoder()),
    "classifier from an object with another dropout": lambda folder: from_encoder(encoder(), dropout=0.3),
    "classifier from a folder of HICTL": lambda folder: from_encoder(saved(folder, "Hictl")),
    "loaded classifier": lambda folder: HictlForSequenceClassification.from_pretrained(
        saved(folder, start=plain_folder(folder))
    ),
    "loaded by AutoModel": lambda folder: AutoModelForSequenceClassification.from_pretrained(saved(folder)),
    "folder of a classifier": lambda folder: saved(folder, start=plain_folder(folder)),
    "folder of HICTL": lambda folder: saved(folder, "Hictl"),
    "adapters": lambda folder: add_adapters(from_encoder(encoder())),
    "adapters on a loaded classifier": lambda folder: add_adapters(
        HictlForSequenceClassification.from_pretrained(saved(folder))
    ),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", FORMS)
def test_tokenizer_of_a_classifier(form: str, tmp_path: Path) -> None:
    arguments = arguments_of("FineTune", tmp_path / "out", max_steps=1)
    trainer = trainers.FineTuneTrainer(FORMS[form](tmp_path), arguments, train_dataset=rows_of("FineTune", 16))
    text = "one house two rouge"
    assert trainer.processing_class(text)["input_ids"] == encoder().tokenizer(text)["input_ids"]
    trainer.train()


@pytest.mark.parametrize("kind", seven_trainers.KINDS)
def test_models_made_from_an_object(kind: str, tmp_path: Path) -> None:
    name = "tokenizers" if kind == "DualMomentum" else "processing_class"
    trainer = seven_trainers.trainer_of(kind, tmp_path, **{name: None})
    tokenizers = trainer.tokenizers.values() if kind == "DualMomentum" else [trainer.tokenizers]
    for tokenizer in tokenizers:
        assert tokenizer("one house")["input_ids"] == encoder().tokenizer("one house")["input_ids"]


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("kind", ["DualMomentum", "Lightweight", "Translation"])
def test_encoders_with_and_without_a_tokenizer(kind: str, given: bool, tmp_path: Path) -> None:
    start = encoder()
    options: dict[str, Any] = {}
    if not given:
        options = {"tokenizers" if kind == "DualMomentum" else "processing_class": None}
    trainer = seven_trainers.trainer_of(kind, tmp_path, model=start[0].model if given else start, **options)
    tokenizer = trainer.tokenizers["fr"] if kind == "DualMomentum" else trainer.tokenizers
    assert tokenizer("one house")["input_ids"] == start.tokenizer("one house")["input_ids"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["DualMomentum", "Lightweight", "Translation"])
def test_loaded_models_without_the_folder_of_their_encoder(kind: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, kind)
    loaded = type(model_of(kind)).from_pretrained(folder)
    name = "tokenizers" if kind == "DualMomentum" else "processing_class"
    for model in (loaded, str(folder)):
        trainer = seven_trainers.trainer_of(kind, tmp_path, model=model, **{name: None})
        trainer.train()


def test_folder_of_a_classifier_keeps_its_output_layer(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    weight = HictlForSequenceClassification.from_pretrained(folder).classifier.weight
    trainer = seven_trainers.trainer_of("FineTune", tmp_path, model=str(folder))
    assert trainer.model.classifier.weight.equal(weight)


def test_given_encoder_is_not_changed(tmp_path: Path) -> None:
    given = encoder()
    model = from_encoder(given)
    assert model.given_tokenizer is not given.tokenizer
    assert model.given_tokenizer("one")["input_ids"] == read_encoder(given).single().tokenizer("one")["input_ids"]
