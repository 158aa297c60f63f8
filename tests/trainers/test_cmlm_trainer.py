"""CMLM through recipes: tasks, stages, variants and optimisers."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import two_process_recipes
from cmlm_helpers import tiny_cmlm, tiny_text
from hictl_helpers import framed_tokenizer
from lightweight_trainers import TINY
from pytorch_optimizer import Lamb
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from hf_xlsr.cli import main
from hf_xlsr.data.prepared import PreparedRunningText
from hf_xlsr.data.running_text import prepare_running_text
from hf_xlsr.data.tokenization import train_tokenizer
from hf_xlsr.modeling.cmlm import CmlmModel
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers import CmlmTrainer, CmlmTrainingArguments
from hf_xlsr.trainers.cmlm import lamb_options
from hf_xlsr.utils.errors import XlsrError


@pytest.fixture
def recipe_of(tmp_path: Path) -> Any:
    """Writes the recipe, with more behind it, and gives its path."""
    two_process_recipes.write_recipes(tmp_path)

    def write(more: str = "") -> str:
        path = tmp_path / "toy.yaml"
        path.write_text((tmp_path / "CmlmTrainer.yaml").read_text("utf-8") + more, "utf-8")
        return str(path)

    return write


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "training" / "final" / "model.safetensors")


STAGES = """
stages:
  - {name: cmlm, set: {model: {retrieval_weight: 0.0, nli_weight: 0.0}, training: {max_steps: 6}}}
  - {name: br, set: {model: {cmlm_weight: 0.0, nli_weight: 0.0}, training: {max_steps: 6, learning_rate: 0.0}}}
  - {name: nli, set: {data: {text: null, train: null}, training: {max_steps: 6, save_strategy: steps, save_steps: 2}}}
"""


def test_stages_resume(recipe_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first stage trains a tokenizer on its text, the others go on with it."""
    path = recipe_of(more=STAGES)
    text = Path(path).read_text("utf-8").replace(f"path: {tmp_path / 'tokenizer'}", "vocab_size: 80\n  algorithm: bpe")
    Path(path).write_text(text, "utf-8")
    command = ["train", path, "--output_dir", str(tmp_path / "run")]
    assert main(command) == 0
    folders = [tmp_path / "run" / name for name in ("cmlm", "br", "nli")]
    first, second, third = map(weights, folders)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name  # at a learning rate of 0
    assert any("nli_head" in name for name in third) and not any("nli_head" in name for name in second)
    logs = [json.loads((folder / "training" / "log.json").read_text("utf-8")) for folder in folders]
    parts = [{key for entry in log for key in entry if key.startswith("loss/")} for log in logs]
    assert parts == [{"loss/cmlm"}, {"loss/retrieval"}, {"loss/nli"}]
    # As if killed inside the last stage: it goes on, and ends with the same weights.
    training = folders[2] / "training"
    for torn in (training / "final", training / "checkpoint-6", training / "checkpoint-4"):
        shutil.rmtree(torn, ignore_errors=True)
    (folders[2] / "results.json").unlink()
    capsys.readouterr()
    assert main(command) == 0
    said = capsys.readouterr().out
    assert said.count(" is done: ") == 2 and "checkpoint-2" in said
    for name, value in weights(folders[2]).items():
        assert torch.equal(value, third[name]), name


@pytest.mark.parametrize(
    "variant", ["--conditioning skip", "--conditioning none", "--conditioning next_sentence --max_length 20"]
)
def test_variants_run_and_export(variant: str, recipe_of: Any, tmp_path: Path) -> None:
    more = ["--output_dir", str(tmp_path / "run"), "--max_steps", "2", "--save_steps", "2", *variant.split()]
    (recipe,) = load_runs(recipe_of(), more)
    train_recipe(recipe)
    exported = SentenceTransformer(str(tmp_path / "run" / "model"))
    there = exported.encode(["red house", "tree"], convert_to_tensor=True)
    model = CmlmModel.from_pretrained(tmp_path / "run" / "training" / "final").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    for row, sentence in zip(there, ("red house", "tree"), strict=True):
        with torch.no_grad():
            vector = model.encode_sentences(tokenizer(sentence, return_tensors="pt")["input_ids"])[0]
        torch.testing.assert_close(row, vector / vector.norm(), rtol=1e-4, atol=1e-5)


def arguments(tmp_path: Path, **options: Any) -> CmlmTrainingArguments:
    values = {**TINY, "per_device_train_batch_size": 4, "max_steps": 1, "save_strategy": "steps"}
    return CmlmTrainingArguments(str(tmp_path / "out"), **{**values, **options})


def running_text(tmp_path: Path) -> tuple[Any, PreparedRunningText]:
    tokenizer = framed_tokenizer()
    path = tmp_path / "text.tsv"
    sentences = [tokenizer.decode(row["first_ids"], skip_special_tokens=True) for row in tiny_text(tokenizer, 12)]
    path.write_text("text\tdocument\n" + "".join(f"{text}\td\n" for text in sentences), "utf-8")
    source = {"path": str(path), "columns": "text=text,document=document", "languages": ["en"]}
    text = prepare_running_text(
        source, languages=["en"], tokenizers=tokenizer, folder=tmp_path / "data", evaluation_texts=[], cleaning=None
    )
    return tokenizer, text


def test_lamb_keeps_groups_of_weight_decay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer, text = running_text(tmp_path)

    def optimizer(**resume: Any) -> Any:
        options = {"weight_decay": 0.01, "adam_beta2": 0.99, "adam_epsilon": 1e-6, "save_steps": 1, "max_steps": 2}
        args = arguments(tmp_path, optimizer="lamb", **options)
        trainer = CmlmTrainer(tiny_cmlm(len(tokenizer)), args, train_dataset=text, processing_class=tokenizer)
        trainer.train(**resume)
        return trainer.optimizer.optimizer

    lamb = optimizer()
    assert isinstance(lamb, Lamb)
    assert {group["weight_decay"] for group in lamb.param_groups} == {0.0, 0.01}
    assert lamb.param_groups[0]["betas"] == (0.9, 0.99) and lamb.param_groups[0]["eps"] == 1e-6
    checkpoint = tmp_path / "out" / "checkpoint-1"
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(XlsrError, match="pytorch-optimizer"):
        optimizer(resume_from_checkpoint=str(checkpoint))
    with caplog.at_level(logging.WARNING):
        assert isinstance(optimizer(), torch.optim.AdamW)
    assert "hf-xlsr[lamb]" in caplog.text


def test_lamb_equals_algorithm_2() -> None:
    """Algorithm 2 of You et al.: every step is as long as the learning rate times the weights, however long those are."""
    args = CmlmTrainingArguments(output_dir="unused", optimizer="lamb", learning_rate=0.01, adam_epsilon=1e-12)
    options = lamb_options(args)
    assert options is not None
    for decay in (0.0, 0.1):
        torch.manual_seed(0)
        weight = torch.nn.Parameter(30 * torch.randn(8, 4, dtype=torch.float64))  # of norm 170
        optimizer = options[0]([{"params": [weight], "weight_decay": decay}], **options[1])
        first, second = torch.zeros_like(weight), torch.zeros_like(weight)
        for _ in range(5):
            before, gradient = weight.detach().clone(), torch.randn_like(weight)
            weight.grad = gradient.clone()
            optimizer.step()
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            update = first / second.sqrt() + decay * before
            expected = before - 0.01 * before.norm() / update.norm() * update
            torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("weights", "rows"), [((1.0, 0.2, 0.0), 12), ((0.0, 1.0, 0.0), 12), ((0.0, 0.0, 1.0), 6)])
def test_batch_size_of_each_task(weights: tuple[float, ...], rows: int, recipe_of: Any, tmp_path: Path) -> None:
    names = ("cmlm_weight", "retrieval_weight", "nli_weight")
    more = [word for name, value in zip(names, weights, strict=True) for word in (f"--{name}", str(value))]
    more += ["--retrieval_batch_size", "12", "--nli_batch_size", "6", "--output_dir", str(tmp_path / "run")]
    (recipe,) = load_runs(recipe_of(), more)
    data = recipe.prepare(tmp_path / "data", iter(()))
    sets: dict[str, Any] = {"dev": [], "test": []}
    trainer = recipe.build_trainer(recipe.arguments(tmp_path / "out", sets), data, sets)
    _, sampler = trainer.train_batches()
    tasks = Counter(key.task for key in next(iter(sampler)))
    assert tasks == ({"main": 16, "retrieval": 12} if weights[0] else {"main": rows})


def test_packed_sentences_are_trained_on(tmp_path: Path) -> None:
    tokenizer, text = running_text(tmp_path)
    options: dict[str, Any] = {"processing_class": tokenizer, "train_dataset": text}
    plain, packed = (
        CmlmTrainer(tiny_cmlm(len(tokenizer)), arguments(tmp_path, pack_sentences=pack, max_steps=1), **options)
        for pack in (False, True)
    )
    lengths = [trainer.datasets["text"].lengths.max() for trainer in (plain, packed)]
    assert lengths[0] < lengths[1] <= 32
    assert packed.train().training_loss > 0


def test_data_of_another_vocabulary(recipe_of: Any, tmp_path: Path) -> None:
    """As when the stage before is trained anew, with another tokenizer, while this one is half-way."""
    (recipe,) = load_runs(recipe_of(), ["--output_dir", str(tmp_path / "run"), "--max_steps", "1"])
    train_recipe(recipe)
    words = [f"word{number}" for number in range(40)]
    train_tokenizer(words, vocab_size=60, algorithm="bpe", frame=True).save_pretrained(tmp_path / "tokenizer")
    with pytest.raises(XlsrError, match="tokenizers"):
        train_recipe(recipe)
