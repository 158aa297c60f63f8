"""`FineTuneTrainer`: its metrics, its evaluations on one and two processes, and stopping and going on."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ENGLISH, FRENCH, tiny_encoder
from datasets import Dataset

from hf_xlsr import HictlConfig, XlsrError
from hf_xlsr.data.labelled import LabelledSet, LabelledTask, encode_texts
from hf_xlsr.data.prepared import PreparedRows
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.modeling.hictl.modeling_classification import HictlForSequenceClassification
from hf_xlsr.runs.recipe import parse_yaml, resolve
from hf_xlsr.trainers.fine_tune import (
    METRICS,
    FineTuneTrainer,
    FineTuneTrainingArguments,
    LiveClassifier,
    evaluate_sets,
    metric_keys,
)

TASK = LabelledTask(texts="single", labels=("calm", "red"), metrics=("accuracy", "f1"))
PAIRS = LabelledTask(labels=("other", "same", "unknown"))
STS = LabelledTask(scores=(0, 5))


@cache
def tokenizer() -> Any:
    rng = random.Random(1)
    texts = [" ".join(rng.choices(words, k=5)) for words in (ENGLISH, FRENCH) for _ in range(100)]
    return train_tokenizer(texts, vocab_size=90, algorithm="bpe", frame=True, max_length=32)


def make_rows(count: int, seed: int = 1, task: LabelledTask = TASK) -> list[dict[str, Any]]:
    """Texts whose label hangs on the first word, in two languages."""
    rng, rows = random.Random(seed), []
    for number in range(count):
        words = ENGLISH if number % 2 else FRENCH
        texts = [" ".join(rng.choices(words, k=rng.randint(2, 6))) for _ in task.columns]
        label = int(words.index(texts[0].split()[0]) < 10)
        row = dict(zip(task.columns, texts, strict=True))
        rows.append({**row, "lang": "en" if number % 2 else "fr", "label": label if task.labels else 2.5 * label})
    return rows


def make_data(count: int = 96, task: LabelledTask = TASK) -> PreparedRows:
    rows = make_rows(count, seed=5, task=task)
    columns, _ = encode_texts([[row[name] for row in rows] for name in task.columns], tokenizer(), 32)
    table = {
        **columns,
        "label": [row["label"] for row in rows],
        "length": [len(ids) for ids in columns["input_ids"]],
        "lang": [row["lang"] for row in rows],
    }
    named = dict.fromkeys(task.labels, 1)
    return PreparedRows(Dataset.from_dict(table), {"languages": ["en", "fr"], "labels": named})


def make_model(num_labels: int = 2, dropout: float = 0.1) -> HictlForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    encoder = {**tiny_encoder(len(tokenizer())), **sizes}
    return HictlForSequenceClassification(HictlConfig(text_config=encoder, num_labels=num_labels))


def make_trainer(
    folder: Path, model: Any = None, evaluations: Sequence[Any] = (), data: Any = None, **options: Any
) -> FineTuneTrainer:
    defaults: dict[str, Any] = {
        "precision": "float32",
        "use_cpu": True,
        "learning_rate": 5e-3,
        "per_device_train_batch_size": 16,
        "max_steps": 6,
        "logging_steps": 3,
        "save_steps": 100,
        "report_to": "none",
        "disable_tqdm": True,
    }
    return FineTuneTrainer(
        make_model() if model is None else model,
        FineTuneTrainingArguments(output_dir=str(folder), **{**defaults, **options}),
        train_dataset=make_data() if data is None else data,
        processing_class=tokenizer(),
        max_length=32,
        evaluations=evaluations,
    )


def toy_set(count: int = 31, name: str = "toy", split: str = "dev", task: LabelledTask = TASK) -> LabelledSet:
    return LabelledSet(name, split, make_rows(count, seed=9, task=task), task)


class FakeClassifier:
    """Gives the logits it was given."""

    def __init__(self, logits: Mapping[str, Any]) -> None:
        self.given = logits

    def logits(self, data: LabelledSet) -> np.ndarray:
        return np.array(self.given[data.name], dtype=np.float32)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


# Metrics.


def test_metrics_by_hand() -> None:
    logits = np.array([[2, 1], [0, 1], [0, 3], [5, 4], [0, 1]], dtype=np.float32)  # predicts 0 1 1 0 1
    gold = np.array([0, 1, 0, 1, 1])
    assert METRICS["accuracy"](logits, gold) == 0.6
    assert METRICS["f1"](logits, gold) == pytest.approx(2 / 3)  # two right of three predicted and three there
    assert METRICS["matthews"](logits, gold) == pytest.approx((2 * 1 - 1 * 1) / (3 * 3 * 2 * 2) ** 0.5)
    scores, of = np.array([[1.0], [2.0], [3.0]], dtype=np.float32), np.array([1.0, 5.0, 3.0])
    assert METRICS["pearson"](scores, of) == pytest.approx(0.5)
    assert METRICS["spearman"](scores, of) == pytest.approx(0.5)


def test_numbers_by_language_with_their_average() -> None:
    rows = [
        {"first": "", "second": "", "lang": lang, "label": label}
        for lang, label in (("en", 0), ("de", 1), ("en", 2), ("de", 0), ("de", 2), ("zh", 1))
    ]
    sets = [LabelledSet("xnli", "test", rows, PAIRS), LabelledSet("anli", "dev", rows[:1], PAIRS)]
    # Right are: en both, de one of three, zh none.
    logits = [[9, 0, 0], [9, 0, 0], [0, 0, 9], [0, 9, 0], [0, 0, 9], [0, 0, 9]]
    metrics = evaluate_sets(
        FakeClassifier({"xnli": logits, "anli": [[0, 0, 9]]}), sets, protocol="translate-train-all"
    )  # type: ignore[arg-type]
    assert metrics == {
        "xnli-translate-train-all/en/test/accuracy": 1.0,
        "xnli-translate-train-all/en/test/rows": 2,
        "xnli-translate-train-all/de/test/accuracy": pytest.approx(1 / 3),
        "xnli-translate-train-all/de/test/rows": 3,
        "xnli-translate-train-all/zh/test/accuracy": 0.0,
        "xnli-translate-train-all/zh/test/rows": 1,
        "anli-translate-train-all/en/dev/accuracy": 0.0,
        "anli-translate-train-all/en/dev/rows": 1,
        "xnli-translate-train-all/mean-of-3/test/accuracy": pytest.approx(4 / 9),
    }
    scores = {key for key in metrics if not key.endswith("/rows")}
    assert set(metric_keys(sets, protocol="translate-train-all")) == scores


def test_outputs_that_are_no_numbers_are_told() -> None:
    broken = FakeClassifier({"toy": [[float("nan"), 0]] * 4})
    with pytest.raises(XlsrError, match="toy"):
        evaluate_sets(broken, [toy_set(4)], protocol="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("task", [TASK, PAIRS, STS])
def test_logits_are_those_of_each_row_alone(task: LabelledTask) -> None:
    model, data = make_model(task.num_labels).double().train(), toy_set(21, task=task)
    classifier = LiveClassifier(model, tokenizer(), max_length=40, batch_size=4)
    logits = classifier.logits(data)
    assert logits.shape == (21, task.num_labels) and model.training
    model.eval()
    for row, got in zip(data.rows, logits, strict=True):
        ids = tokenizer()(*(row[name] for name in task.columns), return_tensors="pt")["input_ids"]
        np.testing.assert_allclose(got, model(ids).logits[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    # Rows are cut to the length asked for.
    short = LiveClassifier(model, tokenizer(), max_length=6).logits(data)
    assert not np.allclose(short, logits)


# Training.


def trained_on(task: LabelledTask, count: int = 32) -> LabelledSet:
    """The rows of `make_data`, as a set: a tiny model can but learn them by heart."""
    return LabelledSet("toy", "dev", make_rows(count, seed=5, task=task), task)


def test_predictions_of_rows_are_the_models_logits(tmp_path: Path) -> None:
    trainer, data = make_trainer(tmp_path), toy_set(9)
    predicted = trainer.predict(data.features(trainer.processing_class, 32)).predictions
    np.testing.assert_allclose(predicted, trainer.live_classifier().logits(data), rtol=1e-4, atol=1e-5)
    with pytest.raises(XlsrError, match="test_dataset"):
        trainer.predict(make_data())


def test_it_learns_and_evaluates_in_both_languages(tmp_path: Path) -> None:
    data = trained_on(TASK)
    evaluation = partial(evaluate_sets, sets=[data], protocol="fine-tuning")
    trainer = make_trainer(
        tmp_path, None, [evaluation], make_data(32), max_steps=60, eval_strategy="steps", eval_steps=30
    )
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "eval_toy-fine-tuning/en/dev/accuracy" in entry]
    assert [entry["step"] for entry in logs] == [30, 60]
    assert logs[-1]["eval_toy-fine-tuning/mean-of-2/dev/accuracy"] > 0.85
    assert logs[-1]["eval_toy-fine-tuning/fr/dev/f1"] > 0.8 and logs[-1]["eval_toy-fine-tuning/fr/dev/rows"] == 16
    losses = [entry for entry in trainer.state.log_history if "loss/classification" in entry]
    assert all(entry["loss"] == pytest.approx(entry["loss/classification"], abs=1e-3) for entry in losses)
    alone = evaluate_sets(trainer.live_classifier(), [data], protocol="fine-tuning")
    assert {f"eval_{name}": value for name, value in alone.items()}.items() <= logs[-1].items()


def test_scores_are_learnt(tmp_path: Path) -> None:
    task = LabelledTask(texts="single", scores=(0, 5))
    evaluation = partial(evaluate_sets, sets=[trained_on(task, 16)], protocol="fine-tuning")
    trainer = make_trainer(tmp_path, make_model(1, dropout=0.0), [evaluation], make_data(16, task), max_steps=60)
    trainer.train()
    assert trainer.evaluate()["eval_toy-fine-tuning/mean-of-2/dev/pearson"] > 0.7


# Stopping and going on.


# Two processes.

TWO = """
import os, sys
sys.path[:0] = sys.argv[1:3]
from accelerate import PartialState
state = PartialState(cpu=True)
assert state.num_processes == 2
from pathlib import Path
import torch
from functools import partial
from safetensors.torch import save_file
from test_fine_tune import *
sets = [toy_set(31)]
evaluation = partial(evaluate_sets, sets=sets, protocol="fine-tuning")
trainer = make_trainer(Path(sys.argv[3]), make_model(dropout=0.0), [evaluation], per_device_train_batch_size=8,
                       per_device_eval_batch_size=4, eval_strategy="steps", eval_steps=3)
trainer.train()
shared, alone = trainer.live_encoder(), trainer.live_classifier()
assert (shared.processes, alone.processes) == (2, 1)
passes = []
trainer.model.register_forward_pre_hook(lambda *_: passes.append(1))
logits = shared.logits(sets[0])
assert len(passes) == 4, len(passes)  # of eight batches
assert (logits == alone.logits(sets[0])).all()
logged = [entry for entry in trainer.state.log_history if "eval_toy-fine-tuning/en/dev/accuracy" in entry]
expected = evaluate_sets(alone, sets, protocol="fine-tuning")
assert all(logged[-1]["eval_" + name] == value for name, value in expected.items())
gathered = [None, None]
torch.distributed.all_gather_object(gathered, [sorted(entry.items()) for entry in logged])
assert gathered[0] == gathered[1] and len(gathered[0]) == 2
if state.is_main_process:
    save_file(weights(trainer.model), sys.argv[3] + "/two.safetensors")
print("agreed on", state.num_processes, flush=True)
state.wait_for_everyone()
os._exit(0)
"""


@pytest.mark.slow
def test_two_processes_share_the_evaluation_and_train_like_one(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    script = tmp_path / "two.py"
    script.write_text(TWO, "utf-8")
    tests = Path(__file__).resolve().parents[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(
        [*torchrun, str(tests), str(tests / "trainers"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.count("agreed on") == 2, done.stdout + done.stderr
    one = make_trainer(tmp_path / "one", make_model(dropout=0.0))
    one.train()
    two = load_file(tmp_path / "out" / "two.safetensors")
    for name, value in weights(one.model).items():
        torch.testing.assert_close(two[name], value, rtol=1e-3, atol=1e-5, msg=name)


# The user's guide.

PAGE = Path(__file__).resolve().parents[2] / "docs" / "fine-tune.md"


def test_the_recipe_of_the_guide_has_known_keys() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert resolve({"name": "guide", **parse_yaml(text, "guide")})["task"]["texts"] == "pair"
