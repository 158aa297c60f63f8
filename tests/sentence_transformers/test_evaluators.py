"""Evaluators and removal of language bias: the protocols' values, routes, CSV."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers.sentence_transformer.evaluation import TranslationEvaluator
from st_helpers import routed_model, rows, shared_model

from hf_xlsr.encoders.debias import fit_debias
from hf_xlsr.evaluation import BuccData, bucc, language_bias, tatoeba, xsim
from hf_xlsr.sentence_transformers import BuccEvaluator, LanguageBiasEvaluator, TatoebaEvaluator, XsimEvaluator, debias


def bitext(count: int, seed: int) -> BuccData:
    pairs = rows(count, seed).to_dict()
    ids = [str(number) for number in range(count)]
    gold_ids = ids[: count // 2]
    return BuccData(ids, pairs["en"], ids, pairs["fr"], frozenset(zip(gold_ids, gold_ids, strict=True)))


TEXTS = rows(32).to_dict()
SIDES = (TEXTS["en"], TEXTS["fr"])
BITEXTS = (bitext(32, 1), bitext(32, 7))
LANGUAGES = ("en", "fr")
OPTIONS: dict[str, Any] = {"languages": LANGUAGES, "name": "x"}
# The evaluator with a name, the metrics of the protocol, and the main metric.
EVALUATORS: list[tuple[Any, Any, str]] = [
    (
        lambda name: TatoebaEvaluator(*SIDES, name, languages=LANGUAGES),
        lambda model: tatoeba(model, *SIDES, **OPTIONS),
        "accuracy",
    ),
    (
        lambda name: XsimEvaluator(*SIDES, name, k=3, languages=LANGUAGES),
        lambda model: xsim(model, *SIDES, k=3, **OPTIONS),
        "error",
    ),
    (
        lambda name: BuccEvaluator(*BITEXTS, name, languages=LANGUAGES),
        lambda model: bucc(model, *BITEXTS, **OPTIONS),
        "f1",
    ),
    (
        lambda name: LanguageBiasEvaluator(TEXTS, name),
        lambda model: language_bias(model, TEXTS, name="x"),
        "bias",
    ),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", ["", "dev", "our/dev"])
@pytest.mark.parametrize("make_model", [shared_model, routed_model], ids=["shared", "router"])
@pytest.mark.parametrize(("make_evaluator", "protocol", "metric"), EVALUATORS, ids=["tatoeba", "xsim", "bucc", "bias"])
def test_values_are_those_of_the_protocols(
    make_evaluator: Any, protocol: Any, metric: str, make_model: Any, name: str, tmp_path: Path
) -> None:
    model = make_model(tmp_path)
    evaluator = make_evaluator(name)

    metrics = evaluator(model, str(tmp_path), epoch=1, steps=5)
    evaluator(model, str(tmp_path), epoch=2, steps=9)

    *_, expected = [value for key, value in protocol(model).items() if key.endswith(f"/test/{metric}")]
    key = f"{name}_{metric}" if name else metric
    assert metrics[key] == pytest.approx(expected)
    assert abs(metrics[evaluator.primary_metric]) == pytest.approx(expected)

    with (tmp_path / evaluator.csv_file).open() as file:
        first, second = csv.DictReader(file)
    assert (first["epoch"], first["steps"]) == ("1", "5")
    assert (second["epoch"], second["steps"]) == ("2", "9")
    assert float(first[metric]) == pytest.approx(expected)


def test_debias_gives_a_stock_model(tmp_path: Path) -> None:
    model = routed_model(tmp_path)
    texts = rows(40).to_dict()
    french = texts["fr"][:5]

    debiased = debias(model, texts, components=2)

    fitted = fit_debias(model, texts, components=2)
    expected = fitted.apply(model.encode(french, task="fr"), "fr")
    np.testing.assert_allclose(debiased.encode(french, task="fr"), expected, atol=1e-5)
    for module in debiased:
        assert type(module).__module__.startswith("sentence_transformers.")


@pytest.mark.slow
def test_import_is_light() -> None:
    code = (
        "import sys, hf_xlsr.sentence_transformers as package\n"
        "assert not {'torch', 'sentence_transformers'} & set(sys.modules)\n"
        "assert all(getattr(package, name) for name in package.__all__)\n"
        "assert not {'faiss', 'mteb', 'matplotlib', 'hf_xlsr.trainers.base'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_equal_sentences_are_translations_of_each_others_partners(tmp_path: Path) -> None:
    """One measure during training, as in sentence-transformers and `eval_accuracy`."""
    model = shared_model(tmp_path)
    texts = rows(20).to_dict()
    sources = texts["en"] + texts["en"][:5]
    targets = [text.upper() for text in sources]  # near their sources, so that the duplicates decide

    metrics = TatoebaEvaluator(sources, targets)(model)
    expected = TranslationEvaluator(sources, targets)(model)
    assert metrics["accuracy"] == pytest.approx(expected["mean_accuracy"])
    assert metrics["source_to_target_accuracy"] == pytest.approx(expected["src2trg_accuracy"])
    assert metrics["accuracy"] > tatoeba(model, sources, targets)["tatoeba/en-fr/test/accuracy"]
