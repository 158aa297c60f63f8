"""Refusals of protocols that train or compare: the error names the offending key, before anything is encoded."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from hf_xlsr.evaluation.protocols.nli import nli
from hf_xlsr.evaluation.protocols.pair_classification import pair_classification
from hf_xlsr.evaluation.protocols.sts import sts
from hf_xlsr.evaluation.protocols.zero_shot import zero_shot
from hf_xlsr.evaluation.senteval.evaluate import senteval
from hf_xlsr.utils.errors import XlsrError


class NeverEncodes:
    def encode(self, texts: list[str], **kwargs: Any) -> Any:
        raise AssertionError(f"encodes {texts}")


ENCODER = NeverEncodes()
DOCUMENTS = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
INFERENCE = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, 1, 2)]


def documents(**changes: Any) -> Callable[[], Any]:
    given = {"train": DOCUMENTS, "dev": DOCUMENTS, "tests": {"fr": DOCUMENTS}, "train_language": "en", "name": "d"}
    return lambda: zero_shot(ENCODER, **{**given, **changes})


def inference(**changes: Any) -> Callable[[], Any]:
    given = {"train": INFERENCE, "dev": INFERENCE, "tests": {"fr": INFERENCE}, "train_language": "en", "name": "d"}
    return lambda: nli(ENCODER, **{**given, **changes})


def words(count: int = 12, *splits: str) -> list[dict[str, Any]]:
    """Rows for any of SentEval's tasks."""
    row = {"text": "a b", "sentence1": "a", "sentence2": "b"}
    named = splits or ("train", "dev", "test")
    return [{**row, "label": n % 2, "score": 1 + n % 3, "split": named[n % len(named)]} for n in range(count)]


def transfer(task: str = "MR", rows: Any = None, **changes: Any) -> Callable[[], Any]:
    return lambda: senteval(ENCODER, {task: words() if rows is None else rows}, **changes)


def similarity(*scores: Any) -> Callable[[], Any]:
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in scores]
    return lambda: sts(ENCODER, {"X": rows})


def pairs(*labels: Any, tune: Any = None) -> Callable[[], Any]:
    rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in labels]
    return lambda: pair_classification(ENCODER, rows, tune=tune and rows[:1], name="d")


def of_mteb(name: str, *arguments: Any, **options: Any) -> Callable[[], Any]:
    """A call of a function of the optional mteb package."""

    def call() -> Any:
        pytest.importorskip("mteb")
        module, function = name.split(".")
        return getattr(importlib.import_module(f"hf_xlsr.evaluation.mteb.{module}"), function)(*arguments, **options)

    return call


LOCAL = [{"sentence1": "a", "sentence2": "b", "score": 1, "lang": "en"}]

REFUSALS: list[tuple[Callable[[], Any], str]] = [
    (documents(head="liner"), "linear"),
    (documents(head="mlp", epochs=0), "epochs"),
    (documents(head="mlp", learning_rate=0.0), "learning_rate"),
    (documents(head="linear", epochs=3), "epochs"),
    (documents(head="linear", learning_rate=0.1), "learning_rate"),
    (documents(train=DOCUMENTS[:1]), "train"),
    (documents(tests={"fr": [{"text": "c", "label": "X"}]}), "'X'"),
    (inference(head="svm"), "svm"),
    (inference(train=[{"premise": "a", "label": 1}]), "hypothesis"),
    (inference(dev=[{**INFERENCE[0], "label": -1}]), "dev"),
    (inference(dev=[{**INFERENCE[0], "label": None}]), "None"),
    (inference(train=INFERENCE[:2]), "contradiction"),
    (inference(cross=True, tests={"en": INFERENCE, "de": INFERENCE[:2]}), "cross"),
    (inference(cross=True, tests={"en": INFERENCE, "de": INFERENCE[::-1]}), "de"),
    (transfer(setting="fats"), "fast"),
    (transfer(device="gpu"), "device"),
    (transfer(rows=[]), "MR"),
    (transfer(rows=[{"text": "a"}]), "label"),
    (transfer("SST2", [{"text": "a", "label": 1}]), "split"),
    (transfer("SST2", words(12, "train", "test")), "dev"),
    (transfer("TREC", words(12, "train", "dev")), "test"),
    (transfer("SST2", words(12, "train", "dev", "tset", "test")), "tset"),
    (transfer(rows=[{"text": "a", "label": 1}] * 9), "MR"),
    (transfer(rows=[*words(), {"text": "a", "label": None}]), "label"),
    (transfer("SST2", [*words(), {**words(3)[2], "label": 7}]), "label 7"),
    (transfer("MRPC", [{**row, "label": n // 3 % 3} for n, row in enumerate(words())]), "F1"),
    (transfer("STS-B", [*words(), {**words()[0], "score": None}]), "score"),
    (transfer("STS-B", [*words(), {**words()[0], "score": "5.1"}]), "5.1"),
    (similarity("", None), "texts"),
    (lambda: sts(ENCODER, {"X": [{"sentence1": "a", "score": 1}]}), "sentence2"),
    (pairs(1, 2), "2"),
    (pairs("yes", 1), "yes"),
    (pairs(1, 1), "label 0"),
    (pairs(1, 0, tune=True), "tune"),
    (of_mteb("data.mteb_task", "Tatoba"), "'Tatoeba'"),
    (of_mteb("data.mteb_rows", "SciFact"), "Retrieval"),
    (of_mteb("data.mteb_rows", "Tatoeba", subsets=["ger-eng"]), "ger-eng"),
    (of_mteb("tasks.local_task", "STS12", [{**LOCAL[0], "lang": "klingonese"}]), "klingonese"),
    (of_mteb("tasks.xsr_task", "t", [], [], [], ("en", "xx")), "xx"),
]


@pytest.mark.parametrize(("call", "key"), REFUSALS)
def test_refusal(call: Callable[[], Any], key: str):
    with pytest.raises(XlsrError) as error:
        call()
    assert key in str(error.value)


def test_refused_mteb_runs(tiny_export: str):
    pytest.importorskip("mteb")
    from hf_xlsr.evaluation.mteb.encoder import as_mteb_encoder
    from hf_xlsr.evaluation.mteb.evaluate import evaluate_mteb

    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: evaluate_mteb(as_mteb_encoder(tiny_export), "STS12", prompt="query: "), "prompt"),
        (lambda: as_mteb_encoder(tiny_export, routes={"en": "middle"}), "middle"),
    ]
    for call, key in calls:
        with pytest.raises(XlsrError, match=key):
            call()


def test_missing_mteb_names_the_extra():
    program = (
        "import sys\n"
        "sys.modules['mteb'] = None\n"
        "import hf_xlsr.evaluation.registry\n"
        "from hf_xlsr.utils.errors import XlsrError\n"
        "try:\n"
        "    import hf_xlsr.evaluation.mteb.evaluate\n"
        "except XlsrError as error:\n"
        "    assert 'hf-xlsr[mteb]' in str(error)\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
