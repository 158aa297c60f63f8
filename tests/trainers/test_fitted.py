"""`fit_classifier`: logistic regression on a frozen encoder, as scikit-learn predicts and as transformers loads it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ENGLISH, FRENCH, make_pairs
from datasets import ClassLabel, Dataset
from seven_trainers import arguments_of, encoder
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from transformers import AutoTokenizer, pipeline

from hf_xlsr import FineTuneTrainer, HictlForSequenceClassification, fit_classifier
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.evaluation.classifiers import INVERSE_REGULARIZATION
from hf_xlsr.utils.errors import XlsrError

sys.path.append(str(Path(__file__).resolve().parents[1] / "encoders"))
from given_encoders import GIVEN, SENTENCES, build, named  # noqa: E402

NAMES = ["zwei", "drei", "中"]  # not in alphabetical order
LONG = "un deux trois " * 40
TEXTS = [*SENTENCES, *FRENCH, *ENGLISH, LONG]
UNSUPPORTED = {"chat", "static", "routed"}
SUPPORTED = [name for name in GIVEN if name not in UNSUPPORTED]


def texts_and_numbers(num_classes: int = 3, count: int = 36) -> list[dict[str, Any]]:
    """Sentences whose class is their number of words modulo the classes."""
    rows = []
    for row in make_pairs(count):
        rows.append({"text": row["source"], "label": len(row["source"].split()) % num_classes})
    return rows


def pairs(count: int = 36) -> list[dict[str, Any]]:
    """Sentences with their translation, a part of it, or another sentence."""
    rows = make_pairs(count)
    labelled = []
    for number, row in enumerate(rows):
        label = number % 3
        second = (row["target"], row["target"].split()[0], rows[number - 1]["target"])[label]
        labelled.append({"premise": row["source"], "hypothesis": second, "label": NAMES[label]})
    return labelled


def labels_of(form: str, num_classes: int) -> Any:
    """The same rows with a `ClassLabel`, with text, or with numbers as labels."""
    rows = texts_and_numbers(num_classes)
    if form == "text":
        return [{**row, "label": NAMES[row["label"]]} for row in rows]
    data = Dataset.from_list(rows)
    return data if form == "numbers" else data.cast_column("label", ClassLabel(names=NAMES[:num_classes]))


def names_of(form: str, num_classes: int) -> list[str]:
    if form == "numbers":
        return [f"LABEL_{number}" for number in range(num_classes)]
    return sorted(NAMES[:num_classes]) if form == "text" else NAMES[:num_classes]


def regression(features: np.ndarray, labels: Any) -> LogisticRegression:
    """scikit-learn's own, with the strength of the lowest log loss in five folds."""
    splits = StratifiedKFold(5, shuffle=True, random_state=1)
    features = features.astype(np.float64)

    def log_loss(strength: float) -> float:
        model = LogisticRegression(C=strength, max_iter=1000)
        return -float(cross_val_score(model, features, labels, scoring="neg_log_loss", cv=splits).mean())

    best = min(INVERSE_REGULARIZATION, key=log_loss)
    return LogisticRegression(C=best, max_iter=1000).fit(features, labels)


def saved(classify: Any, folder: Path) -> Any:
    """The pipeline of transformers around what a pipeline has saved."""
    classify.save_pretrained(str(folder))
    return pipeline("text-classification", str(folder), truncation=True)


def probabilities(classify: Any, inputs: list[Any], names: list[str]) -> np.ndarray:
    """The probabilities of the classes, `(inputs, names)`."""
    rows = []
    for outputs in classify(inputs, top_k=None):
        scores = {output["label"]: output["score"] for output in outputs}
        rows.append([scores[name] for name in names])
    return np.array(rows)


@pytest.mark.parametrize(
    ("form", "num_classes"), [("ClassLabel", 3), ("ClassLabel", 2), ("text", 3), ("text", 2), ("numbers", 2)]
)
def test_the_folder_predicts_as_scikit_learn(form: str, num_classes: int, tmp_path: Path) -> None:
    model = encoder()
    rows = labels_of(form, num_classes)
    classify = saved(fit_classifier(model, rows), tmp_path)

    texts = [row["text"] for row in rows]
    numbers = [row["label"] for row in texts_and_numbers(num_classes)]
    names = names_of(form, num_classes)
    classes = NAMES if form == "text" else names
    labels = [classes[number] for number in numbers]
    expected = regression(np.asarray(model.encode(texts)), [names.index(label) for label in labels])
    features = np.asarray(model.encode(TEXTS), np.float64)

    predicted = [output["label"] for output in classify(TEXTS)]
    assert predicted == [names[number] for number in expected.predict(features)]
    np.testing.assert_allclose(probabilities(classify, TEXTS, names), expected.predict_proba(features), atol=1e-5)


def test_pairs_predict_as_scikit_learn(tmp_path: Path) -> None:
    model = encoder()
    rows = pairs()
    classify = saved(fit_classifier(model, rows), tmp_path)

    def features(first: list[str], second: list[str]) -> np.ndarray:
        u = np.asarray(model.encode(first))
        v = np.asarray(model.encode(second))
        return np.concatenate([u, v, abs(u - v), u * v], axis=1)

    names = sorted(NAMES)
    train = features([row["premise"] for row in rows], [row["hypothesis"] for row in rows])
    expected = regression(train, [names.index(row["label"]) for row in rows])
    shuffled = [*SENTENCES[3:], *SENTENCES[:3]]
    test = features(SENTENCES, shuffled).astype(np.float64)
    inputs = [{"text": first, "text_pair": second} for first, second in zip(SENTENCES, shuffled, strict=True)]

    assert [output["label"] for output in classify(inputs)] == [names[number] for number in expected.predict(test)]
    np.testing.assert_allclose(probabilities(classify, inputs, names), expected.predict_proba(test), atol=1e-5)


# --- The encoder stays as it is --------------------------------------------------------------------------------------


def embeddings_in(classifier: Any, tokenizer: Any, *texts: list[str]) -> torch.Tensor:
    """What the output layer reads of each row alone."""
    read: list[torch.Tensor] = []
    hook = classifier.classifier.register_forward_hook(lambda layer, inputs, output: read.append(inputs[0]))
    with torch.no_grad():
        for row in zip(*texts, strict=True):
            classifier(**tokenizer(*row, truncation=True, return_tensors="pt"))
    hook.remove()
    return torch.cat(read)


def encoded(model: Any, texts: list[str], **options: Any) -> torch.Tensor:
    """The embeddings of an encoder, of each text alone, truncated to its positions."""
    model.max_seq_length = read_encoder(model).single().options["max_seq_length"]
    return torch.as_tensor(model.encode(texts, batch_size=1, **options))


@pytest.mark.parametrize("name", named(SUPPORTED))
def test_embeddings_are_those_of_the_encoder(name: str, tmp_path: Path) -> None:
    model = build(name, tmp_path / "given")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    classify = saved(fit_classifier(model, texts_and_numbers()), tmp_path / "saved")

    texts = [*SENTENCES, LONG]
    expected = encoded(model, texts)
    torch.testing.assert_close(embeddings_in(classify.model, classify.tokenizer, texts), expected)
    after = model.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    stored = classify.model.encoder.state_dict()
    assert all(torch.equal(value, before[f"0.model.{key}"]) for key, value in stored.items())


@pytest.mark.parametrize("name", named(SUPPORTED))
def test_both_texts_of_a_pair_are_embedded_alone(name: str, tmp_path: Path) -> None:
    model = build(name, tmp_path / "given")
    classify = saved(fit_classifier(model, pairs()), tmp_path / "saved")
    first = [*SENTENCES, LONG, LONG]
    second = [*first[1:], "one"]

    features = embeddings_in(classify.model, classify.tokenizer, first, second)
    embeddings = torch.cat(features.chunk(4, dim=1)[:2])
    expected = encoded(model, [*first, *second])
    torch.testing.assert_close(embeddings, expected, rtol=1e-4, atol=1e-5)


def test_pairs_of_a_batch_do_not_change_each_other(tmp_path: Path) -> None:
    classify = fit_classifier(build("xlmr", tmp_path), pairs())
    inputs = [{"text": row["premise"], "text_pair": row["hypothesis"]} for row in pairs()]
    alone = probabilities(classify, inputs, NAMES)
    together = []
    for outputs in classify(inputs, top_k=None, batch_size=8):
        scores = {output["label"]: output["score"] for output in outputs}
        together.append([scores[name] for name in NAMES])
    np.testing.assert_allclose(alone, together, atol=1e-5)


@pytest.mark.parametrize("form", ["folder", "object"])
def test_a_plain_encoder_is_pooled_as_by_sentence_transformers(form: str, tmp_path: Path) -> None:
    given: Any = encoder()[0]
    folder = tmp_path / "plain"
    given.model.save_pretrained(folder)
    given.tokenizer.save_pretrained(str(folder))
    model = type(given.model).from_pretrained(folder) if form == "object" else str(folder)
    classify = fit_classifier(model, texts_and_numbers())

    states = []
    with torch.no_grad():
        for text in SENTENCES:
            inputs = given.tokenizer(text, truncation=True, return_tensors="pt")
            states.append(given.model.eval()(**inputs).last_hidden_state.mean(1))
    torch.testing.assert_close(embeddings_in(classify.model, classify.tokenizer, SENTENCES), torch.cat(states))


@pytest.mark.parametrize("name", ["bert_prompts", "prompt_left_out", "xlmr"])
def test_a_prompt_replaces_that_of_the_encoder(name: str, tmp_path: Path) -> None:
    model = build(name, tmp_path / "given")
    classify = saved(fit_classifier(model, texts_and_numbers(), prompt="ten: "), tmp_path / "saved")
    expected = encoded(model, SENTENCES, prompt="ten: ")
    torch.testing.assert_close(embeddings_in(classify.model, classify.tokenizer, SENTENCES), expected)


# --- What is fitted --------------------------------------------------------------------------------------------------


def test_equal_seeds_fit_equal_weights() -> None:
    weights = []
    for noise in (0, 1):
        torch.manual_seed(noise)
        np.random.seed(noise)
        weights.append(fit_classifier(encoder(), texts_and_numbers(), seed=4).model.classifier.weight)
    assert torch.equal(*weights)


def test_a_class_with_a_single_row_is_fitted(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": "one red bird", "label": "a"}, {"text": "two", "label": "b"}, {"text": "six", "label": "b"}]
    with caplog.at_level(logging.WARNING):
        classify = fit_classifier(encoder(), rows)
    assert "C=1" in caplog.text
    assert [output["label"] for output in classify(["one red bird", "six"])][1] == "b"


def test_rows_without_a_label_are_skipped() -> None:
    rows = texts_and_numbers()
    unlabelled = [{"text": "red", "label": -1}, {"text": "  ", "label": 1}, {"text": "red", "label": None}]
    expected = fit_classifier(encoder(), rows).model.classifier.weight
    assert torch.equal(fit_classifier(encoder(), rows + unlabelled).model.classifier.weight, expected)


@pytest.mark.parametrize("rows", [texts_and_numbers, pairs])
def test_the_classifier_can_be_trained_further(rows: Any, tmp_path: Path) -> None:
    classify = fit_classifier(encoder(), rows(), prompt="ten ")
    classify.save_pretrained(str(tmp_path / "fitted"))
    trainer = FineTuneTrainer(str(tmp_path / "fitted"), arguments_of("FineTune", tmp_path), train_dataset=rows())
    before = trainer.model.encoder.get_input_embeddings().weight.detach().clone()
    trainer.train()
    trainer.save_model(str(tmp_path / "trained"))

    assert not torch.equal(trainer.model.encoder.get_input_embeddings().weight, before)
    trained = HictlForSequenceClassification.from_pretrained(tmp_path / "trained")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "trained")
    assert trained.config.id2label == classify.model.config.id2label
    assert tokenizer("one", "two")["input_ids"] == classify.tokenizer("one", "two")["input_ids"]


# --- Refusals --------------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[Any, str]] = {
    "one class": ([{"text": "one", "label": "a"}], "label"),
    "scores": ([{"text": "one", "label": 0.5}, {"text": "two", "label": 1.0}], "label"),
    "a class without rows": (lambda: named_rows([*NAMES, "leer"]), "leer"),
    "no label": ([{"text": "one"}], "text"),
    "no rows": ([], "rows"),
    "both": ({"a": texts_and_numbers(), "b": [{"text": "a", "text_pair": "b", "label": 1}]}, "rows"),
}


def named_rows(names: list[str]) -> Dataset:
    return Dataset.from_list(texts_and_numbers()).cast_column("label", ClassLabel(names=names))


@pytest.mark.parametrize("case", CASES)
def test_rows_that_cannot_be_fitted(case: str) -> None:
    rows, name = CASES[case]
    with pytest.raises(XlsrError, match=name):
        fit_classifier(encoder(), rows() if callable(rows) else rows)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_encoders_without_a_single_text_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="encoder"):
        fit_classifier(build(name, tmp_path), texts_and_numbers())


def test_a_pair_classifier_needs_both_texts() -> None:
    with pytest.raises(XlsrError, match="text_pair"):
        fit_classifier(encoder(), pairs())("one")
