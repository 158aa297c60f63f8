"""Own tasks of mteb: the same numbers as our protocols, whoever encodes; and local data under a name of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mteb_helpers import ENGLISH, FRENCH, routed_model
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.encoding import routes_of
from hf_xlsr.evaluation.bucc_data import BuccData, hide_pairs
from hf_xlsr.evaluation.protocols.bucc import bucc
from hf_xlsr.evaluation.protocols.sts import sts
from hf_xlsr.evaluation.protocols.tatoeba_mteb import tatoeba_mteb
from hf_xlsr.evaluation.protocols.xsr import xsr

mteb = pytest.importorskip("mteb")

from mteb.models import SentenceTransformerEncoderWrapper  # noqa: E402

from hf_xlsr.evaluation.mteb.encoder import as_mteb_encoder  # noqa: E402
from hf_xlsr.evaluation.mteb.evaluate import evaluate_mteb  # noqa: E402
from hf_xlsr.evaluation.mteb.tasks import bucc_task, local_task, sts_task, xsr_task  # noqa: E402


@pytest.fixture(scope="module", params=["plain", "routed"])
def model(request: pytest.FixtureRequest, tiny_export: str) -> SentenceTransformer:
    return SentenceTransformer(tiny_export, device="cpu") if request.param == "plain" else routed_model(tiny_export)


def sides(pairs: list[dict[str, str]]) -> tuple[list[str], list[str]]:
    distinct = {pair["target"]: pair["source"] for pair in pairs}
    return list(distinct.values()), list(distinct)


def graded(pairs: list[dict[str, str]], count: int = 60) -> list[dict[str, Any]]:
    """Rows of STS in three subsets of different sizes."""
    english, _ = sides(pairs)
    return [
        {"sentence1": english[i], "sentence2": english[i + 1], "score": (i * 7) % 6, "subset": "abbccc"[i % 6]}
        for i in range(count)
    ]


def scores_of(encoder: Any, task: Any) -> dict[str, float]:
    """All metrics that mteb gets, not the main one alone."""
    result = mteb.evaluate(encoder, task, cache=None, co2_tracker=False, encode_kwargs={"batch_size": 64})
    return result.task_results[0].scores[task.eval_splits[0]][0]


def named(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    return {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}


def test_tasks_equal_protocols(model: SentenceTransformer, pairs: list[dict[str, str]], tmp_path: Path):
    english, french = sides(pairs)
    sentences, rows = (english[:60], french[:60], french), graded(pairs)
    tune, test = hide_pairs(pairs[:100], share=0.5), hide_pairs(pairs[100:], share=0.5)
    more: dict[str, Any] = {"k": 3, "margin": "distance"}
    tasks = [
        xsr_task("a", *sentences, ("en", "fr")),
        bucc_task("b", tune, test, ("en", "fr"), **more),
        sts_task("c", rows, split="dev"),
    ]
    ours = [
        named(xsr(model, *sentences, name="a", languages=("en", "fr")), "a-xsr/en-fr/test/"),
        named(bucc(model, tune, test, name="b", languages=("en", "fr"), **more), "b-bucc-k3-distance/en-fr/test/"),
        named(sts(model, {"c": rows}, split="dev"), "c-sts/en/dev/"),
    ]
    names = ("XlsrXSR-a", "XlsrBuccF1-b", "XlsrSTSWeightedMean-c")
    encoders = [as_mteb_encoder(model)]
    if not routes_of(model):
        encoders.append(SentenceTransformerEncoderWrapper(model))
    metrics = evaluate_mteb(encoders[0], tasks, cache=tmp_path)
    for task, expected, name, samples in zip(tasks, ours, names, (60, len(test.gold), 60), strict=True):
        assert task.metadata.name == name
        prefix = f"{name}-mteb/{'-'.join(task.languages_of_sides)}/{task.metadata.eval_splits[0]}"
        for metric in ("main_score", task.metadata.main_score):
            assert metrics[f"{prefix}/{metric}"] == pytest.approx(expected[task.metadata.main_score])
        for encoder in encoders:
            scores = scores_of(encoder, task)
            assert len(expected) > 3 and {key: scores[key] for key in expected} == pytest.approx(expected, abs=1e-6)
        assert task.samples == samples
        assert [path.stem for path in tmp_path.rglob(f"{name}*")] == [name]


def test_tasks_know_the_language_of_each_side(tiny_export: str):
    # These columns could not be identified: French sentences are called English and the reverse.
    routed = routed_model(tiny_export)
    ours = xsr(routed, FRENCH, ENGLISH, ENGLISH, name="toy", languages=("en", "fr"))
    scores = scores_of(as_mteb_encoder(routed), xsr_task("toy", FRENCH, ENGLISH, ENGLISH, ("en", "fr")))
    expected = named(ours, "toy-xsr/en-fr/test/")
    assert {name: scores[name] for name in expected} == expected
    rows = [
        {"sentence1": english, "sentence2": french, "score": score}
        for english, french, score in zip(ENGLISH, FRENCH, (0, 5, 2, 1, 4, 3), strict=True)
    ]
    ours = sts(routed, {"toy": rows}, language=("en", "fr"))
    metrics = evaluate_mteb(routed, sts_task("toy", rows, ("en", "fr")))
    expected = ours["toy-sts/en-fr/test/spearman_wmean"]
    assert metrics["XlsrSTSWeightedMean-toy-mteb/en-fr/test/spearman_wmean"] == expected


def test_revision_covers_all_data(pairs: list[dict[str, str]]):
    data = BuccData(["a"], ["x"], ["b"], ["y"], frozenset({("a", "b")}))
    more = BuccData(["a", "c"], ["x", "z"], ["b"], ["y"], frozenset({("a", "b")}))
    tasks = [
        xsr_task("t", ["q"], ["g"], ["p"], ("en", "fr")),
        xsr_task("t", ["q"], ["g", "p"], [], ("en", "fr")),
        bucc_task("t", data, more, ("en", "fr")),
        bucc_task("t", more, data, ("en", "fr")),
        bucc_task("t", data, more, ("en", "fr"), k=3),
        bucc_task("t", data, more, ("en", "fr"), margin="absolute"),
        sts_task("t", [{"sentence1": "a", "sentence2": "b", "score": 1}]),
        sts_task("t", [{"sentence1": "a", "sentence2": "b", "score": 2}]),
        local_task("STS12", [{"sentence1": "a", "sentence2": "b", "score": 1, "lang": "en"}]),
        local_task("STS12", [{"sentence1": "a", "sentence2": "b", "score": 2, "lang": "en"}]),
    ]
    assert len({task.metadata.revision for task in tasks}) == len(tasks)
    again = xsr_task("t", ["q"], ["g"], ["p"], ("en", "fr"))
    assert again.metadata.revision == tasks[0].metadata.revision


def test_local_bitext_equals_tatoeba_mteb(model: SentenceTransformer, pairs: list[dict[str, str]]):
    english, french = sides(pairs)
    rows = [
        {"source": source, "target": target, "source_lang": "fr", "target_lang": "en"}
        for source, target in [*zip(french, english, strict=True), *zip(FRENCH, ENGLISH, strict=True)]
    ]
    metrics = evaluate_mteb(model, local_task("Tatoeba", rows))
    columns = [[row[side] for row in rows] for side in ("source", "target")]
    ours = tatoeba_mteb(model, *columns, languages=("fr", "en"), name="t")["t-tatoeba-mteb/fr-en/test/f1"]
    assert metrics["LocalTatoeba-mteb/fr-en/test/f1"] == pytest.approx(ours)


def test_local_subsets_are_languages(tiny_export: str):
    rows = [
        {"sentence1": a, "sentence2": b, "label": label, "lang": language}
        for language, texts in (("en", ENGLISH), ("fr", FRENCH))
        for a, b, label in zip(texts, texts[::-1], (0, 1, 1, 0, 1, 0), strict=True)
    ]
    task = local_task("XNLI", rows, split="dev")
    metrics = evaluate_mteb(routed_model(tiny_export), task)
    keys = {f"LocalXNLI-mteb/{language}/dev/{name}" for language in ("en", "fr") for name in ("main_score", "max_ap")}
    assert set(metrics) == keys
    assert all(0 < value <= 1 for value in metrics.values())


def test_local_classification_trains_on_its_rows(tiny_export: str):
    # Each label has its own words: learnt from the training rows, whatever the encoder.
    rows = [
        {"text": text, "label": label, "lang": "en", "split": split}
        for split in ("train", "test")
        for label, text in enumerate(("red red red", "fish king tree stone"))
        for _ in range(10)
    ]
    metrics = evaluate_mteb(tiny_export, local_task("MassiveIntentClassification", rows))
    assert metrics["LocalMassiveIntentClassification-mteb/en/test/accuracy"] == 1.0


def test_local_task_has_its_own_name():
    row = {"source": "Ja", "target": "Yes", "source_lang": "deu_Latn", "target_lang": "en"}
    task = local_task("FloresBitextMining", [row])
    assert task.metadata.name == "LocalFloresBitextMining"
    assert task.metadata.eval_langs == {"deu_Latn-en": ["deu-Latn", "eng-Latn"]}
    assert task.metadata.adapted_from == ["FloresBitextMining"]
    assert mteb.get_task("FloresBitextMining").metadata.name == "FloresBitextMining"
