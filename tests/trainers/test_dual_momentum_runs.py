"""Dual momentum contrast through recipes: stop and resume, two processes, export."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dual_momentum_runs import tiny_dual, tokenizer_of
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from hf_xlsr import XlsrError
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe

RECIPE = """
method: dual_momentum
languages: [en, fr]
data: {{train: {{path: {train}}}, dev: {{path: {dev}}}, test: {{path: {dev}}}, max_length: 32, cleaning: [normalize]}}
model:
  encoders: {{en: {folder}/en, fr: {folder}/fr}}
  queue_size: 64
  momentum: 0.9
  mask_stale_keys: true
nli: {{train: {{path: {nli}}}}}
training:
  max_steps: 12
  per_device_train_batch_size: 16
  nli_batch_size: 8
  learning_rate: 1e-2
  optim: sgd
  logging_steps: 3
  save_steps: 4
  precision: float32
"""


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained encoder for each language, with its tokenizer and its dropout."""
    folder = tmp_path_factory.mktemp("encoders")
    model = tiny_dual()
    for language in ("en", "fr"):
        model.encoders[language].save_pretrained(folder / language)
        tokenizer_of(language).save_pretrained(folder / language)
    return folder


@pytest.fixture
def recipe(encoders: Path, write_pairs: Any, tmp_path: Path) -> Path:
    rng = random.Random(1)
    words = "one two three red green blue house tree".split()
    lines = [f"{' '.join(rng.choices(words, k=4))}\t{' '.join(rng.choices(words, k=3))}\t{i % 3}\n" for i in range(60)]
    nli = tmp_path / "nli.tsv"
    nli.write_text("premise\thypothesis\tlabel\n" + "".join(lines), "utf-8")
    path = tmp_path / "toy.yaml"
    dev = write_pairs("dev.tsv", 20, seed=2)
    path.write_text(RECIPE.format(train=write_pairs(), dev=dev, folder=encoders, nli=nli), "utf-8")
    return path


def run(recipe: Path, output: Path, *options: str) -> dict[str, torch.Tensor]:
    (resolved,) = load_runs(str(recipe), ["--output_dir", str(output), *options])
    train_recipe(resolved)
    return load_file(output / "training" / "final" / "model.safetensors")


def test_a_run_that_was_stopped_goes_on_bit_equal_and_exports(recipe: Path, tmp_path: Path) -> None:
    whole = run(recipe, tmp_path / "whole", "--optim", "adamw_torch")
    stopped = tmp_path / "stopped"
    shutil.copytree(tmp_path / "whole", stopped)
    for path in (*stopped.glob("training/checkpoint-8"), *stopped.glob("training/checkpoint-12")):
        shutil.rmtree(path)
    for path in ("model", "results.json", "README.md", "training/final"):
        chosen = stopped / path
        shutil.rmtree(chosen) if chosen.is_dir() else chosen.unlink()
    again = run(recipe, stopped, "--optim", "adamw_torch")
    assert {"queues.en.values", "queues.fr.pointer", "nli_head.hidden.weight"} <= whole.keys()
    assert any(name.startswith("momentum_encoders.") for name in whole)
    for name, value in whole.items():
        assert torch.equal(value, again[name]), name
    encoder = SentenceTransformer(str(stopped / "model"))
    vectors = encoder.encode(["one two", "red"], task="en")
    assert vectors.shape == (2, 16) and not (vectors == encoder.encode(["one two", "red"], task="fr")).all()
    results = json.loads((stopped / "results.json").read_text("utf-8"))
    assert any(name.startswith("dev-tatoeba/en-fr/test/") for name in results["metrics"])
    card = (stopped / "README.md").read_text("utf-8")
    assert 'task="en"' in card and "Dual Momentum Contrast" in card
    weights = sum(path.stat().st_size for path in (stopped / "model").rglob("*.safetensors"))
    assert (
        weights < 0.6 * (stopped / "training" / "final" / "model.safetensors").stat().st_size
    )  # no averages, no queues


def test_two_processes_train_like_one_and_hold_equal_queues(recipe: Path, tmp_path: Path) -> None:
    script = str(Path(__file__).resolve().parents[2] / "train.py")
    options = [str(recipe), "--nli_dropout", "0", "--in_batch_negatives", "true"]
    one = [sys.executable, script, *options, "--output_dir", str(tmp_path / "one")]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", script]
    two = [*torchrun, *options, "--output_dir", str(tmp_path / "two"), "--per_device_train_batch_size", "8"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in (one, two)
    ]
    outputs = [process.communicate(timeout=250)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output
    assert "1 process(es)" in outputs[0] and "2 process(es)" in outputs[1]
    weights = [load_file(tmp_path / name / "training" / "final" / "model.safetensors") for name in ("one", "two")]
    assert weights[0].keys() == weights[1].keys()
    assert int(weights[0]["queues.en.filled"]) == 64
    for name, value in weights[0].items():
        if not name.startswith("queues."):
            torch.testing.assert_close(value, weights[1][name], rtol=1e-3, atol=1e-5, msg=name)
            continue
        # Ranks slice each global batch, so that within a step the order of the keys is that of the batch.
        assert value.shape == weights[1][name].shape
        if name.endswith("examples"):
            assert torch.equal(value, weights[1][name])


QUEUES = """
import sys, torch
sys.path[:0] = sys.argv[1:3]
from accelerate import PartialState
state = PartialState(cpu=True)
from dual_momentum_runs import pairs_data, trainer_of, tiny_dual
assert state.num_processes == 2
from pathlib import Path
three = sys.argv[4] == "three"
languages = ["en", "fr", "de"] if three else ["en", "fr"]
pairs = [("en", "fr"), ("en", "de"), ("fr", "de")] if three else [("en", "fr")]
trainer = trainer_of(Path(sys.argv[3]), model=tiny_dual(dropout=0.1, in_batch_negatives=True, languages=languages),
                     languages=languages, train_dataset=pairs_data(pairs), max_steps=9 if three else 5,
                     per_device_train_batch_size=8, queue_prefill=not three)
trainer.train()
for name, value in trainer.model.state_dict().items():
    if name.startswith(("queues.", "momentum_encoders.", "encoders.")):
        parts = [torch.empty_like(value) for _ in range(2)]
        torch.distributed.all_gather(parts, value.contiguous())
        assert torch.equal(*parts), name
counts = {language: trainer.model.queues[language].count for language in languages}
assert all(count >= (16 if three else 64) for count in counts.values()), counts
print("equal on", state.num_processes, flush=True)
import os
os._exit(0)
"""


@pytest.mark.parametrize("case", ["filled before", "three"])
def test_queues_and_averages_are_equal_on_all_ranks(case: str, tmp_path: Path) -> None:
    script = tmp_path / "queues.py"
    script.write_text(QUEUES, "utf-8")
    tests = Path(__file__).resolve().parents[1]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    command = [*torchrun, str(tests), str(tests / "trainers"), str(tmp_path / "out"), case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.stdout.count("equal on") == 2, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.encoders.fr", "nowhere"], "holds no tokenizer that loads|holds no encoder that loads"),
        (["--data.max_length", "64"], "encoder en has 40 positions; lower data.max_length"),
        (["--model.queue_size", "8"], "queue_size is 8, less than the 16 pairs of one optimiser step"),
    ],
)
def test_bad_recipes_are_refused(options: list[str], message: str, recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(XlsrError, match=message):
        run(recipe, tmp_path / "out", *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature", "0"], "recipe 'toy', model: temperature is 0"),
        (["--temperature", "low"], "recipe 'toy': model.temperature is 'low'; it takes a number"),
        (["--use_momentum", "no"], "model.use_momentum is 'no'; it takes true or false"),
        (["--model.queue_size", "64.5"], "model.queue_size is 64.5; it takes a whole number"),
        (["--pooling", "3"], "model.pooling is 3; it takes a word"),
        (["--queue_storage", "int4"], "recipe 'toy', model: queue_storage is 'int4'; did you mean 'int8'"),
    ],
)
def test_mistakes_of_the_model_are_told_before_data_are_prepared(
    options: list[str], message: str, recipe: Path
) -> None:
    with pytest.raises(XlsrError, match=message):
        load_runs(str(recipe), options)


def test_encoders_have_to_cover_the_languages(recipe: Path) -> None:
    text = recipe.read_text("utf-8")
    recipe.write_text(text.replace("languages: [en, fr]", "languages: [en, fr, de]"), "utf-8")
    with pytest.raises(XlsrError, match="model.encoders has en, fr but none for de; name one for each language"):
        load_runs(str(recipe))
