"""`HictlForSequenceClassification`: what it computes, where its encoder comes from, and the ecosystem around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_cases import PLAIN, lightweight
from transformers import AutoConfig, BertForMaskedLM
from transformers.loss.loss_utils import ForSequenceClassificationLoss

from hf_xlsr import HictlConfig, XlsrError
from hf_xlsr.encoders.stock import encoder_from_config
from hf_xlsr.export import to_sentence_transformer
from hf_xlsr.modeling.hictl.modeling_classification import (
    HictlForSequenceClassification,
    start_encoder,
)

BERT = {**PLAIN, "num_hidden_layers": 2, "type_vocab_size": 1}
IDS = torch.tensor([[3, 9, 4, 11, 5], [3, 7, 8, 4, 0], [3, 12, 4, 0, 0]])
MASK = (IDS != 0).long()


def build(encoder: dict[str, Any] = BERT, **options: Any) -> HictlForSequenceClassification:
    torch.manual_seed(0)
    return HictlForSequenceClassification(HictlConfig(text_config=dict(encoder), **options))


def assert_equal(first: torch.nn.Module, second: torch.nn.Module) -> None:
    """The same weights, bit for bit."""
    torch.testing.assert_close(dict(first.state_dict()), dict(second.state_dict()), rtol=0, atol=0)


@pytest.fixture
def plain(tmp_path: Path) -> tuple[Path, Any]:
    """An encoder as the Hub has them."""
    folder = tmp_path / "plain"
    torch.manual_seed(3)
    encoder = encoder_from_config(AutoConfig.for_model(**BERT))
    encoder.save_pretrained(folder)
    return folder, encoder


def test_logits() -> None:
    model = build(num_labels=3).double().eval()
    labels = torch.tensor([2, 0, 1])
    output = model(IDS, MASK, labels=labels)

    states = model.encoder(input_ids=IDS, attention_mask=MASK).last_hidden_state
    logits = states[:, 0] @ model.classifier.weight.T + model.classifier.bias
    torch.testing.assert_close(output.logits, logits, rtol=1e-12, atol=1e-12)
    expected = -torch.log_softmax(logits, 1)[range(3), labels].mean()
    torch.testing.assert_close(output.loss, expected, rtol=1e-12, atol=1e-12)
    assert output.losses == {"classification": output.loss}

    without_labels = model(IDS, MASK)
    assert without_labels.loss is None
    assert without_labels.losses is None


def test_regression() -> None:
    model = build(num_labels=1).double().eval()
    gold = torch.tensor([5.0, 0.0, 2.5], dtype=torch.float32)

    output = model(IDS, MASK, labels=gold)
    assert output.logits.shape == (3, 1)
    expected = (output.logits[:, 0] - gold.double()).square().mean()
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert output.losses == {"regression": output.loss}

    # Gold numbers in a column are the same numbers: they must not broadcast against the outputs.
    with_column = model(IDS, MASK, labels=gold.unsqueeze(1))
    assert torch.equal(with_column.loss, output.loss)


# Where the encoder comes from.


def test_from_a_plain_encoder(plain: tuple[Path, Any]) -> None:
    folder, encoder = plain
    torch.manual_seed(1)
    model = HictlForSequenceClassification.from_encoder(folder, num_labels=3)
    assert_equal(model.encoder, encoder)
    assert model.config.num_labels == 3
    assert model.config.problem_type == "single_label_classification"

    second = HictlForSequenceClassification.from_encoder(folder, num_labels=3)
    assert not torch.equal(second.classifier.weight, model.classifier.weight)
    assert model.classifier.weight.std().item() == pytest.approx(0.02, rel=0.5)
    assert not model.classifier.bias.any()


def test_from_a_masked_language_model(tmp_path: Path) -> None:
    language_model = BertForMaskedLM(AutoConfig.for_model(**BERT))
    language_model.save_pretrained(tmp_path)
    model = HictlForSequenceClassification.from_encoder(tmp_path, num_labels=1)
    assert_equal(model.encoder, language_model.bert)
    assert model.config.problem_type == "regression"


def test_from_exports_and_runs(plain: tuple[Path, Any], tokenizer: Any, tmp_path: Path) -> None:
    _, encoder = plain
    run = tmp_path / "run"
    exported = run / "model"
    to_sentence_transformer(encoder, tokenizer).save(str(exported))
    assert_equal(start_encoder(exported).encoder, encoder)

    (run / "training").mkdir()
    (run / "training" / "recipe.json").write_text("{}", "utf-8")
    assert_equal(start_encoder(run).encoder, encoder)

    exported.rename(tmp_path / "elsewhere")
    with pytest.raises(XlsrError, match="run"):
        start_encoder(run)


def test_from_another_model_of_this_package(tmp_path: Path) -> None:
    model = lightweight()
    model.save_pretrained(tmp_path)
    assert_equal(start_encoder(tmp_path).encoder, model.encoder)


def test_missing_folder() -> None:
    with pytest.raises(XlsrError, match="model.start 'nowhere'"):
        start_encoder("nowhere", place="model.start")


def test_missing_weights(tmp_path: Path) -> None:
    torn = build()
    state = {name: value for name, value in torn.state_dict().items() if "layer.1" not in name}
    torn.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(XlsrError, match=r"encoder.encoder.layer.1"):
        start_encoder(tmp_path)


PROBLEMS: dict[str, torch.Tensor] = {
    "single_label_classification": torch.tensor([2, 0, 1]),
    "multi_label_classification": torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
    "regression": torch.tensor([[0.5, -1.0, 2.0], [0.0, 3.0, 1.0], [1.0, 1.0, 1.0]]),
}


@pytest.mark.parametrize("problem_type", PROBLEMS)
def test_the_loss_of_a_problem_type_is_that_of_transformers(problem_type: str) -> None:
    model = build(num_labels=3, problem_type=problem_type).eval()
    labels = PROBLEMS[problem_type]
    output = model(IDS, MASK, labels=labels)
    torch.testing.assert_close(output.loss, ForSequenceClassificationLoss(labels, output.logits, model.config))


def test_unknown_labels_of_several_classes() -> None:
    model = build(num_labels=3, problem_type="multi_label_classification").eval()
    labels = PROBLEMS["multi_label_classification"].clone()
    labels[2] = -100
    expected = model(IDS[:2], MASK[:2], labels=labels[:2]).loss
    torch.testing.assert_close(model(IDS, MASK, labels=labels).loss, expected)


def test_labels_of_another_shape() -> None:
    with pytest.raises(XlsrError, match=r"\(3, 3\).*\(3,\).*multi_label"):
        build(num_labels=3, problem_type="multi_label_classification")(IDS, MASK, labels=torch.tensor([0, 1, 2]))


NAMES = dict(enumerate("abcd"))


@pytest.mark.parametrize(
    "options", [{"id2label": NAMES}, {"label2id": {name: n for n, name in NAMES.items()}}, {"num_labels": 4}]
)
def test_as_many_outputs_as_names(options: dict[str, Any], plain: tuple[Path, Any]) -> None:
    model = HictlForSequenceClassification.from_encoder(str(plain[0]), **options)
    assert model.classifier.out_features == model.config.num_labels == 4
    assert "num_labels" in options or model.config.id2label == NAMES


def test_fewer_outputs_than_names() -> None:
    with pytest.raises(XlsrError, match="num_labels.*got 3"):
        build(num_labels=3, id2label=NAMES)
