"""What chooses a checkpoint measures the model, in the right direction, under a name that exists."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_pairs
from seven_trainers import KINDS, arguments_of, model_of, rows_of, trainer_of
from torch.nn.functional import normalize
from two_processes import run_on_two_processes

from hf_xlsr.evaluation.report import higher_is_better
from hf_xlsr.trainers.live_encoder import EvaluationRows
from hf_xlsr.utils.errors import XlsrError

EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
WITH_QUEUE = pytest.mark.parametrize("kind", ["DualMomentum", "Distillation"])


def eval_losses(trainer: Any) -> list[float]:
    return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


@pytest.mark.sample(2)
@EVERY_KIND
def test_a_model_that_stands_still_keeps_its_loss(kind: str, tmp_path: Path) -> None:
    """Queues fill and momentum encoders follow, but neither is what is measured."""
    settings = {"learning_rate": 0.0, "eval_strategy": "steps", "eval_steps": 2}
    trainer = trainer_of(kind, tmp_path, settings=settings, eval_dataset=rows_of(kind, 20, seed=9))
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert eval_losses(trainer) == [before] * 2


@WITH_QUEUE
def test_the_queue_is_filled_while_the_loss_stands_still(kind: str, tmp_path: Path) -> None:
    """Else the test above would not see it."""
    trainer = trainer_of(kind, tmp_path, settings={"learning_rate": 0.0})
    trainer.train()
    model = trainer.model
    queues = [model.queue] if kind == "Distillation" else list(model.queues.values())
    assert [queue.count for queue in queues] == [32] * len(queues)


def test_the_loss_of_momentum_contrast_is_that_of_each_batch_alone(tmp_path: Path) -> None:
    """Equal to InfoNCE both ways over batches of similar length, by hand."""
    settings = {"per_device_eval_batch_size": 8}
    trainer = trainer_of("DualMomentum", tmp_path, settings=settings)
    trainer.train()
    rows = make_pairs(24, seed=9)
    measured = trainer.evaluate(rows)["eval_loss"]

    converted = trainer.converted_sets(rows)[""]
    live = trainer.live_encoder()
    sources = torch.from_numpy(live.encode([row["source"] for row in rows])).double()
    targets = torch.from_numpy(live.encode([row["target"] for row in rows])).double()
    total = 0.0
    for numbers in EvaluationRows(converted).batches(8):
        cosines = normalize(sources[numbers]) @ normalize(targets[numbers]).T / trainer.model.config.temperature
        gold = torch.arange(len(numbers))
        both_ways = torch.nn.functional.cross_entropy(cosines, gold) + torch.nn.functional.cross_entropy(
            cosines.T, gold
        )
        total += float(both_ways) * len(numbers)
    assert measured == pytest.approx(total / len(rows), rel=1e-5)


def measured_losses(kind: str, folder: Path) -> None:
    trainer = trainer_of(kind, folder, settings={"max_steps": 1, "per_device_eval_batch_size": 4})
    losses = {}
    for count in (21, 5, 3):
        losses[f"{count}"] = trainer.evaluate(rows_of(kind, count, seed=9))["eval_loss"]
    torch.save(losses, folder / f"losses{trainer.args.process_index}-{trainer.args.world_size}.pt")


@pytest.mark.slow
@EVERY_KIND
def test_the_loss_does_not_depend_on_the_number_of_processes(kind: str, tmp_path: Path) -> None:
    """Also of rows that two processes cannot share equally."""
    measured_losses(kind, tmp_path)
    run_on_two_processes(measured_losses, kind, tmp_path, folder=tmp_path)
    one = torch.load(tmp_path / "losses0-1.pt")
    for rank in (0, 1):
        two = torch.load(tmp_path / f"losses{rank}-2.pt")
        assert two == pytest.approx(one, rel=1e-6)


def test_batches_hold_every_row_once() -> None:
    class Rows(list[Any]):
        lengths = (3, 9, 4, 8, 5, 7, 6)
        groups = (0, 1, 0, 1, 0, 1, 1)

    rows = EvaluationRows(Rows([0] * 7))
    for homogeneous in (False, True):
        batches = rows.batches(4, homogeneous=homogeneous)
        assert sorted(number for batch in batches for number in batch) == list(range(7))
        assert max(map(len, batches)) <= 4
        for batch in batches:
            lengths = [Rows.lengths[number] for number in batch]
            assert lengths == sorted(lengths)
            assert not homogeneous or len({Rows.groups[number] for number in batch}) == 1


# --- Direction -----------------------------------------------------------------------------------------------------

DIRECTIONS = {
    "loss": False,
    "web_loss": False,
    "dev_error": False,
    "dev_bias": False,
    "xsim": False,
    "dev-xsim/en-de/test/error": False,
    "accuracy": True,
    "en-fr_mean_accuracy": True,
    "dev-tatoeba/en-fr/test/accuracy": True,
    "xsim-error/en-fr/test/accuracy": True,
    "spearman_cosine": True,
    "cosine_ndcg@10": True,
    "bleu": True,
    "negative_mse": True,
    "dev_negative_error": True,
}


@pytest.mark.parametrize("metric", DIRECTIONS)
def test_known_metrics_have_their_direction(metric: str, tmp_path: Path) -> None:
    assert higher_is_better(metric) == DIRECTIONS[metric]
    for kind in KINDS:
        args = arguments_of(kind, tmp_path, metric_for_best_model=metric)
        assert args.greater_is_better == DIRECTIONS[metric]


@pytest.mark.parametrize("wanted", [True, False])
def test_a_direction_that_is_given_holds(wanted: bool, tmp_path: Path) -> None:
    for metric in ("dev_error", "accuracy", "quality"):
        args = arguments_of("Lightweight", tmp_path, metric_for_best_model=metric, greater_is_better=wanted)
        assert args.greater_is_better == wanted


def test_an_unknown_direction_warns_where_it_chooses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        arguments_of("Lightweight", tmp_path, metric_for_best_model="quality")
        assert not caplog.records
        chooses = {"load_best_model_at_end": True, "eval_strategy": "steps", "save_strategy": "steps"}
        args = arguments_of("Lightweight", tmp_path, metric_for_best_model="quality", **chooses)
    assert args.greater_is_better
    assert "quality" in caplog.text


@pytest.mark.parametrize(("metric", "best"), [("dev_error", 3), ("dev_accuracy", 1)])
def test_the_best_checkpoint_is_kept_and_patience_counts(metric: str, best: int, tmp_path: Path) -> None:
    """Values that fall: of an error the last is the best, of an accuracy the first, after which patience ends."""
    values = iter([0.9, 0.8, 0.7, 0.6, 0.5])
    settings = {
        "max_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "save_strategy": "steps",
        "save_steps": 1,
        "metric_for_best_model": metric,
        "early_stopping_patience": 1,
    }
    trainer = trainer_of(
        "Lightweight", tmp_path, settings=settings, evaluations=[lambda encoder: {metric: next(values)}]
    )
    trainer.train()
    assert trainer.state.best_global_step == best
    assert trainer.state.global_step == min(best + 1, 3)


# --- Names, evaluate, predict --------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@EVERY_KIND
def test_a_name_evaluates_one_of_several_sets(kind: str, tmp_path: Path) -> None:
    sets = {"web": rows_of(kind, 8, seed=9), "news": rows_of(kind, 12, seed=10)}
    trainer = trainer_of(kind, tmp_path, eval_dataset=sets)
    every = trainer.evaluate()
    assert trainer.evaluate("web")["eval_loss"] == pytest.approx(every["eval_web_loss"])
    assert trainer.evaluate(sets["news"])["eval_loss"] == pytest.approx(every["eval_news_loss"])
    with pytest.raises(XlsrError, match="'wob'.*'web'"):
        trainer.evaluate("wob")


@pytest.mark.sample(2)
@EVERY_KIND
def test_the_best_of_several_sets_needs_a_name(kind: str, tmp_path: Path) -> None:
    sets = {"web": rows_of(kind, 8, seed=9), "news": rows_of(kind, 12, seed=10)}
    settings = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    with pytest.raises(XlsrError, match="'web_loss'"):
        trainer_of(kind, tmp_path, settings={**settings, "load_best_model_at_end": True}, eval_dataset=sets)

    settings |= {"load_best_model_at_end": True, "metric_for_best_model": "news_loss"}
    trainer = trainer_of(kind, tmp_path, settings=settings, eval_dataset=sets)
    trainer.train()
    assert trainer.state.best_global_step in (2, 4)


@pytest.mark.sample(2)
@EVERY_KIND
def test_the_loader_has_the_rows_of_an_evaluation(kind: str, tmp_path: Path) -> None:
    rows = rows_of(kind, 12, seed=9)
    trainer = trainer_of(kind, tmp_path, settings={"per_device_eval_batch_size": 4}, eval_dataset=rows)
    for loader in (trainer.get_eval_dataloader(), trainer.get_eval_dataloader(rows)):
        batches = list(loader)
        assert len(batches) == 3
        assert all(isinstance(value, torch.Tensor) for name, value in batches[0].items() if name.endswith("_ids"))


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("FineTune", "Translation")])
def test_predict_gives_the_embeddings_of_the_live_encoder(kind: str, tmp_path: Path) -> None:
    rows = make_pairs(9, seed=9)
    trainer = trainer_of(kind, tmp_path)
    predicted = trainer.predict(rows)
    live = trainer.live_encoder()
    for vectors, side in zip(predicted.predictions, ("source", "target"), strict=True):
        expected = live.encode([row[side] for row in rows], normalize_embeddings=True)
        np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert predicted.metrics["test_loss"] == pytest.approx(trainer.evaluate(rows)["eval_loss"])


def test_predict_of_a_classifier_gives_a_row_each(tmp_path: Path) -> None:
    trainer = trainer_of("FineTune", tmp_path)
    assert trainer.predict(rows_of("FineTune", 9, seed=9)).predictions.shape == (9, 2)


def test_predict_refuses_what_has_no_embeddings(tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match="translation pairs"):
        trainer_of("Translation", tmp_path).predict(make_pairs(4))


# --- Evaluating changes nothing ------------------------------------------------------------------------------------


@pytest.mark.sample(2)
@EVERY_KIND
def test_evaluation_logs_and_checkpoints_change_no_weight(kind: str, tmp_path: Path) -> None:
    plain = trainer_of(kind, tmp_path / "plain", settings={"logging_strategy": "no"})
    plain.train()
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "eval_on_start": True,
        "save_strategy": "steps",
        "save_steps": 1,
        "disable_tqdm": False,
    }
    watched = trainer_of(kind, tmp_path / "watched", settings=settings, eval_dataset=rows_of(kind, 10, seed=9))
    watched.train()

    expected = plain.model.state_dict()
    fresh = model_of(kind).state_dict()
    assert any(not torch.equal(value, fresh[name]) for name, value in expected.items())
    for name, value in watched.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
