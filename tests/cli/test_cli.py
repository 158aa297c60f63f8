from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_helpers import failing

from hf_xlsr.cli import main
from hf_xlsr.cli.options import parse_routes
from hf_xlsr.runs.own_data import comma_separated
from hf_xlsr.utils.errors import XlsrError

TOY = """
method: lightweight
languages: [en, fr]
data:
  train: {{path: {train}}}
  test: {{path: {test}}}
  max_length: 32
tokenizer: {{vocab_size: 80, algorithm: bpe}}
model:
  encoder: {{hidden_size: 16, num_attention_heads: 2, intermediate_size: 32, max_position_embeddings: 40}}
training: {{max_steps: 4, per_device_train_batch_size: 16, logging_steps: 2, save_strategy: "no", precision: float32}}
"""


@pytest.fixture
def toy(write_pairs: Any, tmp_path: Path) -> Path:
    train = write_pairs()
    test = write_pairs("test.tsv", 12, seed=9)
    recipe = tmp_path / "toy.yaml"
    recipe.write_text(TOY.format(train=train, test=test), "utf-8")
    return recipe


def test_training_prints_and_keeps_its_folder(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "[bold]run[none]"
    command = ["train", str(toy), "--output_dir", str(output)]
    assert main(command) == 0
    assert str(output / "model") in capsys.readouterr().out

    results = json.loads((output / "results.json").read_text())
    assert results["metrics"]["test-tatoeba/en-fr/test/pairs"] == 12
    assert results["settings"]["recipe"]["tokenizer"]["vocab_size"] == 80

    error = failing(capsys, *command, "--seed", "2")
    assert "seed" in error
    assert "--overwrite" in error
    assert json.loads((output / "results.json").read_text()) == results


def test_finished_run_is_kept(toy: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    weights_file = output / "model" / "model.safetensors"
    training = output / "training"
    command = ["train", str(toy), "--output_dir", str(output), "--save_strategy", "steps", "--save_steps", "2"]
    command += ["--lr_scheduler_type", "constant"]
    assert main(command) == 0
    weights = weights_file.read_bytes()
    seconds = json.loads((training / "seconds.json").read_text())
    assert seconds > 0

    assert main(command) == 0
    assert weights_file.read_bytes() == weights
    assert json.loads((training / "seconds.json").read_text()) == seconds
    assert set(training.glob("checkpoint-*")) == {training / "checkpoint-2", training / "checkpoint-4"}


def test_training_finds_what_prepare_made(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("HF_XLSR_CACHE", str(cache))
    assert main(["prepare", str(toy), "--max_length", "16"]) == 0
    reports = set(cache.glob("*/report.json"))  # of clean rows, and of tokenised ones
    assert len(reports) == 2

    assert main(["train", str(toy), "--max_length", "16", "--output_dir", str(tmp_path / "run")]) == 0
    assert set(cache.glob("*/report.json")) == reports


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (["--data.train.path", "gone.tsv"], "gone.tsv"),
        (["--per_device_train_batch_size", "1"], "batch of one"),
        (["--model.pooling", "sum"], "pooling"),
        (["--model.encoder.path", "gone"], "model.encoder"),
    ],
)
def test_invalid_training(
    override: list[str], message: str, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in failing(capsys, "train", str(toy), "--output_dir", str(tmp_path / "run"), *override)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--protocol", "tatoba", "--data", "x.tsv"], "did you mean 'tatoeba'"),
        (["--protocol", "tatoeba", "--data", "gone.tsv"], "gone.tsv"),
        (["--protocol", "tatoeba", "--data", "x.tsv", "--pool", "y.tsv"], "--pool"),
        (["--protocol", "tatoeba", "--data", "x.tsv", "--colums", "a=b"], "--columns"),
        (["--protocol", "tatoeba"], "--data"),
        (["--data", "x.tsv"], "--protocol"),
        (["--protocol", "sts", "--data", "x.tsv", "--k", "3"], "--k"),
        (["--protocol", "zero-shot", "--data", "x.tsv", "--tune", "x.tsv", "--hold-out", "text"], "not both"),
        (["--protocol", "mteb", "--data", "mteb:STSBenchmark", "--dtype", "onnx"], "onnx"),
        (["--protocol", "sts", "--data", "x.tsv", "--device", "gpu"], "'gpu'"),
    ],
)
def test_invalid_evaluation(
    arguments: list[str],
    message: str,
    tiny_export: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.tsv").touch()
    assert message in failing(capsys, "evaluate", tiny_export, *arguments)


def test_list_of_protocols(capsys: pytest.CaptureFixture[str]) -> None:
    from hf_xlsr.evaluation.protocol import PROTOCOLS

    assert main(["evaluate", "--list"]) == 0
    written = capsys.readouterr().out
    for name in PROTOCOLS:
        assert name in written
    assert "premise, hypothesis, label" in written
    assert "--tune-gold" in written


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        ("trian", "'train'"),
        ("push run --repo a/b --what al", "'all'"),
        ("card r --out x", "--output"),
    ],
)
def test_nearest_name(words: str, nearest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nearest in failing(capsys, *words.split())


def test_show_prints_the_resolved_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "quickstart", "--show", "--seed", "5"]) == 0
    assert "seed: 5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected", "absent"),
    [
        (["recipes"], ["moco_bert_ablation_temperature", "start_cmlm", "own data", "$HF_XLSR_DATA"], []),
        (["recipes", "QUICK"], ["lightweight", "quickstart", "corpus bible"], ["dual_momentum"]),
        (["corpora", "bible"], ["31,102", "hf-xlsr[bible]"], ["opus-100"]),  # brackets are no markup
        ([], ["train"], []),
    ],
)
def test_lists_fit_a_terminal(
    words: list[str], expected: list[str], absent: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    text = capsys.readouterr().out
    for entry in expected:
        assert entry in text
    for entry in absent:
        assert entry not in text
    assert max(map(len, text.splitlines())) <= 80


def test_comma_separated_values() -> None:
    assert comma_separated(" en, de ,") == ["en", "de"]
    assert comma_separated(None) == []


def test_routes() -> None:
    assert parse_routes("en = source, de=target") == {"en": "source", "de": "target"}
    assert parse_routes(None) == {}
    with pytest.raises(XlsrError, match="--routes"):
        parse_routes("en=source,de")
