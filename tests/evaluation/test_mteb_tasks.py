"""Own tasks of mteb: the same numbers as our protocols, whoever encodes; and local data under a name of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mteb_helpers import ENGLISH, FRENCH, routed_model
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from hf_xlsr.evaluation import bucc
from hf_xlsr.evaluation.bucc_data import BuccData, hide_pairs
from hf_xlsr.evaluation.protocols.sts import sts
from hf_xlsr.evaluation.protocols.tatoeba_mteb import tatoeba_mteb
from hf_xlsr.evaluation.protocols.xsr import xsr
from hf_xlsr.utils.errors import XlsrError

mteb = pytest.importorskip("mteb")

from mteb.get_tasks import TASK_LIST  # noqa: E402
from mteb.models import SentenceTransformerEncoderWrapper  # noqa: E402

from hf_xlsr.evaluation.mteb.evaluate import as_mteb_encoder, evaluate_mteb  # noqa: E402
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


def test_xsr(model: SentenceTransformer, pairs: list[dict[str, str]]):
    english, french = sides(pairs)
    data = english[:60], french[:60], french
    ours = xsr(model, *data, name="toy", languages=("en", "fr"), prompt="red ")
    task = xsr_task("toy", *data, ("en", "fr"))
    metrics = evaluate_mteb(model, task, prompt="red ")
    precision = ours["toy-xsr/en-fr/test/precision@1"]
    prefix = "XlsrXSR-toy-mteb/en-fr/test"
    assert metrics == {f"{prefix}/main_score": precision, f"{prefix}/precision@1": precision}


def test_bucc(model: SentenceTransformer, pairs: list[dict[str, str]]):
    tune, test = hide_pairs(pairs[:100], share=0.5), hide_pairs(pairs[100:], share=0.5)
    ours = bucc(model, tune, test, name="toy", languages=("en", "fr"), k=3, margin="distance")
    task = bucc_task("toy", tune, test, ("en", "fr"), k=3, margin="distance")
    metrics = evaluate_mteb(model, task)
    expected = named(ours, "toy-bucc-k3-distance/en-fr/test/")
    assert metrics == {f"XlsrBuccF1-toy-mteb/en-fr/test/{name}": expected["f1"] for name in ("main_score", "f1")}
    scores = scores_of(as_mteb_encoder(model), task)
    assert {name: scores[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert set(expected) == {"precision", "recall", "f1", "threshold", "pairs", "gold"}


def test_sts(model: SentenceTransformer, pairs: list[dict[str, str]]):
    rows = graded(pairs)
    ours = sts(model, {"toy": rows})["toy-sts/en/test/spearman_wmean"]
    metrics = evaluate_mteb(model, sts_task("toy", rows))
    prefix = "XlsrSTSWeightedMean-toy-mteb/en/test"
    assert metrics == {f"{prefix}/main_score": ours, f"{prefix}/spearman_wmean": ours}


def test_sts_across_languages_takes_both_routes(tiny_export: str):
    routed = routed_model(tiny_export)
    rows = [
        {"sentence1": english, "sentence2": french, "score": score}
        for english, french, score in zip(ENGLISH, FRENCH, (0, 5, 2, 1, 4, 3), strict=True)
    ]
    ours = sts(routed, {"toy": rows}, language=("en", "fr"))["toy-sts/en-fr/test/spearman_wmean"]
    metrics = evaluate_mteb(routed, sts_task("toy", rows, ("en", "fr")))
    assert metrics["XlsrSTSWeightedMean-toy-mteb/en-fr/test/spearman_wmean"] == ours


def test_our_tasks_say_the_language_of_each_side(tiny_export: str):
    # In these columns nothing could be identified: French words stand for English ones.
    routed = routed_model(tiny_export)
    ours = xsr(routed, FRENCH, ENGLISH, ENGLISH, name="toy", languages=("en", "fr"))
    scores = scores_of(as_mteb_encoder(routed), xsr_task("toy", FRENCH, ENGLISH, ENGLISH, ("en", "fr")))
    expected = named(ours, "toy-xsr/en-fr/test/")
    assert {name: scores[name] for name in expected} == expected
    numbers = ["1 2", "3 4", "5 6"]
    assert scores_of(as_mteb_encoder(routed), xsr_task("toy", numbers, numbers, numbers, ("en", "fr")))["queries"] == 3


def test_any_encoder_of_mteb_can_take_our_tasks(tiny_export: str, pairs: list[dict[str, str]]):
    model = SentenceTransformer(tiny_export, device="cpu")
    english, french = sides(pairs)
    wrapped = SentenceTransformerEncoderWrapper(model)
    data = english[:60], french[:60], french
    tasks = [xsr_task("toy", *data, ("en", "fr")), sts_task("toy", graded(pairs))]
    ours = [xsr(model, *data, name="toy"), sts(model, {"toy": graded(pairs)})]
    for task, metrics, prefix in zip(tasks, ours, ("toy-xsr/en-fr/test/", "toy-sts/en/test/"), strict=True):
        expected = named(metrics, prefix)
        scores = scores_of(wrapped, task)
        assert {name: scores[name] for name in expected} == pytest.approx(expected)
        assert len(expected) > 3


def test_metadata_and_names(pairs: list[dict[str, str]]):
    data = hide_pairs(pairs[:100], share=0.5), hide_pairs(pairs[100:], share=0.5)
    tasks = [
        xsr_task("a", ["x"], ["y"], ["z"], ("en", "zh-Hant")),
        bucc_task("b", *data, ("de", "en")),
        sts_task("c", graded(pairs, 12), split="dev"),
    ]
    assert [task.metadata.name for task in tasks] == ["XlsrXSR-a", "XlsrBuccF1-b", "XlsrSTSWeightedMean-c"]
    assert [task.metadata.eval_langs for task in tasks] == [
        {"en-zh-Hant": ["eng-Latn", "zho-Hant"]},
        {"de-en": ["deu-Latn", "eng-Latn"]},
        {"en": ["eng-Latn"]},
    ]
    assert [task.metadata.eval_splits for task in tasks] == [["test"], ["test"], ["dev"]]
    known = {task.metadata.name for task in TASK_LIST}
    for task, samples in zip(tasks, (1, len(data[1].gold), 12), strict=True):
        task.metadata._validate_metadata()
        assert task.metadata.name not in known
        statistics = task._calculate_descriptive_statistics_from_split(task.eval_splits[0])
        assert statistics["num_samples"] == samples


def test_the_revision_is_of_all_that_decides_the_score(pairs: list[dict[str, str]]):
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


def test_local_bitext_scores_as_tatoeba_mteb(model: SentenceTransformer, pairs: list[dict[str, str]]):
    english, french = sides(pairs)
    rows = [
        {"source": source, "target": target, "source_lang": "fr", "target_lang": "en"}
        for source, target in [*zip(french, english, strict=True), *zip(FRENCH, ENGLISH, strict=True)]
    ]
    metrics = evaluate_mteb(model, local_task("Tatoeba", rows))
    columns = [[row[side] for row in rows] for side in ("source", "target")]
    ours = tatoeba_mteb(model, *columns, languages=("fr", "en"), name="t")["t-tatoeba-mteb/fr-en/test/f1"]
    assert metrics["LocalTatoeba-mteb/fr-en/test/f1"] == pytest.approx(ours)


def test_local_sts_scores_as_sts_and_scipy_do(tiny_export: str, pairs: list[dict[str, str]]):
    model = SentenceTransformer(tiny_export, device="cpu")
    rows = [{**row, "lang": "eng"} for row in graded(pairs)]
    metrics = evaluate_mteb(model, local_task("STSBenchmark", rows))
    found = metrics["LocalSTSBenchmark-mteb/en/test/cosine_spearman"]
    assert found == pytest.approx(sts(model, {"t": rows})["t-sts/en/test/spearman_all"], abs=1e-3)
    one, other = (model.encode([row[side] for row in rows]) for side in ("sentence1", "sentence2"))
    assert found == pytest.approx(spearmanr((one * other).sum(1), [row["score"] for row in rows])[0], abs=1e-3)


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


def test_local_classification_learns_from_its_training_rows(tiny_export: str):
    # Each label has its own words: learnt from the training rows, whatever the encoder.
    rows = [
        {"text": text, "label": label, "lang": "en", "split": split}
        for split in ("train", "test")
        for label, text in enumerate(("red red red", "fish king tree stone"))
        for _ in range(10)
    ]
    metrics = evaluate_mteb(tiny_export, local_task("MassiveIntentClassification", rows))
    assert metrics["LocalMassiveIntentClassification-mteb/en/test/accuracy"] == 1.0


def test_local_data_never_bear_a_published_name():
    row = {"source": "Ja", "target": "Yes", "source_lang": "deu_Latn", "target_lang": "en"}
    task = local_task("FloresBitextMining", [row])
    assert task.metadata.name == "LocalFloresBitextMining"
    assert task.metadata.eval_langs == {"deu_Latn-en": ["deu-Latn", "eng-Latn"]}
    assert task.metadata.adapted_from == ["FloresBitextMining"]
    assert mteb.get_task("FloresBitextMining").metadata.name == "FloresBitextMining"


@pytest.mark.parametrize(
    ("task", "row", "says"),
    [
        (
            "STS12",
            {"sentence1": "a", "score": 1, "lang": "en"},
            "row 0 has no 'sentence2'; mteb's task STS12 needs it",
        ),
        ("STS12", {"sentence1": "a", "sentence2": "b", "score": 1}, "row 0 has no 'lang'"),
        ("SciFact", {}, "SciFact is of type Retrieval; local data can stand for BitextMining"),
        ("STS12", None, "there is no row of split 'test'"),
        ("STS1", None, "mteb has no task 'STS1'; did you mean 'STS1"),
        (
            "MassiveIntentClassification",
            {"text": "a", "label": 1, "lang": "de", "split": "test"},
            "there is no row of split 'train' in de",
        ),
        (
            "STS12",
            {"sentence1": "a", "sentence2": "b", "score": 1, "lang": "klingonese"},
            "language 'klingonese' is not one that mteb knows",
        ),
    ],
)
def test_local_rows_that_cannot_be_scored(task: str, row: dict[str, Any] | None, says: str):
    with pytest.raises(XlsrError, match=says):
        local_task(task, [] if row is None else [row])


def test_protocol_errors_come_through(tiny_export: str):
    task = xsr_task("t", ["a", "b"], ["c"], [], ("en", "fr"))
    with pytest.raises(XlsrError, match="there are 2 queries and 1 golds"):
        evaluate_mteb(tiny_export, task)
    with pytest.raises(XlsrError, match="language 'xx' is not one that mteb knows"):
        xsr_task("t", [], [], [], ("en", "xx"))


def test_without_mteb_the_mend_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mteb", None)
    for make in (
        lambda: xsr_task("t", [], [], [], ("en", "fr")),
        lambda: sts_task("t", []),
        lambda: local_task("X", []),
    ):
        with pytest.raises(XlsrError, match=r"pip install 'hf-xlsr\[mteb\]'"):
            make()


def test_the_modules_do_without_mteb_until_it_is_needed():
    program = (
        "import sys, hf_xlsr.evaluation.mteb.evaluate\n"
        "assert 'mteb' not in sys.modules\n"
        "sys.modules['mteb'] = None\n"
        "import hf_xlsr.evaluation.mteb.tasks\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_results_are_filed_under_our_names(tiny_export: str, tmp_path: Path):
    task = xsr_task("toy", ENGLISH, FRENCH, FRENCH, ("en", "fr"))
    evaluate_mteb(tiny_export, task, cache=tmp_path)
    assert [path.name for path in tmp_path.rglob("Xlsr*")] == ["XlsrXSR-toy.json"]
