from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from accelerate import PartialState
from conftest import make_pairs

from hf_xlsr.encoders.loading import load_encoder
from hf_xlsr.evaluation.results import load_results
from hf_xlsr.runs.card import card_of_run
from hf_xlsr.runs.folder import RunFolder
from hf_xlsr.runs.methods import Method
from hf_xlsr.runs.recipe import load_runs, merge, read_run, resolve
from hf_xlsr.runs.train import read_data, record_data, train_recipe
from hf_xlsr.utils.errors import XlsrError

RECIPE = """
method: {method}
languages: [en, fr]
tokenizer: {{vocab_size: 60, algorithm: bpe}}
data: {{train: {folder}/train.tsv, test: {folder}/test.tsv, cleaning: []}}
model: {{encoder: {{model_type: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2}}}}
output_dir: {folder}/run
"""


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Method:
    write(tmp_path / "train.tsv", make_pairs(60))
    write(tmp_path / "test.tsv", make_pairs(60)[:3])
    (tmp_path / "mine.yaml").write_text(RECIPE.format(method=request.param, folder=tmp_path), "utf-8")
    return load_runs(str(tmp_path / "mine.yaml"))[0]


def write(path: Path, pairs: list[dict[str, str]]) -> None:
    path.write_text("source\ttarget\n" + "".join(f"{row['source']}\t{row['target']}\n" for row in pairs), "utf-8")


def recorded(run: Method, folder: Path) -> dict[str, Any]:
    """The report of a run's data, recorded in a folder as for a run that is resumed there."""
    data = read_data(run, run.evaluation_sets())
    record_data(folder, data)
    return data.report({})


@pytest.mark.parametrize("run", ["lightweight", "cmlm"], indirect=True)
def test_changed_test_set(run: Method, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first = recorded(run, folder)
    assert recorded(run, folder) == first
    write(tmp_path / "test.tsv", make_pairs(60)[2::-1])  # the same sentences
    assert recorded(run, folder) == first
    write(tmp_path / "test.tsv", make_pairs(60)[:4])
    with pytest.raises(XlsrError, match="--overwrite"):
        recorded(run, folder)


@pytest.mark.parametrize("run", ["lightweight"], indirect=True)
@pytest.mark.parametrize("side", ["source", "target"])
def test_texts_of_test_pairs_are_not_trained_on(side: str, run: Method, tmp_path: Path) -> None:
    rows = make_pairs(60)
    pair = {"source": "other", "target": "autre", side: rows[0][side]}
    write(tmp_path / "test.tsv", [pair])
    seen = [row for row in rows if row[side] == pair[side]]
    assert recorded(run, tmp_path / "data")["pairs"] == 60 - len(seen)


@pytest.mark.parametrize("run", ["lightweight"], indirect=True)
def test_texts_of_scored_guard_sets_are_not_trained_on(run: Method, tmp_path: Path) -> None:
    rows = [row["source"] for row in make_pairs(60)]
    first, second = sorted(set(rows))[:2]
    guard = tmp_path / "scored.tsv"
    guard.write_text(f"sentence1\tsentence2\tscore\n{first}\tother\t1\nanother\t{second}\t2\n", "utf-8")
    (tmp_path / "test.tsv").unlink()
    run.recipe.data.test = None
    before = recorded(run, tmp_path / "before")["pairs"]

    run.recipe.evaluation.guard = {
        "path": str(guard),
        "columns": "sentence1=sentence1,sentence2=sentence2,score=score",
    }
    after = recorded(run, tmp_path / "after")["pairs"]

    assert before == 60
    assert after == 60 - rows.count(first) - rows.count(second)


@pytest.mark.parametrize("run", ["lightweight"], indirect=True)
def test_guards_of_a_recipe_are_read_as_in_python(run: Method, tmp_path: Path) -> None:
    scored = tmp_path / "scored.tsv"
    scored.write_text("sentence1\tsentence2\tscore\na b\tb\t1\nc\td\t2\n", "utf-8")
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("en\tzh\na\tb\n", "utf-8")
    run.recipe.evaluation.guard = [{"path": str(scored), "limit": 1}, str(pairs)]

    guards = run.guards()

    assert [(row["sentence1"], row["score"], row["lang"]) for row in guards["scored"]] == [("a b", "1", "en")]
    assert [(row["source_lang"], row["target_lang"]) for row in guards["pairs"]] == [("en", "zh")]


@pytest.mark.parametrize("run", ["lightweight"], indirect=True)
def test_run_with_another_export(run: Method, tmp_path: Path) -> None:
    run.recipe.training |= {"max_steps": 2, "per_device_train_batch_size": 8, "precision": "float32"}
    first = run.recipe.settings()
    other = merge(first, {"export": {"normalize": False}})
    folder = RunFolder(tmp_path / "run")
    train_recipe(run)
    assert folder.done(first) and not folder.done(other)
    train_recipe(resolve(other))
    assert folder.done(other) and not folder.done(first)
    assert read_run(folder).recipe.settings()["export"] == {"normalize": False}
    # What is made of the run again is what the run left.
    assert card_of_run(folder.path) == folder.card.read_text("utf-8")
    assert len(list(load_encoder(str(folder.path)).children())) == 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("run", ["lightweight"], indirect=True)
@pytest.mark.parametrize("saving", ["no", "steps"])
def test_finished_run_is_not_trained_again(
    saving: str, run: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.recipe.training |= {"max_steps": 3, "per_device_train_batch_size": 8, "precision": "float32"}
    run.recipe.training |= {"save_strategy": saving, "save_steps": 2, "save_total_limit": 1}
    folder = RunFolder(tmp_path / "run")
    train_recipe(run)
    shutil.rmtree(folder.training / "checkpoint-3", ignore_errors=True)  # an older one is left, or none
    weights = {path: path.read_bytes() for path in folder.path.rglob("*.safetensors") if "training" not in path.parts}
    monkeypatch.setattr("hf_xlsr.trainers.base.XlsrTrainer.train", None)  # a call would fail
    train_recipe(run)
    assert {path: path.read_bytes() for path in weights} == weights
    assert load_results(folder.results)["settings"]["steps"] == 3


@pytest.mark.parametrize("run", ["lightweight"], indirect=True)
def test_unfinished_run_goes_on(run: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its last checkpoint, on as many processes as before: an epoch of another number draws other batches."""
    run.recipe.training |= {"max_steps": 3, "per_device_train_batch_size": 8, "precision": "float32"}
    run.recipe.training |= {"save_strategy": "steps", "save_steps": 2}
    folder = RunFolder(tmp_path / "run")
    train_recipe(run)
    for name in ("checkpoint-3", "final"):
        shutil.rmtree(folder.training / name)

    with monkeypatch.context() as patch, pytest.raises(XlsrError, match="processes"):
        patch.setitem(PartialState._shared_state, "num_processes", 2)  # noqa: SLF001
        train_recipe(run)
    train_recipe(run)

    assert load_results(folder.results)["settings"]["steps"] == 3
