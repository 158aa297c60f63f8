"""`hf-xlsr submit`: results of mteb's tasks under the model's name and commit on the Hub, checked by mteb itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import failing
from mteb_helpers import ENGLISH, FRENCH, routed_model, shaken, table, with_data
from sentence_transformers import SentenceTransformer

mteb = pytest.importorskip("mteb")

from mteb.models import ModelMeta  # noqa: E402

from hf_xlsr.cli import main  # noqa: E402
from hf_xlsr.evaluation.mteb import evaluate_mteb  # noqa: E402
from hf_xlsr.evaluation.mteb import tasks as tasks_module  # noqa: E402

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def model(tiny_export: str, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(tiny_export, tmp_path / "model"))
    header = "language: [en, fr]\nlicense: mit\nbase_model: intfloat/multilingual-e5-small"
    (folder / "README.md").write_text(f"---\n{header}\n---\n# Card\n")
    return folder


@pytest.fixture
def measured(model: Path, tmp_path: Path) -> Path:
    """mteb's result files of the model."""
    evaluate_mteb(model, task(), cache=tmp_path / "cache")
    return tmp_path / "cache"


def task() -> Any:
    stock = mteb.get_task("Tatoeba", hf_subsets=["fra-eng"])
    return with_data(stock, {"fra-eng": {"test": table(sentence1=FRENCH, sentence2=ENGLISH)}})


def words(results: Path, model: Path | None, output: Path, **options: str) -> list[str]:
    given = {"name": "me/small", "revision": COMMIT, "output": str(output), **options}
    if model is not None:
        given["model"] = str(model)
    arguments = ["submit", str(results)]
    for name, value in given.items():
        arguments += [f"--{name.replace('_', '-')}", value]
    return arguments


@pytest.mark.slow
def test_mteb_reads_what_is_written(measured: Path, model: Path, tmp_path: Path, capsys: Any) -> None:
    output = tmp_path / "out"
    facts = {"release_date": "2026-01-02", "training_datasets": "Tatoeba,NTREXBitextMining"}
    assert main(words(measured, model, output, benchmark="MINERSBitextMining", **facts)) == 0

    written = output / "results" / "me__small" / COMMIT
    names = {"Tatoeba.json", "model_meta.json", "run_settings.jsonl"}
    assert {file.name for file in written.iterdir()} == names
    results = mteb.ResultCache(output).load_results(models=["me/small"], tasks=["Tatoeba"])
    (result,) = results.model_results[0].task_results
    original = json.loads(next(measured.rglob("Tatoeba.json")).read_text())
    assert result.scores["test"][0]["main_score"] == original["scores"]["test"][0]["main_score"]

    namespace: dict[str, Any] = {}
    exec((output / "small.py").read_text(), namespace)  # as a module of mteb
    meta = namespace["small"]
    assert isinstance(meta, ModelMeta)
    assert (meta.name, meta.revision, meta.release_date) == ("me/small", COMMIT, "2026-01-02")
    assert meta.languages == ["eng-Latn", "fra-Latn"]
    assert meta.adapted_from == "intfloat/multilingual-e5-small"
    assert meta.training_datasets == {"Tatoeba", "NTREXBitextMining"}
    assert meta.loader is not None

    printed = "".join(capsys.readouterr().out.split())
    assert "111scores" in printed  # of 112 subsets
    assert "LinceMTBitextMining" in printed  # missing of the benchmark


def test_results_file_names_folder_and_model(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tatoeba = task()
    monkeypatch.setattr(tasks_module.mteb, "get_task", lambda *_, **__: tatoeba)
    results = tmp_path / "mteb.json"
    evaluate = ["evaluate", str(model), "--protocol", "mteb", "--data", "mteb:Tatoeba", "--output", str(results)]
    assert main([*evaluate, "--cache", str(tmp_path / "cache")]) == 0
    monkeypatch.undo()

    assert main(words(results, None, tmp_path / "out")) == 0
    assert (tmp_path / "out/results/me__small" / COMMIT / "Tatoeba.json").is_file()


def change_score(measured: Path, model: Path) -> None:
    file = next(measured.rglob("Tatoeba.json"))
    content = json.loads(file.read_text())
    del content["scores"]["test"][0]["main_score"]
    file.write_text(json.dumps(content))


def change_data(measured: Path, model: Path) -> None:
    file = next(measured.rglob("Tatoeba.json"))
    file.write_text(file.read_text().replace(mteb.get_task("Tatoeba").metadata.dataset["revision"], "older"))


def change_model(measured: Path, model: Path) -> None:
    shaken(SentenceTransformer(str(model)), seed=1).save(str(model))


@pytest.mark.parametrize(
    ("change", "options", "words_of_message"),
    [
        (change_score, {}, "main_score"),
        (change_data, {}, "older"),
        (change_model, {}, "no results of"),
        (None, {"revision": "main"}, "main"),
        (None, {"name": "small"}, "small"),
        (None, {"release_date": "tomorrow"}, "tomorrow"),
        (None, {"benchmark": "MTEB(Mars)"}, "MTEB(Mars)"),
    ],
)
def test_what_mteb_would_not_take_is_refused(
    change: Any,
    options: dict[str, str],
    words_of_message: str,
    measured: Path,
    model: Path,
    tmp_path: Path,
    capsys: Any,
) -> None:
    if change is not None:
        change(measured, model)
    assert words_of_message in failing(capsys, *words(measured, model, tmp_path / "out", **options))


def test_scores_of_another_prompt_are_not_taken(model: Path, tmp_path: Path, capsys: Any) -> None:
    evaluate_mteb(model, task(), cache=tmp_path / "cache", prompt="query: ")
    assert "no results of" in failing(capsys, *words(tmp_path / "cache", model, tmp_path / "out"))


def test_a_model_with_routes_is_refused(tiny_export: str, tmp_path: Path, capsys: Any) -> None:
    routed = tmp_path / "routed"
    routed_model(tiny_export).save(str(routed))
    (tmp_path / "cache").mkdir()
    assert "routes" in failing(capsys, *words(tmp_path / "cache", routed, tmp_path / "out"))
