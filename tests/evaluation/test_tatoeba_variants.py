from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import pytest
from bitext_helpers import TableEncoder, cosines, noisy, word_model, word_pairs
from datasets import Dataset
from sklearn.metrics import f1_score, precision_score, recall_score

from hf_xlsr.evaluation import tatoeba
from hf_xlsr.evaluation.protocols.tatoeba_variants import tatoeba_laser, tatoeba_mteb, tatoeba_xtreme
from hf_xlsr.utils.errors import XlsrError

VARIANTS = (tatoeba_laser, tatoeba_xtreme, tatoeba_mteb)
LANGUAGES = ("en", "de")


@pytest.fixture
def hand() -> TableEncoder:
    # c is nearest to B although C is its own; A's nearest is a, B's is c, C's is b.
    degrees = {"a": 0, "b": 50, "c": 30, "A": 5, "B": 28, "C": 60}
    return TableEncoder({text: [np.cos(np.deg2rad(d)), np.sin(np.deg2rad(d))] for text, d in degrees.items()})


def test_hand_example_of_laser(hand: TableEncoder):
    # a -> A is right, b -> C and c -> B are not; A -> a is right, B -> c and C -> b are not.
    assert tatoeba_laser(hand, ["a", "b", "c"], ["A", "B", "C"], languages=LANGUAGES, name="toy") == {
        "toy-tatoeba-laser/en-de/test/source_to_target_error": 2 / 3,
        "toy-tatoeba-laser/en-de/test/target_to_source_error": 2 / 3,
        "toy-tatoeba-laser/en-de/test/error": 2 / 3,
        "toy-tatoeba-laser/en-de/test/pairs": 3,
    }


def test_hand_example_of_xtreme(hand: TableEncoder):
    # Of A and B alone, a is nearest to A and c to B.
    metrics = tatoeba_xtreme(hand, ["a", "c"], ["A", "B"], languages=LANGUAGES, name="toy", split="dev")
    assert metrics == {"toy-tatoeba-xtreme/en-de/dev/accuracy": 1.0, "toy-tatoeba-xtreme/en-de/dev/pairs": 2}


def test_xtreme_asks_one_way_only():
    # Both English sentences are nearest to A; each foreign one finds its own.
    encoder = TableEncoder({"a": [1.0, 0.0], "b": [0.8, 0.6], "A": [0.96, 0.28], "B": [0.0, 1.0]})
    key = "toy-tatoeba-xtreme/en-de/test/accuracy"
    assert tatoeba_xtreme(encoder, ["a", "b"], ["A", "B"], languages=LANGUAGES, name="toy")[key] == 0.5
    assert tatoeba_xtreme(encoder, ["A", "B"], ["a", "b"], languages=LANGUAGES, name="toy")[key] == 1.0


def test_hand_example_of_mteb():
    # Both sources choose A: class A has precision 1/2 and recall 1, class B nothing; the mean is weighted 1 to 1.
    encoder = TableEncoder({"a": [1.0, 0.0], "b": [0.8, 0.6], "A": [0.96, 0.28], "B": [0.0, 1.0]})
    assert tatoeba_mteb(encoder, ["a", "b"], ["A", "B"], languages=LANGUAGES, name="toy") == {
        "toy-tatoeba-mteb/en-de/test/f1": pytest.approx((2 / 3 + 0) / 2),
        "toy-tatoeba-mteb/en-de/test/precision": 0.25,
        "toy-tatoeba-mteb/en-de/test/recall": 0.5,
        "toy-tatoeba-mteb/en-de/test/accuracy": 0.5,
        "toy-tatoeba-mteb/en-de/test/pairs": 2,
    }


@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
def test_laser_equals_a_search_by_l2(noise: float):
    encoder, sources, targets = noisy(300, noise)
    sides = [np.array([encoder.table[text] for text in side], np.float32) for side in (sources, targets)]
    rates = []
    for queries, candidates in (sides, sides[::-1]):
        queries, candidates = queries.copy(), candidates.copy()
        faiss.normalize_L2(queries)
        faiss.normalize_L2(candidates)
        index = faiss.IndexFlatL2(queries.shape[1])
        index.add(candidates)
        rates.append(1 - np.mean(index.search(queries, 1)[1][:, 0] == np.arange(300)))
    metrics = tatoeba_laser(encoder, sources, targets, languages=LANGUAGES, name="toy")
    assert noise < 1 or 0 < rates[0] < 1
    assert metrics["toy-tatoeba-laser/en-de/test/source_to_target_error"] == pytest.approx(rates[0])
    assert metrics["toy-tatoeba-laser/en-de/test/target_to_source_error"] == pytest.approx(rates[1])
    assert metrics["toy-tatoeba-laser/en-de/test/error"] == pytest.approx(sum(rates) / 2)


def test_variants_count_the_same_neighbours():
    encoder, sources, targets = noisy(200, noise=1.2)
    arguments: dict[str, Any] = {"languages": LANGUAGES, "name": "toy"}
    plain = tatoeba(encoder, sources, targets, **arguments)
    forward = plain["toy-tatoeba/en-de/test/source_to_target_accuracy"]
    backward = plain["toy-tatoeba/en-de/test/target_to_source_accuracy"]
    laser = tatoeba_laser(encoder, sources, targets, **arguments)
    mteb = tatoeba_mteb(encoder, sources, targets, **arguments)
    xtreme = tatoeba_xtreme(encoder, sources, targets, **arguments)
    assert forward != backward and 0.2 < forward < 0.9
    assert laser["toy-tatoeba-laser/en-de/test/source_to_target_error"] == pytest.approx(1 - forward)
    assert laser["toy-tatoeba-laser/en-de/test/target_to_source_error"] == pytest.approx(1 - backward)
    assert xtreme["toy-tatoeba-xtreme/en-de/test/accuracy"] == forward
    assert mteb["toy-tatoeba-mteb/en-de/test/accuracy"] == forward
    assert mteb["toy-tatoeba-mteb/en-de/test/recall"] == pytest.approx(forward)
    assert mteb["toy-tatoeba-mteb/en-de/test/f1"] < forward


def test_mteb_equals_scikit_learn():
    encoder, sources, targets = noisy(250, noise=1.5)
    chosen = cosines(encoder, sources, targets).argmax(axis=1)
    metrics = tatoeba_mteb(encoder, sources, targets, languages=LANGUAGES, name="toy")
    for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        expected = score(range(250), chosen, average="weighted", zero_division=0)
        assert 0 < expected < 1
        assert metrics[f"toy-tatoeba-mteb/en-de/test/{name}"] == pytest.approx(expected)


@pytest.mark.parametrize("repeat", [0, 30], ids=["distinct", "equal targets"])
def test_mteb_equals_mteb(repeat: int):
    mteb = pytest.importorskip("mteb")
    from mteb.models import SentenceTransformerEncoderWrapper

    model, (sources, targets) = word_model(), word_pairs(150)
    targets[100 : 100 + repeat] = targets[:repeat]
    task = mteb.get_task("Tatoeba", languages=["deu"])
    rows = Dataset.from_dict({"sentence1": sources, "sentence2": targets})
    task.dataset, task.data_loaded = {"deu-eng": {"test": rows}}, True
    wrapped = SentenceTransformerEncoderWrapper(model)
    options = {"batch_size": 32, "show_progress_bar": False}
    theirs = task.evaluate(wrapped, "test", subsets_to_run=["deu-eng"], encode_kwargs=options)["deu-eng"]
    ours = tatoeba_mteb(model, sources, targets, languages=("de", "en"), name="toy")
    assert 0.3 < theirs["f1"] < 0.95
    for metric in ("f1", "precision", "recall", "accuracy"):
        assert ours[f"toy-tatoeba-mteb/de-en/test/{metric}"] == pytest.approx(theirs[metric], abs=1e-9)
    assert theirs["main_score"] == theirs["f1"]


@pytest.mark.parametrize("protocol", VARIANTS)
def test_equal_targets_are_separate_candidates(protocol: Any):
    encoder = TableEncoder({"a": [1.0, 0.0], "b": [0.9, 0.1], "c": [0.0, 1.0], "same": [1.0, 0.05], "C": [0.0, 1.0]})
    metrics = protocol(encoder, ["a", "b", "c"], ["same", "same", "C"], languages=LANGUAGES, name="toy")
    prefix = f"toy-{protocol.__name__.replace('_', '-')}/en-de/test"
    if protocol is tatoeba_laser:
        assert metrics[f"{prefix}/source_to_target_error"] == pytest.approx(1 / 3)
    else:
        assert metrics[f"{prefix}/accuracy"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("protocol", VARIANTS)
def test_prompt_and_routes_reach_the_encoder(protocol: Any):
    encoder = TableEncoder({"query: a": [1.0, 0.0], "query: A": [1.0, 0.0]})
    encoder.routes = ("first", "second")
    routes = {"en": "first", "de": "second"}
    protocol(encoder, ["a"], ["A"], languages=LANGUAGES, name="toy", prompt="query: ", routes=routes)
    assert encoder.tasks == ["first", "second"]


@pytest.mark.parametrize("protocol", VARIANTS)
def test_mistakes_are_named(protocol: Any):
    encoder, sources, targets = noisy(3, noise=0.0)
    with pytest.raises(XlsrError, match="3 sources and 2 targets"):
        protocol(encoder, sources, targets[:2], languages=LANGUAGES, name="toy")
    with pytest.raises(XlsrError, match="texts"):
        protocol(encoder, [], [], languages=LANGUAGES, name="toy")
    encoder.table["t2"] = np.zeros(16)
    with pytest.raises(XlsrError, match="a vector of zeros for 't2'"):
        protocol(encoder, sources, targets, languages=LANGUAGES, name="toy")


def test_xtreme_wants_english_first():
    encoder, sources, targets = noisy(3, noise=0.0)
    with pytest.raises(XlsrError, match="languages is de,en; .* give English first"):
        tatoeba_xtreme(encoder, sources, targets, languages=("de", "en"), name="toy")
    metrics = tatoeba_xtreme(encoder, sources, targets, languages=("eng", "deu"), name="toy")
    assert metrics["toy-tatoeba-xtreme/eng-deu/test/accuracy"] == 1.0
