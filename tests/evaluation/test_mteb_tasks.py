"""Own tasks of mteb: the same numbers as our protocols, whoever encodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mteb_helpers import ENGLISH, FRENCH, routed_model, sides
from sentence_transformers import SentenceTransformer

from hf_xlsr.encoders.encoding import routes_of
from hf_xlsr.evaluation import bucc, hide_pairs, sts, xsr

mteb = pytest.importorskip("mteb")

from mteb.models import SentenceTransformerEncoderWrapper  # noqa: E402

from hf_xlsr.evaluation.mteb import (  # noqa: E402
    as_mteb_encoder,
    bucc_task,
    evaluate_mteb,
    sts_task,
    xsr_task,
)


@pytest.fixture(scope="module", params=["plain", "routed"])
def model(request: pytest.FixtureRequest, tiny_export: str) -> SentenceTransformer:
    return SentenceTransformer(tiny_export, device="cpu") if request.param == "plain" else routed_model(tiny_export)


def scores_of(encoder: Any, task: Any) -> dict[str, float]:
    """All metrics that mteb gets, not the main one alone."""
    result = mteb.evaluate(encoder, task, cache=None, co2_tracker=False, encode_kwargs={"batch_size": 64})
    return result.task_results[0].scores[task.eval_splits[0]][0]


def named(metrics: dict[str, float], prefix: str) -> dict[str, float]:
    return {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}


def test_tasks_equal_protocols(model: SentenceTransformer, pairs: list[dict[str, str]], tmp_path: Path):
    english, french = sides(pairs)
    sentences = english[:60], french[:60], french
    graded = [
        {"sentence1": english[i], "sentence2": english[i + 1], "score": (i * 7) % 6, "subset": "abbccc"[i % 6]}
        for i in range(60)
    ]
    tune, test = hide_pairs(pairs[:100], share=0.5), hide_pairs(pairs[100:], share=0.5)
    more: dict[str, Any] = {"k": 3, "margin": "distance"}
    tasks = [
        xsr_task("a", *sentences, ("en", "fr")),
        bucc_task("b", tune, test, ("en", "fr"), **more),
        sts_task("c", graded, split="dev"),
    ]
    ours = [
        named(xsr(model, *sentences, name="a", languages=("en", "fr")), "a-xsr/en-fr/test/"),
        named(bucc(model, tune, test, name="b", languages=("en", "fr"), **more), "b-bucc-k3-distance/en-fr/test/"),
        named(sts(model, {"c": graded}, split="dev"), "c-sts/en/dev/"),
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
    scored = zip(ENGLISH, FRENCH, (0, 5, 2, 1, 4, 3), strict=True)
    rows = [{"sentence1": one, "sentence2": other, "score": score} for one, other, score in scored]
    ours = sts(routed, {"toy": rows}, language=("en", "fr"))
    metrics = evaluate_mteb(routed, sts_task("toy", rows, ("en", "fr")))
    expected = ours["toy-sts/en-fr/test/spearman_wmean"]
    assert metrics["XlsrSTSWeightedMean-toy-mteb/en-fr/test/spearman_wmean"] == expected
