"""Each protocol from the words of a command line to a file of results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_pairs
from input_helpers import bucc_files, write_tsv
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.evaluation import tatoeba, xsim
from hf_xlsr.evaluation.command import EncoderOptions, evaluate_files
from hf_xlsr.evaluation.protocol import PROTOCOLS, DataOptions
from hf_xlsr.utils.errors import XlsrError

PAIRS = make_pairs(40, seed=3)
SOURCES = [row["source"] for row in PAIRS]
TARGETS = [row["target"] for row in PAIRS]
BINARY = [n % 2 for n in range(40)]


def columns(*values: list[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*values, strict=True))


def write(path: Path, header: str, rows: list[tuple[Any, ...]]) -> str:
    lines = ["\t".join(map(str, row)) for row in rows]
    return write_tsv(path, [header.replace(" ", "\t"), *lines])


def pairs_file(folder: Path) -> str:
    return write(folder / "pairs.tsv", "en fr", columns(SOURCES, TARGETS))


def pairs_of(folder: Path) -> list[str]:
    return ["--data", pairs_file(folder), "--columns", "source=en,target=fr"]


def bucc_of(folder: Path) -> list[str]:
    files = bucc_files(folder)  # one gold pair, so that some values have no interval
    gold = ["--gold", files["gold"], "--tune-gold", files["tune_gold"]]
    return ["--data", *files["data"], "--tune", *files["tune"], *gold]


def sts_of(folder: Path) -> list[str]:
    scores = [n % 6 for n in range(40)]
    rows = columns(SOURCES, TARGETS, scores, ["a", "b"] * 20, ["test"] * 40)
    header = "sentence1 sentence2 score subset split"
    files = [write(folder / f"{name}.tsv", header, rows) for name in ("STS12", "STS13")]
    return ["--data", *files, "--languages", "en"]


def pair_classification_of(folder: Path) -> list[str]:
    rows = columns(SOURCES, TARGETS, BINARY, ["test"] * 21 + ["dev"] * 19)
    file = write(folder / "paws.tsv", "sentence1 sentence2 label split", rows)
    return ["--data", file, "--tune", file, "--languages", "en"]


SPLITS = [("train", "train", "dev", "test")[n // 2 % 4] for n in range(40)]


def language_bias_of(folder: Path) -> list[str]:
    file = write(folder / "wide.tsv", "en fr", columns(SOURCES, TARGETS))
    return ["--data", file, "--columns", "text={lang}", "--languages", "en,fr", "--debias", "self", "--k", "3"]


def zero_shot_of(folder: Path) -> list[str]:
    rows = []
    for tag in ("eng_Latn", "fra_Latn", "deu_Latn"):
        rows += columns([tag] * 40, SOURCES, BINARY, SPLITS)
    return ["--data", write(folder / "topics.tsv", "lang text label split", rows), "--train-language", "en"]


def nli_of(folder: Path) -> list[str]:
    labels = [("entailment", "neutral", "contradiction")[n // 8 % 3] for n in range(40)]
    rows = columns(SOURCES, TARGETS, labels, SPLITS)
    file = write(folder / "xnli.tsv", "premise_en hypothesis_en label split", rows)
    names = "premise=premise_{lang},hypothesis=hypothesis_{lang}"
    return ["--data", file, "--columns", names, "--languages", "en", "--epochs", "2"]


def senteval_of(folder: Path) -> list[str]:
    reviews = write(folder / "reviews.tsv", "text label", columns(SOURCES, BINARY))
    rows = columns(SOURCES, TARGETS, BINARY, SPLITS)
    entailed = write(folder / "SICK-E.tsv", "sentence1 sentence2 label split", rows)
    return ["--data", f"MR={reviews}", entailed, "--languages", "en"]


CASES: dict[str, tuple[Callable[[Path], list[str]], set[str]]] = {
    "tatoeba": (pairs_of, {"pairs-tatoeba/en-fr/test/accuracy"}),
    "tatoeba-laser": (pairs_of, {"pairs-tatoeba-laser/en-fr/test/error"}),
    "tatoeba-xtreme": (pairs_of, {"pairs-tatoeba-xtreme/en-fr/test/accuracy"}),
    "tatoeba-mteb": (pairs_of, {"pairs-tatoeba-mteb/en-fr/test/f1"}),
    "xsim": (pairs_of, {"pairs-xsim/en-fr/test/error"}),
    "xsr": (pairs_of, {"pairs-xsr/en-fr/test/precision@5", "pairs-xsr/fr-en/test/precision@5"}),
    "bucc": (bucc_of, {"test-bucc-k4-ratio/de-en/test/f1", "test-bucc-k3-distance/de-en/test/f1"}),
    "sts": (sts_of, {"STS12-sts/en/test/spearman_all", "sts-average-of-2/en/test/pearson_wmean"}),
    "pair-classification": (pair_classification_of, {"paws-pair-classification/en/test/cosine_accuracy"}),
    "xsim-pp": (pairs_of, {"pairs-xsim-pp/fr-en/test/error", "pairs-xsim-pp/fr-en/test/meaning_error"}),
    "mining": (
        lambda folder: [*pairs_of(folder), "--hide-pairs", "0.5"],
        {"pairs-mining-h0.5-k4-ratio/en-fr/test/f1", "pairs-mining-h0.5-k4-ratio/en-fr/tune/f1"},
    ),
    "search": (
        lambda folder: language_bias_of(folder)[:-2],
        {"wide-search/en-fr/test/mrr", "wide-search-pcr1-self/mean-of-2/test/ndcg@10"},
    ),
    "language-bias": (
        language_bias_of,
        {"wide-language-bias-k3/en/test/share_fr", "wide-language-bias-k3-pcr1-self/mean-of-2/test/bias"},
    ),
    "zero-shot": (
        zero_shot_of,
        {"topics-zero-shot-linear/en-fr/test/accuracy", "topics-zero-shot-linear/mean-of-2/test/accuracy"},
    ),
    "nli": (nli_of, {"xnli-nli-mlp/en-en/test/accuracy", "xnli-nli-mlp/en-en/dev/accuracy"}),
    "senteval": (senteval_of, {"MR-senteval/en/test/accuracy", "senteval-average-of-2/en/test/accuracy"}),
}


def test_every_protocol_has_a_case() -> None:
    assert {*CASES, "mteb"} == set(PROTOCOLS)  # mteb has a test of its own below


@pytest.mark.parametrize("protocol", CASES)
def test_protocol_on_local_files(
    protocol: str, tiny_export: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = CASES[protocol]
    output = tmp_path / "results.json"
    command = ["evaluate", tiny_export, "--protocol", protocol, *words(tmp_path), "--seed", "0"]
    command += ["--output", str(output)]
    assert main(command) == 0, capsys.readouterr().err

    results = json.loads(output.read_text())
    metrics = results["metrics"]
    assert expected <= set(metrics), sorted(metrics)
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
    data = DataOptions((pairs_file(tmp_path),), columns="source=en,target=fr")
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
    file = pairs_file(tmp_path)
    with pytest.raises(XlsrError, match="--output"):
        evaluate_files(str(tmp_path), "tatoeba", DataOptions((file,)), output=f"{file}/out.json")


def test_predictions_need_an_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "model", "--protocol", "tatoeba", *pairs_of(tmp_path), "--predictions"]) == 1
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
