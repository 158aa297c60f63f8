"""CMLM through recipes: tasks, stages, variants and optimisers."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import two_process_recipes
from pytorch_optimizer import Lamb
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from seven_trainers import trainer_of
from transformers import AutoTokenizer

from hf_xlsr.cli import main
from hf_xlsr.data.seen import SeenHashes
from hf_xlsr.modeling.cmlm import CmlmModel
from hf_xlsr.runs.recipe import load_runs
from hf_xlsr.runs.train import train_recipe
from hf_xlsr.trainers import CmlmTrainingArguments
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


@pytest.mark.slow
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


@pytest.mark.sample(1)
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


def test_lamb_equals_algorithm_2() -> None:
    """Algorithm 2 of You et al.: every step is as long as the learning rate times the weights, however long those are."""
    args = CmlmTrainingArguments(output_dir="unused", optimizer="lamb", learning_rate=0.01, adam_epsilon=1e-12)
    options = lamb_options(args)
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


@pytest.mark.parametrize(
    ("optimizer", "given", "expected"),
    [
        ("trainer", None, torch.optim.AdamW),
        ("lamb", None, Lamb),
        ("lamb", (torch.optim.SGD, {"lr": 0.1}), torch.optim.SGD),
    ],
)
def test_optimizer_of_the_arguments_unless_one_is_given(
    optimizer: str, given: Any, expected: type, tmp_path: Path
) -> None:
    settings = {"optimizer": optimizer}
    trainer = trainer_of("Cmlm", tmp_path, settings=settings, optimizer_cls_and_kwargs=given)
    assert isinstance(trainer.create_optimizer(), expected)


def test_lamb_without_its_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_xlsr.utils.extras.find_spec", lambda _: None)
    with pytest.raises(XlsrError, match=r"pytorch_optimizer.*hf-xlsr\[lamb\]"):
        CmlmTrainingArguments(output_dir="unused", optimizer="lamb")


@pytest.mark.parametrize(("optimizer", "used"), [("lamb", "UnclampedLamb"), ("trainer", "AdamW")])
def test_results_and_card_name_the_optimizer_that_was_used(
    optimizer: str, used: str, recipe_of: Any, tmp_path: Path
) -> None:
    words = [
        "--output_dir",
        str(tmp_path / "run"),
        "--max_steps",
        "2",
        "--training.optimizer",
        optimizer,
        "--optim",
        "adamw_torch",
    ]
    (recipe,) = load_runs(recipe_of(), words)
    train_recipe(recipe)
    settings = json.loads((tmp_path / "run" / "results.json").read_text("utf-8"))["settings"]
    assert settings["optimizer"].startswith(used)
    assert settings["optimizer"] in (tmp_path / "run" / "README.md").read_text("utf-8")


@pytest.mark.parametrize(("weights", "rows"), [((1.0, 0.2, 0.0), 12), ((0.0, 1.0, 0.0), 12), ((0.0, 0.0, 1.0), 6)])
def test_batch_size_of_each_task(weights: tuple[float, ...], rows: int, recipe_of: Any, tmp_path: Path) -> None:
    names = ("cmlm_weight", "retrieval_weight", "nli_weight")
    more = [word for name, value in zip(names, weights, strict=True) for word in (f"--{name}", str(value))]
    more += ["--retrieval_batch_size", "12", "--nli_batch_size", "6", "--output_dir", str(tmp_path / "run")]
    (recipe,) = load_runs(recipe_of(), more)
    data = recipe.read_data(SeenHashes())
    sets: dict[str, Any] = {"dev": [], "test": [], "guard": {}}
    trainer = recipe.build_trainer(recipe.arguments(tmp_path / "out", sets), data, sets)
    _, sampler = trainer.train_batches()
    tasks = Counter(key.task for key in next(iter(sampler)))
    assert tasks == ({"main": 16, "retrieval": 12} if weights[0] else {"main": rows})
