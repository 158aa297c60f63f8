"""`fit_classifier`: logistic regression on a frozen encoder, as scikit-learn predicts and as transformers loads it."""

from __future__ import annotations

import copy
import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ENGLISH, FRENCH, make_pairs
from datasets import ClassLabel, Dataset
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from seven_trainers import arguments_of, encoder
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from transformers import AutoModel, pipeline

from hf_xlsr import FineTuneTrainer, fit_classifier
from hf_xlsr.encoders.reading import read_encoder
from hf_xlsr.evaluation.classifiers import INVERSE_REGULARIZATION
from hf_xlsr.utils.errors import XlsrError

sys.path.append(str(Path(__file__).resolve().parents[1] / "encoders"))
from given_encoders import GIVEN, SENTENCES, build, named  # noqa: E402

NAMES = ["zwei", "drei", "中"]  # not in alphabetical order
LONG = "un deux trois " * 40
TEXTS = [*SENTENCES, *FRENCH, *ENGLISH, LONG]
UNSUPPORTED = {"chat", "routed"}
SUPPORTED = [name for name in GIVEN if name not in UNSUPPORTED]


def texts_and_numbers(num_classes: int = 3, count: int = 36) -> list[dict[str, Any]]:
    """Sentences whose class is their number of words modulo the classes."""
    rows = []
    for pair in make_pairs(count):
        text = pair["source"]
        num_words = len(text.split())
        rows.append({"text": text, "label": num_words % num_classes})
    return rows


def pairs(count: int = 36) -> list[dict[str, Any]]:
    """Sentences with their translation, a part of it, or another sentence."""
    rows = []
    other = "un roi"
    for number, pair in enumerate(make_pairs(count)):
        translation = pair["target"]
        first_word = translation.split()[0]
        label = number % 3
        rows.append(
            {
                "premise": pair["source"],
                "hypothesis": (translation, first_word, other)[label],
                "label": NAMES[label],
            }
        )
        other = translation
    return rows


def inputs_of(first: list[str], second: list[str]) -> list[dict[str, str]]:
    """Pairs as the pipeline takes them."""
    inputs = []
    for text, text_pair in zip(first, second, strict=True):
        inputs.append({"text": text, "text_pair": text_pair})
    return inputs


def labels_of(form: str, num_classes: int) -> Any:
    """The same rows with a `ClassLabel`, with text, or with numbers as labels."""
    rows = texts_and_numbers(num_classes)
    if form == "numbers":
        return rows
    if form == "ClassLabel":
        return named_rows(NAMES[:num_classes])
    for row in rows:
        row["label"] = NAMES[row["label"]]
    return rows


def named_rows(names: list[str]) -> Dataset:
    """Rows whose labels are a `ClassLabel`; names after the third have no row."""
    rows = texts_and_numbers(min(len(names), 3))
    return Dataset.from_list(rows).cast_column("label", ClassLabel(names=names))


def names_of(form: str, num_classes: int) -> list[str]:
    if form == "numbers":
        return [f"LABEL_{number}" for number in range(num_classes)]
    names = NAMES[:num_classes]
    return names if form == "ClassLabel" else sorted(names)


def regression(features: np.ndarray, labels: Any) -> LogisticRegression:
    """scikit-learn's own, with the strength of the lowest log loss in five folds."""
    splits = StratifiedKFold(5, shuffle=True, random_state=1)
    scores: dict[float, float] = {}
    for strength in INVERSE_REGULARIZATION:
        model = LogisticRegression(C=strength, max_iter=1000)
        folds = cross_val_score(model, features, labels, scoring="neg_log_loss", cv=splits)
        scores[strength] = float(folds.mean())

    best = max(scores, key=scores.__getitem__)
    return LogisticRegression(C=best, max_iter=1000).fit(features, labels)


def saved(classify: Any, folder: Path) -> Any:
    """The pipeline of transformers around what a pipeline has saved."""
    classify.save_pretrained(str(folder))
    return pipeline("text-classification", str(folder), truncation=True)


def probabilities(classify: Any, inputs: list[Any], names: list[str], **options: Any) -> np.ndarray:
    """The probabilities of the classes, `(inputs, names)`."""
    rows = []
    for outputs in classify(inputs, top_k=None, **options):
        by_name = sorted(outputs, key=lambda output: names.index(output["label"]))
        rows.append([output["score"] for output in by_name])
    return np.array(rows)


def assert_predicts(classify: Any, inputs: list[Any], expected: LogisticRegression, features: Any, names: Any) -> None:
    """A pipeline has the labels and probabilities of scikit-learn's classifier."""
    predicted = [output["label"] for output in classify(inputs)]
    assert predicted == [names[number] for number in expected.predict(features)]

    shares = probabilities(classify, inputs, names)
    np.testing.assert_allclose(shares, expected.predict_proba(features), atol=1e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("form", "num_classes"), [("ClassLabel", 3), ("ClassLabel", 2), ("text", 3), ("text", 2), ("numbers", 2)]
)
def test_the_folder_predicts_as_scikit_learn(form: str, num_classes: int, tmp_path: Path) -> None:
    model = encoder()
    rows = labels_of(form, num_classes)
    classify = saved(fit_classifier(model, rows), tmp_path)

    columns = Dataset.from_list(list(rows))
    names = names_of(form, num_classes)
    labels = list(columns["label"])
    if form == "text":
        labels = list(map(names.index, labels))

    expected = regression(vectors_of(model, list(columns["text"])), labels)
    assert_predicts(classify, TEXTS, expected, vectors_of(model, TEXTS), names)


def vectors_of(model: Any, texts: list[str]) -> np.ndarray:
    return np.asarray(model.encode(texts), np.float64)


def test_pairs_predict_as_scikit_learn(tmp_path: Path) -> None:
    model = encoder()
    rows = pairs()
    classify = saved(fit_classifier(model, rows), tmp_path)

    names = sorted(NAMES)
    columns = Dataset.from_list(rows)
    features = features_of(model, list(columns["premise"]), list(columns["hypothesis"]))
    labels = list(map(names.index, columns["label"]))
    expected = regression(features, labels)

    shuffled = [*SENTENCES[3:], *SENTENCES[:3]]
    inputs = inputs_of(SENTENCES, shuffled)
    assert_predicts(classify, inputs, expected, features_of(model, SENTENCES, shuffled), names)


def features_of(model: Any, first: list[str], second: list[str]) -> np.ndarray:
    u = vectors_of(model, first)
    v = vectors_of(model, second)
    return np.concatenate([u, v, abs(u - v), u * v], axis=1)


# --- The encoder stays as it is --------------------------------------------------------------------------------------


def embeddings_in(classifier: Any, tokenizer: Any, *texts: list[str]) -> torch.Tensor:
    """What the output layer reads of each row alone."""
    read: list[torch.Tensor] = []

    def keep(layer: Any, inputs: Any, output: Any) -> None:
        read.append(inputs[0])

    hook = classifier.classifier.register_forward_hook(keep)
    for row in zip(*texts, strict=True):
        inputs = tokenizer(*row, truncation=True, return_tensors="pt")
        classifier(**inputs)
    hook.remove()
    return torch.cat(read).detach()


def encoded(model: Any, texts: list[str], **options: Any) -> torch.Tensor:
    """The embeddings of an encoder, of each text alone, truncated to its positions."""
    if isinstance(model[0], Transformer):
        model.max_seq_length = read_encoder(model).single().options["max_seq_length"]
    return torch.as_tensor(model.encode(texts, batch_size=1, **options))


@pytest.mark.parametrize("name", named(SUPPORTED))
def test_embeddings_are_those_of_the_encoder(name: str, tmp_path: Path) -> None:
    model = build(name, tmp_path / "given")
    before = copy.deepcopy(model.state_dict())
    classify = saved(fit_classifier(model, texts_and_numbers()), tmp_path / "saved")

    texts = [*SENTENCES, LONG]
    embeddings = embeddings_in(classify.model, classify.tokenizer, texts)
    torch.testing.assert_close(embeddings, encoded(model, texts))

    after = model.state_dict()
    for key, value in before.items():
        assert torch.equal(value, after[key]), key
    for key, value in classify.model.encoder.state_dict().items():
        name_before = next(name for name in before if name.endswith(f".{key}"))
        assert torch.equal(value, before[name_before]), key


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
    shuffled = [*SENTENCES[3:], *SENTENCES[:3]]
    inputs = inputs_of(SENTENCES, shuffled)

    alone = probabilities(classify, inputs, NAMES)
    together = probabilities(classify, inputs, NAMES, batch_size=8)
    np.testing.assert_allclose(alone, together, atol=1e-5)


@pytest.mark.parametrize("form", ["folder", "object"])
def test_a_plain_encoder_is_pooled_as_by_sentence_transformers(form: str, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    transformer: Any = encoder()[0]
    transformer.model.save_pretrained(folder)
    transformer.tokenizer.save_pretrained(str(folder))
    plain = AutoModel.from_pretrained(folder) if form == "object" else str(folder)
    classify = fit_classifier(plain, texts_and_numbers())

    expected = vectors_of(SentenceTransformer(str(folder), device="cpu"), SENTENCES)
    embeddings = embeddings_in(classify.model, classify.tokenizer, SENTENCES)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["bert_prompts", "prompt_left_out", "xlmr"])
def test_a_prompt_replaces_that_of_the_encoder(name: str, tmp_path: Path) -> None:
    model = build(name, tmp_path / "given")
    fitted = fit_classifier(model, texts_and_numbers(), prompt="ten: ")
    classify = saved(fitted, tmp_path / "saved")
    embeddings = embeddings_in(classify.model, classify.tokenizer, SENTENCES)
    torch.testing.assert_close(embeddings, encoded(model, SENTENCES, prompt="ten: "))


# --- What is fitted --------------------------------------------------------------------------------------------------


def test_equal_seeds_fit_equal_weights() -> None:
    weights = []
    for noise in (0, 1):
        model = encoder()
        torch.manual_seed(noise)
        np.random.seed(noise)
        classify = fit_classifier(model, texts_and_numbers(), seed=4)
        weights.append(classify.model.classifier.weight)
    assert torch.equal(*weights)


def test_a_class_with_a_single_row_is_fitted(caplog: pytest.LogCaptureFixture) -> None:
    rows = [
        {"text": "one red bird", "label": "a"},
        {"text": "two", "label": "b"},
        {"text": "six", "label": "b"},
    ]
    with caplog.at_level(logging.WARNING):
        classify = fit_classifier(encoder(), rows)
    assert "C=1" in caplog.text
    assert classify("six")[0]["label"] == "b"


def test_rows_without_a_label_are_skipped() -> None:
    rows = texts_and_numbers()
    unusable = [
        {"text": "red", "label": -1},
        {"text": "red", "label": None},
        {"text": "  ", "label": 1},
    ]
    expected = fit_classifier(encoder(), rows)
    classify = fit_classifier(encoder(), rows + unusable)
    assert torch.equal(classify.model.classifier.weight, expected.model.classifier.weight)


@pytest.mark.parametrize("rows", [texts_and_numbers, pairs])
def test_the_classifier_can_be_trained_further(rows: Any, tmp_path: Path) -> None:
    classify = fit_classifier(encoder(), rows(), prompt="ten ")
    classify.save_pretrained(str(tmp_path / "fitted"))
    arguments = arguments_of("FineTune", tmp_path / "out")
    trainer = FineTuneTrainer(str(tmp_path / "fitted"), arguments, train_dataset=rows())
    table = trainer.model.get_input_embeddings().weight
    before = table.detach().clone()
    trainer.train()
    assert not torch.equal(table, before)

    trainer.save_model(str(tmp_path / "trained"))
    trained: Any = pipeline("text-classification", str(tmp_path / "trained"))
    assert trained.model.config.id2label == classify.model.config.id2label
    ids = trained.tokenizer("one", "two")["input_ids"]
    assert ids == classify.tokenizer("one", "two")["input_ids"]


# --- Refusals --------------------------------------------------------------------------------------------------------

SCORES = [
    {"text": "one", "label": 0.5},
    {"text": "two", "label": 1.0},
]
BOTH = {
    "texts": texts_and_numbers(),
    "pairs": [{"text": "a", "text_pair": "b", "label": 1}],
}
CASES: dict[str, tuple[Any, str]] = {
    "one class": ([{"text": "one", "label": "a"}], "label"),
    "scores": (SCORES, "label"),
    "a class without rows": (named_rows([*NAMES, "leer"]), "leer"),
    "no label": ([{"text": "one"}], "text"),
    "no rows": ([], "rows"),
    "both": (BOTH, "rows"),
}


@pytest.mark.parametrize("case", CASES)
def test_rows_that_cannot_be_fitted(case: str) -> None:
    rows, name = CASES[case]
    with pytest.raises(XlsrError, match=name):
        fit_classifier(encoder(), rows)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_encoders_without_a_single_text_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="encoder"):
        fit_classifier(build(name, tmp_path), texts_and_numbers())


def test_a_pair_classifier_needs_both_texts() -> None:
    classify = fit_classifier(encoder(), pairs())
    with pytest.raises(XlsrError, match="text_pair"):
        classify("one")
