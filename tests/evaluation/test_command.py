"""Each protocol from the words of a command line to a file of results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_pairs
from input_helpers import bucc_files
from sentence_transformers import SentenceTransformer

from hf_xlsr.cli import main
from hf_xlsr.evaluation import tatoeba, xsim
from hf_xlsr.evaluation.command import EncoderOptions, evaluate_files
from hf_xlsr.evaluation.protocol import PROTOCOLS, DataOptions
from hf_xlsr.utils.errors import XlsrError

PAIRS = make_pairs(40, seed=3)


def write(path: Path, header: str, rows: list[tuple[Any, ...]]) -> str:
    lines = [header.replace(" ", "\t"), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def pairs_file(folder: Path) -> str:
    return write(folder / "pairs.tsv", "en fr", [(row["source"], row["target"]) for row in PAIRS])


def pairs_of(folder: Path) -> list[str]:
    return ["--data", pairs_file(folder), "--columns", "source=en,target=fr"]


def bucc_of(folder: Path) -> list[str]:
    given = bucc_files(folder)  # one gold pair, so that some values have no interval
    gold = ["--gold", given["gold"], "--tune-gold", given["tune_gold"]]
    return ["--data", *given["data"], "--tune", *given["tune"], *gold]


def sts_of(folder: Path) -> list[str]:
    rows = [(row["source"], row["target"], n % 6, "ab"[n % 2], "test") for n, row in enumerate(PAIRS)]
    header = "sentence1 sentence2 score subset split"
    files = [write(folder / f"{name}.tsv", header, rows) for name in ("STS12", "STS13")]
    return ["--data", *files, "--languages", "en"]


def pair_classification_of(folder: Path) -> list[str]:
    rows = [(row["source"], row["target"], n % 2, ("test", "dev")[n > 20]) for n, row in enumerate(PAIRS)]
    file = write(folder / "paws.tsv", "sentence1 sentence2 label split", rows)
    return ["--data", file, "--tune", file, "--languages", "en"]


def splits(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(*row, ("train", "train", "dev", "test")[n // 2 % 4]) for n, row in enumerate(rows)]


def language_bias_of(folder: Path) -> list[str]:
    file = write(folder / "wide.tsv", "en fr", [(row["source"], row["target"]) for row in PAIRS])
    return ["--data", file, "--columns", "text={lang}", "--languages", "en,fr", "--debias", "self", "--k", "3"]


def zero_shot_of(folder: Path) -> list[str]:
    rows = splits([(row["source"], n % 2) for n, row in enumerate(PAIRS)])
    tagged = [(lang, *row) for lang in ("eng_Latn", "fra_Latn", "deu_Latn") for row in rows]
    return ["--data", write(folder / "topics.tsv", "lang text label split", tagged), "--train-language", "en"]


def nli_of(folder: Path) -> list[str]:
    labels = ("entailment", "neutral", "contradiction")
    rows = splits([(row["source"], row["target"], labels[n // 8 % 3]) for n, row in enumerate(PAIRS)])
    file = write(folder / "xnli.tsv", "premise_en hypothesis_en label split", rows)
    columns = "premise=premise_{lang},hypothesis=hypothesis_{lang}"
    return ["--data", file, "--columns", columns, "--languages", "en", "--epochs", "2"]


def senteval_of(folder: Path) -> list[str]:
    rows = [(row["source"], row["target"], n % 2) for n, row in enumerate(PAIRS)]
    reviews = write(folder / "reviews.tsv", "text label", [(row[0], row[2]) for row in rows])
    entailed = write(folder / "SICK-E.tsv", "sentence1 sentence2 label split", splits(rows))
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
    assert expected <= set(results["metrics"]), sorted(results["metrics"])
    assert all(np.isfinite(value) for value in results["metrics"].values())
    assert results["data_sha256"] and all(len(value) == 64 for value in results["data_sha256"].values())
    # The same words again give the same numbers.
    assert main(command) == 0
    assert json.loads(output.read_text())["metrics"] == results["metrics"]


def test_metrics_equal_the_functions(tiny_export: str, tmp_path: Path) -> None:
    from mteb_helpers import routed_model

    folder, routes = tmp_path / "routed", {"en": "second", "fr": "second"}
    routed_model(tiny_export, ("first", "second")).save(str(folder))
    data = DataOptions((pairs_file(tmp_path),), columns="source=en,target=fr")
    encoder = EncoderOptions(prompt="red ", routes=routes)
    found = evaluate_files(str(folder), "tatoeba,xsim", data, {"k": 2}, encoder=encoder)
    model = SentenceTransformer(str(folder))
    sides = [row["source"] for row in PAIRS], [row["target"] for row in PAIRS]
    common: dict[str, Any] = {"languages": ("en", "fr"), "name": "pairs", "prompt": "red ", "routes": routes}
    assert found == pytest.approx(tatoeba(model, *sides, **common) | xsim(model, *sides, k=2, **common))


def test_output_is_checked_before_the_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_xlsr.evaluation.command.load_encoder", lambda *_: pytest.fail("the model was loaded"))
    (tmp_path / "modules.json").write_text("[]")
    file = pairs_file(tmp_path)
    with pytest.raises(XlsrError, match="--output"):
        evaluate_files(str(tmp_path), "tatoeba", DataOptions((file,)), output=f"{file}/out.json")


def test_predictions_need_an_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "model", "--protocol", "tatoeba", *pairs_of(tmp_path), "--predictions"]) == 1
    assert "--output" in capsys.readouterr().err


def test_mteb_task(tiny_export: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mteb = pytest.importorskip("mteb")
    from mteb_helpers import table, with_data

    real = mteb.get_task

    def get_task(name: str, **options: Any) -> Any:
        task = real(name, **options)
        columns = {"sentence1": [row["source"] for row in PAIRS], "sentence2": [row["target"] for row in PAIRS]}
        task.load_data = lambda **_: with_data(
            task, {"test": table(**columns, score=[n % 6 for n in range(len(PAIRS))])}
        )
        return task

    monkeypatch.setattr(mteb, "get_task", get_task)
    output = tmp_path / "out.json"
    command = ["evaluate", tiny_export, "--output", str(output), "--data", "mteb:STSBenchmark", "--protocol"]
    assert main([*command, "mteb"]) == 0
    own = json.loads(output.read_text())
    assert own["data_sha256"] == {"STSBenchmark": real("STSBenchmark").metadata.dataset["revision"]}
    cache = tmp_path / "cache"
    more = ["--cache", str(cache), "--name", "me/tiny", "--languages", "en", "--hf-subsets", "default"]
    assert main([*command, "mteb", *more]) == 0
    (file,) = cache.rglob("STSBenchmark.json")
    assert "me__tiny" in file.parts
    stored = mteb.results.TaskResult.from_disk(file)
    assert stored.get_score() == pytest.approx(own["metrics"]["STSBenchmark-mteb/en/test/main_score"], abs=1e-5)
    assert main([*command, "sts"]) == 0
    ours = json.loads(output.read_text())
    assert ours["metrics"]["STSBenchmark-sts/en/test/spearman_all"] == pytest.approx(
        own["metrics"]["STSBenchmark-mteb/en/test/cosine_spearman"], abs=1e-6
    )
