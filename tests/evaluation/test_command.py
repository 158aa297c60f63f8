"""Each protocol from the words of a command line to a file of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import make_pairs
from input_helpers import bucc_files
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.evaluation import tatoeba, xsim
from hf_xlsr.evaluation.command import EncoderOptions, evaluate_files
from hf_xlsr.evaluation.protocol import PROTOCOLS, DataOptions
from hf_xlsr.evaluation.rows import both_sides
from hf_xlsr.utils.errors import XlsrError

SOURCES, TARGETS = both_sides(make_pairs(40, seed=3))
BINARY = [0, 1] * 20
SPLITS = ["train", "train", "train", "train", "dev", "dev", "test", "test"] * 5


def write(name: str, **columns: list[Any]) -> None:
    pd.DataFrame(columns).to_csv(name, sep="\t", index=False)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with a table for each kind of task."""
    monkeypatch.chdir(tmp_path)
    sides = {"sentence1": SOURCES, "sentence2": TARGETS}
    write("pairs.tsv", en=SOURCES, fr=TARGETS)
    bucc_files(tmp_path)  # one gold pair, so that some values have no interval

    scores = {"score": [0, 1, 2, 3, 4] * 8, "subset": ["a", "b"] * 20, "split": ["test"] * 40}
    write("STS12.tsv", **sides, **scores)
    write("STS13.tsv", **sides, **scores)
    write("paws.tsv", **sides, label=BINARY, split=["test"] * 21 + ["dev"] * 19)

    tags = ["eng_Latn"] * 40 + ["fra_Latn"] * 40 + ["deu_Latn"] * 40
    write("topics.tsv", lang=tags, text=SOURCES * 3, label=BINARY * 3, split=SPLITS * 3)
    labels = ["entailment"] * 8 + ["neutral"] * 8 + ["contradiction"] * 8 + ["entailment"] * 8 + ["neutral"] * 8
    write("xnli.tsv", premise_en=SOURCES, hypothesis_en=TARGETS, label=labels, split=SPLITS)

    write("reviews.tsv", text=SOURCES, label=BINARY)
    write("SICK-E.tsv", **sides, label=BINARY, split=SPLITS)


PAIRS = "--data pairs.tsv --columns source=en,target=fr"
WIDE = "--data pairs.tsv --columns text={lang} --languages en,fr --debias self"
BUCC = "--data test.de test.en --gold test.gold --tune train.de train.en --tune-gold train.gold"
XNLI = "--data xnli.tsv --columns premise=premise_{lang},hypothesis=hypothesis_{lang} --languages en --epochs 2"
# Words of the command, and two keys of the metrics.
CASES: dict[str, tuple[str, str, str]] = {
    "tatoeba": (
        PAIRS,
        "pairs-tatoeba/en-fr/test/accuracy",
        "pairs-tatoeba/en-fr/test/pairs",
    ),
    "tatoeba-laser": (
        PAIRS,
        "pairs-tatoeba-laser/en-fr/test/error",
        "pairs-tatoeba-laser/en-fr/test/pairs",
    ),
    "tatoeba-xtreme": (
        PAIRS,
        "pairs-tatoeba-xtreme/en-fr/test/accuracy",
        "pairs-tatoeba-xtreme/en-fr/test/pairs",
    ),
    "tatoeba-mteb": (
        PAIRS,
        "pairs-tatoeba-mteb/en-fr/test/f1",
        "pairs-tatoeba-mteb/en-fr/test/pairs",
    ),
    "xsim": (
        PAIRS,
        "pairs-xsim/en-fr/test/error",
        "pairs-xsim/en-fr/test/pairs",
    ),
    "xsr": (
        PAIRS,
        "pairs-xsr/en-fr/test/precision@5",
        "pairs-xsr/fr-en/test/precision@5",
    ),
    "bucc": (
        BUCC,
        "test-bucc-k4-ratio/de-en/test/f1",
        "test-bucc-k3-distance/de-en/test/f1",
    ),
    "sts": (
        "--data STS12.tsv STS13.tsv --languages en",
        "STS12-sts/en/test/spearman_all",
        "sts-average-of-2/en/test/pearson_wmean",
    ),
    "pair-classification": (
        "--data paws.tsv --tune paws.tsv --languages en",
        "paws-pair-classification/en/test/cosine_accuracy",
        "paws-pair-classification/en/test/cosine_ap",
    ),
    "xsim-pp": (
        PAIRS,
        "pairs-xsim-pp/fr-en/test/error",
        "pairs-xsim-pp/fr-en/test/meaning_error",
    ),
    "mining": (
        f"{PAIRS} --hide-pairs 0.5",
        "pairs-mining-h0.5-k4-ratio/en-fr/test/f1",
        "pairs-mining-h0.5-k4-ratio/en-fr/tune/f1",
    ),
    "search": (
        WIDE,
        "pairs-search/en-fr/test/mrr",
        "pairs-search-pcr1-self/mean-of-2/test/ndcg@10",
    ),
    "language-bias": (
        f"{WIDE} --k 3",
        "pairs-language-bias-k3/en/test/share_fr",
        "pairs-language-bias-k3-pcr1-self/mean-of-2/test/bias",
    ),
    "zero-shot": (
        "--data topics.tsv --train-language en",
        "topics-zero-shot-linear/en-fr/test/accuracy",
        "topics-zero-shot-linear/mean-of-2/test/accuracy",
    ),
    "nli": (
        XNLI,
        "xnli-nli-mlp/en-en/test/accuracy",
        "xnli-nli-mlp/en-en/dev/accuracy",
    ),
    "senteval": (
        "--data MR=reviews.tsv SICK-E.tsv --languages en",
        "MR-senteval/en/test/accuracy",
        "senteval-average-of-2/en/test/accuracy",
    ),
}


def test_every_protocol_has_a_case() -> None:
    assert {*CASES, "mteb"} == set(PROTOCOLS)  # mteb has a test of its own below


@pytest.mark.parametrize("protocol", CASES)
def test_protocol_on_local_files(protocol: str, tiny_export: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, *expected_keys = CASES[protocol]
    output = Path("results.json")
    command = ["evaluate", tiny_export, "--protocol", protocol, *words.split(), "--seed", "0", "--output", str(output)]
    assert main(command) == 0, capsys.readouterr().err

    results = json.loads(output.read_text())
    metrics = results["metrics"]
    assert set(expected_keys) <= set(metrics), sorted(metrics)
    assert np.isfinite(list(metrics.values())).all()
    for data_hash in results["data_sha256"].values():
        assert len(data_hash) == 64

    # The same words again give the same numbers.
    assert main(command) == 0
    assert json.loads(output.read_text())["metrics"] == metrics


def test_metrics_equal_the_functions(tiny_export: str, tmp_path: Path) -> None:
    from mteb_helpers import routed_model

    folder = tmp_path / "routed"
    routes = {"en": "second", "fr": "second"}
    routed_model(tiny_export, ("first", "second")).save(str(folder))
    data = DataOptions(("pairs.tsv",), columns="source=en,target=fr")
    encoder = EncoderOptions(prompt="red ", routes=routes)
    metrics = evaluate_files(str(folder), "tatoeba,xsim", data, {"k": 2}, encoder=encoder)

    model = SentenceTransformer(str(folder))
    options: dict[str, Any] = {"languages": ("en", "fr"), "name": "pairs", "prompt": "red ", "routes": routes}
    expected = tatoeba(model, SOURCES, TARGETS, **options)
    expected |= xsim(model, SOURCES, TARGETS, k=2, **options)
    assert metrics == pytest.approx(expected)


def test_output_is_checked_before_the_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_xlsr.evaluation.command.load_encoder", lambda *_: pytest.fail("the model was loaded"))
    (tmp_path / "modules.json").write_text("[]")
    with pytest.raises(XlsrError, match="--output"):
        evaluate_files(str(tmp_path), "tatoeba", DataOptions(("pairs.tsv",)), output="pairs.tsv/out.json")


def test_predictions_need_an_output(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"evaluate model --protocol tatoeba {PAIRS} --predictions"
    assert main(words.split()) == 1
    assert "--output" in capsys.readouterr().err


@pytest.fixture
def mteb_command(tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The evaluation of one of mteb's tasks, without the name of the protocol; the task has our pairs as its data."""
    mteb = pytest.importorskip("mteb")
    from mteb_helpers import table, with_data

    real = mteb.get_task
    scores = [n % 6 for n in range(40)]
    data = {"test": table(sentence1=SOURCES, sentence2=TARGETS, score=scores)}

    def get_task(name: str, **options: Any) -> Any:
        task = real(name, **options)
        task.load_data = lambda **_: with_data(task, data)
        return task

    monkeypatch.setattr(mteb, "get_task", get_task)
    words = ["evaluate", tiny_export, "--output", str(tmp_path / "out.json")]
    return [*words, "--data", "mteb:STSBenchmark", "--protocol"]


def test_mteb_task(mteb_command: list[str], tmp_path: Path) -> None:
    import mteb

    output = tmp_path / "out.json"
    assert main([*mteb_command, "mteb"]) == 0
    of_mteb = json.loads(output.read_text())
    revision = mteb.get_task("STSBenchmark").metadata.dataset["revision"]
    assert of_mteb["data_sha256"] == {"STSBenchmark": revision}

    assert main([*mteb_command, "sts"]) == 0
    metrics = json.loads(output.read_text())["metrics"]
    spearman = of_mteb["metrics"]["STSBenchmark-mteb/en/test/cosine_spearman"]
    assert metrics["STSBenchmark-sts/en/test/spearman_all"] == pytest.approx(spearman, abs=1e-6)


def test_mteb_cache(mteb_command: list[str], tmp_path: Path) -> None:
    import mteb

    cache = tmp_path / "cache"
    options = ["--cache", str(cache), "--name", "me/tiny", "--languages", "en", "--hf-subsets", "default"]
    assert main([*mteb_command, "mteb", *options]) == 0
    metrics = json.loads((tmp_path / "out.json").read_text())["metrics"]
    (file,) = cache.rglob("STSBenchmark.json")
    assert "me__tiny" in file.parts
    stored = mteb.results.TaskResult.from_disk(file)
    assert stored.get_score() == pytest.approx(metrics["STSBenchmark-mteb/en/test/main_score"], abs=1e-5)
