"""What evaluation refuses: each row is a call with one mistake, and a word of the message that names it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bitext_helpers import TableEncoder
from input_helpers import TMX, WIDE, bucc_files, read, topic_rows, write_tsv
from result_helpers import results

from hf_xlsr.encoders.debias import fit_debias
from hf_xlsr.evaluation import (
    BuccData,
    bucc,
    language_bias,
    load_results,
    mining,
    plot_languages,
    read_bucc,
    tatoeba,
    tatoeba_xtreme,
    xsim,
)
from hf_xlsr.evaluation.bleu import corpus_bleu
from hf_xlsr.evaluation.comparison import compare_encoders
from hf_xlsr.evaluation.protocol import PROTOCOLS, find_protocols
from hf_xlsr.evaluation.protocols.pair_similarity import pair_classification, sts
from hf_xlsr.evaluation.protocols.senteval import senteval
from hf_xlsr.evaluation.protocols.transfer import nli, zero_shot
from hf_xlsr.evaluation.reading import TunedInputs
from hf_xlsr.evaluation.rows import read_labelled
from hf_xlsr.utils.errors import XlsrError

DE: dict[str, Any] = {"columns": "source=en,target=de"}
EN: dict[str, Any] = {"languages": ("en",)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of all kinds, named in the tables below."""
    home = tmp_path_factory.mktemp("refusals")
    pq.write_table(pa.table(WIDE), home / "numbers.parquet")
    pairs = "source_lang\ttarget_lang\tsource\ttarget"
    write_tsv(home / "pairs.tsv", [pairs, "en\tde\tday\tTag"])
    write_tsv(home / "memory.tmx", [TMX])
    write_tsv(home / "topics.tsv", topic_rows("label", "train", "validation", "test"))
    write_tsv(home / "no-dev.tsv", topic_rows("label", "train", "test"))
    test_rows = labelled_texts("t", [0, 1])
    write_tsv(home / "test.tsv", ["text\tlabel", *test_rows])
    write_tsv(home / "copy.tsv", ["text\tlabel", *test_rows[::-1]])
    write_tsv(home / "relabelled.tsv", ["text\tlabel", *labelled_texts("t", [1, 0])])
    write_tsv(home / "train.tsv", ["text\tlabel", *labelled_texts("u", [0, 1])])
    bucc_files(home)
    return home


def labelled_texts(prefix: str, labels: list[int]) -> list[str]:
    return [f"{prefix}{n}\t{label}" for n, label in enumerate(labels * 20)]


# Protocol, files, options, and what the message must name.
DATA: list[tuple[str, str, dict[str, Any], str]] = [
    ("tatoeba", "numbers.parquet", {"columns": "source=en,target=it"}, "'it'"),
    ("tatoeba", "test.de test.en train.de", DE, "--data"),
    ("sts", "numbers.parquet numbers.parquet", EN | {"columns": "sentence1=en,sentence2=de,score=kind"}, "NAME=FILE"),
    ("tatoeba", "memory.tmx", {}, "--languages"),
    ("senteval", "TREC=test.tsv", EN, "split"),
    # Rows to train, tune and test on.
    ("zero-shot", "topics.tsv", EN | {"split": "validation"}, "--tune"),
    ("zero-shot", "topics.tsv", {}, "--train-language"),
    ("zero-shot", "no-dev.tsv", EN, "--hold-out"),
    ("zero-shot", "test.tsv", EN | {"train": ("relabelled.tsv",), "tune": ("train.tsv",)}, "--train"),
    ("zero-shot", "test.tsv", EN | {"train": ("train.tsv",), "tune": ("copy.tsv",)}, "--tune"),
    ("bucc", "test.de test.en", {"gold": None, "tune": ("train.de", "train.en"), "tune_gold": "train.gold"}, "--gold"),
]


@pytest.mark.parametrize(("protocol", "files", "options", "key"), DATA)
def test_data(
    protocol: str, files: str, options: dict[str, Any], key: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with pytest.raises(XlsrError) as error:
        read(protocol, *files.split(), **options)

    message = str(error.value)
    assert key in message
    assert "\n" not in message


GOOD = [{"text": "a", "label": 0}, {"text": "b", "label": 1}]


def labelled(**changes: Any) -> Any:
    rows: dict[str, Any] = {"train": GOOD, "dev": GOOD, "tests": {"fr": GOOD}, **changes}
    return read_labelled(rows["train"], rows["dev"], rows["tests"], texts=["text"])


GERMAN: dict[str, Any] = {"languages": ("en", "de"), "name": "toy"}
LINES = BuccData(["s1", "s2"], ["a", "b"], ["t1", "t2"], ["A", "B"], frozenset({("s1", "t1")}))


def encoder(*zero: str) -> TableEncoder:
    """An encoder of single letters; the vectors of some are zero."""
    table = {text: [number + 1.0, 1.0] for number, text in enumerate("abcABC")}
    return TableEncoder(table | dict.fromkeys(zero, [0.0, 0.0]))


def run_pairs(protocol: Callable[..., Any], *zero: str, **options: Any) -> Any:
    """Runs a protocol of parallel sentences on two pairs."""
    return protocol(encoder(*zero), ["a", "b"], ["A", "B"], **{**GERMAN, **options})


def bias(texts: dict[str, list[str]], **options: Any) -> Any:
    return language_bias(encoder("c"), texts, name="toy", **options)


def german_only() -> Any:
    return fit_debias(encoder(), {"de": ["a", "b", "c"]})


def untuned() -> Any:
    def rows(language: str) -> list[dict[str, Any]]:
        return [{"sentence1": "a", "sentence2": "b", "label": label, "lang": language} for label in (0, 1)]

    inputs = TunedInputs("w", "test", rows=rows("de"), tune=[*rows("en"), *rows("fr")])
    return PROTOCOLS["pair-classification"].run(encoder(), inputs, PROTOCOLS["pair-classification"].options())


def readable(folder: Path, text: str) -> Any:
    (folder / "results.json").write_text(text, "utf-8")
    return load_results(folder / "results.json")


RETRIEVAL = {"e5": results({"tatoeba/en-fr/test/accuracy": 0.5})}
PLACES: list[tuple[Callable[[Path], Any], str]] = [
    (lambda folder: readable(folder, "{"), "results.json"),
    (lambda folder: compare_encoders(RETRIEVAL, ["acuracy"]), "accuracy"),
    (lambda folder: plot_languages(folder / "p.png", RETRIEVAL), "language-bias"),
]


@pytest.mark.parametrize(("call", "key"), PLACES)
def test_places_and_plots(call: Callable[[Path], Any], key: str, folder: Path) -> None:
    with pytest.raises(XlsrError) as error:
        call(folder)
    assert key in str(error.value)


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: labelled(dev=[GOOD[0], {"label": 1}]), "Row 1 of dev"),
    (lambda: labelled(train=GOOD[:1]), "two or more labels, got [0]"),
    (lambda: labelled(tests={"fr": GOOD, "de": [*GOOD, {"text": "c", "label": "1"}]}), "Row 2 of tests['de']"),
    (lambda: find_protocols("tatoba"), "tatoeba"),
    (lambda: find_protocols("tatoeba,sts"), "sts"),
    (lambda: PROTOCOLS["xsim"].options.of({"margin": "rato"}), "margin"),
    (lambda: run_pairs(tatoeba, "B"), "'B'"),
    (lambda: run_pairs(xsim, "B"), "'B'"),
    (lambda: tatoeba(encoder(), ["a", "b"], ["A"]), "targets"),
    (lambda: run_pairs(tatoeba_xtreme, languages=("de", "en")), "must start with en, got de,en"),
    (lambda: run_pairs(xsim, k=0), "`k` must be above 0, got 0"),
    (lambda: run_pairs(mining, hide_pairs=20), "--hide-pairs) must be above 0 and at most 1, got 20"),
    (lambda: run_pairs(mining, hide_pairs=0), "--hide-pairs) must be above 0 and at most 1, got 0"),
    (lambda: run_pairs(mining, hide_pairs=-1), "--hide-pairs) must be above 0 and at most 1, got -1"),
    (lambda: bucc(encoder(), LINES, LINES, **GERMAN), "tune"),
    (lambda: bias({"en": ["a", "b"]}), "two or more languages"),
    (lambda: bias({"en": ["a", "b"], "fr": ["A", "B"]}, debias=german_only()), "'en'"),
    (untuned, "--tune must have rows in de"),
    (lambda: BuccData(["s1"], ["a"], ["t1"], ["A"], frozenset({("s1", "s1")})), "s1"),
    (lambda: read_bucc("missing.txt", "missing.txt", "missing.txt"), "missing.txt"),
    (lambda: corpus_bleu(["a"], ["a"], tokenize="13b"), "13a"),
]


class NeverEncodes:
    def encode(self, texts: list[str], **kwargs: Any) -> Any:
        raise AssertionError(f"encodes {texts}")


ENCODER = NeverEncodes()
DOCUMENTS = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
INFERENCE = [{"premise": "a", "hypothesis": "b", "label": label} for label in (0, 1, 2)]


def documents(**changes: Any) -> Callable[[], Any]:
    rows = {"train": DOCUMENTS, "dev": DOCUMENTS, "tests": {"fr": DOCUMENTS}}
    return lambda: zero_shot(ENCODER, train_language="en", name="d", **{**rows, **changes})


def inference(**changes: Any) -> Callable[[], Any]:
    rows = {"train": INFERENCE, "dev": INFERENCE, "tests": {"fr": INFERENCE}}
    return lambda: nli(ENCODER, train_language="en", name="d", **{**rows, **changes})


def words(count: int = 12, *splits: str) -> list[dict[str, Any]]:
    """Rows for any of SentEval's tasks."""
    splits = splits or ("train", "dev", "test")
    rows = []
    for n in range(count):
        row = {
            "text": "a b",
            "sentence1": "a",
            "sentence2": "b",
            "split": splits[n % len(splits)],
            "label": n % 2,
            "score": 1 + n % 3,
        }
        rows.append(row)
    return rows


def transfer(task: str = "MR", rows: Any = None, **changes: Any) -> Callable[[], Any]:
    return lambda: senteval(ENCODER, {task: words() if rows is None else rows}, **changes)


def similarity(*scores: Any) -> Callable[[], Any]:
    rows = [{"sentence1": "a", "sentence2": "b", "score": score} for score in scores]
    return lambda: sts(ENCODER, {"X": rows})


def pairs(*labels: Any) -> Callable[[], Any]:
    rows = [{"sentence1": "a", "sentence2": "b", "label": label} for label in labels]
    return lambda: pair_classification(ENCODER, rows, name="d")


def of_mteb(function: str, *arguments: Any, **options: Any) -> Callable[[], Any]:
    """A call of a function of the optional mteb package."""

    def call() -> Any:
        pytest.importorskip("mteb")
        return getattr(importlib.import_module("hf_xlsr.evaluation.mteb.tasks"), function)(*arguments, **options)

    return call


LEARNERS: list[tuple[Callable[[], Any], str]] = [
    (documents(head="liner"), "linear"),
    (inference(dev=[{**INFERENCE[0], "label": -1}]), "dev"),
    (inference(train=INFERENCE[:2]), "contradiction"),
    (transfer("SST2", words(12, "train", "test")), "dev"),
    (transfer("SST2", [*words(), {**words(3)[2], "label": 7}]), "label 7"),
    (similarity("", None), "task 'X' has no row with a score"),
    (similarity(2, "1,5"), "1,5"),
    (pairs("yes", 1), "yes"),
    (of_mteb("mteb_task", "Tatoba"), "'Tatoeba'"),
    (of_mteb("mteb_task", "Tatoeba", ["no", "en"]), "no, en"),
]


@pytest.mark.parametrize(("call", "key"), CALLS + LEARNERS)
def test_calls(call: Callable[[], Any], key: str) -> None:
    with pytest.raises(XlsrError) as error:
        call()
    assert key in str(error.value)
