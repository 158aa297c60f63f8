"""Names of classes: from rows to the configuration, the saved folder and the pipeline of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import make_pairs
from datasets import ClassLabel, Dataset
from seven_trainers import arguments_of, encoder
from transformers import AutoConfig, pipeline

from hf_xlsr.export import save_export
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers import FineTuneTrainer, add_adapters
from hf_xlsr.utils.errors import XlsrError

NAMES = ["lang", "kurz", "中"]  # not in alphabetical order
SORTED = sorted(NAMES)


def texts_and_numbers(count: int = 24) -> list[dict[str, Any]]:
    """Sentences whose class is their number of words modulo 3."""
    rows = make_pairs(count)
    return [{"text": row["source"], "label": number % 3} for number, row in enumerate(rows)]


def numbered(count: int = 24) -> Dataset:
    return Dataset.from_list(texts_and_numbers(count))


def named(names: list[str] = NAMES, count: int = 24) -> Dataset:
    return numbered(count).cast_column("label", ClassLabel(names=names))


def spelled(names: list[str] = NAMES, count: int = 24) -> list[dict[str, Any]]:
    return [{**row, "label": names[row["label"]]} for row in texts_and_numbers(count)]


def classifier(num_labels: int = 3, names: list[str] | None = None) -> HictlForSequenceClassification:
    options: dict[str, Any] = {"num_labels": num_labels}
    if names is not None:
        options["id2label"] = dict(enumerate(names))
        options["label2id"] = {name: number for number, name in enumerate(names)}
    return HictlForSequenceClassification.from_encoder(encoder(), **options)


def trainer_of(model: Any, rows: Any, folder: Path, **options: Any) -> FineTuneTrainer:
    settings = options.pop("settings", {})
    arguments = arguments_of("FineTune", folder, **{"max_steps": 2, **settings})
    return FineTuneTrainer(model, arguments, train_dataset=rows, **options)


def names_of(config: Any) -> list[str]:
    assert config.label2id == {name: number for number, name in config.id2label.items()}
    return list(config.id2label.values())


def stored_names(folder: Path) -> list[str]:
    return names_of(AutoConfig.from_pretrained(folder))


ROWS: dict[str, tuple[Any, list[str]]] = {
    "ClassLabel": (named, NAMES),
    "text": (spelled, SORTED),
    "stream of text": (lambda: Dataset.from_list(spelled()).to_iterable_dataset(), SORTED),
    "by language": (lambda: {"en": named(), "de": named()}, NAMES),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("form", ["encoder", "classifier", "adapters"])
@pytest.mark.parametrize("rows", ROWS)
def test_names_of_rows_are_saved_and_returned(rows: str, form: str, tmp_path: Path) -> None:
    make_rows, expected = ROWS[rows]
    models = {"encoder": encoder, "classifier": classifier, "adapters": lambda: add_adapters(classifier())}
    trainer = trainer_of(models[form](), make_rows(), tmp_path)
    trainer.train()
    if form == "adapters":
        trainer.model.merge_and_unload().save_pretrained(tmp_path / "saved")
        trainer.processing_class.save_pretrained(str(tmp_path / "saved"))
    else:
        trainer.save_model(str(tmp_path / "saved"))

    assert stored_names(tmp_path / "saved") == expected
    classify = pipeline("text-classification", str(tmp_path / "saved"))
    outputs = classify(["one two", "red house"], top_k=None)
    assert all({output["label"] for output in row} == set(expected) for row in outputs)


def test_numbers_of_text_labels_follow_the_names(tmp_path: Path) -> None:
    trainer = trainer_of(encoder(), spelled(), tmp_path)
    expected = [SORTED.index(row["label"]) for row in spelled()]
    assert trainer.train_dataset.rows["label"] == expected
    other = trainer_of(classifier(names=NAMES), spelled(), tmp_path)
    assert other.train_dataset.rows["label"] == [row["label"] for row in texts_and_numbers()]
    assert names_of(other.model.config) == NAMES


@pytest.mark.slow
def test_text_labels_train_like_their_numbers(tmp_path: Path) -> None:
    weights = []
    for rows in (named(SORTED), Dataset.from_list(spelled(SORTED)), numbered()):
        trainer = trainer_of(encoder(), rows, tmp_path)
        trainer.train()
        weights.append(trainer.model.classifier.weight.detach())
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])


def test_rows_without_names_keep_those_of_transformers(tmp_path: Path) -> None:
    assert names_of(trainer_of(encoder(), numbered(), tmp_path).model.config) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert names_of(trainer_of(classifier(names=NAMES), numbered(), tmp_path).model.config) == NAMES


def test_scores_have_no_names(tmp_path: Path) -> None:
    rows = [{**row, "label": row["label"] / 2} for row in texts_and_numbers()]
    trainer = trainer_of(encoder(), rows, tmp_path)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    assert stored_names(tmp_path / "saved") == ["LABEL_0"]
    (output,) = pipeline("text-classification", str(tmp_path / "saved"))(["one two"])
    inputs = trainer.processing_class("one two", return_tensors="pt")
    trainer.model.eval()
    assert output["score"] == pytest.approx(trainer.model(**inputs).logits.item(), abs=1e-5)


@pytest.mark.parametrize("names", [["kurz", "lang", "中"], ["lang", "kurz"], ["a", "b", "c"]])
def test_names_that_contradict_those_of_the_model(names: list[str], tmp_path: Path) -> None:
    rows = Dataset.from_list([row for row in texts_and_numbers() if row["label"] < len(names)])
    with pytest.raises(XlsrError, match=f"classes {', '.join(names)}.*must be {', '.join(NAMES)}"):
        trainer_of(classifier(names=NAMES), rows.cast_column("label", ClassLabel(names=names)), tmp_path)


def test_names_that_contradict_each_other(tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=f"must be {', '.join(NAMES)}"):
        trainer_of(encoder(), {"en": named(), "de": named(NAMES[::-1])}, tmp_path)


def test_text_label_that_the_model_does_not_have(tmp_path: Path) -> None:
    rows = [*spelled(), {"text": "one", "label": "quatre"}]
    with pytest.raises(XlsrError, match=f"'quatre'.*{', '.join(NAMES)}"):
        trainer_of(classifier(names=NAMES), rows, tmp_path)


def test_rows_of_text_labels_without_a_label_are_skipped(tmp_path: Path) -> None:
    unlabelled = [{"text": "one", "label": label} for label in ("", "-", None)]
    trainer = trainer_of(encoder(), [*spelled(), *unlabelled], tmp_path)
    assert len(trainer.train_dataset) == 24
    assert names_of(trainer.model.config) == SORTED


def test_other_columns_are_no_labels(tmp_path: Path) -> None:
    rows = [{**row, "label_text": "x", "labels": 7, "score": 0.5} for row in spelled()]
    assert names_of(trainer_of(encoder(), rows, tmp_path).model.config) == SORTED


def test_dev_set_is_numbered_by_the_names_of_training(tmp_path: Path) -> None:
    dev = [row for row in spelled() if row["label"] != SORTED[0]]  # its own numbers would be one lower
    labels: list[int] = []

    def compute_metrics(prediction: Any) -> dict[str, float]:
        labels.extend(prediction.label_ids.tolist())
        return {}

    trainer = trainer_of(encoder(), spelled(), tmp_path, eval_dataset={"dev": dev}, compute_metrics=compute_metrics)
    trainer.evaluate()
    assert labels == [SORTED.index(row["label"]) for row in dev]
    expected = list(labels)
    assert trainer.predict(dev).label_ids.tolist() == expected
    with pytest.raises(XlsrError, match="eval_dataset"):
        trainer.evaluate(named(NAMES[::-1]))
    with pytest.raises(XlsrError, match="eval_dataset"):
        trainer.evaluate(trainer.converter.labelled(named(NAMES[::-1])))


@pytest.mark.slow
def test_resume_has_the_names_of_the_checkpoint(tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 1}
    trainer_of(encoder(), spelled(), tmp_path, settings=settings).train()
    assert stored_names(tmp_path / "checkpoint-1") == SORTED
    resumed = trainer_of(encoder(), spelled(), tmp_path, settings=settings)
    resumed.train(str(tmp_path / "checkpoint-1"))
    assert names_of(resumed.model.config) == SORTED

    other_names = ["a", "b", "c"]
    other = trainer_of(encoder(), spelled(other_names), tmp_path, settings=settings)
    with pytest.raises(XlsrError, match=f"{', '.join(SORTED)}.*{', '.join(other_names)}"):
        other.train(str(tmp_path / "checkpoint-1"))


def comparable(config: Any) -> Mapping[str, Any]:
    """A configuration without where it lies."""
    values = config.to_dict()
    values["text_config"].pop("_name_or_path", None)
    values.pop("_name_or_path", None)
    return values


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ["classes", "scores"])
def test_recipe_and_python_save_the_same_configuration(kind: str, tmp_path: Path) -> None:
    save_export(encoder(), tmp_path / "encoder")
    rows = spelled() if kind == "classes" else [{**row, "label": row["label"] / 2} for row in texts_and_numbers()]
    lines = ["text\tlabel", *(f"{row['text']}\t{row['label']}" for row in rows)]
    (tmp_path / "rows.tsv").write_text("\n".join(lines), "utf-8")
    task = {"labels": SORTED} if kind == "classes" else {"scores": [0, 1]}
    recipe = {
        "method": "classification",
        "languages": ["en"],
        "task": {"texts": "single", **task},
        "data": {"train": {"path": str(tmp_path / "rows.tsv")}},
        "model": {"start": str(tmp_path / "encoder")},
        "training": {"max_steps": 1, "precision": "float32", "use_cpu": True, "save_strategy": "no"},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    (run,) = load_runs(str(tmp_path / "recipe.yaml"), ["--output_dir", str(tmp_path / "run")])
    train_recipe(run)

    trainer = trainer_of(str(tmp_path / "encoder"), rows, tmp_path, settings={"max_steps": 1})
    trainer.train()
    trainer.save_model(str(tmp_path / "python"))
    by_recipe, by_python = (
        comparable(AutoConfig.from_pretrained(folder)) for folder in (tmp_path / "run" / "model", tmp_path / "python")
    )
    assert by_recipe == by_python
