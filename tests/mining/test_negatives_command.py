"""`hf-xlsr negatives`: its files, its options, and that training reads its columns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import failing as run_failing
from datasets import Dataset
from mining_fakes import NumberEncoder
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer import losses
from torch import nn

from hf_xlsr.cli import app as cli
from hf_xlsr.data.formats.reading import read_rows
from hf_xlsr.mining import hard_negatives, stages
from hf_xlsr.sentence_transformers import (
    AdditiveMarginLoss,
    AlignmentSimilarityLoss,
    DualMomentumCallback,
    DualMomentumLoss,
    SentenceContrastLoss,
)
from hf_xlsr.trainers import DualMomentumTrainer, DualMomentumTrainingArguments

Capture = pytest.CaptureFixture[str]
SOURCES = [f"de {number} wort" for number in range(30)]
TARGETS = [f"en {number} word was near the house" for number in range(30)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with pairs.tsv and MODEL, a `NumberEncoder`."""
    monkeypatch.chdir(tmp_path)
    lines = ["source\ttarget\n", *(f"{source}\t{target}\n" for source, target in zip(SOURCES, TARGETS, strict=True))]
    Path("pairs.tsv").write_text("".join(lines), "utf-8")
    Path("MODEL").mkdir()
    Path("MODEL/config.json").write_text("{}")
    monkeypatch.setattr(stages, "load_encoder", lambda *_: NumberEncoder())


@pytest.fixture
def run(folder: None, capsys: Capture) -> Callable[[str], dict[str, Any]]:
    def run(words: str) -> dict[str, Any]:
        command = f"negatives pairs.tsv --model MODEL --languages de,en --output out.parquet --json {words}"
        assert cli.main(command.split()) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_files(run: Callable[[str], dict[str, Any]]) -> None:
    summary = run("--per-pair 4 --synthetic number,negation")
    rows = Dataset.from_parquet("out.parquet")
    assert rows.column_names == ["source", "target", "negative_1", "negative_2", "negative_3", "negative_4"]
    assert rows["source"][:] == SOURCES
    assert summary["negatives"] == {"mined": 60, "number": 30, "negation": 30}
    assert "mined" in Path("out.parquet.report.md").read_text("utf-8")
    assert Path("out.parquet.report.html").is_file()
    assert not Path("out.parquet.work").exists()


def test_files_of_others_stay_in_the_work_folder(run: Callable[[str], dict[str, Any]]) -> None:
    Path("out.parquet.work/first").mkdir(parents=True)
    Path("out.parquet.work/notes.txt").write_text("mine", "utf-8")
    run("--per-pair 1")
    assert [path.name for path in Path("out.parquet.work").iterdir()] == ["notes.txt"]


def test_equals_the_python_function(run: Callable[[str], dict[str, Any]]) -> None:
    run("--per-pair 3")
    expected = hard_negatives(SOURCES, TARGETS, encoder=NumberEncoder(), per_pair=3)
    assert Dataset.from_parquet("out.parquet").to_dict() == expected.to_dict()


@pytest.mark.parametrize("suffix", ["tsv", "jsonl"])
def test_texts_come_before_negatives(run: Callable[[str], dict[str, Any]], suffix: str) -> None:
    run(f"--per-pair 2 --output out.{suffix}")
    first_line = Path(f"out.{suffix}").read_text("utf-8").splitlines()[0]
    names = list(json.loads(first_line)) if suffix == "jsonl" else first_line.split("\t")
    assert names == ["source", "target", "negative_1", "negative_2"]
    assert len(list(read_rows(f"out.{suffix}"))) == len(SOURCES)


def test_known_and_truth(run: Callable[[str], dict[str, Any]]) -> None:
    run("--per-pair 2 --below 1")
    first = Dataset.from_parquet("out.parquet")[0]
    link = f"{first['source']}\t{first['negative_1']}\n"
    Path("links.tsv").write_text(f"source\ttarget\n{link}", "utf-8")

    measured = run("--per-pair 2 --below 1 --truth links.tsv")
    assert measured["false_negatives"]["by truth"]["share"] > 0
    run("--per-pair 2 --below 1 --known links.tsv")
    after = Dataset.from_parquet("out.parquet")[0]
    assert first["negative_1"] not in after.values()


def test_labels_of_the_page(run: Callable[[str], dict[str, Any]]) -> None:
    run("--per-pair 2")
    first = Dataset.from_parquet("out.parquet")[0]
    label = f"accept\t1.0\t{first['source']}\t{first['negative_1']}\n"
    Path("labels.tsv").write_text(f"label\tscore\tsource\ttarget\n{label}", "utf-8")
    assert run("--per-pair 2 --labels labels.tsv")["false_negatives"]["by labels"]["share"] == 1.0


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--output out.tmx", "out.tmx"),
        ("--synthetic colour", "colour"),
        ("--per-pair 0", "per_pair"),
        ("--known missing.tsv", "missing.tsv"),
        ("--output pairs.tsv", "pairs.tsv"),
    ],
)
def test_errors(folder: None, capsys: Capture, words: str, named: str) -> None:
    command = f"negatives pairs.tsv --model MODEL --languages de,en --output out.parquet {words}"
    assert named in run_failing(capsys, *command.split())


# What reads the columns

LOSSES: dict[str, Callable[[SentenceTransformer], nn.Module]] = {
    "ranking": losses.MultipleNegativesRankingLoss,
    "cached ranking": losses.CachedMultipleNegativesRankingLoss,
    "additive margin": lambda model: AdditiveMarginLoss(model, scale=20.0, normalize=True, split_softmax=True),
    "sentence contrast": lambda model: SentenceContrastLoss(model, split_softmax=True),
    "alignment": lambda model: AlignmentSimilarityLoss(model, split_softmax=True),
    "dual momentum": lambda model: DualMomentumLoss(model, 32, in_batch_negatives=True, split_softmax=True),
}


@pytest.fixture(scope="module")
def rows() -> Dataset:
    return hard_negatives(SOURCES, TARGETS, encoder=NumberEncoder(), per_pair=2)


@pytest.mark.parametrize("name", LOSSES)
def test_losses_take_the_columns(name: str, rows: Dataset, tiny_export: str, tmp_path: Path) -> None:
    losses_by_data = []
    for data in (rows, rows.select_columns(["source", "target"])):
        model = SentenceTransformer(tiny_export, device="cpu")
        loss = LOSSES[name](model)
        arguments = SentenceTransformerTrainingArguments(
            str(tmp_path), max_steps=2, per_device_train_batch_size=8, save_strategy="no", seed=1, report_to="none"
        )
        trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss)
        if name == "dual momentum":
            trainer.add_callback(DualMomentumCallback(loss))
        losses_by_data.append(trainer.train().training_loss)
    assert losses_by_data[0] > losses_by_data[1]  # more candidates


@pytest.mark.parametrize("name", ["triplet", "our trainer"])
def test_one_negative(name: str, tiny_export: str, tmp_path: Path) -> None:
    rows = hard_negatives(SOURCES, TARGETS, encoder=NumberEncoder(), per_pair=1)
    if name == "triplet":
        model = SentenceTransformer(tiny_export, device="cpu")
        arguments = SentenceTransformerTrainingArguments(
            str(tmp_path), max_steps=1, per_device_train_batch_size=8, save_strategy="no", report_to="none"
        )
        loss = losses.TripletLoss(model)
        assert SentenceTransformerTrainer(model, arguments, train_dataset=rows, loss=loss).train().training_loss > 0
        return

    training = DualMomentumTrainingArguments(
        str(tmp_path), max_steps=1, per_device_train_batch_size=8, save_strategy="no", report_to="none"
    )
    trainer = DualMomentumTrainer(tiny_export, training, train_dataset={"de-en": rows})
    batch = next(iter(trainer.get_train_dataloader()))
    assert len(batch["negative_input_ids"]) == 8
    trainer.train()
