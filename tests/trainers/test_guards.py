"""Guards of every trainer: measured before and after, compared, and able to stop a training."""

from __future__ import annotations

import csv
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_pairs
from datasets import Dataset
from seven_trainers import KINDS, arguments_of, encoder, model_of, rows_of, tokenizers_of, trainer_of
from two_processes import run_on_two_processes

from hf_xlsr.evaluation.before_after import measure_rows
from hf_xlsr.evaluation.results import Results, measured
from hf_xlsr.modeling.dual_momentum import DualMomentumModel
from hf_xlsr.trainers import LightweightTrainer
from hf_xlsr.utils.errors import XlsrError

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EMBEDDING = [kind for kind in KINDS if kind not in ("FineTune", "Translation")]
SHARED = [kind for kind in EMBEDDING if kind != "DualMomentum"]
EVERY_STEP = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
KEY = "web-tatoeba/en-fr/guard/accuracy"


def scored_rows(count: int = 20) -> list[dict[str, Any]]:
    """English sentences with a shorter form of them, and made up scores."""
    rows = []
    for number, pair in enumerate(make_pairs(count, seed=9)):
        sentence = pair["source"]
        rows.append({"sentence1": sentence, "sentence2": sentence[:-2], "score": number % 6, "lang": "en"})
    return rows


def weights_of(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def fall_at(trainer: Any, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Lets what the guards measure fall from a step of the training on."""
    numbers = np.arange(200)

    def measure() -> Results:
        right = numbers < (190 if trainer.state.global_step < step else 100)
        return measured("web", "tatoeba", ("en", "fr"), "guard", {"pairs": 200}, {"accuracy": right})

    monkeypatch.setattr(trainer, "measure_guards", measure)


@pytest.mark.sample(2)
@EVERY_KIND
def test_guards_are_compared_with_the_model_before_training(kind: str, tmp_path: Path) -> None:
    trainer = trainer_of(kind, tmp_path, guards={"web": rows_of(kind, 20, seed=7)})
    trainer.train()

    assert trainer.changes
    for change in trainer.changes.values():
        assert change.n == 20
        assert change.difference == change.after - change.before
        assert change.low <= change.difference <= change.high
        assert 0 <= change.p <= 1


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", EMBEDDING)
def test_guards_measure_what_the_exported_model_gives(kind: str, tmp_path: Path) -> None:
    pairs = rows_of(kind, 20, seed=7)
    rows = [{**pair, "source_lang": "en", "target_lang": "fr"} for pair in pairs]
    trainer = trainer_of(kind, tmp_path, guards={"web": pairs, "sts": scored_rows()})
    exports = [trainer.to_sentence_transformer()]

    trainer.train()

    exports.append(trainer.to_sentence_transformer())
    for name, export in zip(("before", "after"), exports, strict=True):
        expected = measure_rows(export, rows, name="web") | measure_rows(export, scored_rows(), name="sts")
        for key, change in trainer.changes.items():
            assert getattr(change, name) == expected[key]


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_guards_leave_the_training_as_it_is(kind: str, tmp_path: Path) -> None:
    plain = trainer_of(kind, tmp_path / "plain")
    plain.train()
    guards = {"web": rows_of(kind, 20, seed=7)}
    settings = {"eval_strategy": "steps", "eval_steps": 1}
    guarded = trainer_of(kind, tmp_path / "guarded", guards=guards, settings=settings)
    guarded.train()

    weights = weights_of(guarded)
    different = [name for name, value in weights_of(plain).items() if not torch.equal(value, weights[name])]
    assert different == []


@pytest.mark.sample(2)
@EVERY_KIND
def test_evaluations_have_the_metrics_of_guards(kind: str, tmp_path: Path) -> None:
    guards = {"web": rows_of(kind, 20, seed=7)}
    trainer = trainer_of(kind, tmp_path, guards=guards, settings={"eval_strategy": "steps", "eval_steps": 2})
    trainer.train()

    evaluations = [entry for entry in trainer.state.log_history if any("/guard/" in name for name in entry)]
    assert [entry["step"] for entry in evaluations] == [2, 4]
    curve = trainer.learning_curve()
    for key, change in trainer.changes.items():
        assert curve[0][f"eval_{key}"] == change.before
        assert evaluations[-1][f"eval_{key}"] == change.after


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", SHARED)
def test_guards_in_languages_without_training_data(kind: str, tmp_path: Path) -> None:
    chinese = [{"en": pair["source"], "zh": pair["target"]} for pair in make_pairs(12, seed=7)]
    trainer = trainer_of(kind, tmp_path, guards={"web": chinese}, settings={"max_steps": 1})
    trainer.train()
    assert set(trainer.changes) >= {"web-tatoeba/en-zh/guard/accuracy"}


def test_a_guard_without_a_route_is_named(tmp_path: Path) -> None:
    chinese = [{"en": pair["source"], "zh": pair["target"]} for pair in make_pairs(12, seed=7)]
    model = DualMomentumModel.from_encoders({"en": encoder(), "fr": encoder(1)}, languages=["en", "fr"], queue_size=64)
    trainer = trainer_of("DualMomentum", tmp_path, model=model, guards={"web": chinese})

    with pytest.raises(XlsrError, match="zh"):
        trainer.train()


def test_guards_in_every_form(tmp_path: Path) -> None:
    pairs = make_pairs(12, seed=7)
    by_language = [{"en": pair["source"], "fr": pair["target"]} for pair in pairs]
    file = tmp_path / "web.tsv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ["en", "fr"], delimiter="\t")
        writer.writeheader()
        writer.writerows(by_language)
    source = {"path": str(file), "columns": {"source": "en", "target": "fr"}, "languages": ["en", "fr"]}
    forms = [by_language, Dataset.from_list(by_language), {"en-fr": Dataset.from_list(pairs)}, file, str(file), source]

    read = []
    for form in forms:
        trainer = trainer_of("Lightweight", tmp_path, guards={"web": form})
        rows = trainer.guards["web"]
        read.append([(row["source"], row["target"], row["source_lang"], row["target_lang"]) for row in rows])

    expected = [(pair["source"], pair["target"], "en", "fr") for pair in pairs]
    assert read == [expected] * len(forms)


@pytest.mark.parametrize(
    ("keys", "count"),
    [({"limit": 5}, 5), ({"where": {"en": "the red bird"}}, 1), ({"sample": 3}, 3)],
)
def test_a_source_selects_rows(keys: dict[str, Any], count: int, tmp_path: Path) -> None:
    file = tmp_path / "web.tsv"
    lines = [
        "the red bird\tl'oiseau rouge",
        *(f"{pair['source']} {number}\tb" for number, pair in enumerate(make_pairs(9))),
    ]
    file.write_text("\n".join(["en\tfr", *lines]) + "\n", "utf-8")

    trainer = trainer_of("Lightweight", tmp_path, guards={"web": {"path": str(file), **keys}})

    assert len(trainer.guards["web"]) == count


def test_a_path_to_scored_rows(tmp_path: Path) -> None:
    file = tmp_path / "sts.tsv"
    lines = [f"{row['sentence1']}\t{row['sentence2']}\t{row['score']}" for row in scored_rows()]
    file.write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n", "utf-8")
    trainer = trainer_of("Lightweight", tmp_path, guards={"path": file, "rows": scored_rows()})

    results = trainer.measure_guards()

    assert results["path-sts/und/guard/spearman_all"] == results["rows-sts/en/guard/spearman_all"]


def test_labelled_guards_in_every_form(tmp_path: Path) -> None:
    rows = rows_of("FineTune", 20, seed=7)
    file = tmp_path / "web.csv"
    file.write_text("text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows), "utf-8")
    guards = {"rows": rows, "dataset": Dataset.from_list(rows), "path": file}
    trainer = trainer_of("FineTune", tmp_path, guards=guards)

    results = trainer.measure_guards()

    accuracies = [value for key, value in results.items() if key.endswith("accuracy")]
    assert len(accuracies) == 3
    assert len(set(accuracies)) == 1


@pytest.mark.sample(2)
@EVERY_KIND
def test_a_fall_is_reported(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainer_of(kind, tmp_path, guards={"web": rows_of(kind, 8)}, settings={"max_steps": 1})
    fall_at(trainer, monkeypatch, step=1)

    with caplog.at_level(logging.WARNING):
        trainer.train()

    assert KEY in caplog.text
    assert "-45.0" in caplog.text


@pytest.mark.slow
def test_guards_watch_the_model_of_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = trainer_of("Lightweight", tmp_path / "given", guards={"web": rows_of("Lightweight", 8)})
    made.train()
    trainer = LightweightTrainer(
        args=arguments_of("Lightweight", tmp_path, eval_strategy="steps", eval_steps=2),
        model_init=lambda: model_of("Lightweight"),
        train_dataset=rows_of("Lightweight", 64),
        processing_class=tokenizers_of("Lightweight"),
        guards={"web": rows_of("Lightweight", 8)},
    )
    trainer.train()
    assert trainer.changes == made.changes

    trainer.state.global_step = 0  # Trainer makes the model before it resets this
    fall_at(trainer, monkeypatch, step=2)
    with caplog.at_level(logging.WARNING):
        trainer.train()
    assert KEY in caplog.text


def test_a_fall_within_the_limit_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = trainer_of(
        "Lightweight", tmp_path, guards={"web": rows_of("Lightweight", 8)}, settings={"guard_limit": 0.6}
    )
    fall_at(trainer, monkeypatch, step=1)

    with caplog.at_level(logging.WARNING):
        trainer.train()

    assert KEY not in caplog.text


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", KINDS)
def test_a_guard_stops_the_training_and_keeps_the_best_allowed_weights(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = {"metric_for_best_model": "progress", "greater_is_better": True}  # the last weights would be the best
    settings = {**EVERY_STEP, **metric, "guard_action": "stop"}
    options: dict[str, Any] = {"guards": {"web": rows_of(kind, 8)}, "settings": settings}
    trainer = trainer_of(kind, tmp_path, **options, evaluations=[lambda _: {"progress": trainer.state.global_step}])
    fall_at(trainer, monkeypatch, step=3)

    trainer.train()

    assert trainer.state.global_step == 3
    assert not (tmp_path / "checkpoint-3").exists()
    trained = weights_of(trainer)
    trainer.load_checkpoint(tmp_path / "checkpoint-2")
    allowed = weights_of(trainer)
    assert [name for name, value in trained.items() if not torch.equal(value, allowed[name])] == []


def test_a_guard_that_falls_at_once_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**EVERY_STEP, "guard_action": "stop", "metric_for_best_model": "progress"}
    evaluations = [lambda _: {"progress": 1.0}]
    guards = {"web": rows_of("Lightweight", 8)}
    trainer = trainer_of("Lightweight", tmp_path, guards=guards, evaluations=evaluations, settings=settings)
    fall_at(trainer, monkeypatch, step=1)

    with pytest.raises(XlsrError, match=KEY):
        trainer.train()


@pytest.mark.slow
def test_a_resumed_training_compares_with_its_start(tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 2}
    options: dict[str, Any] = {"guards": {"web": rows_of("Lightweight", 20, seed=7)}, "settings": settings}
    first = trainer_of("Lightweight", tmp_path, **options)
    first.train()

    model = model_of("Lightweight")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    resumed = trainer_of("Lightweight", tmp_path, model=model, **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))

    assert resumed.changes == first.changes


def save_changes(folder: Path) -> None:
    settings = {"learning_rate": 0.0, "eval_strategy": "steps", "eval_steps": 2}
    trainer = trainer_of("Lightweight", folder, guards={"web": rows_of("Lightweight", 20, seed=7)}, settings=settings)
    trainer.train()
    torch.save(
        {key: (change.before, change.after) for key, change in trainer.changes.items()},
        folder / f"changes{trainer.args.process_index}-{trainer.args.world_size}.pt",
    )


@pytest.mark.slow
def test_guards_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    save_changes(tmp_path)
    run_on_two_processes(save_changes, tmp_path, folder=tmp_path)
    one = torch.load(tmp_path / "changes0-1.pt")
    for rank in (0, 1):
        assert torch.load(tmp_path / f"changes{rank}-2.pt") == one
